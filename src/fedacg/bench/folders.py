"""Folders of runs that several tables share: an experiment has one folder, whichever table asks for it."""

import re
from collections.abc import Collection, Mapping
from itertools import count
from pathlib import Path

from fedacg.config import methods
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.config.sections import MethodSettings
from fedacg.errors import InputError

_DESCRIPTION = "experiment.toml"


def spelled(method: MethodSettings, between: str = ":") -> str:
    """A method as typed on the command line, with the options that differ from the defaults."""
    defaults = methods.complete(method.name, {})
    given = [f"{key}={value:g}" for key, value in method.options.items() if value != defaults[key]]
    return between.join([method.name, *given])


def run_name(experiment: Experiment) -> str:
    """The name of a run's folder: its method and seed."""
    return f"{spelled(experiment.method, between='-')}-s{experiment.seed}"


def folder_name(experiment: Experiment) -> str:
    """The part of a folder's name that distinguishes runs of one experiment."""
    return f"{methods.method_label(experiment.method.name)}-s{experiment.seed}"


def place(root: Path, name: str, experiment: Experiment) -> Path:
    """The folder of this very experiment below `root`; a new one is NAME, or NAME-2 where NAME holds another."""
    name = name.replace("/", "_")
    pattern = re.compile(re.escape(name) + r"(-\d+)?")
    inside = root.iterdir() if root.is_dir() else ()
    taken = sorted(path for path in inside if pattern.fullmatch(path.name) and (path / _DESCRIPTION).exists())
    for path in taken:
        if _holds(path, experiment):
            return path
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(root / free for free in names if root / free not in taken)


def place_run(root: Path, name: str, experiment: Experiment, *, reuse: bool) -> Path:
    """As `place`; to `reuse` a folder where none has this experiment means the one called NAME."""
    found = place(root, name, experiment)
    return root / name if reuse and not found.exists() else found


def place_several(
    path: Path, runs: Mapping[str, Experiment], free: Collection[str], *, reuse: bool, below: str = ""
) -> Path:
    """`path`, or PATH-2 where the runs in PATH have other settings than these, seeds and `free` ones aside.

    `runs` are keyed by their folders, which are in the folder `below` it.  With `reuse`, PATH is
    meant where no folder has these settings.
    """
    tables = tuple(f"{key.removesuffix('name')}" for key in free if key.endswith(".name"))

    def fits(candidate: Path) -> bool:
        for description in sorted((candidate / below).glob(f"*/{_DESCRIPTION}")):
            name = description.parent.name
            keys = _difference(description.parent, runs.get(name) or next(iter(runs.values())))
            if keys is None or (keys and name in runs):
                return False
            if not all(key == "seed" or key in free or key.startswith(tables) for key in keys):
                return False
        return True

    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in count(1))
    found = next(filter(fits, names))
    return path if reuse and not found.exists() else found


def _difference(folder: Path, experiment: Experiment) -> list[str] | None:
    """The keys in which the run in a folder differs; None if its description cannot be read."""
    try:
        differences = Experiment.parse(read_toml(folder / _DESCRIPTION)).difference(experiment)
    except InputError:  # of another version, or not a description at all
        return None
    return [line.partition(" ")[0] for line in differences]


def _holds(folder: Path, experiment: Experiment) -> bool:
    return _difference(folder, experiment) == []


def check_begun(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Refuse to resume a stopped run unless that was asked for."""
    from fedacg.runs.folder import is_finished  # imports torch, which a plan does without

    if not resume and (folder / _DESCRIPTION).exists() and not is_finished(folder, experiment):
        raise InputError(f"{folder}: holds a run that was stopped; resume it with --resume, or remove the folder")
