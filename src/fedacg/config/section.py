"""What the tables of an experiment file have in common: frozen, complete, and strict about names and ranges."""

import sys
from typing import Annotated, Any, TypeVar

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
