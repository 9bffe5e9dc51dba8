"""A federated method = server rule × objective × local step × upload chain."""

from dataclasses import dataclass, replace

from fedacg.errors import InputError
from fedacg.methods.parts import Correction, Empirical, LocalStep, Loss, LossFunction, Part
from fedacg.methods.rules import ServerRule
from fedacg.methods.upload import Chain, Link

NEEDS = {
    "stages": "a model made of stages and a head (fedacg.models.StagedModel)",
    "full participation": "every client in every round: cohort.fraction = 1, no absent and no dropped clients",
    "uniform weights": "cohort.weights = 'uniform'",
    "single updates": "a server that sees the update of each client",
    "one place": "the data of all clients in one place, which only a simulation has",
    "spaced cohorts": "cohort.draw = 'spaced' with a cohort.gap of at least its bands",
    "no buffers": "a model without buffers, such as the running means of batch normalisation",
}
"""Requirements that a method may have of a federation; they are checked before anything runs."""


@dataclass(frozen=True)
class Method:
    """What a method is made of: server rule × objective × local step × upload chain."""

    rule: ServerRule
    objective: tuple[Part, ...] = (Empirical(),)
    """Losses and corrections, which add up, and parts that only send or keep something."""
    step: LocalStep = LocalStep()  # noqa: RUF009 - it holds nothing
    upload: tuple[Link, ...] = ()
    """What happens to the vectors that clients send, in this order; by default nothing."""

    def __post_init__(self) -> None:
        for link in self.upload[:-1]:
            if link.last:
                raise InputError(f"no link can follow {type(link).__name__}, which writes the bytes to send")
        if any(link.bounds for link in self.upload):
            if "single updates" in self.needs:
                raise InputError("its server must see the update of each client, but only their sum is visible")
            for link in self.upload:
                if not (link.bounds or link.shrinks):
                    raise InputError(
                        f"{type(link).__name__} in its upload can make an update longer than the bound that it "
                        "was clipped to, and the noise would no longer cover it"
                    )

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that serves a client."""
        return (*self.objective, self.step)

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(part for part in self.objective if isinstance(part, Loss))

    @property
    def corrections(self) -> tuple[Correction, ...]:
        return tuple(part for part in self.objective if isinstance(part, Correction))

    @property
    def chain(self) -> Chain:
        return Chain(self.upload)

    @property
    def empirical(self) -> Empirical:
        """The plain loss on data, which models are evaluated by."""
        return next((loss for loss in self.losses if isinstance(loss, Empirical)), Empirical())

    @property
    def needs(self) -> frozenset[str]:
        """Its requirements of a federation, as keys of `NEEDS`."""
        parts: tuple[Part | Link, ...] = (*self.parts, *self.upload)
        return self.rule.needs.union(*(part.needs for part in parts))

    @property
    def summary(self) -> str:
        """Its parts by name."""
        made_of = [" + ".join(type(part).__name__ for part in self.objective)]
        made_of += [type(self.step).__name__] if type(self.step) is not LocalStep else []
        made_of += [" → ".join(type(link).__name__ for link in self.upload)] if self.upload else []
        return " × ".join([type(self.rule).__name__, *made_of])

    def with_loss(self, function: LossFunction) -> "Method":
        """The same method on a user's own loss in place of cross-entropy."""
        if not any(isinstance(loss, Empirical) for loss in self.losses):
            raise InputError("this method defines its own loss on the logits; leave loss out")
        swap = tuple(Empirical(function) if isinstance(part, Empirical) else part for part in self.objective)
        return replace(self, objective=swap)
