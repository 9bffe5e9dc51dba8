"""The loss surfaces of runs: around three local models of a recorded round each, and what is marked on them.

The plane and the grid are in `surface`, the picture in `surface_picture`; this module combines them.
"""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from fedacg.analysis import result, surface_picture
from fedacg.analysis.load import Subject, check_fit, together
from fedacg.analysis.result import Drawing, Finding, Watcher, summary_column, to_csv
from fedacg.analysis.surface import (
    Coordinates,
    Plane,
    Surface,
    axes,
    estimate_seconds,
    evaluator,
    sample_test,
    sample_training,
    surface,
)
from fedacg.config.sections import EngineSettings
from fedacg.errors import InputError
from fedacg.runs.build import Ingredients

CORNERS = 3
"""Local models that span a plane."""
_MARKED = CORNERS + 2
"""Points beside the grid: those models, their mean and the broadcast."""

Score = Callable[[Tensor, Tensor], float]
"""From a model's vector and buffers to what is drawn of it."""


@dataclass(frozen=True)
class Measure:
    """A measure that can be drawn over the plane, with its names in captions."""

    title: str
    name: str
    unit: str
    part: str
    """The examples it is computed on."""


MEASURES = {
    "loss": Measure("Loss surface", "training loss", "global training loss", "training"),
    "error": Measure("Surface of the test error", "test error", "test error, %", "test"),
}


@dataclass(frozen=True)
class Grid:
    """How surfaces are computed."""

    resolution: int
    examples: int
    margin: float
    error: bool
    """Compute the test error as well."""
    clients: tuple[int, ...] | None
    """The clients whose models span the plane; without them, the first of the cohort."""
    workers: int


@dataclass(frozen=True)
class Marked:
    """A model that is marked on the plane, with its own values and not those of the point it falls on."""

    what: str
    client: int | None
    at: Coordinates
    off_plane: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Taken:
    """The surfaces of one run, all on the same grid."""

    surfaces: Mapping[str, Surface]
    examples: Mapping[str, int]
    """The number of examples each was computed on."""
    marked: Sequence[Marked]
    """The local models, their mean, the broadcast."""

    @property
    def local_loss(self) -> float:
        """The mean loss of the local models."""
        return statistics.fmean(one.values["loss"] for one in self.marked[:CORNERS])

    @property
    def loss_of_mean(self) -> float:
        return self.marked[CORNERS].values["loss"]


def surfaces_of(subjects: Sequence[Subject], round: int, grid: Grid, watcher: Watcher) -> Finding:
    """The training loss, and on request the test error, around three local models of each run."""
    taken: dict[Path, Taken] = {}
    for ingredients, part in together(subjects):
        with _evaluation(ingredients, part[0].experiment.seed, grid) as evaluation:
            for subject in part:
                announced = 0 if taken else len(subjects)
                taken[subject.folder] = _take(subject, round, grid, evaluation, watcher, announced)
    measures = ["loss", "error"] if grid.error else ["loss"]
    return Finding(
        [_drawing(subjects, taken, measure, round) for measure in measures],
        dict(zip(_names(subjects), (_table(taken[s.folder], measures) for s in subjects), strict=True)),
        [
            summary_column("local loss", subjects, [taken[s.folder].local_loss for s in subjects], spare=True),
            summary_column("loss of mean", subjects, [taken[s.folder].loss_of_mean for s in subjects], spare=True),
        ],
    )


@dataclass(frozen=True)
class Evaluation:
    """The function that computes each measure, the network, and the number of examples."""

    module: nn.Module
    scores: Mapping[str, Score]
    examples: Mapping[str, int]


@contextmanager
def _evaluation(ingredients: Ingredients, seed: int, grid: Grid) -> Iterator[Evaluation]:
    """Workers that are available for as long as the block lasts."""
    settings = EngineSettings(name="serial" if grid.workers == 1 else "processes", workers=grid.workers)
    with ExitStack() as stack:
        train = sample_training(ingredients.data, grid.examples, seed)
        on_train = stack.enter_context(evaluator(ingredients, train, settings))
        scores: dict[str, Score] = {"loss": lambda vector, buffers: on_train(vector, buffers).loss}
        examples = {"loss": len(train)}
        if grid.error:
            test = sample_test(ingredients.data, grid.examples, seed)
            on_test = stack.enter_context(evaluator(ingredients, test, settings))
            scores["error"] = lambda vector, buffers: 100 * on_test(vector, buffers).error
            examples["error"] = len(test)
        yield Evaluation(ingredients.module, scores, examples)


def _take(
    subject: Subject, round: int, grid: Grid, evaluation: Evaluation, watcher: Watcher, announced: int
) -> Taken:
    """Everything on the plane of one run; if `announced` is not 0, first estimate the time of that many runs."""
    recorded = subject.load(round)
    check_fit(recorded, evaluation.module)
    clients = grid.clients or recorded.clients[:CORNERS]
    first, second, third = (recorded.local(recorded.clients.index(client))[0] for client in clients)
    try:
        plane = Plane.through(first, second, third)
    except InputError as error:
        given = ", ".join(map(str, clients))
        raise InputError(f"{subject.folder}: clients {given} of round {round}: {error}") from None
    centre = _centre(plane.corners)
    phi = plane.coordinates(recorded.phi)
    xs, ys = axes(plane, [phi], grid.resolution, grid.margin)

    def measured(score: Score, step: Callable[[], None] = lambda: None) -> Callable[[Tensor], float]:
        def evaluate(vector: Tensor) -> float:
            # Networks of the catalogue have no buffers, so the ones that were sent are right everywhere.
            value = score(vector, recorded.buffers)
            step()
            return value

        return evaluate

    points = grid.resolution**2 + _MARKED
    if announced:
        seconds = sum(estimate_seconds(plane, measured(score), points) for score in evaluation.scores.values())
        watcher.estimate("loss surface", announced * seconds)
    with watcher.work(f"loss surface of {subject.run.label}", len(evaluation.scores) * points) as step:
        measures = {name: measured(score, step) for name, score in evaluation.scores.items()}

        def mark(what: str, client: int | None, at: Coordinates, vector: Tensor) -> Marked:
            values = {name: evaluate(vector) for name, evaluate in measures.items()}
            return Marked(what, client, at, plane.distance(vector), values)

        corners = zip(clients, plane.corners, plane.models, strict=True)
        marked = [mark("local model", client, at, vector) for client, at, vector in corners]
        marked.append(mark("mean", None, centre, plane.point(*centre)))
        marked.append(mark("broadcast", None, phi, recorded.phi))
        surfaces = {name: surface(plane, evaluate, xs, ys) for name, evaluate in measures.items()}
    return Taken(surfaces, evaluation.examples, marked)


def _centre(corners: Sequence[Coordinates]) -> Coordinates:
    return sum(x for x, _ in corners) / len(corners), sum(y for _, y in corners) / len(corners)


def _drawing(subjects: Sequence[Subject], taken: Mapping[Path, Taken], name: str, round: int) -> Drawing:
    panels = []
    for subject in subjects:
        values, marked = taken[subject.folder].surfaces[name], taken[subject.folder].marked
        mean, phi = marked[CORNERS:]
        clients = {one.client: one.at for one in marked if one.client is not None}
        panels.append(
            surface_picture.Panel(subject.run.label, values.xs, values.ys, values.values, clients, mean.at, phi.at)
        )
    measure = MEASURES[name]
    used = max(each.examples[name] for each in taken.values())
    _, caption, alt = result.SURFACE
    return Drawing(
        "surface" if name == "loss" else f"surface-{name}",
        measure.title,
        caption.format(measure=measure.name, round=round, examples=f"{used} {measure.part} examples"),
        alt.format(measure=measure.name),
        surface_picture.draw(panels, f"{measure.unit}, round {round}"),
    )


def _table(taken: Taken, measures: Sequence[str]) -> str:
    rows: list[list[object]] = [
        [one.what, one.client, *one.at, one.off_plane, *(one.values[name] for name in measures)]
        for one in taken.marked
    ]
    grids = [taken.surfaces[name] for name in measures]
    for j, y in enumerate(grids[0].ys):
        for i, x in enumerate(grids[0].xs):
            values = [float(each.values[j, i]) for each in grids]
            rows.append(["grid", None, float(x), float(y), 0.0, *values])
    return to_csv(["what", "client", "x", "y", "off_plane", *measures], rows)


def _names(subjects: Sequence[Subject]) -> list[str]:
    """A file for each run, named after its label as far as that makes a valid name."""
    names: list[str] = []
    for subject in subjects:
        stem = re.sub(r"[^\w.+=-]+", "-", f"surface-{subject.run.label}".lower())[:80]
        # Labels differ, but the file names made from them may not.
        stems = [stem, *(f"{stem}-{number}" for number in range(2, len(subjects) + 2))]
        names.append(next(f"{each}.csv" for each in stems if f"{each}.csv" not in names))
    return names
