"""The base of every section of an experiment: frozen, complete, and strict about names and ranges.

Each room declares the section it understands (`LocalSettings` in local.py, and so on);
experiment.py puts them together and turns what does not fit into one clear message.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings that cannot change after they are made; unknown keys and non-finite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
