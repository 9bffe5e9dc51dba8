"""Names in foreign run folders: neither a terminal nor a spreadsheet obeys them."""

import csv
from pathlib import Path

import pytest

from fedacg.core.output import csv_text, printable
from support.command import Command
from support.folders import fake_run

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e\n\r\x9b31m"


def test_characters_that_a_terminal_obeys_are_spelled_out() -> None:
    assert printable("FedACG – λ = 0,85 é 雪") == "FedACG – λ = 0,85 é 雪"
    assert printable("\x1b[2J\n\u202e\udcff\x9b") == "\\x1b[2J\\n\\u202e\\udcff\\x9b"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_text_cell_is_no_formula(text: str) -> None:
    assert csv_text(text) == f"'{text}"
    assert csv_text(f"fed{text}") == f"fed{text}"


def test_escapes_in_a_method_or_a_folder_do_not_reach_the_terminal(fedacg: Command) -> None:
    fake_run(fedacg.folder / "runs" / "a\x1b[31m", [0.1], f"fedavg{ESCAPE}", finished=False)
    fake_run(fedacg.folder / "runs" / "b", [0.2], "fedacg", options={"note": ESCAPE})
    outcome = fedacg("report", "runs")
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert "\x9b" not in outcome.out
    assert "\\x1b]0;owned" in outcome.out
    for name in ("table.csv", "table.md", "table.tex"):
        assert "\x1b" not in (fedacg.folder / "report" / name).read_text()
    (fedacg.folder / "runs" / "b" / "experiment.toml").write_text(f'x = "{"a" * 9}\\u001b[2J"\n[method\x1b[2J')
    error = fedacg("report", "runs").err
    assert error.startswith("error: ")
    assert "\x1b" not in error


def test_a_methods_name_is_no_formula_in_a_table(fedacg: Command) -> None:
    fake_run(fedacg.folder / "run", [0.1], '=HYPERLINK("http://x")')
    assert fedacg("report", "run", "--quiet").code == 0
    (row,) = csv.DictReader(Path("report/table.csv").read_text().splitlines())
    assert row["label"].startswith("'=")
    assert row["method"].startswith("'=")
