"""Goals: a figure of a run, and the value it should reach from below or from above."""

import math
import re
from dataclasses import dataclass
from typing import Self

from fedacg.errors import InputError

_ACCURACY = "test_accuracy"
_FORM = re.compile(r"\s*([^<>=\s]+)\s*(>=|<=)\s*(\S+)\s*")


@dataclass(frozen=True, order=True)
class Goal:
    """`test_loss<=0.3`: reached when the moving average of the figure gets there."""

    figure: str
    value: float
    rising: bool
    """Whether more is better."""

    @classmethod
    def accuracy(cls, target: float) -> Self:
        """A test accuracy, as a fraction, to reach."""
        return cls(_ACCURACY, target, rising=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text such as `test/f1>=0.8`."""
        found = _FORM.fullmatch(text)
        try:
            value = float(found[3]) if found else math.nan
        except ValueError:
            value = math.nan
        if found is None or not math.isfinite(value):
            raise InputError(f"{text!r}: must be a figure, >= or <=, and a number, such as test_loss<=0.3")
        return cls(ALIASES.get(found[1], found[1]), value, rising=found[2] == ">=")

    @property
    def of_accuracy(self) -> bool:
        """Whether `evaluate.targets` can hold it."""
        return self.figure == _ACCURACY and self.rising

    @property
    def key(self) -> str:
        """Its name in summaries and machine-readable tables: `0.9` for an accuracy."""
        sign = ">=" if self.rising else "<="
        return f"{self.value:g}" if self.of_accuracy else f"{self.figure}{sign}{self.value:g}"

    @property
    def title(self) -> str:
        """Its name for readers: `90 %`, `test_loss ≤ 0.3`."""
        if self.of_accuracy:
            return f"{100 * self.value:.6g} %"
        return f"{self.figure} {'≥' if self.rising else '≤'} {self.value:g}"

    def met(self, value: float) -> bool:
        return value >= self.value if self.rising else value <= self.value


ALIASES = {"test/accuracy": _ACCURACY, "test/loss": "test_loss", "train/loss": "train_loss", "train/lr": "lr"}
"""Figures with a field of their own, by their names in loggers."""

_LESS_IS_BETTER = re.compile(r"(.*[/_-])?(loss|error|rmse|mse|mae|perplexity|epsilon)")


def rises(figure: str) -> bool:
    """Whether a higher figure is better, judged by its name: not for a loss or an error."""
    return _LESS_IS_BETTER.fullmatch(figure) is None
