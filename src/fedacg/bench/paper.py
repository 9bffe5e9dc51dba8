"""The tables of the FedACG paper (Kim, Kim, Han, CVPR 2024): their published numbers, and the runs of each.

`results.csv` holds the numbers, one per row: accuracy at a round in %, or rounds to a target in %; a trailing +
means not reached, -- not reported. `comparison` puts our measurements beside them.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from fedacg.bench.grid import place, run_name
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import Tree, find, override, recipe_names, with_method
from fedacg.config.sections import MethodSettings
from fedacg.errors import InputError, unknown

_SETTINGS = {
    # clients, fraction per round, split: what follows the data set in the recipe's name
    ("100", "0.05", "dirichlet-0.3"): "-moderate",
    ("100", "0.05", "dirichlet-0.6"): "-moderate-dirichlet06",
    ("100", "0.05", "iid"): "-moderate-iid",
    ("100", "0.02", "dirichlet-0.3"): "-moderate-low",
    ("500", "0.02", "dirichlet-0.3"): "-large",
    ("500", "0.02", "dirichlet-0.6"): "-large-dirichlet06",
    ("500", "0.02", "iid"): "-large-iid",
    ("500", "0.01", "dirichlet-0.3"): "-large-low",
    ("250", "0.04", "dirichlet-0.3"): "-dynamic",
    ("2000", "0.0025", "leaf"): "",
    ("", "0.05", "leaf"): "",
}
_METHODS = {
    "FedPAQ": "fedavg+paq",
    "FedACG + FedPAQ": "fedacg+paq",
    # Four of the component rows repeat the numbers of FedAvg, FedProx, FedAvgM and FedACG in the main table:
    # so these rows are those methods, with the options they have there.
    "none": "fedavg",
    "reg": "fedprox",
    "momentum": "fedavgm",
    "momentum+reg": "fedavgm+prox",
    "momentum+acceleration": "fedavg+acg",
    "momentum+acceleration+reg": "fedacg",
}
_OPTIONS = {"lambda": "lam", "beta": "beta"}


@dataclass(frozen=True)
class Published:
    """One number of the paper."""

    table: str
    method: str
    """The paper's name for it."""
    data: str
    setting: str
    """What follows the data set in the name of the recipe."""
    metric: str
    """`accuracy` or `rounds_to`."""
    at: int
    """The round, or the target in percent."""
    value: str

    @property
    def recipe(self) -> str:
        """The recipe of its setting, at paper scale."""
        return self.data + self.setting


@cache
def numbers() -> tuple[Published, ...]:
    """All of them, in the paper's order."""
    text = (resources.files("fedacg.bench") / "results.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            table=row["table"],
            method=row["method"],
            data=row["dataset"],
            setting=_SETTINGS[row["clients"], row["participation"], row["split"]],
            metric=row["metric"],
            at=int(row["at"]),
            value=row["value"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def table_names() -> list[str]:
    """The tables and ablations of the paper."""
    return list(dict.fromkeys(number.table for number in numbers()))


def of_table(table: str) -> list[Published]:
    """The numbers of one table; an unknown one is refused with the names."""
    found = [number for number in numbers() if number.table == table]
    if not found:
        raise unknown("table", table, table_names())
    return found


def recipes_of(table: str) -> list[str]:
    """The recipes of a table's settings, at paper scale."""
    return list(dict.fromkeys(number.recipe for number in of_table(table)))


def others_of(table: str) -> list[str]:
    """The recipes of the same settings with other data sets, for which the paper may have no numbers."""
    settings = {number.setting for number in of_table(table)} - {""}
    names = {number.data + setting for number in numbers() for setting in settings}
    return sorted(names & set(recipe_names()) - set(recipes_of(table)))


def methods_of(table: str) -> list[str]:
    """The rows of a table, by the paper's names."""
    return list(dict.fromkeys(number.method for number in of_table(table)))


def spelled(method: str) -> str:
    """A row as it is typed here: "FedMLB + ACG" is `fedmlb+acg`, "FedACG beta=1" is `fedacg:beta=1`."""
    if method in _METHODS:
        return _METHODS[method]
    title, _, rest = method.partition(" ")
    if rest == "+ ACG":
        return f"{title.lower()}+acg"
    option = re.fullmatch(r"(\w+)=(.+)", rest)
    return f"{title.lower()}:{_OPTIONS[option[1]]}={option[2]}" if option else title.lower()


def method_of(text: str) -> MethodSettings:
    """A typed method with all its options, so that two can be compared."""
    return Experiment.parse(with_method({}, text)).method


def value_of(table: str, recipe: str, method: MethodSettings, metric: str, at: int) -> str | None:
    """A published number, from the table itself or else from another one of the same setting; None without any."""
    rows = [number for number in numbers() if (number.recipe, number.metric, number.at) == (recipe, metric, at)]
    rows.sort(key=lambda number: number.table != table)  # stable: the table's own come first
    found = next((number.value for number in rows if _is(number.method, method)), None)
    return None if found == "--" else found


@cache
def _method_of_row(name: str) -> MethodSettings:
    return method_of(spelled(name))


def _is(name: str, method: MethodSettings) -> bool:
    return _method_of_row(name) == method


REFERENCE = "fedavg"
"""The method that targets at small scale derive from."""


def paper_targets(recipe: str) -> tuple[float, ...]:
    """The paper's targets in a setting, as fractions of one."""
    return Experiment.parse(find(recipe)).evaluate.targets


def shares(recipe: str) -> tuple[int, ...]:
    """These targets in whole percent of FedAvg's final accuracy in the paper."""
    rounds = Experiment.parse(find(recipe)).rounds
    reference = value_of("", recipe, method_of(REFERENCE), "accuracy", rounds)
    assert reference is not None, "the paper has FedAvg in every setting"
    return tuple(round(100 * 100 * target / float(reference)) for target in paper_targets(recipe))


def small_targets(recipe: str, reference: float) -> tuple[float, ...]:
    """Targets for a setting in which FedAvg ended at this moving average, as fractions of one."""
    # Nine digits first, as 100 × 0.57 is a little less than 57 in floating point.
    tenths = [math.floor(round(10 * share * reference, 9)) for share in shares(recipe)]
    return tuple(min(max(tenth, 1), 1000) / 1000 for tenth in tenths)


# The runs of a table: which recipes, which methods, which seeds, and the folder of each


SCALES = ("small", "paper")
_ONCE = {"desk": "small"}
"""Former names of scales, which are still accepted."""


@dataclass(frozen=True)
class Line:
    """One row of a table: a method, with a run for every seed."""

    label: str
    """The paper's name for it, or else what was typed."""
    method: MethodSettings
    runs: Mapping[Path, Experiment]


@dataclass(frozen=True)
class Block:
    """A table in one of its settings."""

    table: str
    scale: str
    setting: str
    """The recipe at paper scale, whose published numbers are shown."""
    lines: tuple[Line, ...]
    added: bool
    """Whether FedAvg was added to derive the targets from."""
    changed: tuple[str, ...]
    """Settings that are not the recipe's."""
    folder: Path
    """Where tables and page go."""

    @property
    def recipe(self) -> str:
        """The recipe that is run."""
        return recipe_at(self.setting, self.scale)

    @property
    def runs(self) -> dict[Path, Experiment]:
        """Its runs, one seed after another, so that those that share data follow each other."""
        every = {folder: run for line in self.lines for folder, run in line.runs.items()}
        return dict(sorted(every.items(), key=lambda item: item[1].seed))


def recipe_at(setting: str, scale: str) -> str:
    return setting if scale == "paper" else f"{setting}-small"


def make_plan(
    table: str,
    scale: str,
    out: Path,
    *,
    on: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    settings: Sequence[str] = (),
) -> list[Block]:
    """The runs of a table, every one checked; `on`, `methods` and `seeds` take the place of the table's own."""
    own, others = recipes_of(table), others_of(table)
    scale = _ONCE.get(scale, scale)
    if scale not in SCALES:
        raise InputError(f"--scale {scale!r}: must be {' or '.join(SCALES)}")
    for setting in on:
        if setting not in (*own, *others):
            raise unknown(f"setting of {table}", setting, [*own, *others])
    _once("--on", on)
    _once("--seeds", seeds)
    labels = _labels(table, methods)
    reference = method_of(REFERENCE)
    added = scale == "small" and reference not in labels.values()
    if added:
        labels = {"FedAvg": reference, **labels}
    blocks = []
    for setting in on or own:
        tree = override(find(recipe_at(setting, scale)), settings)
        root = out / "runs" / recipe_at(setting, scale)
        lines = tuple(_line(label, method, tree, seeds, root) for label, method in labels.items())
        folder = out / f"{table}-{scale}" / setting
        blocks.append(Block(table, scale, setting, lines, added, tuple(settings), folder))
    return blocks


def _labels(table: str, typed: Sequence[str]) -> dict[str, MethodSettings]:
    """The rows by their labels: the table's, or those that were typed, under the paper's names for them."""
    rows = {name: method_of(spelled(name)) for name in methods_of(table)}
    if not typed:
        return rows
    labels: dict[str, MethodSettings] = {}
    for text in typed:
        method = method_of(text)
        if method in labels.values():
            raise InputError(f"--methods: {text!r} is given twice")
        labels[next((name for name, row in rows.items() if row == method), text)] = method
    return labels


def _line(label: str, method: MethodSettings, tree: Tree, seeds: Sequence[int], root: Path) -> Line:
    runs = {}
    for seed in seeds or [tree.get("seed", 0)]:
        experiment = Experiment.parse({**tree, "method": method.model_dump(), "seed": seed})
        runs[place(root, run_name(experiment), experiment)] = experiment
    return Line(label, method, runs)


def _once(option: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{option}: {value} is given twice")
