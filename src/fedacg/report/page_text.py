"""The text of the page: title, settings, runs, how to reproduce them, and labels of a split.

The templates decide how it looks; the numbers of the table come from `cells`.
"""

import base64
import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from PIL import Image

from fedacg.config.experiment import show
from fedacg.report.cells import ABSENT, Cell, Column
from fedacg.report.labels import LabelCounts, Split
from fedacg.report.runs import Group, Run, Settings, common, differing
from fedacg.report.series import Material
from fedacg.report.style import Style, styles_of
from fedacg.runs.contents import EXPERIMENT
from fedacg.runs.history import human_seconds
from fedacg.runs.session import PlannedRun

_HEAT = (46, 134, 200)
"""The colour of a split's picture; shares set its opacity over the light or dark background."""
_MOST_TICKS = 12


def data_url(png: bytes) -> str:
    """A picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@dataclass(frozen=True)
class Ink:
    """How a group's curve is drawn: its colour, and dashes in the scale of the page."""

    colour: int
    dashes: str
    bold: bool = False

    @classmethod
    def of(cls, style: Style) -> Self:
        return cls(style.colour, " ".join(f"{1.6 * dash:g}" for dash in style.dashes), style.bold)


@dataclass(frozen=True)
class RunLine:
    """The page's text about one run folder."""

    label: str
    seed: int
    rounds: str
    state: str
    left: str
    """The estimated time left, if known."""
    share: float
    """The part of its rounds that is done, in percent."""
    digest: str
    command: str
    description: str


class Facts:
    """Everything that the templates say about the runs."""

    def __init__(self, material: Material, coming: Sequence[PlannedRun] = ()) -> None:
        groups, runs = material.groups, material.runs
        several = [effective(run.settings) for run in runs]
        self.headline = material.headline
        shared = {key: show(value) or '""' for key, value in common(several).items() if key != "name"}
        self.notes = material.notes
        self.title = _title(runs)
        self.lead = _lead(groups, runs, shared)
        self.columns: Sequence[Column] = material.columns
        self.rows = _rows(material.columns, styles_of([group.method for group in groups]))
        self.paired = len(groups) > 1 and any(len(row.seeds) > 1 for row in material.rows)
        self.differ, self.differences = _differences(groups, differing(several))
        self.common = _by_table(shared)
        self.runs = [_run_line(run) for run in runs]
        self.coming = coming
        self.commands = "\n".join(run.command for run in self.runs)
        self.versions = _versions(runs)


def _rows(columns: Sequence[Column], styles: Sequence[Style]) -> list[tuple[Ink, tuple[Cell, ...]]]:
    rows = zip(*(column.cells for column in columns), strict=True)
    return [(Ink.of(style), cells) for style, cells in zip(styles, rows, strict=True)]


_OFF = (
    *("data.path", "data.split_file", "data.partial", "data.augment", "model.factorise", "cohort.size"),
    *(
        "population.present",
        "failures.drop",
        "failures.straggle",
        "local.steps",
        "local.milestones",
        "local.warmup",
    ),
    *("local.epoch_decay", "local.momentum", "local.weight_decay", "local.clip", "evaluate.examples"),
    *("evaluate.client_losses", "engine.workers", "engine.address", "analysis.rounds", "analysis.every"),
)
"""Settings that are off when empty, zero or false."""


def effective(settings: Settings) -> Settings:
    """The settings with an effect in this run: not those that are off or overridden by another."""
    get = settings.get
    synthetic, adam = get("data.name") == "synthetic", get("local.optimiser", "sgd") != "sgd"
    split = None if get("data.split_file") else get("data.split", "dirichlet")
    idle = {
        "data.split": split is None,
        "data.alpha": split not in ("dirichlet", "dirichlet-unequal", "quantity") and not synthetic,
        "data.beta": not synthetic,
        "data.shards": split != "shards",
        "cohort.fraction": bool(get("cohort.size")),
        "population.stage": not get("population.present"),
        "population.replace": not get("population.present"),
        "failures.work": not get("failures.straggle"),
        "local.epochs": bool(get("local.steps")),
        "local.schedule": get("local.schedule") == "exponential" and get("local.lr_decay") == 1,
        "local.lr_decay": get("local.lr_decay") == 1,
        "local.nesterov": not get("local.momentum"),
        **dict.fromkeys(("local.beta1", "local.beta2", "local.epsilon"), not adam),
        **{key: not get(key) for key in _OFF},
    }
    return {key: value for key, value in settings.items() if not idle.get(key)}


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(str(run.experiment.get("name", "")) for run in runs))
    return names[0] if len(names) == 1 and names[0] else f"{len(runs)} runs"


def _lead(groups: Sequence[Group], runs: Sequence[Run], shared: dict[str, str]) -> str:
    methods = len({group.method for group in groups})
    data_sets = ", ".join(dict.fromkeys(show(run.settings.get("data.name")) for run in runs))
    words = [f"{len(runs)} run{'s' * (len(runs) > 1)} of {methods} method{'s' * (methods > 1)} on {data_sets}"]
    words += [f"{shared[key]}{unit}" for key, unit in (("model.name", ""), ("rounds", " rounds")) if key in shared]
    if shared.get("data.clients", "0") != "0":
        words.insert(1, f"{shared['data.clients']} clients")
    return " · ".join(words)


def _differences(groups: Sequence[Group], keys: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Headings and rows of differing settings; options of methods share one column, as each method has its own."""
    options = [key for key in keys if key.startswith("method.") and key != "method.name"]
    others = [key for key in keys if not key.startswith("method.") and key != "name"]
    rows = []
    for group in groups:
        settings = effective(group.runs[0].settings)
        own = [f"{key.removeprefix('method.')} = {show(settings[key])}" for key in options if key in settings]
        values = [_values(group, key) for key in others]
        rows.append((group.label, [", ".join(own) or ABSENT, *values] if options else values))
    return ["options", *others] if options else others, rows


def _values(group: Group, key: str) -> str:
    return ", ".join(dict.fromkeys(show(effective(run.settings).get(key)) for run in group.runs))


def _by_table(shared: dict[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Settings grouped by table, top-level ones first."""
    tables: dict[str, list[tuple[str, str]]] = {"experiment": []}
    for key, value in shared.items():
        table, dot, name = key.partition(".")
        tables.setdefault(table if dot else "experiment", []).append((name or table, value))
    return [(table, settings) for table, settings in tables.items() if settings]


def _run_line(run: Run) -> RunLine:
    planned = run.experiment.get("rounds")
    return RunLine(
        label=run.label,
        seed=run.seed,
        rounds=f"{run.history.rounds}" if planned is None else f"{run.history.rounds} / {planned}",
        state="in progress" if run.summary is None else "finished",
        left=_left(run),
        share=round(100 * run.history.rounds / planned, 1) if isinstance(planned, int) and planned else 100.0,
        digest=str((run.summary or {}).get("vector_sha256", ""))[:12],
        command=shlex.join(["fedacg", "run", str(run.folder / EXPERIMENT)]),
        description=run.description.rstrip(),
    )


def _left(run: Run) -> str:
    planned, done = run.experiment.get("rounds"), len(run.history)
    if run.summary is not None or not done or not isinstance(planned, int):
        return ""
    return f"{human_seconds(run.history.seconds['total'] / done * (planned - run.history.rounds))} left"


def _versions(runs: Sequence[Run]) -> str:
    """The versions recorded in the runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for name, version in ((run.summary or {}).get("versions") or {}).items():
            found.setdefault(name, []).append(str(version))
    return ", ".join(f"{name} {' and '.join(dict.fromkeys(each))}" for name, each in found.items())


@dataclass(frozen=True)
class Tick:
    """A class beside the picture of a split, at a distance from the bottom in percent."""

    at: float
    text: str


class SplitPicture:
    """A split as the template draws it: sizes as steps, shares as a picture with a pixel for each."""

    def __init__(self, split: Split) -> None:
        held = split.held
        self.title = split.title
        self.clients = len(held.clients)
        self.largest = int(held.sizes.max())
        self.sizes = _steps(held)
        self.source = data_url(_heat(held))
        self.most = f"{100 * held.shares.max():.0f} %"
        self.ticks = _ticks(held.counts.shape[1])
        self.along = "clients" if held.in_order else "clients, by their most frequent class"
        self.distance = f"{split.figures.distance:.2f}"
        self.by_chance = f"{split.figures.distance_by_chance:.2f}"


def _steps(held: LabelCounts) -> str:
    heights = 100 - 100 * held.sizes[held.order] / held.sizes.max()
    return "M0 100" + "".join(f"V{height:.1f}h1" for height in heights) + "V100Z"


def _heat(held: LabelCounts) -> bytes:
    # By the square root, so that small shares show beside a few large ones; class 0 is the lowest row.
    cover = np.sqrt(held.shares[held.order].T[::-1] / held.shares.max())
    pixels = np.empty((*cover.shape, 4), dtype=np.uint8)
    pixels[..., :3] = _HEAT
    pixels[..., 3] = np.rint(255 * cover)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


def _ticks(classes: int) -> list[Tick]:
    every = -(-classes // _MOST_TICKS)
    return [Tick(round(100 * (name + 0.5) / classes, 2), str(name)) for name in range(0, classes, every)]
