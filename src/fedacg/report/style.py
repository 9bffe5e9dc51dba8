"""How methods are drawn: one colour for each, the same in every figure and on every page.

There are more methods than colours the eye can distinguish, so methods that share a colour have different dashes.
Neighbouring colours have different dashes too, so that curves can be distinguished in grey. FedACG alone has its
colour, and its line is bold.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from fedacg.config.methods import METHODS

PALETTE = (
    ("#d55e00", "#ff9a4d"),
    ("#6b7075", "#a9b0b8"),
    ("#0072b2", "#5aa9e0"),
    ("#00896a", "#3cc9a0"),
    ("#8a63b5", "#bda0e6"),
    ("#a97400", "#e8b94a"),
    ("#b0508a", "#e093c0"),
    ("#2a8fbf", "#8ccdf0"),
    ("#5f8a2e", "#a6cf6f"),
    ("#3d5a9e", "#8ea8ee"),
    ("#8a5a3c", "#cfa386"),
    ("#1f8a8a", "#5fd0cf"),
    ("#c04f62", "#f2959f"),
)
"""Colours for light and dark backgrounds, with a contrast of at least 3 to 1; the first is FedACG's."""

DASHES: tuple[tuple[int, ...], ...] = ((), (6, 2), (6, 2, 1, 2), (3, 2))
"""Line patterns, as lengths of dash and gap."""

HERO = "fedacg"
_CALM = len(PALETTE) - 1
_ORDER = (
    *("fedavg", "fedprox", "fedavgm", "fedadam", "feddyn", "moon", "fedcm", "fedmlb", "fedlc", "fedntd", "feddc"),
    *("feddecorr", "scaffold"),
)
"""The methods of the paper, each in a colour of its own but the last; the others follow as in the catalogue."""


@dataclass(frozen=True)
class Style:
    """A line: the index of its colour in the palette, its dashes, and whether it is emphasised."""

    colour: int
    pattern: int = 0
    bold: bool = False

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of dash and gap; empty for an unbroken line."""
        return DASHES[self.pattern]

    @property
    def paper(self) -> str:
        """The colour on white."""
        return PALETTE[self.colour][0]

    @property
    def width(self) -> float:
        """In points, on paper."""
        return 2.6 if self.bold else 1.5


def by_place(place: int) -> Style:
    """Styles for lines of one method, as in a sweep: the calm colours in each pattern in turn."""
    return Style(1 + place % _CALM, place // _CALM % len(DASHES))


def of_method(name: str) -> Style:
    """The style of a method wherever it is drawn; a composed one has another pattern than its base."""
    base, *parts = name.split("+")
    if name == HERO:
        return Style(0, bold=True)
    if base == HERO:
        return Style(0, 1 + zlib.crc32("+".join(parts).encode()) % (len(DASHES) - 1))
    number = _NUMBERS.get(base, zlib.crc32(base.encode()))
    # By five, so that the four patterns come round with other colours.
    turn = number % _CALM % 5 + number // _CALM
    if parts:
        turn += 1 + zlib.crc32("+".join(parts).encode()) % (len(DASHES) - 1)
    return Style(1 + number % _CALM, turn % len(DASHES))


def styles_of(methods: Sequence[str]) -> list[Style]:
    """A style for each of these lines: its method's, and where two would look alike other dashes for the later.

    Lines of one method only are styled by position.
    """
    if len(set(methods)) == 1 and len(methods) > 1:
        return [by_place(place) for place in range(len(methods))]
    found: list[Style] = []
    for method in methods:
        style = of_method(method)
        turns = [
            Style(style.colour, (style.pattern + turn) % len(DASHES), style.bold) for turn in range(len(DASHES))
        ]
        found.append(next((each for each in turns if each not in found), style))
    return found


_NUMBERS = {
    name: place for place, name in enumerate([*_ORDER, *(name for name in METHODS if name not in (*_ORDER, HERO))])
}
