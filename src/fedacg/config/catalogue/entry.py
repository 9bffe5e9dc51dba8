"""What the catalogue is made of: methods, parts, and the options that they take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
    whole: bool = False
    """Whether it counts something."""
    search: tuple[float, ...] = ()
    """The values that tuning tries: those that its paper searched, or else ones that bracket the default."""

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
    """A coefficient that may not."""
    return Option(default, low=0, low_open=True, search=search)


def count(default: int) -> Option:
    """How many of something, at least one."""
    return Option(default, low=1, whole=True)


def fraction(default: float, *search: float) -> Option:
    """A decay in [0, 1)."""
    return Option(default, low=0, high=1, search=search)


@dataclass(frozen=True)
class Entry:
    """A method of the catalogue: where it comes from, what it takes, and what builds it."""

    name: str
    title: str
    reference: str
    equation: str
    options: Mapping[str, Option]
    build: str | Callable[..., Any]
    """A function from the options to a `Method`, or where it is found: `package.module:function`.

    The equations in full are at the top of the module that it is in.
    """
    link: str = ""
    """The address of the paper."""
    group: str = ""
    """What it changes; given by the file of the catalogue that it is in."""


@dataclass(frozen=True)
class Modifier:
    """A `+part` that turns one method into another, or refuses with the reason."""

    name: str
    title: str
    equation: str
    options: Mapping[str, Option]
    apply: str | Callable[..., Any]
    """A function from a `Method` and the options to a `Method`, or where it is found."""
    reference: str = ""
    link: str = ""
    """The address of the paper."""
