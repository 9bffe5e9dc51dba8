"""Settings to try, and the folders of their runs.

Settings are every combination of some keys' values, or points that are drawn from a declared space.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count, product
from pathlib import Path

from fedacg.config import methods
from fedacg.config.experiment import Experiment
from fedacg.config.methods import parse
from fedacg.config.recipe import Tree, override, read_toml, with_method
from fedacg.config.sections import MethodSettings
from fedacg.core.files import safe_name
from fedacg.errors import InputError

# Folders that several tables share: an experiment has one, whichever table asks for it


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
    from fedacg.runs.contents import is_finished  # imports torch, which a plan does without

    if not resume and (folder / _DESCRIPTION).exists() and not is_finished(folder, experiment):
        raise InputError(f"{folder}: holds a run that was stopped; resume it with --resume, or remove the folder")


# Settings


@dataclass(frozen=True)
class Axis:
    """A key and its values, as typed."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One combination of values, with a run for every seed."""

    values: tuple[str, ...]
    runs: dict[Path, Experiment]


def parse_axis(text: str) -> Axis:
    """`method.lam=0.75,0.8` as a key and its values; a comma within brackets or quotes is part of a value."""
    key, equals, values = text.partition("=")
    parts = tuple(part.strip() for part in _split(values))
    if not equals or not key.strip() or not all(parts):
        raise InputError(f"--grid {text!r}: must look like method.lam=0.8,0.85,0.9")
    if key.strip() == "seed":
        raise InputError(f"--grid {text!r}: give seeds with --seeds")
    return Axis(key.strip(), parts)


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "[{") - (character in "]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


Parse = Callable[[Tree], Experiment]


def by_method(
    tree: Tree, methods: Sequence[str], seeds: Sequence[int], parse: Parse = Experiment.parse
) -> dict[str, Experiment]:
    """Every method with every seed, by the name of its folder; all are checked before the first is run."""
    if not methods:
        raise InputError("--methods: needs at least one name")
    experiments: dict[str, Experiment] = {}
    for seed in seeds or [tree.get("seed", 0)]:
        for name in methods:
            experiment = parse({**with_method(tree, name), "seed": seed})
            suffix = "-".join(part for part in name.split(":") if "=" in part)
            label = safe_name(folder_name(experiment) + (f"-{suffix}" if suffix else ""))
            if label in experiments:
                raise InputError(f"--methods {','.join(methods)!r}: {name} with seed {seed} is given twice")
            experiments[label] = experiment
    return experiments


def expand(
    tree: Tree, axes: Sequence[Axis], seeds: Sequence[int], out: Path | None, parse: Parse = Experiment.parse
) -> list[Point]:
    """The points of the grid, the last key changing fastest; without `out`, folders are names only."""
    keys = [axis.key for axis in axes]
    if not keys:
        raise InputError("--grid: needs at least one key, as in method.lam=0.8,0.85,0.9")
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"--grid {key}: is given twice")
    points = []
    for values in product(*(axis.values for axis in axes)):
        settings = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        runs = {}
        for seed in seeds or [tree.get("seed", 0)]:
            experiment = parse({**override(tree, settings), "seed": seed})
            name = "-".join([setting.removeprefix("method.") for setting in settings] + [f"s{seed}"])
            runs[place(out / "runs", name, experiment) if out else Path(name)] = experiment
        points.append(Point(values, runs))
    _check_apart(keys, points)
    return points


def _check_apart(keys: Sequence[str], points: Sequence[Point]) -> None:
    for one, other in combinations(points, 2):
        first, second = (next(iter(point.runs.values())) for point in (one, other))
        if not first.difference(second):
            raise InputError(
                f"--grid {', '.join(keys)}: {', '.join(one.values)} and {', '.join(other.values)} "
                "are the same experiment"
            )


# Spaces: what tuning draws its trials from.

Space = Mapping[str, tuple[str, ...]]
"""Keys and the values that are tried, as they are typed: several, or one range."""


def space_of(method: str, tree: Tree, rates: Sequence[str], more: Space) -> Space:
    """The declared space of a method; options that were typed with it are not searched."""
    settings = with_method(tree, method)["method"]
    options = parse(settings["name"]).options()
    space = {
        f"method.{name}": tuple(f"{value:g}" for value in option.search)
        for name, option in options.items()
        if option.search and name not in settings
    }
    return {"local.lr": tuple(rates), **space, **more} if rates else {**space, **more}


def parse_range(key: str, values: Sequence[str]) -> tuple[float, float] | None:
    """The ends of a range `0.003..0.3`; None for a list of values."""
    if not any(".." in value for value in values):
        return None
    low, _, high = values[0].partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if len(values) > 1 or not 0 < ends[0] < ends[1] < math.inf:
        why = "a range is two numbers above 0, the smaller first, and stands alone, as in 0.003..0.3"
        raise InputError(f"{key} = {','.join(values)}: {why}")
    return ends


def spread(ends: tuple[float, float], shares: Sequence[float]) -> list[str]:
    """A value in each of as many parts of a range, alike in the logarithm, so far into its part; four digits."""
    low, high = map(math.log, ends)
    places = [(number + share) / len(shares) for number, share in enumerate(shares)]
    return [f"{math.exp(low + place * (high - low)):.4g}" for place in places]


def draw(method: str, space: Space, trials: int, seed: int) -> list[dict[str, str]]:
    """So many different points of a space, or all where it has fewer."""
    from fedacg.core.randomness import numpy_generator  # imports torch, which a grid does without

    ranges = {key: ends for key, values in space.items() if (ends := parse_range(key, values))}
    lists = {key: values for key, values in space.items() if key not in ranges}
    sizes = [len(values) for values in lists.values()]
    points, generator = math.prod(sizes), numpy_generator(seed, f"tune {method}")
    count = trials if ranges else min(trials, points)
    drawn: list[int] = []
    while len(drawn) < count:  # more often than once only beside a range, whose values tell the points apart
        drawn += generator.choice(points, size=min(count - len(drawn), points), replace=False).tolist()
    spreads = {}
    for key, ends in ranges.items():
        values = spread(ends, numpy_generator(seed, f"tune range {key}").random(trials).tolist())
        spreads[key] = [values[place] for place in generator.permutation(trials)]
    found = []
    for number, point in enumerate(drawn):
        settings = {key: values[number] for key, values in spreads.items()}
        for (key, listed), size in zip(lists.items(), sizes, strict=True):
            point, place = divmod(point, size)
            settings[key] = listed[place]
        found.append({key: settings[key] for key in space})
    return found
