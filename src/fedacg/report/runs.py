"""Run folders read back for a report: finding them, loading them, and grouping the seeds of one experiment.

Nothing is written. The settings in which experiments differ become labels that distinguish runs.
"""

import json
import os
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedacg.config.experiment import Experiment, decisive, flatten, show
from fedacg.config.fields import Goal
from fedacg.config.methods import method_title
from fedacg.config.participation import split_trace
from fedacg.core import files
from fedacg.core.output import printable_tree
from fedacg.errors import InputError
from fedacg.runs.contents import EXPERIMENT, METRICS, SUMMARY, check_description, read_marker, read_summary
from fedacg.runs.history import History, read_metrics

Settings = dict[str, Any]
"""An experiment with dotted keys: {"seed": 0, "data.name": "digits", …}."""


def essential(settings: Settings) -> Settings:
    """The settings that make two runs the same experiment but for the seed."""
    return {key: value for key, value in decisive(settings).items() if key != "seed"}


def identity(settings: Settings, keys: Iterable[str]) -> tuple[str, ...]:
    """The values of some settings in a form that can be compared and hashed, lists among them."""
    return tuple(json.dumps(settings.get(key), sort_keys=True, default=str) for key in keys)


def common(several: Sequence[Settings]) -> Settings:
    """The settings that all have, with the same value."""
    differ = set(differing(several))
    return {key: value for key, value in several[0].items() if key not in differ}


def differing(several: Sequence[Settings]) -> list[str]:
    """The keys whose values are not the same in all, in the order they first occur."""
    keys = dict.fromkeys(key for settings in several for key in settings)
    return [key for key in keys if len({identity(settings, [key]) for settings in several}) > 1]


def labels(several: Sequence[Settings]) -> list[str]:
    """A short name for each: its method, and what distinguishes it from the others.

    Of the method's options all that differ between runs of that method; the data set if there are
    several; then, of the other settings, only those without which two names would be the same.
    """
    methods = [method_name(settings) for settings in several]
    data_sets = "data.name" in differing(several)
    names: list[str] = [""] * len(several)
    for method in dict.fromkeys(methods):
        places = [place for place, other in enumerate(methods) if other == method]
        members = [several[place] for place in places]
        shown = _telling([essential(member) for member in members], data_sets)
        for place, member in zip(places, members, strict=True):
            parts = [_part(key, member[key]) for key in shown if key in member]
            names[place] = f"{method_title(method)} {', '.join(parts)}" if parts else method_title(method)
    return names


def method_name(settings: Settings) -> str:
    """What `[method] name` says."""
    return str(settings["method.name"])


def _telling(members: Sequence[Settings], data_sets: bool) -> list[str]:
    differ = differing(members)
    shown = [key for key in differ if key.startswith("method.")]
    if data_sets:
        shown.append("data.name")
    for key in differ:
        apart = {identity(member, shown) for member in members}
        if key not in shown and len({identity(member, [*shown, key]) for member in members}) > len(apart):
            shown.append(key)
    return shown


def _part(key: str, value: object) -> str:
    if key == "data.name":
        return show(value)
    if key == "clock.profile" and (trace := split_trace(str(value))):
        value = f"{Path(trace[0]).name} {trace[1][:8]}".strip()
    return f"{key.removeprefix('method.')}={show(value)}"


_MOST_WHOLE = 2**63
"""Bound on whole numbers of a description, as in TOML."""


@dataclass(frozen=True)
class Run:
    """One run folder; `summary` is None while the run is in progress."""

    folder: Path
    label: str
    experiment: dict[str, Any]
    description: str
    """The text of its experiment.toml."""
    history: History
    summary: dict[str, Any] | None
    notes: tuple[str, ...]
    sealed: bool = False
    """Whether all its files have checksums; older versions wrote none."""

    @property
    def settings(self) -> Settings:
        """The experiment by dotted keys."""
        return flatten(self.experiment)

    @property
    def method(self) -> str:
        """The name of the method."""
        return method_name(self.settings)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.experiment.get("seed", 0))

    def seed_of(self, stream: str) -> int:
        """The seed of a stream, which is that of the run unless it has its own."""
        own = self.settings.get(f"seeds.{stream}", -1)
        return own if _is_whole(own) and own >= 0 else self.seed


@dataclass(frozen=True)
class Group:
    """The runs of one experiment under different seeds: one row of the table, one curve."""

    label: str
    runs: tuple[Run, ...]
    copy: int = 1
    """Counts the groups of the very same settings and seeds."""

    @property
    def method(self) -> str:
        """The name of the method that all its runs share."""
        return self.runs[0].method


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among `folders`, each once: a folder that is no run counts as all runs below it."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not files.is_folder(folder):
            raise InputError(f"{folder}: no such folder")
        inside = sorted(_runs_below(folder))
        if not inside:
            raise InputError(f"{folder}: no run in or below it: a run folder has {EXPERIMENT} and {METRICS}")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _runs_below(folder: Path) -> Iterator[Path]:
    for path, folders, names in os.walk(folder):
        if EXPERIMENT in names:
            yield Path(path)
            folders.clear()  # client states may be thousands of files


def _promised(folder: Path, summary: Mapping[str, Any] | None, history: History) -> list[str]:
    """What a reader of a run's figures must know about its privacy."""
    told = summary or {}
    privacy = told.get("privacy")
    found = [privacy.get("statement") if isinstance(privacy, Mapping) else None]
    if privacy is None and history and history[-1].score("privacy/simulated_cohort"):
        found.append(
            "SIMULATED privacy: the noise is that of a larger cohort; nothing is promised to these clients"
        )
    return [f"{folder}: {text}" for text in found if isinstance(text, str)]


class ReadRounds(Protocol):
    """The rounds in a metrics.jsonl, with notes; if `sealed`, each must have a checksum."""

    def __call__(self, path: Path, *, sealed: bool) -> tuple[History, list[str]]: ...


def load_run(folder: Path, read: ReadRounds = read_metrics) -> Run:
    """One run, finished or in progress, labelled by its method alone."""
    if not files.is_file(folder / EXPERIMENT):
        raise InputError(f"{folder}: not a run folder: it needs {EXPERIMENT} and {METRICS}")
    marker = read_marker(folder)
    sealed = marker is not None and not marker.older
    description = _read_text(folder / EXPERIMENT)
    experiment = _parse(folder / EXPERIMENT, description)
    history = History()
    notes: list[str] = []
    # A run that has only just begun has no rounds to show yet.
    if os.path.lexists(folder / METRICS):
        history, notes = read(folder / METRICS, sealed=sealed)
    try:
        check_description(folder, marker)
    except InputError as error:
        notes.append(str(error))
    summary = _usable(read_summary(folder, sealed=sealed))
    if summary is None:
        if os.path.lexists(folder / SUMMARY):
            notes.append(f"{folder / SUMMARY}: cannot be read; the run is treated as unfinished")
    elif summary.get("rounds", history.rounds) != history.rounds:
        notes.append(f"{folder}: has {history.rounds} of the {summary['rounds']} rounds of the run")
    if summary is None:
        rounds = f"{history.rounds} of {experiment.get('rounds', '?')} rounds"
        notes.append(f"{folder}: in progress, {rounds}" if history else f"{folder}: no rounds yet")
    notes += _promised(folder, summary, history)
    told = (summary or {}).get("notes")
    notes += [f"{folder}: {note}" for note in told if isinstance(note, str)] if isinstance(told, list) else []
    skipped = [m for m in history if m.test_accuracy is not None and m.test_accuracy != m.test_accuracy]
    if skipped:
        notes.append(f"{folder}: accuracy is not a number in {len(skipped)} rounds, which are ignored")
    lossless = [m for m in history if m.test_loss is not None and m.test_loss != m.test_loss]
    if lossless:
        notes.append(f"{folder}: the test loss is not a number in {len(lossless)} rounds")
    label = method_title(method_name(flatten(experiment)))
    return Run(folder, label, experiment, description, history, summary, tuple(notes), sealed)


def _usable(summary: dict[str, Any] | None) -> dict[str, Any] | None:
    """A summary whose entries were checked, as far as a report uses them."""
    if summary is None or not isinstance(summary.get("versions", {}), dict):
        return None
    if not _are_targets(summary.get("targets", [])):
        return None
    rounds = summary.get("rounds", 0)
    return summary if isinstance(rounds, int) and abs(rounds) < _MOST_WHOLE else None


def _read_text(path: Path) -> str:
    try:
        return files.read_text(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _parse(path: Path, description: str) -> dict[str, Any]:
    """The tables of a description, with what a report needs; it need not be runnable."""
    try:
        experiment: dict[str, Any] = printable_tree(tomllib.loads(description))
        settings = flatten(experiment)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(settings.get("method.name"), str):
        raise InputError(f"{path}: has no method: it needs [method] name")
    seed, targets = experiment.get("seed", 0), settings.get("evaluate.targets", [])
    if not _is_whole(seed):
        raise InputError(f"{path}: seed must be a whole number")
    if not _are_targets(targets):
        raise InputError(f"{path}: evaluate.targets must be a list of fractions")
    goals = settings.get("evaluate.goals", [])
    try:
        if not isinstance(goals, list) or not all(isinstance(goal, str) and Goal.parse(goal) for goal in goals):
            raise InputError("must be a list of texts")
    except InputError as error:
        raise InputError(f"{path}: evaluate.goals: {error}") from None
    for key, value in settings.items():
        if not _has_small_numbers(value):
            raise InputError(f"{path}: {key} has a whole number that is too large")
    return experiment


def _are_targets(value: object) -> bool:
    """Whether these are accuracies to reach, as `checked` wants them."""
    return isinstance(value, list) and all(isinstance(t, int | float) and 0 < t <= 1 for t in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_WHOLE


def _has_small_numbers(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_has_small_numbers, value))
    if isinstance(value, dict):
        return all(map(_has_small_numbers, value.values()))
    return not isinstance(value, int) or abs(value) < _MOST_WHOLE


def comparable(runs: Sequence[Run]) -> list[Settings]:
    """The settings of runs, defaults filled in; as they were written where one of them is of another version."""
    try:
        return [flatten(Experiment.parse(run.experiment).model_dump()) for run in runs]
    except InputError:
        return [run.settings for run in runs]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The runs of one experiment under different seeds together, in the order given, seeds going up.

    A second run of the same settings and the same seed is no second sample: it opens a group of its own,
    labelled #2.
    """
    several = comparable(runs)
    seeds: dict[tuple[object, ...], dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    firsts: dict[tuple[object, ...], Settings] = {}
    all_keys = sorted({key for settings in several for key in essential(settings)})
    for run, settings in zip(runs, several, strict=True):
        kind = identity(settings, all_keys)
        seeds[kind][run.seed].append(run)
        firsts.setdefault(kind, settings)
    groups: list[Group] = []
    for label, by_seed in zip(labels(list(firsts.values())), seeds.values(), strict=True):
        for copy in range(1, 1 + max(map(len, by_seed.values()))):
            members = [by_seed[seed][copy - 1] for seed in sorted(by_seed) if copy <= len(by_seed[seed])]
            name = label if copy == 1 else f"{label} #{copy}"
            groups.append(Group(name, tuple(_with_seed(name, run, len(members)) for run in members), copy))
    return groups


def _with_seed(label: str, run: Run, runs: int) -> Run:
    return replace(run, label=label if runs == 1 else f"{label}, seed {run.seed}")


def cautions(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before comparing the groups."""
    settings = [essential(each) for each in comparable([run for group in groups for run in group.runs])]
    differ = [key for key in differing(settings) if not key.startswith("method.")]
    notes = []
    if "data.name" in differ:
        names = dict.fromkeys(show(each.get("data.name")) for each in settings)
        notes.append(f"different data sets ({', '.join(names)}): their accuracies are not comparable")
        differ.remove("data.name")
    if differ:
        notes.append(f"apart from the method, the runs differ in {', '.join(differ)}")
    for group in groups:
        if group.copy > 1:
            folders = ", ".join(str(run.folder) for run in group.runs)
            notes.append(f"{group.label}: same settings and seed as another run, so listed separately ({folders})")
    return notes


def goals_of(runs: Iterable[Run]) -> list[Goal]:
    """The goals beyond accuracies of the experiments themselves, each once."""
    named = (goal for run in runs for goal in run.settings.get("evaluate.goals", []))
    return list(dict.fromkeys(map(Goal.parse, named)))


def targets_of(runs: Iterable[Run]) -> list[float]:
    """The targets of the experiments themselves, or were given when a run was resumed."""
    named = [(*run.settings.get("evaluate.targets", []), *(run.summary or {}).get("targets", [])) for run in runs]
    return sorted({float(target) for targets in named for target in targets})
