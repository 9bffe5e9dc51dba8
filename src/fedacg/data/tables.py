"""Examples in tables: pandas frames, Hugging Face data sets, dictionaries of arrays, rows that are dictionaries.

None of these packages is required: a table is recognised by its methods.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedacg.core.tensors import Inputs
from fedacg.data.examples import Examples, ViewExamples
from fedacg.data.forms import Array, not_empty, to_examples, to_inputs, to_labels
from fedacg.errors import InputError

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
