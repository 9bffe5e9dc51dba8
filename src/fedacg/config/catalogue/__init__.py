"""What a description can name: data sets, splits, networks, callbacks, and methods and parts, all without torch.

What an entry of a method is stands here; clients.py has the methods that change what clients do, servers.py all
others, parts.py what is added to a method in its name. config/methods.py puts them together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DATA_SETS = (
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "tiny-imagenet",
    "femnist",
    "celeba",
    "shakespeare",
    "synthetic",
    "folder",
)
SPLITS = ("iid", "dirichlet", "dirichlet-unequal", "shards", "quantity", "natural")
MODELS = ("logistic", "mlp", "cnn", "lenet", "resnet18", "femnist-cnn", "celeba-cnn", "lstm")
CALLBACKS = ("early-stopping", "time-limit", "best-checkpoint")
PROFILES = ("phones", "hospitals", "datacentre")
GIVEN = "python"
"""Placeholder in a description for data or a model given as Python objects."""


@dataclass(frozen=True)
class Option:
    """A numeric option of a method, with its default and range."""

    default: float
    low: float
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = True
    only: tuple[float, ...] = ()
    """The allowed values, if there are few."""
    whole: bool = False
    """Whether it is a whole number."""
    search: tuple[float, ...] = ()
    """The values that tuning tries: those its paper searched, or else values around the default."""

    def admits(self, value: float) -> bool:
        if self.only:
            return value in self.only
        if self.whole and value != value // 1:
            return False
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        if self.only:
            return "{" + ", ".join(f"{value:g}" for value in self.only) + "}"
        high = "∞" if self.high == float("inf") else f"{self.high:g}"
        kind = "whole numbers of " if self.whole else ""
        return kind + f"{'(' if self.low_open else '['}{self.low:g}, {high}{')' if self.high_open else ']'}"


def rate(default: float, *search: float) -> Option:
    """A coefficient that may be zero."""
    return Option(default, low=0, search=search)


def positive(default: float, *search: float) -> Option:
    """A coefficient above zero."""
    return Option(default, low=0, low_open=True, search=search)


def count(default: int) -> Option:
    """A count of at least one."""
    return Option(default, low=1, whole=True)


def fraction(default: float, *search: float) -> Option:
    """A decay in [0, 1)."""
    return Option(default, low=0, high=1, search=search)


@dataclass(frozen=True)
class Entry:
    """A method of the catalogue: its source, its options, and the function that builds it."""

    name: str
    title: str
    reference: str
    equation: str
    options: Mapping[str, Option]
    build: str | Callable[..., Any]
    """A function from the options to a `Method`, or its name as `package.module:function`.

    The full equations are at the top of its module.
    """
    link: str = ""
    """Link to the paper."""
    group: str = ""
    """What it changes; follows from its file of the catalogue."""


@dataclass(frozen=True)
class Modifier:
    """A `+part` that turns one method into another, or refuses with the reason."""

    name: str
    title: str
    equation: str
    options: Mapping[str, Option]
    apply: str | Callable[..., Any]
    """A function from a `Method` and the options to a `Method`, or its name."""
    reference: str = ""
    link: str = ""
    """Link to the paper."""
