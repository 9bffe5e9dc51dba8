"""Saved splits: read back as they were, and refused when they do not deal every example once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_splits import labels_of, rng

from fedacg.data import splits
from fedacg.errors import InputError


def test_a_split_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "taken" / "split.npz", tmp_path / "folder"):
        with pytest.raises(InputError, match=rf"{path}: the split cannot be written: "):
            splits.iid(5, 2, rng()).save(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "taken"]


def test_a_saved_split_is_read_back_as_it_was(tmp_path: Path) -> None:
    split = splits.dirichlet(labels_of(10, 30), 7, 0.3, rng())
    path = tmp_path / "new" / "split"
    split.save(path)
    loaded = splits.load(path, examples=300, clients=7)
    assert torch.equal(loaded.order, split.order)
    assert torch.equal(loaded.offsets, split.offsets)
    assert [file.name for file in path.parent.iterdir()] == ["split"]


@pytest.mark.parametrize(
    ("order", "offsets", "message"),
    [
        ([0, 1, 2, 3], [0, 2, 4], "has 4 examples where the data set has 5"),
        ([0, 1, 2, 3, 4], [0, 2, 3, 5], "has 3 clients where data.clients = 2"),
        ([0, 1, 2, 3, 3], [0, 2, 5], "every example exactly once"),
        ([0, 1, 2, 3, 5], [0, 2, 5], "every example exactly once"),
        ([-1, 1, 2, 3, 4], [0, 2, 5], "every example exactly once"),
        ([0, 1, 2, 3, 4], [0, 5, 5], "offsets must rise from 0 to 5"),
        ([0, 1, 2, 3, 4], [1, 2, 5], "offsets must rise from 0 to 5"),
        ([0, 1, 2, 3, 4], [0, 2, 4], "offsets must rise from 0 to 5"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0, 2, 5], "order must be one row of integers, not float64"),
        ([[0, 1, 2, 3, 4]], [0, 2, 5], "order must be one row of integers"),
    ],
)
def test_a_wrong_split_file_is_refused(tmp_path: Path, order: list[int], offsets: list[int], message: str) -> None:
    path = tmp_path / "split.npz"
    np.savez(path, order=np.array(order), offsets=np.array(offsets))
    with pytest.raises(InputError, match=message) as refusal:
        splits.load(path, examples=5, clients=2)
    assert str(refusal.value).startswith(f"data.split_file = {path}: ")


def test_what_is_no_split_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    with pytest.raises(InputError, match="there is no such file"):
        splits.load(path, examples=5, clients=2)
    whole = tmp_path / "whole.npz"
    splits.iid(5, 2, rng()).save(whole)
    plain = tmp_path / "plain.npy"
    np.save(plain, np.arange(5))
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, order=np.array([{}], dtype=object), offsets=np.arange(3))
    lacking = tmp_path / "lacking.npz"
    np.savez(lacking, order=np.arange(5))
    for contents in (
        b"",
        b"not an archive",
        whole.read_bytes()[:100],
        plain.read_bytes(),
        pickled.read_bytes(),
        lacking.read_bytes(),
    ):
        path.write_bytes(contents)
        with pytest.raises(InputError, match=r"must be an \.npz file with the arrays order and offsets"):
            splits.load(path, examples=5, clients=2)
    with pytest.raises(InputError, match=r"must be an \.npz file"):
        splits.load(tmp_path, examples=5, clients=2)
