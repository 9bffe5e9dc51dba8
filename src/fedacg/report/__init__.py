"""Reports on run folders: one table, curves and one page from any number of runs.

`write` is all that callers need. Reads runs, never changes them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedacg.errors import InputError
from fedacg.report import curves, page
from fedacg.report.cells import TerminalTable, columns_of, to_markdown
from fedacg.report.runs import Group, cautions, find_runs, group_runs, load_run, targets_of
from fedacg.report.series import Axis, curves_of
from fedacg.report.table import Row, rows_of, to_csv

__all__ = ["Report", "write"]


@dataclass(frozen=True)
class Report:
    """What was written, and what a terminal shows of it."""

    table: TerminalTable
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    paths: tuple[Path, ...]


def write(
    folders: Sequence[Path],
    out: Path,
    targets: Sequence[float] | None = None,
    chapter: page.Chapter | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Report:
    """Report on the runs in and below `folders` into the folder `out`.

    Writes table.csv, table.md, curves-rounds and curves-bytes as PNG and PDF, and index.html, each whole or
    not at all. `targets` are fractions; without them, those that the experiments name are taken. Another room may
    add a `chapter` to the page, and files to be put `beside` it.
    """
    runs = [load_run(folder) for folder in find_runs(folders)]
    if not any(run.history for run in runs):
        raise InputError(f"{', '.join(str(run.folder) for run in runs)}: no round has been recorded yet")
    groups = group_runs(runs)
    goals = targets_of(runs) if targets is None else sorted(set(targets))
    for target in goals:
        if not 0 < target <= 1:
            raise InputError(f"target {target:g}: a target is a fraction above 0 and up to 1, such as 0.9")
    notes = [*cautions(groups), *(note for run in runs for note in run.notes)]
    rows = rows_of(groups, goals)
    several_data_sets = len({run.settings.get("data.name") for run in runs}) > 1
    columns = columns_of(rows, goals, ranked=not several_data_sets)
    lines = curves_of(groups)

    files = {"table.csv": to_csv(rows, goals).encode(), "table.md": to_markdown(columns).encode()}
    for axis in Axis:
        figure = curves.draw(lines, axis, goals)
        for kind in ("png", "pdf"):
            files[f"curves-{axis}.{kind}"] = curves.render(figure, kind)
    files["index.html"] = page.render(groups, columns, lines, goals, notes, chapter).encode()
    files.update(beside or {})
    paths = _place(files, out)
    return Report(TerminalTable(columns), tuple(rows), tuple(groups), tuple(notes), paths)


def _place(files: dict[str, bytes], out: Path) -> tuple[Path, ...]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _replace(out / name, content)
    except OSError as error:
        raise InputError(f"{out}: the report cannot be written: {error.strerror}") from error
    return tuple(out / name for name in files)


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
