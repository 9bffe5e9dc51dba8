"""Tables of benchmarks as CSV files: written atomically, and read again when a stopped benchmark continues."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from fedacg.core.files import write_whole

Row = dict[str, str]


def read(path: Path | None) -> dict[str, Row]:
    """The rows of a table by their first column; empty if there is no such file."""
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {next(iter(row.values())): row for row in csv.DictReader(file)}


def save(path: Path | None, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """All rows there are, in this order."""
    if path is not None:
        text = StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(path, text.getvalue().encode())
