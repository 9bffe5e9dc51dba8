"""The parts of a client's work: losses for autograd, corrections of g, and the local step.

A part lives in a worker and serves one client after the other: `begin` before the client's local steps, `end` and
`keep` after them. A part that fuses serves many clients at once: its vectors are then matrices with one row per
client, and those that still take steps are always the first rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedacg.core.round import Message
from fedacg.core.tensors import IGNORED, Inputs, call
from fedacg.core.vector import FlatModel, rows_of
from fedacg.methods.visit import Assignment, Departure
from fedacg.models.networks import StagedModel
from fedacg.models.row_gradients import CrossEntropy
from fedacg.models.rows import NetworkRows, RowLayers

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From the model's outputs and the labels to the mean loss of a batch."""


class Forward:
    """One batch on its way through the model; what several losses need is computed once."""

    def __init__(self, module: nn.Module, x: Inputs, y: Tensor) -> None:
        self.module, self.x, self.y = module, x, y

    @property
    def only(self) -> Tensor:
        """The inputs of a staged model, which takes one tensor."""
        assert isinstance(self.x, Tensor)
        return self.x

    def outputs_of(self, module: nn.Module) -> Tensor:
        """A network's outputs for the batch."""
        output: Tensor = call(module, self.x)
        return output

    @cached_property
    def stage_outputs(self) -> list[Tensor]:
        """The output of each stage of a staged model."""
        assert isinstance(self.module, StagedModel)
        return self.module.stage_outputs(self.only)

    @property
    def features(self) -> Tensor:
        """The input of a staged model's head."""
        return self.stage_outputs[-1] if self.stage_outputs else self.only

    @cached_property
    def logits(self) -> Tensor:
        if isinstance(self.module, StagedModel) and type(self.module).forward is StagedModel.forward:
            return self.module.branch(self.features, len(self.module.stages))
        return self.outputs_of(self.module)


class ForwardRows:
    """The batches of many clients on their way through the model, each with the parameters in its row of w.

    Inputs and labels have two dimensions in front, clients and examples.
    """

    def __init__(self, flat: FlatModel, w: Tensor, x: Tensor, y: Tensor, layers: RowLayers) -> None:
        self.x, self.y = x, y
        self._module, self._network = flat.module, NetworkRows(flat, w, layers)

    @cached_property
    def features(self) -> Tensor:
        """The input of a staged model's head."""
        return self._network.features(self.x)

    @cached_property
    def logits(self) -> Tensor:
        if type(self._module) is StagedModel:
            return self._network.head(self.features)
        return self._network.logits(self.x)

    @cached_property
    def counts(self) -> Tensor:
        """Where an example's label is not `IGNORED`."""
        return self.y != IGNORED

    def outputs_of(self, module: nn.Module) -> Tensor:
        """The outputs for all batches of a network that is the same for all clients."""
        outputs: Tensor = module(self.x.flatten(0, 1))
        return outputs.view(*self.x.shape[:2], *outputs.shape[1:])

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Every client's mean cross-entropy over the examples that count."""
        losses: Tensor = CrossEntropy.apply(logits, self.y)  # type: ignore[no-untyped-call]
        return losses

    def mean(self, each: Tensor) -> Tensor:
        """Every client's mean of a number for each label, which is 0 where the label does not count."""
        return each.flatten(1).sum(dim=1) / self.counts.flatten(1).sum(dim=1).to(each.dtype)


class Part(ABC):  # noqa: B024 - each of its methods has a sensible default
    """A piece of what a client does; the plain one takes no part in the steps and can only send and keep."""

    needs: frozenset[str] = frozenset()
    """Its requirements of a federation, as keys of `methods.method.NEEDS`."""

    @property
    def fuses(self) -> bool:
        """Whether it can serve many clients at once, as rows; most cannot."""
        return False

    def begin(self, assignment: Assignment) -> None:  # noqa: B027 - most parts need no preparation
        """A client is about to take its local steps."""

    def start(self, point: Tensor) -> Tensor:
        """Where the client's steps start, from where they would without this part: at φ, unless it says otherwise.

        Called after `begin`; a new tensor, and a row for each of several clients, where it moves the point.
        """
        return point

    def end(self, delta: Tensor, departure: Departure) -> None:  # noqa: B027 - most parts send nothing
        """The steps are done; Δ_i is w_i less the point they started at, which is φ unless a part moved it.

        Parts that send something more, or something else, do so here.
        """

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        """What the client keeps until its next visit; `arrived` gives a sent vector as the server sees it."""
        return {}


class Loss(Part):
    """A scalar on a batch, differentiated by autograd.

    One that fuses has `of_rows` as well, in which only the examples count whose label is not `IGNORED`.
    """

    @abstractmethod
    def __call__(self, forward: Forward) -> Tensor: ...

    def of_rows(self, forward: ForwardRows) -> Tensor:
        """The same for many clients at once, one number each: the first of those that `begin` was given."""
        raise NotImplementedError(f"{type(self).__name__} does not fuse")


class Correction(Part):
    """A change of the flat gradient that autograd has no part in; one that fuses changes every row."""

    pulls: ClassVar[bool] = False
    """Whether it pulls w towards φ, so that a second pull would make no sense."""

    @abstractmethod
    def correct(self, g: Tensor, w: Tensor) -> None:
        """Change g in place, at the point w; corrections before this one in the objective are in it."""


class Offset(Correction):
    """A correction that adds a vector that follows from w alone.

    If it is a method's first, g starts from it before the backward pass, instead of from zero, which is cheaper
    than adding it afterwards.
    """

    def begin(self, assignment: Assignment) -> None:
        self._scratch = assignment.scratch

    @abstractmethod
    def offset(self, w: Tensor, out: Tensor) -> Tensor:
        """The vector at w, or a row for each row of w: one that exists already, or written to `out`."""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.add_(self.offset(w, self._scratch[: len(w)]))

    @property
    def starts(self) -> bool:
        """Whether g may start from it; not where a subclass changes g in a way of its own."""
        return type(self).correct is Offset.correct


class Shift(Offset):
    """An offset that is the same at every step of a visit; `begin` sets it."""

    fuses = True
    shift: Tensor

    def offset(self, w: Tensor, out: Tensor) -> Tensor:
        return rows_of(self.shift, w)


_gradient_of_squares = torch.ops.aten.mse_loss_backward.grad_input
"""2s(x − y), written to `grad_input`."""


class Pull(Offset):
    """μ(w − a), towards φ unless `begin` sets another anchor a; exactly zero at w = a."""

    pulls = True
    fuses = True
    anchor: Tensor

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self.anchor = assignment.phi
        self._half = assignment.phi.new_full((), self.mu / 2)

    def offset(self, w: Tensor, out: Tensor) -> Tensor:
        if not self.mu:
            return out.zero_()
        # The gradient of μ/2 ‖w − a‖², for which PyTorch has a kernel: one pass over memory in place of two.
        _gradient_of_squares(self._half, w, rows_of(self.anchor, w), 0, grad_input=out)
        return out


Start = Tensor | Callable[[Tensor], object]
"""A vector that a gradient is added to, or a function that writes it to the memory it is given."""


class Gradient(Protocol):
    """The gradient of the losses on a step's batch."""

    def __call__(self, at: Tensor | None = None) -> Tensor:
        """g at w, or at another point, without corrections; valid until the next call.

        The point may be written over the last gradient: the next then has memory of its own.
        In all calls, dropout draws the same mask and normalisation statistics move once.
        """
        ...

    def onto(self, start: Start, at: Tensor | None = None, *, times: float = 1.0) -> Tensor:
        """start + times·g, valid as long; `start` may be what the last call returned, or what a function writes.

        Cheaper than adding afterwards, as autograd adds to what is in g.
        """
        ...

    def last(self, at: Tensor | None = None) -> Tensor:
        """As a call, for the gradient that the step goes against as it is, after which it asks for no other.

        What the method's first correction adds at w may be in it already. A step that makes its direction from
        several gradients does not call this, and corrections are added to what it returns.
        """
        ...

    def of(self, loss: "Callable[[Forward], Tensor]") -> Tensor:
        """The gradient of another loss on the same batch at w, valid as long; not for many clients at once."""
        ...


class LocalStep(Part):
    """The direction of a step before corrections, clipping and decay: against g(w; B), unless a method differs."""

    corrected: ClassVar[bool] = True
    """Whether corrections may be added to its direction."""

    @property
    def fuses(self) -> bool:
        return True

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        """The vector that the step goes against, from one or more gradients on its batch."""
        return gradient.last()


class Empirical(Loss):
    """ℓ_i, the client's own loss on its data: cross-entropy unless the user brings another."""

    def __init__(self, function: LossFunction = torch.nn.functional.cross_entropy) -> None:
        self.function = function

    @property
    def fuses(self) -> bool:
        """Cross-entropy does; what a user's own loss makes of a label that counts for nothing is not known."""
        return self.function is torch.nn.functional.cross_entropy

    def __call__(self, forward: Forward) -> Tensor:
        return self.function(forward.logits, forward.y)

    def of_rows(self, forward: ForwardRows) -> Tensor:
        assert self.fuses
        return forward.cross_entropy(forward.logits)


class Proximal(Pull):
    """The pull μ/2 ‖w − φ‖², whose gradient is μ(w − φ)."""
