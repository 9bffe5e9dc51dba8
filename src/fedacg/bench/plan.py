"""From a table of the paper to runs: which recipes, which methods, which seeds, and the folder of each run.

`published` knows the recipe and method of each number, `folders` where runs are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedacg.bench import published
from fedacg.bench.folders import place, run_name
from fedacg.bench.published import REFERENCE
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import Tree, find, override
from fedacg.config.sections import MethodSettings
from fedacg.errors import InputError, unknown

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
    own, others = published.recipes_of(table), published.others_of(table)
    scale = _ONCE.get(scale, scale)
    if scale not in SCALES:
        raise InputError(f"--scale {scale!r}: must be {' or '.join(SCALES)}")
    for setting in on:
        if setting not in (*own, *others):
            raise unknown(f"setting of {table}", setting, [*own, *others])
    _once("--on", on)
    _once("--seeds", seeds)
    labels = _labels(table, methods)
    reference = published.method_of(REFERENCE)
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
    rows = {name: published.method_of(published.spelled(name)) for name in published.methods_of(table)}
    if not typed:
        return rows
    labels: dict[str, MethodSettings] = {}
    for text in typed:
        method = published.method_of(text)
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
