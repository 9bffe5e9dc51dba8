"""A user's folder as a data set: a sub-folder for every client, with .npz files of the arrays `x` and `y`.

Files whose names begin with "test" are for testing, all others for training. own.py checks the
examples; this module only finds them.
"""

import zipfile
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedacg.data.examples import Dataset, Owners, TensorExamples
from fedacg.data.forms import pair_examples
from fedacg.data.own import classes_and_shape
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

HELD_OUT = 10
"""If no client has test files, every tenth example of a client is for testing: its tenth, twentieth and so on."""

Pieces = list[TensorExamples]
"""The examples of one client, file after file."""


def read(path: str) -> Dataset:
    """The data set in a folder, its clients in the order of their names."""
    found = read_clients(_client_folders(path))
    if len(found.test) == 0:
        raise InputError(
            f"data.path = {path}: has no test examples; needs a test….npz in a sub-folder, or a client with "
            f"{HELD_OUT} examples, of which one can be held out"
        )
    return found


def read_clients(folders: Sequence[Path]) -> Dataset:
    """The data set made of clients, each in its own folder; it may have no test examples."""
    files = [sorted(folder.glob("*.npz")) for folder in folders]
    for folder, inside in zip(folders, files, strict=True):
        if all(map(_for_testing, inside)):
            raise InputError(f"{folder}: has no training examples; needs an .npz file whose name is not test…")
    found = {file: _read_file(file) for file in chain(*files)}
    classes, shape = classes_and_shape([(str(file), examples) for file, examples in found.items()])
    train = [[found[file] for file in inside if not _for_testing(file)] for inside in files]
    test = [[found[file] for file in inside if _for_testing(file)] for inside in files]
    if not any(test):
        train, test = map(list, zip(*map(_hold_out, train), strict=True))
    owners = Owners(tuple(folder.name for folder in folders), _offsets(train), _offsets(test))
    whole = _together(train)
    held = _together(test) if any(test) else TensorExamples(whole.x[:0], whole.y[:0])
    return Dataset("folder", whole, held, PlainPipeline(), classes, shape, owners)


def _client_folders(path: str) -> list[Path]:
    if not path:
        raise InputError("data.path = '': must be the path of the data set folder")
    if not Path(path).is_dir():
        raise InputError(f"data.path = {path}: there is no such folder")
    inside = [each for each in Path(path).iterdir() if each.is_dir() and not each.name.startswith(".")]
    if not inside:
        raise InputError(f"data.path = {path}: must have a sub-folder for every client, but has none")
    return sorted(inside)


def _for_testing(file: Path) -> bool:
    return file.name.startswith("test")


def _read_file(path: Path) -> TensorExamples:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: is not an .npz file, or is damaged")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in ("x", "y") if name in arrays}
    except Exception as error:  # a damaged archive fails in a dozen ways, and only reading happens here
        raise InputError(f"{path}: must hold arrays of numbers, x and y ({error})") from None
    for name in ("x", "y"):
        if name not in found:
            raise InputError(f"{path}: has no array {name}; must have x and y")
    return pair_examples((found["x"], found["y"]), str(path))


def _hold_out(pieces: Pieces) -> tuple[Pieces, Pieces]:
    """A client's examples with every tenth split off; a client with fewer keeps them all."""
    whole = _together([pieces])
    held = torch.arange(len(whole)) % HELD_OUT == HELD_OUT - 1
    if not held.any():
        return pieces, []
    return [TensorExamples(whole.x[~held], whole.y[~held])], [TensorExamples(whole.x[held], whole.y[held])]


def _together(clients: Sequence[Pieces]) -> TensorExamples:
    pieces = list(chain(*clients))
    return TensorExamples(torch.cat([piece.x for piece in pieces]), torch.cat([piece.y for piece in pieces]))


def _offsets(clients: Sequence[Pieces]) -> Tensor:
    return torch.tensor([0, *accumulate(sum(map(len, pieces)) for pieces in clients)])
