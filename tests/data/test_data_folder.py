"""A folder of clients' .npz files as a data set: what is read, what is held out, and what is refused by name."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedacg.config.sections import DataSettings
from fedacg.data import catalogue
from fedacg.data.examples import Dataset, Examples
from fedacg.errors import InputError
from support.command import Command


def write(root: Path, **files: Mapping[str, Any]) -> Path:
    """Files by client and name, with two underscores for the slash; an input is a number that tells it apart."""
    for place, arrays in files.items():
        path = root / f"{place.replace('__', '/')}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays)
    return root


def some(first: int, count: int, dtype: type = np.float32) -> dict[str, Any]:
    return {"x": np.arange(first, first + count, dtype=dtype).reshape(-1, 1), "y": np.arange(count) % 3}


def read(root: Path) -> Dataset:
    return catalogue.load("folder", path=str(root))


def inputs(examples: Examples) -> list[int]:
    return [int(x) for x in examples.fetch(torch.arange(len(examples)))[0]]


def test_clients_are_sub_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(
        tmp_path,
        b__train=some(0, 2),
        a__two=some(20, 3),
        a__one=some(10, 1),
        a__test=some(90, 2),
        a2__x=some(5, 1),
    )
    write(tmp_path, b__test_two=some(94, 1), b__test_one=some(93, 1))
    (tmp_path / "notes.txt").touch()
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / ".hidden").mkdir()
    whole = read(tmp_path)
    assert whole.owners is not None
    assert whole.owners.names == ("a", "a2", "b")
    assert (inputs(whole.train), whole.owners.train.tolist()) == ([10, 20, 21, 22, 5, 0, 1], [0, 4, 5, 7])
    assert (inputs(whole.test), whole.owners.test.tolist()) == ([90, 91, 93, 94], [0, 2, 2, 4])
    assert (whole.name, whole.classes, whole.shape) == ("folder", 3, (1,))


def test_where_nobody_has_test_files_every_tenth_example_of_a_client_is_held_out(tmp_path: Path) -> None:
    whole = read(write(tmp_path, a__1=some(0, 6), a__2=some(6, 6), b__1=some(100, 9), c__1=some(200, 20)))
    assert inputs(whole.test) == [9, 209, 219]
    assert inputs(whole.train) == [*range(9), 10, 11, *range(100, 109), *range(200, 209), *range(210, 219)]
    assert whole.owners is not None
    assert (whole.owners.train.tolist(), whole.owners.test.tolist()) == ([0, 11, 20, 38], [0, 1, 1, 3])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64, np.float32])
def test_inputs_keep_their_type_and_classes_are_counted_over_all_files(tmp_path: Path, dtype: type) -> None:
    arrays = {"x": np.zeros((2, 3, 4), dtype=dtype), "y": np.array([0, 1], dtype=np.uint16)}
    whole = read(write(tmp_path, a__train=arrays, a__test={**arrays, "y": np.array([6, 1], dtype=np.int8)}))
    x, y = whole.train.fetch(torch.arange(2))
    assert x.numpy().dtype == dtype
    assert (y.dtype, whole.classes, whole.shape) == (torch.int64, 7, (3, 4))


def test_a_run_trains_on_a_folder_with_its_own_clients_and_with_others(tmp_path: Path, fedacg: Command) -> None:
    rng = np.random.default_rng(0)
    for client in range(4):
        y = rng.integers(0, 2, 30)
        x = 4.0 * y[:, None] - 2 + rng.normal(size=(30, 5))
        write(tmp_path / "mine", **{f"c{client}__all": {"x": x, "y": y}})
    for own in (["data.split=natural", "data.clients=0"], ["data.split=dirichlet", "data.clients=6"]):
        settings = ["data.name=folder", "data.path=mine", "rounds=5", *own]
        words = [word for setting in settings for word in ("--set", setting)]
        outcome = fedacg("run", "tiny.toml", *words, "--out", own[0])
        assert (outcome.code, outcome.err) == (0, "")
        assert "accuracy        100.00 %" in outcome.out
    # The run folder says where the data lie, wherever it is read.
    assert f'path = "{tmp_path}/mine"' in (fedacg.folder / "data.split=natural" / "experiment.toml").read_text()


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


GOOD = archive(**some(0, 5))
Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((5, 1), np.float32)}, "has no array y; must have x and y"),
        ({"y": np.zeros(5, int)}, "has no array x; must have x and y"),
        ({**some(0, 5), "y": np.arange(4)}, "x has 5 examples and y has 4; the numbers must match"),
        (some(0, 0), "must have at least one example"),
        (
            some(0, 5, np.float64),
            r"x holds torch.float64 of shape \(1,\), .*first.npz torch.float32 of shape \(1,\)",
        ),
        ({**some(0, 5), "x": np.zeros((5, 2), np.float32)}, r"x holds torch.float32 of shape \(2,\), .*first.npz"),
        ({**some(0, 5), "y": np.zeros(5)}, r"y must be whole numbers \(classes\); it is floating point"),
        ({**some(0, 5), "y": np.array([0, 1, -1, 0, 0])}, "y has labels from -1 to 1; must be 0 or greater"),
        ({**some(0, 5), "y": np.zeros((5, 1), int)}, "y must have one label per example"),
        ({**some(0, 5), "y": np.array(list("abcde"))}, "y: cannot be made a tensor"),
        ({**some(0, 5), "x": np.array([{}] * 5)}, "must hold arrays of numbers, x and y .*Object arrays"),
        ({**some(0, 5), "x": np.float32(3)}, "x and y must have a first dimension"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    write(tmp_path, a__first=some(0, 5), b__test=some(0, 5), b__train=arrays)
    with pytest.raises(InputError, match=rf"^{tmp_path}/b/train.npz: {message}"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-30], "is not an .npz file, or is damaged"),
        (lambda data: b"", "is not an .npz file, or is damaged"),
        (
            lambda data: data.replace(np.float32(3).tobytes(), b"oops"),
            "must hold arrays of numbers, x and y .*CRC",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Damage, message: str) -> None:
    write(tmp_path, a__first=some(0, 5), b__test=some(0, 5))
    assert damage(GOOD) != GOOD
    (tmp_path / "b" / "train.npz").write_bytes(damage(GOOD))
    with pytest.raises(InputError, match=rf"^{tmp_path}/b/train.npz: {message}"):
        read(tmp_path)


def test_a_folder_without_clients_training_or_test_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data.path = '': must be the path of the data set folder"):
        catalogue.load("folder")
    with pytest.raises(InputError, match=rf"data.path = {tmp_path}/nowhere: there is no such folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match=rf"data.path = {tmp_path}: must have a sub-folder for every client"):
        read(tmp_path)
    write(tmp_path, a__train=some(0, 9), b__train=some(0, 9))
    with pytest.raises(
        InputError, match=rf"data.path = {tmp_path}: has no test examples; needs .* client with 10"
    ):
        read(tmp_path)
    write(tmp_path, c__test=some(0, 9))
    with pytest.raises(InputError, match=rf"^{tmp_path}/c: has no training examples"):
        read(tmp_path)
    (tmp_path / "c" / "test.npz").unlink()
    with pytest.raises(InputError, match=rf"^{tmp_path}/c: has no training examples"):
        read(tmp_path)


def test_more_clients_than_sub_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a__train=some(0, 20), b__train=some(0, 20))
    settings = DataSettings(name="folder", path=str(tmp_path), split="natural", clients=3)
    with pytest.raises(InputError, match=r"data.clients = 3: folder comes with 2; 0 takes all"):
        catalogue.federate(settings, 0)
