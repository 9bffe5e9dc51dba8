"""What the tables of an experiment file are made of: sections, strict about types and ranges, and goals."""

import math
import re
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from fedacg.core.plugins import announced, is_plugin
from fedacg.errors import InputError, unknown

T = TypeVar("T")
_INCIDENTAL = "incidental"
Incidental = Annotated[T, _INCIDENTAL]
"""Marks a setting, or a whole table, that does not affect the bits of the result. Runs that differ in nothing else
are the same experiment: either resumes the other, and they share a row of a report and a folder of `bench`."""


MOST_WHOLE, MOST_SEED = 2**31 - 1, 2**63 - 1
"""The largest whole number of a setting, and the largest seed: products of two still fit into 64 bits."""
STREAMS = ("split", "weights", "cohorts", "batches")
"""What a seed determines; each can have a seed of its own."""


class Section(BaseModel):
    """Immutable settings.

    Unknown keys, non-finite numbers and values of another type (true for 1, "10" for 10) are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        """NumPy's numbers, as loops over `np.arange` give them, are numbers; whole ones have a bound."""
        numpy = sys.modules.get("numpy")  # whoever has such a number has imported NumPy already
        value = value.item() if numpy is not None and isinstance(value, numpy.generic) else value
        most = MOST_SEED if info.field_name in ("seed", *STREAMS) else MOST_WHOLE
        if isinstance(value, int) and abs(value) > most:
            raise ValueError(f"must be at most {most}")
        return value


def named(kind: str, group: str, name: str, known: tuple[str, ...]) -> str:
    """A known name, one that an installed package announces, or module:function for user code."""
    if name in known or is_plugin(name):
        return name
    if name in announced(group):
        return announced(group)[name]
    raise InputError(f"{unknown(kind, name, (*known, *announced(group)))}, or module:function for one of your own")


def is_incidental(field: FieldInfo) -> bool:
    """Whether a field of a section was declared `Incidental`."""
    return _INCIDENTAL in field.metadata


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
