"""The loss surfaces of runs: around three local models of a recorded round each, and what is marked on them.

The plane, the grid and the measures are in `plane`; here they become numbers and a picture of runs.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedacg.analysis.pictures import INK, Floats
from fedacg.analysis.plane import (
    MEASURES,
    Coordinates,
    Evaluation,
    Grid,
    Plane,
    Score,
    Surface,
    estimate_seconds,
    evaluation,
    grid_axes,
    surface,
)
from fedacg.analysis.subjects import (
    Drawing,
    Finding,
    Subject,
    Watcher,
    Words,
    check_fit,
    summary_column,
    to_csv,
    together,
)
from fedacg.errors import InputError

CORNERS = 3
"""Local models that span a plane."""
_MARKED = CORNERS + 2
"""Points beside the grid: those models, their mean and the broadcast."""


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
        with evaluation(ingredients, part[0].experiment.seed, grid) as evaluated:
            for subject in part:
                announced = 0 if taken else len(subjects)
                taken[subject.folder] = _take(subject, round, grid, evaluated, watcher, announced)
    measures = ["loss", "error"] if grid.error else ["loss"]
    return Finding(
        [_drawing(subjects, taken, measure, round) for measure in measures],
        dict(zip(_names(subjects), (_table(taken[s.folder], measures) for s in subjects), strict=True)),
        [
            summary_column("local loss", subjects, [taken[s.folder].local_loss for s in subjects], spare=True),
            summary_column("loss of mean", subjects, [taken[s.folder].loss_of_mean for s in subjects], spare=True),
        ],
    )


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
    xs, ys = grid_axes(plane, [phi], grid.resolution, grid.margin)

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
        panels.append(Panel(subject.run.label, values.xs, values.ys, values.values, clients, mean.at, phi.at))
    measure = MEASURES[name]
    used = max(each.examples[name] for each in taken.values())
    _, caption, alt = SURFACE
    return Drawing(
        "surface" if name == "loss" else f"surface-{name}",
        measure.title,
        caption.format(measure=measure.name, round=round, examples=f"{used} {measure.part} examples"),
        alt.format(measure=measure.name),
        draw_panels(panels, f"{measure.unit}, round {round}"),
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


SURFACE = Words(
    title="Loss surface",
    caption=(
        "The {measure} on the plane through three local models of round {round}, over {examples}. Every point of "
        "the plane is a whole model. The white dots are the models that three clients sent, the diamond is their "
        "mean, and the star is where the broadcast φ, from which all of them started, falls on the plane. Dark is "
        "low, and the colours mean the same in all panels. Look for a diamond in the dark, in a wide, even basin"
        " with the dots: then the mean of the models is better than each of them. The axes are distances between "
        "models; their scales may differ."
    ),
    alt=("Contours of the {measure} around three local models, a panel for each run."),
)


# The picture: a panel per run, one colour scale for all of them


_COLOURS = "viridis"
"""A perceptually even colour map, safe for colour-blind readers; dark is low."""
_LEVELS = 12
_RIM = "#111111"

Point = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One run's grid and what lies on its plane."""

    title: str
    xs: Floats
    ys: Floats
    values: Floats
    """A row for every y, a column for every x."""
    clients: dict[int, Point]
    """The local models that span the plane, by the number of the client."""
    mean: Point
    phi: Point
    """The projection of the broadcast onto the plane."""


def draw_panels(panels: Sequence[Panel], name: str) -> Figure:
    """Filled contours, one panel per run, with the same levels and colours; `name` says what is drawn."""
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    side = {1: 4.4, 2: 3.3, 3: 2.35}[columns]
    tallest = max(np.ptp(panel.ys) / np.ptp(panel.xs) for panel in panels)
    # The panels are as wide as their tick labels leave them, and as high as that makes them.
    height = rows * ((side - 0.35) * tallest + 0.45) + 0.7
    figure = Figure(figsize=(columns * side + 1.0, height), layout="compressed")
    all_axes = figure.subplots(rows, columns, squeeze=False)
    levels = shared_levels([panel.values for panel in panels])
    norm = BoundaryNorm(levels, 256, extend="both")
    filled = None
    for axes, panel in zip(all_axes.flat, panels, strict=False):
        values = np.ma.masked_invalid(panel.values)
        filled = axes.contourf(panel.xs, panel.ys, values, levels, cmap=_COLOURS, norm=norm, extend="both")
        axes.contour(panel.xs, panel.ys, values, levels, colors="white", linewidths=0.4, alpha=0.6)
        _points(axes, panel)
        axes.set_title(panel.title, fontsize=10, color=INK).set_parse_math(False)
        axes.set_aspect("equal")
        axes.set_facecolor("#d9d9d9")
        axes.tick_params(length=0, colors=INK, labelsize=8)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=4))
            axis.set_major_formatter("{x:g}")
        axes.spines[:].set_visible(False)
    for axes in all_axes.flat[len(panels) :]:
        axes.remove()
    figure.supxlabel("distance in the plane of the three local models", fontsize=9, color=INK)
    assert filled is not None
    bar = figure.colorbar(
        filled, ax=list(all_axes.flat[: len(panels)]), pad=0.02, shrink=0.9, aspect=24, ticks=levels
    )
    bar.ax.set_yticklabels([f"{level:.3g}" for level in levels])
    bar.set_label(name, color=INK, fontsize=9)
    bar.ax.tick_params(length=0, colors=INK, labelsize=8)
    bar.outline.set_visible(False)
    _points_legend(figure)
    return figure


def shared_levels(surfaces: Sequence[Floats]) -> list[float]:
    """Contour levels for all surfaces together, evenly spaced, or by a factor where values span a wide range.

    The highest twentieth of the values is left above the last level: a few steep corners would take all colours.
    """
    values = np.concatenate([surface[np.isfinite(surface)].ravel() for surface in surfaces])
    if not len(values):
        return [0.0, 1.0]
    low, high = float(values.min()), float(np.quantile(values, 0.95))
    if high <= low:
        return [low, low + 1.0]
    if low > 0 and high / low > 4:
        levels = [_round(level) for level in np.geomspace(low, high, _LEVELS)]
    else:
        levels = [float(level) for level in MaxNLocator(_LEVELS).tick_values(low, high)]
    return sorted(set(levels))


def _round(value: float) -> float:
    """To two digits, so that the colour bar has short numbers."""
    return round(value, 1 - math.floor(math.log10(value)))


def _points(axes: Axes, panel: Panel) -> None:
    for client, (x, y) in panel.clients.items():
        axes.plot(x, y, "o", color="white", markersize=6, markeredgecolor=_RIM)
        note = axes.annotate(
            str(client), (x, y), (5, 4), textcoords="offset points", color="white", fontsize=8, weight="bold"
        )
        note.set_path_effects([withStroke(linewidth=2.2, foreground=_RIM)])
    axes.plot(*panel.mean, "D", color="#f0bd40", markersize=6, markeredgecolor=_RIM)
    axes.plot(*panel.phi, "*", color="#ff6d5a", markersize=11, markeredgecolor=_RIM)


def _points_legend(figure: Figure) -> None:
    shapes = (
        ("o", "white", 6, "local models, by client"),
        ("D", "#f0bd40", 6, "their mean"),
        ("*", "#ff6d5a", 11, "broadcast φ, projected"),
    )
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, markersize=size, markeredgecolor=_RIM)
        for marker, colour, size, _ in shapes
    ]
    figure.legend(
        handles,
        [shape[-1] for shape in shapes],
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=9,
        handletextpad=0.1,
    )
