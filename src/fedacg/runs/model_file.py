"""`model.json` of a run folder, from which the network can be built without the data; and `load_model`.

It is a separate file, since the number of classes and the shape of an input follow from the data, and nothing is
added to the user's experiment.toml.
"""

import os
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from fedacg import models
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment
from fedacg.config.fields import Section
from fedacg.config.recipe import read_toml
from fedacg.core import files, plugins
from fedacg.core.vector import FlatModel, Layout, clone, sha256, trainable
from fedacg.errors import DataMissing, InputError, RunError
from fedacg.models import parameters
from fedacg.runs.build import Ingredients, prepare
from fedacg.runs.contents import (
    BEST,
    CHECKPOINT,
    MODEL,
    SUMMARY,
    check_first_format,
    load_moment,
    read_marker,
    read_summary,
)
from fedacg.simulation.federation import ServerState

FILE = MODEL
_TYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64)}
"""The types that a network of the catalogue can be trained in."""


class ModelFile(Section):
    """What model.json holds."""

    name: str
    options: dict[str, Any]
    classes: int = Field(ge=0)
    shape: tuple[int, ...] = Field(strict=False)
    dtype: str
    channels_last: bool
    factorise: float = Field(0, ge=0)

    @classmethod
    def of(cls, experiment: Experiment, ingredients: Ingredients) -> Self:
        data, module = ingredients.data, ingredients.module
        return cls(
            name=experiment.model.name,
            options=experiment.model.options,
            classes=data.classes,
            shape=data.shape,
            dtype=str(trainable(module)[0].dtype).removeprefix("torch."),
            channels_last=ingredients.channels_last,
            factorise=experiment.model.factorise,
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The description in a run folder; None if an older version that wrote none started the run."""
        path = folder / FILE
        if not os.path.lexists(path):
            return None
        marker = read_marker(folder)
        try:
            content = files.read_whole(path, files.MOST_TEXT)
            return cls.model_validate(files.unseal(content, sealed=marker is not None and not marker.older))
        except (OSError, ValueError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise InputError(f"{path}: does not describe a network: {reason}") from None

    def write(self, folder: Path) -> None:
        try:
            files.write_whole(folder / FILE, files.seal(self.model_dump_json(indent=2)).encode())
        except OSError as error:
            raise RunError(f"{folder / FILE}: cannot be written: {error}") from error

    def build(self, folder: Path, size: int) -> nn.Module:
        """The network, with parameters that are to be overwritten by a vector of this size."""
        _check_by_name(folder, self.name)
        if self.dtype not in _TYPES:
            raise InputError(f"{folder / FILE}: dtype = {self.dtype!r}: must be {' or '.join(_TYPES)}")
        for option in {"name", "classes", "shape", "factorise"} & self.options.keys():
            raise InputError(f"{folder / FILE}: options: {option} is not an option of a network")
        named: dict[str, Any] = {
            "classes": self.classes,
            "shape": self.shape,
            "factorise": self.factorise,
            **self.options,
        }
        plugins.check("model.name", self.name)
        if not plugins.is_plugin(self.name):
            # Counted first: a wrong file must not make this process allocate unbounded memory.
            _check_size(folder, parameters(self.name, **named), size)
        with torch.random.fork_rng(devices=[]):
            module = models.build(self.name, **named).to(_TYPES[self.dtype])
        _check_size(folder, sum(p.numel() for p in trainable(module)), size)
        return module


def load_model(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    which: Literal["last", "best"] = "last",
    trust: bool = False,
) -> nn.Module:
    """The network of a run folder's last checkpoint; it needs no data.

    With `which="best"`, the one that `BestCheckpoint` or another callback saved. A network that was given from
    Python must be given again, as `model`, which is copied.
    User code that the run names, `module:function`, is imported only with `trust`. For a finished run, the vector
    must match the checksum in its summary.
    """
    folder = Path(folder)
    with plugins.reading(folder, trust=trust, allow="call load_model(..., trust=True)"):
        moment = load_moment(folder, _kept(folder, which))
        theta = _server_vector(folder, moment, "model" if "model" in moment.vectors else "theta")
        described = ModelFile.read(folder) or _of_its_data(folder, model)
        module = described.build(folder, theta.numel()) if model is None else clone(model)
        _check_size(folder, sum(p.numel() for p in trainable(module)), theta.numel(), given=model is not None)
    flat = FlatModel(module, channels_last=described.channels_last)
    if flat.read_buffers().numel() != _server_vector(folder, moment, "buffers").numel():
        raise InputError(f"{folder}: the buffers of the checkpoint do not match the network that {FILE} describes")
    layout = Layout.of(module, described.channels_last)
    if read_marker(folder) is None:
        check_first_format(folder, Experiment.parse(read_toml(folder / "experiment.toml")), layout)
    flat.load(layout.from_canonical({"theta": theta})["theta"], moment.vectors["buffers"])
    if which == "last":
        _check_vector(folder, moment, flat)
    return flat.release()


def _kept(folder: Path, which: str) -> str:
    """The file that a model is kept in."""
    if which not in ("last", "best"):
        raise InputError(f"which = {which!r}: must be 'last' or 'best'")
    if which == "best" and not os.path.lexists(folder / BEST):
        raise InputError(f"{folder}: has no {BEST}; a run keeps one with the callback best-checkpoint")
    return BEST if which == "best" else CHECKPOINT


def _server_vector(folder: Path, moment: ServerState, name: str) -> Tensor:
    vector = moment.vectors.get(name)
    if vector is None or vector.ndim != 1:
        raise InputError(f"{folder}: the checkpoint has no vector {name}")
    return vector


def _of_its_data(folder: Path, model: nn.Module | None) -> ModelFile:
    """The model.json of a run of an older version, derived from its data."""
    experiment = Experiment.parse(read_toml(folder / "experiment.toml"))
    if model is not None:
        dtype = str(trainable(model)[0].dtype).removeprefix("torch.")
        return ModelFile(name=GIVEN, options={}, classes=0, shape=(), dtype=dtype, channels_last=False)
    _check_by_name(folder, experiment.model.name)
    try:
        return ModelFile.of(experiment, prepare(experiment))
    except DataMissing as error:
        raise DataMissing(
            f"{folder}: has no {FILE}, as an older version started the run, so its data are needed: {error}"
        ) from None


def _check_vector(folder: Path, moment: ServerState, flat: FlatModel) -> None:
    """Refuse a checkpoint other than the final one of a finished run."""
    if not os.path.lexists(folder / SUMMARY):
        return
    marker = read_marker(folder)
    summary = read_summary(folder, sealed=marker is not None and not marker.older)
    if summary is None:
        raise InputError(f"{folder / SUMMARY}: cannot be read, so the model cannot be checked")
    ended, expected = summary.get("rounds"), summary.get("vector_sha256")
    if ended == moment.round and expected != sha256(flat.canonical()):
        raise InputError(
            f"{folder}: the checkpoint is not what the run ended with: its vector does not have the sha256 "
            f"{str(expected)[:16]}… of summary.json, so one of the two is damaged"
        )


def _check_by_name(folder: Path, name: str) -> None:
    if name.partition(":")[0] == GIVEN:
        raise InputError(f"{folder}: its model was given from Python; give it again, as model=")


def _check_size(folder: Path, found: int, size: int, *, given: bool = False) -> None:
    if found != size and given:
        raise InputError(f"{folder}: the given model has {found} parameters, the checkpoint has {size}")
    if found != size:
        raise InputError(f"{folder}: {FILE} describes a network of {found} parameters, the checkpoint has {size}")
