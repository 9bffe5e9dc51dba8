"""The measurements of one round, and its line of `metrics.jsonl`.

Accuracies are fractions; percent is a matter of display.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self

from fedacg.config.fields import ALIASES
from fedacg.core import files
from fedacg.errors import InputError


@dataclass(frozen=True)
class RoundMetrics:
    """One round, as one line of `metrics.jsonl`; rounds count from 1.

    `test_accuracy` is None in a round without evaluation. What a later writer adds is kept in `extra`
    and written back beside the rest.
    """

    round: int
    lr: float
    cohort: tuple[int, ...]
    """The clients that were asked."""
    examples: int
    """Training examples of those that answered."""
    train_loss: float
    """NaN in a round without answers."""
    bytes_down: int
    bytes_up: int
    seconds_train: float
    seconds_aggregate: float
    seconds_evaluate: float = 0.0
    test_accuracy: float | None = None
    test_loss: float | None = None
    answered: tuple[int, ...] | None = None
    """The clients of the cohort whose update arrived."""
    stragglers: tuple[int, ...] | None = None
    """The clients of those that did only part of their steps, if any."""
    client_losses: tuple[float, ...] | None = None
    """Of those that answered."""
    drift: Mapping[str, Any] | None = None
    """How the local models spread (drift.py)."""
    scores: Mapping[str, float] | None = None
    """Further figures by name, `set/figure`: `test/f1`, `validation/accuracy`, `clients/worst_tenth`,
    `privacy/epsilon`."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arrived(self) -> tuple[int, ...]:
        """The clients whose update arrived; the whole cohort where it was not recorded."""
        return self.cohort if self.answered is None else self.answered

    def score(self, name: str) -> float | None:
        """A figure by its name, `test_accuracy` or one of `scores`; None in a round without it."""
        name = ALIASES.get(name, name)
        if name in FIGURES:
            value: float | None = getattr(self, name)
            return value
        return (self.scores or {}).get(name)

    @property
    def evaluated(self) -> bool:
        """Whether the model was evaluated in this round, on any data."""
        held = (name.partition("/")[0] in EVALUATED for name in self.scores or {})
        return self.test_loss is not None or any(held)

    def unevaluated(self, *, test_only: bool = False) -> "RoundMetrics":
        """The same without evaluation results, for a round that is no longer the last."""
        sets = ("test",) if test_only else EVALUATED
        kept = {name: value for name, value in (self.scores or {}).items() if name.partition("/")[0] not in sets}
        return replace(self, test_accuracy=None, test_loss=None, scores=kept or None)

    def to_json(self) -> str:
        """One line of strict JSON with a checksum: what is None is absent, a number that is not finite is null."""
        known = {name: getattr(self, name) for name in _READERS}
        record = {name: value for name, value in known.items() if value is not None}
        return files.seal(json.dumps(_finite(record | dict(self.extra)), allow_nan=False))

    @classmethod
    def from_json(cls, line: bytes | str, *, sealed: bool = False) -> Self:
        """The record of one line; null is read as NaN, so that a diverged round stays diverged.

        A checksum must match, and with `sealed` there must be one.
        """
        record = files.unseal(line if isinstance(line, bytes) else line.encode(), sealed=sealed)
        known = {name: read(name, record.pop(name)) for name, read in _READERS.items() if name in record}
        missing = [name for name in _REQUIRED if name not in known]
        if missing:
            raise InputError(f"lacks {', '.join(missing)}")
        try:
            _finite(record)  # what could not be written back is refused
        except RecursionError:
            raise InputError("is nested too deeply") from None
        return cls(**known, extra=record)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


_MOST = 2**63 - 1
"""Largest whole number: 64-bit counters of other programs can hold it."""
_LONGEST = 1e12
"""Seconds; far above what a run can take, and far below where sums overflow."""


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} is {_shown(value)}, not a whole number")
    if not 0 <= value <= _MOST:
        raise InputError(f"{name} is {_shown(value)}, must be from 0 to {_MOST}")
    return value


def _number(name: str, value: object) -> float:
    """A number; one that is not finite is NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} is {_shown(value)}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise InputError(f"{name} is {_shown(value)}, which is too large") from None
    return number if math.isfinite(number) else math.nan


def _fraction(name: str, value: object) -> float:
    number = _number(name, value)
    if number < 0 or number > 1:
        raise InputError(f"{name} is {_shown(value)}, must be from 0 to 1")
    return number


def _seconds(name: str, value: object) -> float:
    number = _number(name, value)
    if not 0 <= number <= _LONGEST:
        raise InputError(f"{name} is {_shown(value)}, must be from 0 to {_LONGEST:g}")
    return number


def _integers(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {_shown(value)}, not a list")
    return tuple(_integer(name, item) for item in value)


def _numbers(name: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {_shown(value)}, not a list")
    return tuple(_number(name, item) for item in value)


def _table(name: str, value: object) -> dict[str, Any]:
    """Figures by name, each a number or a list of them."""
    if not isinstance(value, dict):
        raise InputError(f"{name} is {_shown(value)}, not a table")
    return {
        key: list(_numbers(f"{name}.{key}", item)) if isinstance(item, list) else _number(f"{name}.{key}", item)
        for key, item in value.items()
    }


def _scores(name: str, value: object) -> dict[str, float]:
    """Single numbers by name."""
    if not isinstance(value, dict):
        raise InputError(f"{name} is {_shown(value)}, not a table")
    return {key: _number(f"{name}.{key}", item) for key, item in value.items()}


def _shown(value: object) -> str:
    """A value as errors show it: a long one is cut short."""
    text = f"of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > _MOST else ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_READERS: dict[str, Callable[[str, object], Any]] = {
    "round": _integer,
    "lr": _number,
    "cohort": _integers,
    "examples": _integer,
    "train_loss": _number,
    "bytes_down": _integer,
    "bytes_up": _integer,
    "seconds_train": _seconds,
    "seconds_aggregate": _seconds,
    "seconds_evaluate": _seconds,
    "test_accuracy": _fraction,
    "test_loss": _number,
    "answered": _integers,
    "stragglers": _integers,
    "client_losses": _numbers,
    "drift": _table,
    "scores": _scores,
}
FIGURES = ("test_accuracy", "test_loss", "train_loss", "lr")
"""The fields that a target, a callback or a curve may name, besides all `scores`."""
EVALUATED = ("test", "validation", "clients")
"""The sets whose figures in `scores` come from evaluations, which not every round has."""
_REQUIRED = [
    item.name for item in fields(RoundMetrics) if item.default is MISSING and item.default_factory is MISSING
]
