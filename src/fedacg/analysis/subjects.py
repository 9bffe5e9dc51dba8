"""What is analysed and what comes of it: run folders read back as subjects, and findings about them.

The report finds, reads and groups run folders; this adds what only an analysis needs: labels, the recorded rounds
that runs share, and what they were built from. Each analysis makes one `Finding` and reports its progress to a
`Watcher`; `analyse` puts the findings together. No run is changed.
"""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from matplotlib.figure import Figure
from torch import nn

from fedacg.analysis.pictures import Ink
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment
from fedacg.core import plugins
from fedacg.core.output import csv_text
from fedacg.core.vector import Layout, trainable
from fedacg.errors import InputError
from fedacg.report.cells import ABSENT, Cell, Column
from fedacg.report.runs import Run, find_runs, group_runs, load_run
from fedacg.report.style import styles_of
from fedacg.report.table import Spread
from fedacg.runs import recording
from fedacg.runs.build import Ingredients, prepare
from fedacg.runs.contents import check_first_format, read_marker
from fedacg.runs.history import History


@dataclass(frozen=True)
class Subject:
    """A run under analysis, with the label and the colour of its group."""

    run: Run
    ink: Ink
    trust: bool = False
    """Whether code that the run names may be imported."""

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def history(self) -> History:
        return self.run.history

    @cached_property
    def experiment(self) -> Experiment:
        with self.reading():
            return Experiment.parse(self.run.experiment)

    @cached_property
    def recorded(self) -> list[int]:
        """Its recorded rounds."""
        return recording.rounds(self.folder)

    def load(self, round: int) -> recording.Recorded:
        """One of them."""
        return recording.load(self.folder, round, sealed=self.run.sealed)

    def reading(self) -> AbstractContextManager[None]:
        """The block in which anything is built from the run's settings."""
        return plugins.reading(self.folder, trust=self.trust, allow="add --trust")


def read(folders: Sequence[Path], *, trust: bool = False) -> list[Subject]:
    """The runs in and below these folders, those that differ only in the seed side by side."""
    groups = group_runs([load_run(folder) for folder in find_runs(folders)])
    styles = styles_of([group.method for group in groups])
    subjects = [
        Subject(run, Ink(group.label, place, styles[place]), trust)
        for place, group in enumerate(groups)
        for run in group.runs
    ]
    empty = [str(subject.folder) for subject in subjects if not subject.history]
    if empty:
        raise InputError(f"{', '.join(empty)}: no round has run yet")
    return subjects


def check_drift(subjects: Sequence[Subject]) -> None:
    """Refuse runs of older versions, which did not record how the local models spread."""
    for subject in subjects:
        if all(metrics.drift is None for metrics in subject.history):
            raise InputError(
                f"{subject.folder}: of an older version, whose metrics do not say how local models spread; "
                "run it again, or leave out divergence and drift with --what"
            )


def chosen_round(subjects: Sequence[Subject], wanted: int | None) -> int:
    """The recorded round to analyse: the one asked for, or the last that all runs have."""
    for subject in subjects:
        if not subject.recorded:
            raise InputError(
                f"{subject.folder}: has no recorded rounds, which the loss surface and CKA need; run it with "
                f"--set 'analysis.rounds=[{wanted or subject.history.rounds}]', or leave these two out with "
                "--what divergence,stability,drift"
            )
        if wanted is not None and wanted not in subject.recorded:
            there = ", ".join(map(str, subject.recorded))
            raise InputError(f"--round {wanted}: {subject.folder} did not record it; choose from {there}")
    if wanted is not None:
        return wanted
    common = set.intersection(*(set(subject.recorded) for subject in subjects))
    if not common:
        each = "; ".join(f"{subject.folder} has {', '.join(map(str, subject.recorded))}" for subject in subjects)
        raise InputError(f"the runs have no recorded round in common: {each}")
    return max(common)


def check_cohorts(
    subjects: Sequence[Subject], round: int, least: int, clients: Sequence[int] | None = None
) -> None:
    """Refuse cohorts that are too small, or that lack a client that was asked for."""
    for subject in subjects:
        cohort = subject.load(round).clients
        if len(cohort) < least:
            work = "CKA compares two" if least == 2 else "a loss surface takes three"
            raise InputError(f"{subject.folder}: {len(cohort)} clients answered in round {round}, but {work}")
        for client in clients or ():
            if client not in cohort:
                there = ", ".join(map(str, cohort))
                raise InputError(
                    f"--clients has {client}: not in the cohort of round {round} of {subject.folder}, "
                    f"which is {there}"
                )


def check_alike(subjects: Sequence[Subject]) -> None:
    """Refuse runs whose networks cannot be built here, and runs of different networks or data sets."""
    for subject in subjects:
        for part, name in (("model", subject.experiment.model.name), ("data", subject.experiment.data.name)):
            if name.split(":")[0] == GIVEN:
                raise InputError(
                    f"{subject.folder}: {part}.name = {name!r}: was given from Python; the loss surface and CKA "
                    "need a model of the catalogue and data that can be loaded by name"
                )
    first = subjects[0]
    for other in subjects[1:]:
        for words, ours, theirs in (
            ("models", _model(first), _model(other)),
            ("data sets", _data(first), _data(other)),
        ):
            if ours != theirs:
                raise InputError(
                    f"different {words} in one loss surface or CKA: {ours} in {first.folder}, "
                    f"{theirs} in {other.folder}; analyse them separately"
                )


def check_code(subjects: Sequence[Subject]) -> None:
    """Refuse runs that name user code, unless it may be imported."""
    for subject in subjects:
        experiment = subject.experiment
        with subject.reading():
            for part in ("data", "model", "method"):
                plugins.check(f"{part}.name", getattr(experiment, part).name)


def _model(subject: Subject) -> str:
    settings = subject.experiment.model
    return " ".join([settings.name, *(f"{key}={value}" for key, value in sorted(settings.options.items()))])


def _data(subject: Subject) -> str:
    settings = subject.experiment.data
    return f"{settings.name} {settings.path}".strip()


def together(subjects: Sequence[Subject]) -> Iterator[tuple[Ingredients, list[Subject]]]:
    """The runs grouped by network and data, each group with the ingredients of its first run.

    So data are loaded once for all methods that are compared; only the method differs between the runs of a group.
    """
    parts: dict[str, list[Subject]] = defaultdict(list)
    for subject in subjects:
        experiment = subject.experiment
        shared = experiment.model_dump(include={"data", "model", "seed"}) | {"test": experiment.evaluate.examples}
        parts[json.dumps(shared, default=str)].append(subject)
    for part in parts.values():
        with part[0].reading():
            ingredients = prepare(part[0].experiment)
        layout = Layout.of(ingredients.module, ingredients.channels_last)
        for subject in part:
            if read_marker(subject.folder) is None:
                check_first_format(subject.folder, subject.experiment, layout)
        yield ingredients, part


def check_fit(recorded: recording.Recorded, module: nn.Module) -> None:
    """Refuse recorded vectors of another model than the description's."""
    parameters = trainable(module)
    size = sum(p.numel() for p in parameters)
    if recorded.phi.shape != (size,) or recorded.phi.dtype != parameters[0].dtype:
        found, wanted = (tuple(recorded.phi.shape), recorded.phi.dtype), ((size,), parameters[0].dtype)
        raise InputError(f"{recorded.folder}: its vectors are {found}, those of the model {wanted}")


# Findings: pictures with captions, numbers as CSV, and columns of the summary


class Watcher(Protocol):
    """An observer of an analysis that takes a while."""

    def estimate(self, work: str, seconds: float) -> None:
        """Announce how long some work will take in all, before it begins."""
        ...

    def work(self, name: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
        """A block of work; the function it gives is called after each step."""
        ...


@dataclass(frozen=True)
class Drawing:
    """A picture with its title and caption on the page."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


@dataclass(frozen=True)
class Finding:
    """The result of one analysis."""

    drawings: Sequence[Drawing]
    tables: Mapping[str, str]
    """CSV by the name of its file."""
    columns: Sequence[Column]
    """Of the summary: a row for every group of runs."""


def to_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers in full precision; what is absent or not finite is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return csv_text(value) if isinstance(value, str) else value


def by_group(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """The runs grouped: those that differ only in the seed go together."""
    groups: dict[int, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.ink.place, []).append(subject)
    return list(groups.values())


def summary_column(
    heading: str,
    subjects: Sequence[Subject],
    values: Sequence[float | None],
    *,
    decimals: int | None = None,
    spare: bool = False,
) -> Column:
    """A figure of every group, in three digits or `decimals`: mean over seeds, and deviation."""
    found = dict(zip((subject.folder for subject in subjects), values, strict=True))
    cells = []
    for group in by_group(subjects):
        values_of = [found[subject.folder] for subject in group]
        known = [value for value in values_of if value is not None and math.isfinite(value)]
        cells.append(Cell(_text(Spread.over(known), decimals) if known else ABSENT))
    return Column(heading, tuple(cells), spare)


def _text(spread: Spread, decimals: int | None) -> str:
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(abs(spread.mean)))) if spread.mean else 0
    return f"{spread.mean:.{decimals}f}" + ("" if spread.std is None else f" ±{spread.std:.{decimals}f}")


class Words(NamedTuple):
    """The title of a picture, its caption, and its alternative text."""

    title: str
    caption: str
    alt: str


LEAD = (
    "How the local models of a round relate to each other, and how steadily the global model learns. Divergence "
    "(relative) and cosine are means over all rounds, stability is one over all evaluated rounds. CKA, at the "
    "output of the head, and the losses of three local models and of their mean are those of the recorded "
    "round that is drawn."
)
