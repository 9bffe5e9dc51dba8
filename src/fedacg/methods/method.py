"""A federated method = server rule × local objective × link."""

from dataclasses import dataclass, replace

from fedacg.core.messages import FullPrecision, Link
from fedacg.errors import InputError
from fedacg.methods.objective import Correction, Empirical, Loss, LossFunction
from fedacg.methods.rules import ServerRule


@dataclass(frozen=True)
class Method:
    """The three choices that make a method. Objectives add up, so a combination needs no code of its own."""

    rule: ServerRule
    losses: tuple[Loss, ...] = (Empirical(),)
    corrections: tuple[Correction, ...] = ()
    link: Link = FullPrecision()  # noqa: RUF009 - it holds nothing
    down: int = 1
    """Model-sized vectors a client receives a round."""
    sends: tuple[str, ...] = ("delta",)
    """The names of the model-sized vectors it sends; `delta` is among them."""
    state: int = 0
    """Model-sized vectors it must keep between rounds."""

    @property
    def up(self) -> int:
        """Model-sized vectors a client sends a round."""
        return len(self.sends)

    @property
    def empirical(self) -> Empirical:
        """The plain loss on data, which models are evaluated by."""
        return next((loss for loss in self.losses if isinstance(loss, Empirical)), Empirical())

    @property
    def parts(self) -> str:
        """What it is made of: server rule × local objective."""
        objective = " + ".join(type(part).__name__ for part in (*self.losses, *self.corrections))
        return f"{type(self.rule).__name__} × {objective}"

    @property
    def staged(self) -> bool:
        """Whether it looks inside the network, which must then be made of stages and a head."""
        return any(part.staged for part in (*self.losses, *self.corrections))

    def with_loss(self, function: LossFunction) -> "Method":
        """The same method on a user's own loss in place of cross-entropy."""
        if not any(isinstance(loss, Empirical) for loss in self.losses):
            raise InputError("this method defines its own loss on the logits and takes no other")
        swap = tuple(Empirical(function) if isinstance(part, Empirical) else part for part in self.losses)
        return replace(self, losses=swap)
