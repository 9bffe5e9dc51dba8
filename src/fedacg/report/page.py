"""The report as one HTML file that needs nothing else: no network, no server, no script.

Gathers what the template shows; the template `page.html.jinja` decides how it looks.
"""

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedacg.report.cells import Cell, Column
from fedacg.report.runs import EXPERIMENT, Group, Run
from fedacg.report.series import PALETTE, Axis, Curve
from fedacg.report.settings import common, differing, show
from fedacg.report.svg import SIDE, chart
from fedacg.version import __version__


@dataclass(frozen=True)
class Picture:
    """A picture that another room has drawn, and the words that go with it."""

    name: str
    title: str
    caption: str
    alt: str
    """What a reader who cannot see it is told."""
    png: bytes

    @property
    def source(self) -> str:
        """The picture itself as an address, so that the page stays one file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Chapter:
    """A part of the page that another room fills: words, a table and pictures."""

    title: str
    words: str
    columns: Sequence[Column]
    pictures: Sequence[Picture]

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))


@dataclass(frozen=True)
class _RunLine:
    """What the page says about one run folder."""

    label: str
    folder: str
    seed: int
    rounds: str
    state: str
    digest: str
    command: str


def render(
    groups: Sequence[Group],
    columns: Sequence[Column],
    curves: Sequence[Curve],
    targets: Sequence[float],
    notes: Sequence[str],
    chapter: Chapter | None = None,
) -> str:
    """The page as text; everything that comes from a run is escaped."""
    environment = Environment(
        loader=PackageLoader("fedacg.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    runs = [run for group in groups for run in group.runs]
    settings = [run.settings for run in runs]
    differ = [key for key in differing(settings) if key != "name"]
    return environment.get_template("page.html.jinja").render(
        title=_title(runs),
        summary=_summary(groups, runs),
        version=__version__,
        palette=PALETTE,
        side=SIDE,
        columns=columns,
        rows=list(zip(*(column.cells for column in columns), strict=True)),
        charts=[chart(curves, axis, targets) for axis in Axis] if curves else [],
        chapter=chapter,
        notes=notes,
        common=[(key, show(value)) for key, value in common(settings).items() if key != "name"],
        differ=differ,
        differences=[(group.label, [_values(group, key) for key in differ]) for group in groups],
        runs=[_run_line(run) for run in runs],
    )


def _values(group: Group, key: str) -> str:
    return ", ".join(dict.fromkeys(show(run.settings.get(key)) for run in group.runs))


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(str(run.experiment.get("name", "")) for run in runs))
    return names[0] if len(names) == 1 and names[0] else f"{len(runs)} runs"


def _summary(groups: Sequence[Group], runs: Sequence[Run]) -> str:
    methods = len({group.method for group in groups})
    data_sets = ", ".join(dict.fromkeys(show(run.settings.get("data.name")) for run in runs))
    counts = f"{len(runs)} run{'s' * (len(runs) > 1)} of {methods} method{'s' * (methods > 1)}"
    return f"{counts} on {data_sets}"


def _run_line(run: Run) -> _RunLine:
    planned = run.experiment.get("rounds")
    return _RunLine(
        label=run.label,
        folder=str(run.folder),
        seed=run.seed,
        rounds=f"{run.history.rounds}" if planned is None else f"{run.history.rounds} / {planned}",
        state="in progress" if run.summary is None else "finished",
        digest=str((run.summary or {}).get("vector_sha256", ""))[:12],
        command=shlex.join(["fedacg", "run", str(run.folder / EXPERIMENT)]),
    )
