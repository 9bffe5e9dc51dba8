"""The [data] table of an experiment."""

from pathlib import Path

from pydantic import Field, field_validator

from fedacg.config.section import Section


class DataSettings(Section):
    """Which examples, and how they lie with the clients."""

    name: str = "digits"
    path: str = ""
    """Where the data set `folder` lies."""
    clients: int = Field(100, ge=0)
    """How many clients; with the split `natural` 0 takes all that the data come with, fewer a random choice."""
    split: str = "dirichlet"
    """How examples are dealt to clients; `natural` for data that come with theirs."""
    alpha: float = Field(0.3, ge=0)
    """Concentration of the Dirichlet splits and of `quantity`; α of Synthetic(α, β)."""
    shards: int = Field(2, ge=1)
    """Classes a client has in the split `shards`."""
    beta: float = Field(1.0, ge=0)
    """β of Synthetic(α, β)."""
    split_file: str = ""
    """A saved split to use in place of drawing one."""
    augment: bool = False
    """Rotate, crop and flip training images."""

    @field_validator("split_file", "path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        """A description must mean the same wherever it is read."""
        return str(Path(path).resolve()) if path else ""
