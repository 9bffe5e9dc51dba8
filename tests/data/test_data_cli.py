"""`fedacg data`: what is listed, what fetching says, and saving a split. test_data_show.py has `show`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedacg.cli.data import app
from fedacg.config.sections import DataSettings
from fedacg.data import catalogue, splits
from fedacg.errors import InputError
from support.command import Command

Invoke = Callable[[list[str]], Any]


@pytest.fixture
def invoke() -> Invoke:
    return lambda words: CliRunner().invoke(app, words)


def test_the_list_fits_eighty_columns_and_says_what_is_there(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cifar-100-python.tar.gz").touch()
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke(["list"])
    assert result.exit_code == 0
    table, notes = result.output.split("\n\n")
    assert all(len(line) <= 80 for line in table.splitlines())
    rows = {line.split()[0]: line for line in table.splitlines()}
    assert set(catalogue.NAMES) <= set(rows)
    assert rows["digits"].split() == ["digits", "1438", "359", "10", "1×8×8", "no", "built", "in"]
    own = {name for name in catalogue.NAMES if " yes " in rows[name]}
    assert own == {name for name, facts in catalogue.FACTS.items() if facts.natural} | {"synthetic", "folder"}
    assert rows["folder"].split() == ["folder", "–", "–", "–", "–", "yes", "your", "own"]
    assert rows["cifar100"].rstrip().endswith("cifar-100-python.tar.gz")
    assert rows["cifar10"].rstrip().endswith("missing")
    assert str(tmp_path) in notes
    assert "fedacg data get" in notes


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
    monkeypatch.setattr(catalogue, "where", lambda name: place)
    table = invoke(["list"]).output.split("\n\n")[0].splitlines()
    assert all(len(line) <= 80 for line in table)
    assert "…" not in "".join(table)
    start = table[0].index("where")
    assert "".join(line[start:].strip() for line in table[1:5]).startswith(str(place.relative_to(tmp_path)))


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
