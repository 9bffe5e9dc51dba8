"""`fedacg.compare` and `fedacg.sweep`: one experiment with several methods, or over a grid, in one call.

They run what the commands of the same names run, with the same folders and reports.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console
from torch import nn

from fedacg import report
from fedacg.bench import sweep_report
from fedacg.bench.grid import Axis, by_method, check_begun, expand
from fedacg.config.experiment import Experiment
from fedacg.config.parameters import KEYS, Parameters, recipe
from fedacg.core.files import parse_folder
from fedacg.data.own_forms import Client
from fedacg.errors import InputError
from fedacg.methods.parts import LossFunction
from fedacg.report.cells import Column, to_markdown
from fedacg.report.runs import Run, group_runs
from fedacg.report.series import gather
from fedacg.report.table import Row
from fedacg.runs.api import Clients, Subject, check_flags, load
from fedacg.runs.build import check_methods
from fedacg.runs.callbacks import Callback, check_callbacks
from fedacg.runs.progress import make_progress
from fedacg.runs.runner import Result
from fedacg.runs.session import Session
from fedacg.simulation.scoring import Metric


@dataclass(frozen=True)
class Comparison:
    """The results of several runs; printed, it is their table."""

    results: Mapping[str, Result]
    """Results by the names of their folders."""
    rows: tuple[Row, ...]
    """Rows of the table: one for all seeds of an experiment."""
    columns: Sequence[Column]
    notes: tuple[str, ...]
    """What a reader of the table must know."""
    folder: Path | None = None
    """The folder of runs and report; None if nothing was written."""

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def __str__(self) -> str:
        return "\n".join([to_markdown(self.columns), *(f"note: {note}" for note in self.notes)])

    def _repr_markdown_(self) -> str:
        return str(self)


def compare(
    experiment: Experiment | str | None = None,
    *,
    methods: Sequence[str],
    seeds: Sequence[int] | None = None,
    model: nn.Module | None = None,
    clients: Clients | None = None,
    test: Client | Mapping[Any, Client] | None = None,
    classes: int | None = None,
    loss: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback | type[Callback] | str | Mapping[str, Any]] | None = None,
    progress: bool = False,
    **settings: Unpack[Parameters],
) -> Comparison:
    """Run one experiment with several methods, and several seeds, and put them in one table.

        fedacg.compare("quickstart", methods=["fedavg", "fedacg:lam=0.9"], seeds=[0, 1], rounds=20)
        fedacg.compare(model=net, clients=clients, test=test, methods=["local-only", "fedavg"], out="runs/mine")

    Args:
        experiment: A description, the name of a recipe, or a TOML file; or else a model and data as for `run`.
        methods: Names, with options after colons; the baselines are `centralised` and `local-only`.
        seeds: The experiment's own by default.
        out: A folder for runs and report, as `fedacg compare` writes it; by default nothing is written.
        callbacks: As for `fedacg.run`, called in every run; a class or a name makes a new one for each.
        progress: Show a live bar for each run, at a terminal or in a notebook.

    The other arguments are those of `fedacg.run`.
    """
    check_flags(resume=resume, overwrite=overwrite, progress=progress)
    check_callbacks(callbacks or [])
    subject = _subject(experiment, model, clients, test, classes, loss, settings)
    if "method" in settings or "options" in settings:
        raise InputError("method: compare takes several; use methods=, as in methods=['fedacg:lam=0.9']")
    experiments = by_method(subject.tree, _listed("methods", methods, str), _seeds(seeds), subject.parse)
    folder = parse_folder(out) if out is not None else None
    results = _play(subject, experiments, folder, resume, overwrite, progress, metrics, callbacks)
    first = next(iter(experiments.values()))
    if folder is None:
        return _in_memory(results, first.evaluate.targets)
    written = report.write([folder / name for name in experiments], folder, list(first.evaluate.targets))
    return Comparison(results, written.rows, written.table.columns, written.notes, folder)


def sweep(
    experiment: Experiment | str | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None = None,
    model: nn.Module | None = None,
    clients: Clients | None = None,
    test: Client | Mapping[Any, Client] | None = None,
    classes: int | None = None,
    loss: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback | type[Callback] | str | Mapping[str, Any]] | None = None,
    progress: bool = False,
    **settings: Unpack[Parameters],
) -> Comparison:
    """Run one experiment with every combination of some settings.

        fedacg.sweep("quickstart", grid={"method.lam": [0.8, 0.9], "lr": [0.05, 0.1]}, rounds=20)

    Args:
        grid: Values for keys of the experiment file, or for short names of `fedacg.run`.
        out: A folder for runs and report, as `fedacg sweep` writes it; runs finished there are not run
            again. By default nothing is written.
        resume: Resume runs in `out` that were stopped.

    The other arguments are those of `compare`.
    """
    check_flags(resume=resume, progress=progress)
    check_callbacks(callbacks or [])
    subject = _subject(experiment, model, clients, test, classes, loss, settings)
    axes = [
        Axis(KEYS.get(key, key), tuple(map(_written, _listed(f"grid[{key!r}]", values, object))))
        for key, values in grid.items()
    ]
    if any(axis.key == "seed" for axis in axes):
        raise InputError("grid: give seeds with seeds=")
    folder = parse_folder(out) if out is not None else None
    points = expand(subject.tree, axes, _seeds(seeds), folder, subject.parse)
    runs = {place: run for point in points for place, run in point.runs.items()}
    for place, run in runs.items():
        if folder is not None:
            check_begun(place, run, resume)
    below = folder / "runs" if folder else None
    named = {place.name: run for place, run in runs.items()}
    results = _play(subject, named, below, True, False, progress, metrics, callbacks)
    if folder is None:
        return _in_memory(results, next(iter(runs.values())).evaluate.targets)
    written = sweep_report.write(axes, points, folder)
    return Comparison(results, written.rows, written.table.columns, written.notes, folder)


def _subject(
    experiment: Experiment | str | None,
    model: nn.Module | None,
    clients: Clients | None,
    test: Client | Mapping[Any, Client] | None,
    classes: int | None,
    loss: LossFunction | None,
    settings: Parameters,
) -> Subject:
    if isinstance(experiment, str):
        experiment, settings = recipe(experiment, **settings), {}
    return Subject.of(experiment, model, clients, test, classes, loss, None, settings)


def _play(
    subject: Subject,
    experiments: Mapping[str, Experiment],
    folder: Path | None,
    resume: bool,
    overwrite: bool,
    progress: bool,
    metrics: Mapping[str, Metric] | None,
    callbacks: Sequence[Callback | type[Callback] | str | Mapping[str, Any]] | None,
) -> dict[str, Result]:
    """The results of all runs, including those that were finished before."""
    check_methods(experiments.values())
    if folder is None and resume and not overwrite:
        resume = False  # there is nothing to resume
    display = make_progress(Console(), not progress, {name: each.rounds for name, each in experiments.items()})

    def looking_on(name: str) -> list[Callback]:
        display.turn(name)
        return [display, *check_callbacks(callbacks or [])]

    model = subject.own[0] if subject.own else None
    results: dict[str, Result] = {}
    with Session(next(iter(experiments.values())).engine, len(experiments)) as session, display:
        for name, result in session.play_each(
            experiments,
            folder,
            ingredients=lambda each: subject.ingredients(each, session),
            resume=resume,
            overwrite=overwrite,
            callbacks=looking_on,
            metrics=metrics,
        ):
            if result is None:
                assert folder is not None
                result = load(folder / name, model=model, trust=True)  # it is the caller's own code
            results[name] = result
    return results


def _in_memory(results: Mapping[str, Result], targets: Sequence[float]) -> Comparison:
    """The table of runs without a folder."""
    runs = [
        Run(
            folder=Path(name),
            label=result.experiment.method.name,
            experiment=result.experiment.model_dump(),
            description=result.experiment.to_toml(),
            history=result.history,
            summary=result.summary,
            notes=(),
        )
        for name, result in results.items()
    ]
    material = gather(group_runs(runs), list(targets) or None)
    return Comparison(results, material.rows, material.columns, material.notes)


def _seeds(seeds: Sequence[int] | None) -> list[int]:
    return [] if seeds is None else _listed("seeds", seeds, int)


def _listed(name: str, given: Any, kind: type) -> list[Any]:
    """A list of values of one type; a single value is refused, since a string is a list of letters."""
    if isinstance(given, str | Mapping) or not hasattr(given, "__iter__"):
        raise InputError(f"{name} = {given!r}: must be a list")
    listed = list(given)
    if not listed:
        raise InputError(f"{name}: is empty; must have at least one entry")
    for each in listed:
        if not isinstance(each, kind) or (isinstance(each, bool) and kind is int):
            raise InputError(f"{name}: {each!r} is a {type(each).__name__}; must be {kind.__name__}")
    return listed


def _written(value: object) -> str:
    """A value as it is typed after a key: texts bare, unless that would read as something else."""
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    if isinstance(value, str):
        try:
            tomllib.loads(f"value = {value}")
        except ValueError:
            return value
        return json.dumps(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)
