"""Reports on run folders: one table, curves and one page from any number of runs.

Most callers need only `write`; `live` serves the page of runs in progress. Runs are read, never changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedacg.core import files
from fedacg.errors import InputError
from fedacg.report import federation_time, page, pictures
from fedacg.report.cells import TerminalTable, to_latex, to_markdown
from fedacg.report.chapters import card_parts, differences_parts
from fedacg.report.labels import Split, splits_of
from fedacg.report.runs import Group, find_runs, group_runs, load_run
from fedacg.report.series import Axis, Material, gather
from fedacg.report.table import Row, to_csv

__all__ = ["Report", "write"]


@dataclass(frozen=True)
class Report:
    """The files written, and the table for a terminal."""

    table: TerminalTable
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    headline: str
    paths: tuple[Path, ...]


def write(
    folders: Sequence[Path],
    out: Path,
    targets: Sequence[float] | None = None,
    chapter: page.Chapter | None = None,
    beside: Mapping[str, bytes] | None = None,
    *,
    each_seed: bool = False,
    clocks: Sequence[str] = (),
    spent: Sequence[Path] = (),
) -> Report:
    """Report on the runs in and below `folders` into the folder `out`.

    Writes the table as table.csv, table.md and table.tex, the curves along rounds, bytes and seconds, the split
    and the clients' accuracies, if measured, as PNG and PDF, tests of significance, a card, and index.html, each
    atomically. `targets` are fractions; by default, those of the experiments.
    With `each_seed` the curves show single seeds. Another package may add a `chapter` to the page, and files
    `beside` it. `clocks` are device profiles for the simulated time, and `spent` are runs that count as budget
    besides those shown.
    """
    runs = [load_run(folder) for folder in find_runs(folders)]
    if not any(run.history for run in runs):
        raise InputError(f"{', '.join(str(run.folder) for run in runs)}: no round has been recorded yet")
    material = gather(group_runs(runs), targets)
    splits = page.Splits(*splits_of(runs))
    content = {
        "table.csv": to_csv(material.rows, material.targets).encode(),
        "table.md": to_markdown(material.columns).encode(),
        "table.tex": to_latex(material.columns).encode(),
        **_pictures(material, splits.found, each_seed),
    }
    static = pictures.render(pictures.draw_curves(material.curves, Axis.ROUNDS, material.targets), "png", dpi=100)
    told, files_told = differences_parts(material)
    timed, files_timed = federation_time.parts(material, clocks)
    others = [folder for folder in spent if folder.resolve() not in {run.folder.resolve() for run in runs}]
    facts, files_of_card = card_parts([*runs, *map(load_run, others)])
    chapters = [*([chapter] if chapter else []), *told, *timed, facts]
    content["index.html"] = page.render(material, splits, chapters=chapters, picture=static).encode()
    content.update({**files_told, **files_timed, **files_of_card, **(beside or {})})
    paths = _place(content, out)
    table = TerminalTable(material.columns)
    return Report(table, material.rows, material.groups, material.notes, material.headline, paths)


def _pictures(material: Material, splits: Sequence[Split], each_seed: bool) -> dict[str, bytes]:
    figures = {
        f"curves-{axis}": pictures.draw_curves(material.curves, axis, material.targets, each_seed=each_seed)
        for axis in Axis
    }
    for place, split in enumerate(splits, start=1):
        name = "split" if len(splits) == 1 else f"split-{place}"
        figures[name] = pictures.draw_labels(split.held, split.figures, split.title)
    if measured := pictures.gather_clients(material.groups, material.curves):
        figures["clients"] = pictures.draw_clients(measured)
    kinds = ("png", "pdf")
    return {f"{name}.{kind}": pictures.render(each, kind) for name, each in figures.items() for kind in kinds}


def _place(content: dict[str, bytes], out: Path) -> tuple[Path, ...]:
    try:
        files.make_folder(out)
        files.remove_drafts(out, content)
        for name, each in content.items():
            files.write_whole(out / name, each)
    except OSError as error:
        raise InputError(f"{out}: the report cannot be written: {error.strerror}") from error
    return tuple(out / name for name in content)
