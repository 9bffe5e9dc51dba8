"""The loss surface as a picture: a panel per run, one colour scale for all of them.

Takes the grid and the points as numbers, which `surface` computes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from fedacg.analysis.pictures import INK, Floats

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


def draw(panels: Sequence[Panel], name: str) -> Figure:
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
    _legend(figure)
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


def _legend(figure: Figure) -> None:
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
