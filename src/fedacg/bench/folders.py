"""Where runs lie that several tables share: an experiment has one folder, whichever table asks for it."""

import re
from itertools import count
from pathlib import Path

from fedacg.config import methods
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.config.sections import MethodSettings
from fedacg.errors import InputError

_DESCRIPTION = "experiment.toml"


def spelled(method: MethodSettings, between: str = ":") -> str:
    """A method as it is typed, with the options that are not the defaults."""
    defaults = methods.complete(method.name, {})
    given = [f"{key}={value:g}" for key, value in method.options.items() if value != defaults[key]]
    return between.join([method.name, *given])


def run_name(experiment: Experiment) -> str:
    """What a run's folder is called: its method, and its seed."""
    return f"{spelled(experiment.method, between='-')}-s{experiment.seed}"


def folder_name(experiment: Experiment) -> str:
    """What tells a run's folder apart from others of its experiment."""
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


def _holds(folder: Path, experiment: Experiment) -> bool:
    try:
        return not Experiment.parse(read_toml(folder / _DESCRIPTION)).difference(experiment)
    except InputError:  # of another version, or not a description at all
        return False


def check_begun(folder: Path, experiment: Experiment, resume: bool) -> None:
    """Refuse to go on with a run that was stopped unless that was asked for."""
    from fedacg.runs.folder import is_finished  # imports torch, which a plan does without

    if not resume and (folder / _DESCRIPTION).exists() and not is_finished(folder, experiment):
        raise InputError(f"{folder}: holds a run that was stopped; go on with --resume, or remove the folder")
