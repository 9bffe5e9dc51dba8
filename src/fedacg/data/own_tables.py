"""User data in tables and folders.

Tables are pandas frames, Hugging Face data sets, dictionaries of arrays, rows that are dictionaries. None of these
packages is required: a table is recognised by its methods.

A folder has a sub-folder for every client. Files whose names begin with "test" are for testing, all others for
training. own_data.py checks the examples; this module only finds them.
"""

import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedacg.core.tensors import Inputs
from fedacg.data.examples import Dataset, Examples, Owners, TensorExamples, ViewExamples
from fedacg.data.own_data import classes_and_shape
from fedacg.data.own_forms import Array, not_empty, pair_examples, to_examples, to_inputs, to_labels
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError

# Tables in memory


Columns = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""A column of whole inputs; several columns of numbers; or either of them for each argument."""


def columns(table: Any, *, inputs: Columns, label: str) -> Examples:
    """The examples in a table: a pandas frame, a Hugging Face data set, a dictionary of arrays, or rows.

    `inputs` is a column that holds whole inputs, a list of columns with one number each, which become floats side
    by side, or a dictionary from the arguments of the model to either. A frame or a dictionary is read at once,
    the others row by row when they are needed.
    """
    if hasattr(table, "iloc") or isinstance(table, Mapping):
        names = [*_listed(inputs), label]
        found = _assemble({name: _column(table, name) for name in names}, inputs, label, "table")
        return to_examples(found, "table")
    if not (hasattr(table, "__len__") and hasattr(table, "__getitem__")):
        raise InputError(
            f"table: is a {type(table).__name__}; must be a frame, a dictionary of columns or a data set of rows"
        )
    return not_empty(RowExamples(table, inputs, label), "table")


def by_client(table: Any, *, client: str, inputs: Columns, label: str) -> dict[str, Examples]:
    """The clients in a table, by their names in a column that says whose each row is; sorted by name.

    The other arguments are those of `columns`.
    """
    examples = columns(table, inputs=inputs, label=label)
    owners = np.asarray(_column(table, client))
    if any(owner is None or owner != owner for owner in owners.tolist()):
        raise InputError(f"table: column {client!r} has rows without a client")
    if owners.ndim != 1 or len(owners) != len(examples):
        raise InputError(f"table: column {client!r} must have one name or number for each row")
    names, numbers = np.unique(owners.astype(str) if owners.dtype.kind == "O" else owners, return_inverse=True)
    order = torch.from_numpy(np.argsort(numbers, kind="stable"))
    parts = torch.split(order, np.bincount(numbers).tolist())
    return {str(name): ViewExamples(examples, part) for name, part in zip(names.tolist(), parts, strict=True)}


class RowExamples:
    """Examples in a table that is read row by row: of a Hugging Face data set many at once, else one by one."""

    def __init__(self, table: Any, inputs: Columns, label: str) -> None:
        self.table, self.inputs, self.label = table, inputs, label
        if len(table):
            self.fetch(torch.zeros(1, dtype=torch.int64))  # a missing column shows now

    def __len__(self) -> int:
        return len(self.table)

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        names = [*_listed(self.inputs), self.label]
        x, y = _assemble(_rows(self.table, names, index.tolist()), self.inputs, self.label, "table")
        return to_inputs(x, "table: x"), to_labels(y, f"table: column {self.label!r}")

    def labels(self, index: Tensor) -> Tensor:
        return self._labels[index]

    @cached_property
    def _labels(self) -> Tensor:
        return to_labels(_numbers(_column(self.table, self.label), self.label), f"table: column {self.label!r}")


def _listed(inputs: Columns) -> list[str]:
    if isinstance(inputs, Mapping):
        return [name for each_columns in inputs.values() for name in _listed(each_columns)]
    listed = [inputs] if isinstance(inputs, str) else list(inputs)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise InputError(f"inputs = {inputs!r}: must be the name of a column, or a list or dictionary of names")
    return listed


def _column(table: Any, name: str) -> Any:
    """A whole column."""
    if hasattr(table, "iloc"):
        _check_column(name, list(table.columns))
        return table[name].to_numpy()
    if isinstance(table, Mapping):
        _check_column(name, list(table))
        return table[name]
    if hasattr(table, "column_names"):
        _check_column(name, list(table.column_names))
        return list(table[name])
    return _rows(table, [name], range(len(table)))[name]


def _rows(table: Any, names: Sequence[str], positions: Sequence[int]) -> dict[str, Any]:
    """Some columns of some rows."""
    if hasattr(table, "column_names"):
        for name in names:
            _check_column(name, list(table.column_names))
        return dict(table[list(positions)])
    rows = [table[position] for position in positions]
    for row in rows:
        if not isinstance(row, Mapping):
            raise InputError(f"table: its rows are of type {type(row).__name__}; must be dictionaries")
        for name in names:
            _check_column(name, list(row))
    return {name: [row[name] for row in rows] for name in names}


def _check_column(name: str, known: list[Any]) -> None:
    if name not in known:
        raise InputError(f"table: has no column {name!r}; there are {', '.join(map(str, known))}")


def _assemble(found: Mapping[str, Any], inputs: Columns, label: str, place: str) -> tuple[Any, Any]:
    """x and y from columns."""
    if isinstance(inputs, Mapping):
        return {name: _stacked(found, each_columns) for name, each_columns in inputs.items()}, _numbers(
            found[label], label
        )
    return _stacked(found, inputs), _numbers(found[label], label)


def _stacked(found: Mapping[str, Any], inputs: str | Sequence[str]) -> Array:
    if isinstance(inputs, str):
        return _numbers(found[inputs], inputs)
    each_column = [np.asarray(_numbers(found[name], name)) for name in inputs]
    for name, array in zip(inputs, each_column, strict=True):
        if array.ndim != 1:
            raise InputError(f"table: column {name!r} must hold one number per row to be combined with others")
    kind = np.result_type(np.float32, *each_column)
    return np.stack(each_column, axis=1).astype(kind)


def _numbers(values: Any, name: str) -> Array:
    """A column as numbers, with further dimensions where its cells have some."""
    if isinstance(values, Tensor):
        return values
    try:
        cells = list(values) if not isinstance(values, np.ndarray) or values.dtype.kind == "O" else values
        array = np.asarray(cells) if not isinstance(cells, list) else np.stack([np.asarray(c) for c in cells])
        if array.dtype.kind == "f" and isinstance(cells, list) and isinstance(cells[0], list | float):
            array = array.astype(np.float32)  # as torch makes tensors of Python's floats
    except (TypeError, ValueError) as error:
        raise InputError(f"table: column {name!r}: its cells do not have the same shape ({error})") from None
    if array.dtype.kind not in "biuf":
        kind = "texts" if array.dtype.kind in "US" else f"{array.dtype}"
        raise InputError(
            f"table: column {name!r} holds {kind} or has gaps; must hold numbers, one kind in all rows"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(f"table: column {name!r} has {int(np.isnan(array).sum())} gaps (NaN); fill or drop them")
    return array


# Folders: a sub-folder for every client, with .npz files of the arrays `x` and `y`


FOLDER_HELD_OUT = 10
"""If no client has test files, every tenth example of a client is for testing: its tenth, twentieth and so on."""

Pieces = list[TensorExamples]
"""The examples of one client, file after file."""


def read_folder(path: str) -> Dataset:
    """The data set in a folder, its clients in the order of their names."""
    found = read_clients(_client_folders(path))
    if len(found.test) == 0:
        raise InputError(
            f"data.path = {path}: has no test examples; needs a test….npz in a sub-folder, or a client with "
            f"{FOLDER_HELD_OUT} examples, of which one can be held out"
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
    held = torch.arange(len(whole)) % FOLDER_HELD_OUT == FOLDER_HELD_OUT - 1
    if not held.any():
        return pieces, []
    return [TensorExamples(whole.x[~held], whole.y[~held])], [TensorExamples(whole.x[held], whole.y[held])]


def _together(clients: Sequence[Pieces]) -> TensorExamples:
    pieces = list(chain(*clients))
    return TensorExamples(torch.cat([piece.x for piece in pieces]), torch.cat([piece.y for piece in pieces]))


def _offsets(clients: Sequence[Pieces]) -> Tensor:
    return torch.tensor([0, *accumulate(sum(map(len, pieces)) for pieces in clients)])
