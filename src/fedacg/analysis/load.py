"""Run folders read back for analysis: their labels, the recorded rounds they share, and what they were built from.

The report finds, reads and groups run folders; this adds what only an analysis needs. Nothing is written.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from fedacg.analysis.pictures import Ink
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment
from fedacg.core import plugins
from fedacg.core.vector import Layout, trainable
from fedacg.errors import InputError
from fedacg.report.runs import Run, find_runs, group_runs, load_run
from fedacg.report.style import styles_of
from fedacg.runs import recording
from fedacg.runs.build import Ingredients, prepare
from fedacg.runs.folder import check_first_format, read_marker
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
