"""`fedacg data`: what is listed, and what fetching says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedacg.cli.data import app
from fedacg.data import catalogue
from fedacg.errors import InputError

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
    assert rows["digits"].split() == ["digits", "1438", "359", "10", "1×8×8", "built", "in"]
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
