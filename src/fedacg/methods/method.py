"""A federated method = server rule × local objective × link, and how one is described in the catalogue."""

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True)
class Option:
    """A number a method takes, with its default and the range it must lie in."""

    default: float
    low: float
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = True
    only: tuple[float, ...] = ()
    """The values there are, where they are few."""

    def admits(self, value: float) -> bool:
        if self.only:
            return value in self.only
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        if self.only:
            return "{" + ", ".join(f"{value:g}" for value in self.only) + "}"
        high = "∞" if self.high == float("inf") else f"{self.high:g}"
        return f"{'(' if self.low_open else '['}{self.low:g}, {high}{')' if self.high_open else ']'}"


def rate(default: float) -> Option:
    """A coefficient that may be zero."""
    return Option(default, low=0)


def positive(default: float) -> Option:
    """A coefficient that may not."""
    return Option(default, low=0, low_open=True)


def fraction(default: float) -> Option:
    """A decay in [0, 1)."""
    return Option(default, low=0, high=1)


@dataclass(frozen=True)
class Entry:
    """A method of the catalogue: where it comes from, what it takes, and how it is composed."""

    name: str
    title: str
    reference: str
    equation: str
    options: Mapping[str, Option]
    build: Callable[..., Method]


@dataclass(frozen=True)
class Modifier:
    """A `+part` that turns one method into another, or refuses with the reason."""

    name: str
    title: str
    equation: str
    options: Mapping[str, Option]
    apply: Callable[..., Method]
