"""The base of every section of an experiment: frozen, complete, and strict about names and ranges.

Each room declares the section it understands (`LocalSettings` in local.py, and so on);
experiment.py puts them together and turns what does not fit into one clear message.
"""

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator


class Section(BaseModel):
    """Settings that cannot change after they are made.

    Unknown keys, non-finite numbers and values of another type (true for 1, "10" for 10) are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """NumPy's numbers, as loops over `np.arange` give them, are numbers."""
        return value.item() if isinstance(value, np.generic) else value
