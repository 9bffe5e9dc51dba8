"""`fedacg data`: what is listed, what fetching says, and saving a split. test_data_show.py has `show`."""

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedacg.cli.data import app
from fedacg.config.sections import DataSettings
from fedacg.data import catalogue, splits
from fedacg.data.origins import Published
from fedacg.data.sources import femnist, idx
from fedacg.errors import InputError
from support.command import Command
from support.permissions import unreadable

Invoke = Callable[[list[str]], Any]


@pytest.fixture
def invoke() -> Invoke:
    return lambda words: CliRunner().invoke(app, words)


def listed(invoke: Invoke) -> dict[str, list[str]]:
    """What `fedacg data list` says of each data set, word by word."""
    result = invoke(["list"])
    assert result.exit_code == 0, result.output
    return {words[0]: words for line in result.stdout.splitlines() if (words := line.split())}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root in which FEMNIST is complete with two writers, and MNIST with twelve images."""
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    small = replace(femnist.FEMNIST, published=Published(least_clients=2))
    monkeypatch.setitem(catalogue.FACTS, "femnist", replace(catalogue.FACTS["femnist"], source=small))
    few = replace(idx.MNIST, md5={}, published=Published(train=12, test=4))
    monkeypatch.setitem(catalogue.FACTS, "mnist", replace(catalogue.FACTS["mnist"], source=few))
    return tmp_path


def write_femnist(root: Path, *writers: str) -> Path:
    """LEAF's files, with as many images for each writer as its name has letters."""
    folder = root / "femnist"
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        data = {name: {"x": [[0.5] * 784] * len(name), "y": [1] * len(name)} for name in writers}
        contents = {"users": list(writers), "num_samples": [len(name) for name in writers], "user_data": data}
        (folder / part / f"all_data_0_niid_1_keep_0_{part}_9.json").write_text(json.dumps(contents))
    return folder


def write_mnist(folder: Path, images: int = 12) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", images), ("t10k", 4)):
        header = struct.pack(">4I", 0x803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(count * 784))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + bytes(count))


def test_the_list_fits_eighty_columns_and_says_what_is_there(invoke: Invoke, root: Path) -> None:
    write_femnist(root, "ann", "bo")
    write_mnist(root / "MNIST" / "raw")
    (root / "cifar-10-batches-bin").mkdir()
    (root / "celeba").mkdir()
    result = invoke(["list"])
    assert result.exit_code == 0
    table, notes = result.output.split("\n\n")
    assert all(len(line) <= 80 for line in table.splitlines())
    rows = listed(invoke)
    assert set(catalogue.NAMES) <= set(rows)
    assert rows["digits"] == ["digits", "1438", "359", "10", "1×8×8", "no", "built", "in"]
    assert rows["folder"] == ["folder", "–", "–", "–", "–", "yes", "your", "own"]
    assert rows["mnist"] == ["mnist", "12", "4", "10", "1×28×28", "no", "MNIST/raw"]
    assert rows["femnist"] == ["femnist", "–", "–", "62", "1×28×28", "yes", "femnist", "(not", "read", "yet)"]
    for empty in ("cifar10", "celeba"):
        assert rows[empty][-1] == "missing", "an empty folder is no data set"
    assert str(root) in notes
    assert "fedacg data get" in notes


def test_the_list_has_the_counts_that_were_read_until_the_files_change(invoke: Invoke, root: Path) -> None:
    write_femnist(root, "ann", "bo")
    catalogue.load("femnist")
    assert listed(invoke)["femnist"] == ["femnist", "5", "5", "62", "1×28×28", "2", "femnist"]
    write_femnist(root, "ann", "bo", "clarissa")
    assert listed(invoke)["femnist"][1:3] == ["–", "–"]
    write_femnist(root, "ann")
    catalogue.load("femnist", partial=True)
    assert listed(invoke)["femnist"][1:] == ["3", "3", "62", "1×28×28", "1", "femnist", "(incomplete)"]


def test_one_damaged_or_unreadable_folder_does_not_end_the_list(invoke: Invoke, root: Path) -> None:
    write_mnist(root / "mnist")
    (root / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"garbage")
    write_femnist(root, "ann", "bo")
    with unreadable(root / "femnist" / "train"):
        result = invoke(["list"])
        rows = listed(invoke)
    assert rows["mnist"][-1] == rows["femnist"][-1] == "damaged"
    assert rows["digits"][1] == "1438"
    assert "t10k-labels-idx1-ubyte is cut short: 7 bytes" in result.stderr
    assert f"{root}/femnist/train cannot be read (Permission denied)" in result.stderr


def test_a_data_root_that_cannot_be_looked_into_is_one_line_each(invoke: Invoke, root: Path) -> None:
    with unreadable(root):
        result = invoke(["list"])
    assert result.exit_code == 0
    assert f"{root}/mnist cannot be read (Permission denied)" in result.stderr


@pytest.mark.parametrize(
    "name", ["mnist", "cifar10", "cifar100", "tiny-imagenet", "celeba", "femnist", "shakespeare"]
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(root: Path, name: str) -> None:
    source = catalogue.FACTS[name].source
    assert source is not None
    write_mnist(root / "mnist")
    write_femnist(root, "ann", "bo")
    places = {
        "mnist": "mnist/train-images-idx3-ubyte",
        "cifar10": "cifar-10-batches-bin/data_batch_1.bin",
        "cifar100": "cifar-100-binary.tar.gz",
        "tiny-imagenet": "tiny-imagenet-200.zip",
        "celeba": "celeba/identity_CelebA.txt",
        "femnist": "femnist/test/all_data_0_niid_1_keep_0_test_9.json",
        "shakespeare": "shakespeare/100.txt",
    }
    path = root / places[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    if name == "celeba":
        (path.parent / "list_attr_celeba.txt").touch()
        (path.parent / "img_align_celeba.zip").touch()
    with unreadable(path), pytest.raises(InputError, match=rf"{path} cannot be .*Permission denied"):
        source.read(root)


def test_checking_reads_everything_and_reports_real_counts(
    invoke: Invoke, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_femnist(root, "ann", "bo")
    result = invoke(["check", "femnist"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"copy      {folder}",
        "train     5 examples",
        "test      5 examples",
        "clients   2",
        "classes   62",
        "complete: all published counts and checksums match",
    ]
    read: list[Path] = []
    monkeypatch.setattr(femnist, "_read", lambda path, real=femnist._read: read.append(path) or real(path))
    assert invoke(["check", "femnist"]).exit_code == 0
    assert len(read) == 2, "what was prepared before was trusted"


def test_checking_an_incomplete_copy_says_how_it_differs(invoke: Invoke, root: Path) -> None:
    write_femnist(root, "ann")
    result = invoke(["check", "femnist"])
    assert isinstance(result.exception, InputError)
    assert "--set data.partial=true" in str(result.exception)
    assert "train     3 examples" in result.stdout
    assert "differs   has 1 clients where there should be at least 2" in result.stdout
    assert invoke(["check", "femnist", "--partial"]).exit_code == 0
    write_mnist(root / "mnist", images=5)
    result = invoke(["check", "mnist"])
    assert "differs   has 5 training examples where there should be 12" in result.stdout
    assert isinstance(result.exception, InputError)


def test_checking_takes_published_data_sets_only(invoke: Invoke) -> None:
    assert "1438 examples" in invoke(["check", "digits"]).stdout
    assert "unknown published data set 'folder'" in str(invoke(["check", "folder"]).exception)


def test_cleaning_lists_what_is_outdated_and_removes_it_only_when_told(invoke: Invoke, root: Path) -> None:
    write_femnist(root, "ann", "bo")
    catalogue.load("femnist")
    assert "no prepared data are outdated" in invoke(["clean"]).stdout
    old = next((root / "prepared").glob("femnist-*/"))
    write_femnist(root, "ann", "bo", "clarissa")
    catalogue.load("femnist")
    (root / "prepared" / "celeba-0123456789abcdef").mkdir()
    (root / "prepared" / ".tiny-imagenet-0123.killed").mkdir()
    (root / "prepared" / "mine").mkdir()
    before = sorted(path.name for path in (root / "prepared").iterdir())
    shown = invoke(["clean"]).stdout
    assert str(old) in shown
    assert f"made from {root}/femnist, which is gone or has changed" in shown
    assert "celeba-0123456789abcdef\n            incomplete, or from an earlier version" in shown
    assert ".tiny-imagenet-0123.killed\n            left by a load that was killed" in shown
    assert "can be removed: fedacg data clean --yes" in shown
    assert sorted(path.name for path in (root / "prepared").iterdir() if ".lock" not in path.name) == [
        name for name in before if ".lock" not in name
    ]
    assert "removed " in invoke(["clean", "--yes"]).stdout
    left = sorted(path.name for path in (root / "prepared").iterdir() if path.is_dir())
    assert len(left) == 2
    assert left[1] == "mine"
    assert len(catalogue.load("femnist").train) == 13


def test_what_is_prepared_of_the_same_contents_is_not_outdated(invoke: Invoke, root: Path, tmp_path: Path) -> None:
    folder = write_femnist(root, "ann", "bo")
    catalogue.load("femnist")
    shutil.copytree(folder, root / "copy")
    shutil.rmtree(folder)
    (root / "leaf" / "femnist").mkdir(parents=True)
    (root / "copy").rename(root / "leaf" / "femnist" / "data")
    assert "no prepared data are outdated" in invoke(["clean"]).stdout
    shutil.rmtree(root / "leaf")
    assert "can be removed" in invoke(["clean"]).stdout


def test_ctrl_c_during_a_first_load_names_no_run_folder(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "load", interrupted)
    for words in (["run", "tiny.toml"], ["compare", "tiny.toml", "--methods", "fedavg"]):
        outcome = fedacg(*words)
        assert outcome.code == 130
        assert "Stopped before a run started; there is nothing to resume." in outcome.out
        assert "--resume" not in outcome.out
    assert not (fedacg.folder / "runs").exists()


def test_a_run_on_an_incomplete_copy_says_so_in_its_folder(fedacg: Command, root: Path) -> None:
    folder = write_femnist(root, "ann")
    words = ["run", "femnist-small", "--out", "run", "--set", "rounds=1", "--set", "cohort.size=1"]
    refused = fedacg(*words)
    assert refused.code == 2
    assert "has 1 clients where there should be at least 2 (data.partial = true uses it as it is)" in refused.err
    outcome = fedacg(*words, "--set", "data.partial=true")
    assert outcome.code == 0, outcome.err
    assert "partial = true" in (fedacg.folder / "run" / "experiment.toml").read_text()
    summary = json.loads((fedacg.folder / "run" / "summary.json").read_text())
    assert summary["data"] == {
        "copy": str(folder),
        "train": 3,
        "test": 3,
        "clients": 1,
        "differences": ["has 1 clients where there should be at least 2"],
    }


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_partial_is_refused_where_it_means_nothing(name: str) -> None:
    split = "natural" if name == "synthetic" else "iid"
    with pytest.raises(InputError, match=f"data.partial = true: {name} does not consist of published files"):
        catalogue.federate(DataSettings(name=name, clients=3, split=split, partial=True), 0)


def test_getting_what_is_built_in_says_so_and_what_is_unknown_is_refused(invoke: Invoke) -> None:
    result = invoke(["get", "digits"])
    assert result.exit_code == 0
    assert "nothing to download" in result.output
    refused = invoke(["get", "cifar"])
    assert isinstance(refused.exception, InputError)


def test_a_long_path_is_folded_and_not_cut(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere" / ("a-long-name-" * 5)
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(catalogue, "survey", lambda name: catalogue.Survey(place))
    table = invoke(["list"]).output.split("\n\n")[0].splitlines()
    assert all(len(line) <= 80 for line in table)
    assert "…" not in "".join(table)
    start = table[0].index("where")
    assert "".join(line[start:].strip() for line in table[1:5]).startswith("elsewhere/a-long-name-a-long")


@pytest.mark.parametrize("name", splits.SPLITS)
def test_every_split_can_be_saved(fedacg: Command, name: str) -> None:
    outcome = fedacg(
        "data", "split", "digits", "--split", name, "--clients", "9", "--shards", "3", "--out", "s.npz"
    )
    assert outcome.out == "s.npz: 1438 examples of digits for 9 clients\n"
    settings = DataSettings(clients=9, split=name, shards=3)
    expected = catalogue.deal(catalogue.load("digits"), settings, seed=0)
    saved = splits.load(fedacg.folder / "s.npz", examples=1438, clients=9)
    assert torch.equal(saved.order, expected.order)
    assert torch.equal(saved.offsets, expected.offsets)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "dirichlt"], "unknown split 'dirichlt': did you mean 'dirichlet'?"),
        (["--split", "natural"], "unknown split 'natural'"),
        (["--alpha", "-1"], "data.alpha = -1.0: must be greater than or equal to 0"),
        (["--clients", "-1"], "data.clients = -1: must be greater than or equal to 0"),
        (
            ["--split", "shards", "--shards", "11"],
            "data.shards = 11: must be from 1 to the number of classes (10)",
        ),
        (["--out", "tiny.toml/s.npz"], "tiny.toml/s.npz: the split cannot be written: "),
    ],
)
def test_a_split_that_cannot_be_is_refused(fedacg: Command, words: list[str], message: str) -> None:
    outcome = fedacg("data", "split", "digits", "--out", "s.npz", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert [file.name for file in fedacg.folder.iterdir()] == ["tiny.toml"]
