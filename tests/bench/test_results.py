"""The results that documents show are those of the committed files."""

import csv
import re
from pathlib import Path

import pytest

from fedacg.runs.history import human_bytes

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TABLE = re.compile(r"^\| method \|.*here, at.*\n(?:^\|.*\n)+", re.MULTILINE)
"""A table of `fedacg bench`, or some of its rows and columns."""


def shown(text: str) -> dict[str, dict[str, str]]:
    """The cells of a table: by method, by heading, without the marks of the best."""
    heading, _, *rows = [
        [re.sub(r"\*\*|</?u>", "", cell).strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
    ]
    return {row[0]: dict(zip(heading[1:], row[1:], strict=True)) for row in rows}


def committed(path: Path) -> dict[str, dict[str, str]]:
    """The same of a bench.csv."""
    cells: dict[str, dict[str, str]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            of = cells.setdefault(row["method"], {})
            paper = (row["paper"] or "–") + "+" * (row["paper_not_reached"] == "1")
            here, more = row["value"], "+" * (row["not_reached"] == "1")
            match row["metric"]:
                case "accuracy":
                    of[f"paper, at {row['paper_at']}"] = paper if paper == "–" else f"{float(paper):.2f}"
                    of[f"here, at {row['at']}"] = f"{float(here):.2f}"
                case "rounds_to":
                    of[f"paper, to {row['paper_at']} %"] = paper
                    of[f"here, to {row['at']} %"] = here + more
                case "bytes_to":
                    of[f"bytes, to {row['at']} %"] = human_bytes(int(here)) + more
    return cells


@pytest.mark.parametrize("document", ["docs/results/README.md"])
def test_a_table_shows_the_numbers_of_the_file_that_it_names(document: str) -> None:
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    tables = list(TABLE.finditer(text))
    assert tables
    for table in tables:
        named = re.search(r"\(([^()]*bench\.csv)\)", text[table.end() :])
        assert named, "no file is named after the table"
        numbers = committed(path.parent / named[1])
        for method, cells in shown(table[0]).items():
            assert {heading: numbers[method][heading] for heading in cells} == cells, method


PAIRED = re.compile(r"^\| method \|.*95 % interval.*\n(?:^\|.*\n)+", re.MULTILINE)
"""A table of benchmarks/paired.py, or some of its rows, perhaps with columns of the paper beside it."""


@pytest.mark.parametrize("document", ["README.md", "docs/results/claims.md"])
def test_a_paired_table_shows_the_numbers_of_the_file_that_it_names(document: str) -> None:
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    found = list(PAIRED.finditer(text))
    assert found
    for table in found:
        named = re.search(r"\(([^()]*\.csv)\)", text[table.end() :])
        assert named, "no file is named after the table"
        with (path.parent / named[1]).open(newline="") as file:
            numbers = {row["method"]: row for row in csv.DictReader(file)}
        for method, cells in shown(table[0]).items():
            row = numbers[method]
            spread = f"{row['mean']} ±{row['deviation']}" if row["deviation"] else row["mean"]
            assert cells["moving average %"] == spread, method
            between = f"{row['low']} to {row['high']}" if row["low"] else ""
            assert cells["95 % interval"] == between.replace("-", "−"), method
            (less,) = [heading for heading in cells if heading.startswith("less ")]
            assert cells[less] == row["less"].replace("-", "−"), method


def test_every_file_of_results_is_shown() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*RESULTS.glob("*.md"), *(ROOT / "docs").glob("*.md"))]
    files = [path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.*") if path.name != "README.md"]
    assert [file for file in files if not any(file in text for text in texts)] == []
