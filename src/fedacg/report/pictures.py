"""The pictures of a report for papers, by matplotlib: curves, accuracies of clients, labels of clients.

Only through Figure objects, never pyplot, so that a report changes nothing in the caller's session.
The page draws its own pictures, with a script.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedacg.core import files
from fedacg.report.cells import percent
from fedacg.report.labels import Figures, Ints, LabelCounts
from fedacg.report.runs import Group
from fedacg.report.series import Axis, Curve, Floats, along, heights, ranking
from fedacg.report.style import PALETTE
from fedacg.runs.contents import CLIENT_TABLE
from fedacg.runs.history import ACCURACY
from fedacg.simulation.clients import ClientFigures, from_csv

_INK, _FAINT, _GRID = "#333333", "#6b6b6b", "#e4e4e4"

# Curves


_MOST_IN_LEGEND = 7
"""With more curves, each is labelled at its end: a long legend is hard to read."""


def draw_curves(
    curves: Sequence[Curve], axis: Axis, targets: Sequence[float], *, each_seed: bool = False
) -> Figure:
    """The moving averages of the test accuracy, raw accuracy faint behind them, targets dotted.

    With `each_seed` single seeds are thin lines in place of the raw accuracy and the deviation.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    places, name = along(curves, axis)
    low, high = heights(curves, targets)
    handles = []
    for curve, xs in zip(curves, places, strict=True):
        style, colour = curve.style, curve.style.paper
        marker = "o" if len(xs) == 1 else ""
        average = curve.evaluated["average"]
        behind = average.seeds if each_seed else (curve.evaluated["accuracy"].mean,)
        if each_seed or len(curves) <= _MOST_IN_LEGEND:
            for ys in behind:
                axes.plot(xs, ys, color=colour, alpha=0.4 if each_seed else 0.25, linewidth=0.8)
        (handle,) = axes.plot(
            xs, average.mean, color=colour, linewidth=style.width, marker=marker, zorder=3 if style.bold else 2
        )
        if style.dashes:
            handle.set_dashes(list(style.dashes))
        handles.append(handle)
        if average.band is not None and not each_seed:
            axes.fill_between(xs, *average.band, color=colour, alpha=0.18, linewidth=0)
    shown = curves[0].shown if curves else ACCURACY
    for target in targets if shown.percent else ():
        axes.axhline(100 * target, color=_INK, linewidth=0.9, linestyle=":")
        axes.annotate(
            percent(target),
            xy=(0, 100 * target),
            xycoords=axes.get_yaxis_transform(),
            xytext=(4, 3),
            textcoords="offset points",
            color=_INK,
            fontsize=8,
        )
    axes.set_ylim(low, high)
    axes.set_xlim(0, max((float(xs[-1]) for xs in places), default=0.0) or 1.0)
    axes.set_xlabel(name)
    axes.set_ylabel(f"{shown.title}, moving average, %" if shown.percent else f"{shown.title}, moving average")
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    order = ranking(curves)
    if len(curves) > _MOST_IN_LEGEND:
        _name_ends(axes, [curves[place] for place in order], [places[place] for place in order], (low, high))
        return figure
    legend = figure.legend(
        [handles[place] for place in order],
        [curves[place].label for place in order],
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _name_ends(axes: Axes, curves: Sequence[Curve], places: Sequence[Floats], span: tuple[float, float]) -> None:
    """Names at the right, from the top down, each as near to its curve's end as its neighbours allow."""
    low, high = span
    ends = [float(curve.evaluated["average"].mean[-1]) for curve in curves]
    right = axes.get_xlim()[1]
    for curve, xs, end, at in zip(curves, places, ends, apart(ends, span, _NAME_HEIGHT), strict=True):
        text = axes.annotate(
            f"{curve.label}  {end:.1f}",
            xy=(float(xs[-1]), end),
            xytext=(1.03, (at - low) / (high - low)),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            fontweight="bold" if curve.style.bold else "normal",
            color=curve.style.paper,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": curve.style.paper, "lw": 0.6, **_FROM_EDGE},
        )
        text.set_parse_math(False)
    axes.set_xlim(0, right)


_FROM_EDGE = {"relpos": (-0.015, 0.5), "patchA": None, "shrinkA": 0, "shrinkB": 0}
"""A line from the left edge of a text. To search for where it leaves it took a third of the time of a picture."""
_NAME_HEIGHT = 0.045
"""Of the height of the axes, for a name beside its curve."""


def apart(ends: Sequence[float], span: tuple[float, float], height: float) -> list[float]:
    """Places for names that belong beside these ends, which go down: in their order, and none over another.

    `height` is a name's part of the span; where all together need more than there is, they are closer.
    """
    low, high = span
    gap = min(height * (high - low), (high - low) / max(len(ends) - 1, 1))
    places = []
    last = high + gap
    for end in ends:
        last = min(end, last - gap)
        places.append(last)
    floor = low
    for place in reversed(range(len(places))):
        places[place] = max(places[place], floor)
        floor = places[place] + gap
    return places


def render(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """The bytes of a picture, "png" or "pdf": the same for the same numbers, as no date goes in."""
    buffer = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    figure.set_layout_engine("none")  # found once, for all kinds
    return buffer.getvalue()


# Accuracies of clients: for every method the share of clients up to each value


@dataclass(frozen=True)
class Distribution:
    """The clients of all seeds of a group, and the group's place in the palette."""

    label: str
    colour: int
    clients: Sequence[ClientFigures]

    @property
    def accuracies(self) -> list[float]:
        """In percent."""
        return [100 * each.accuracy for each in self.clients if each.accuracy is not None]

    @property
    def personal(self) -> list[float]:
        """The same after fine-tuning."""
        return [100 * each.personal_accuracy for each in self.clients if each.personal_accuracy is not None]


def gather_clients(groups: Sequence[Group], curves: Sequence[Curve]) -> list[Distribution]:
    """Those of the groups whose runs measured accuracies of single clients."""
    colours = {curve.label: curve.style.colour for curve in curves}
    found = []
    for group in groups:
        clients = [each for run in group.runs for each in _read_table(run.folder / CLIENT_TABLE)]
        each = Distribution(group.label, colours.get(group.label, 0), clients)
        if each.accuracies:
            found.append(each)
    return found


def _read_table(path: Path) -> list[ClientFigures]:
    """A run's table; empty if there is none, or it cannot be read."""
    try:
        return from_csv(files.read_text(path))
    except (OSError, ValueError, TypeError, KeyError):
        return []


def draw_clients(distributions: Sequence[Distribution]) -> Figure:
    """The share of clients with at most an accuracy, a line for each method, dashed after fine-tuning."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for each in distributions:
        for values, style, after in ((each.accuracies, "-", ""), (each.personal, "--", ", fine-tuned")):
            if values:
                axes.ecdf(
                    values,
                    color=PALETTE[each.colour][0],
                    linewidth=1.8,
                    linestyle=style,
                    label=f"{each.label}{after}: mean {np.mean(values):.1f} %",
                )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1)
    axes.set_xlabel("accuracy of a client, %")
    axes.set_ylabel("share of clients with at most that")
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    legend = figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


# Labels of clients: stacked bars of few clients, a heat map of many


_SIZES = "#c4c9cf"
_COLOURS = (
    "#332288",
    "#88ccee",
    "#44aa99",
    "#117733",
    "#999933",
    "#ddcc77",
    "#cc6677",
    "#882255",
    "#aa4499",
    "#bbbbbb",
)
"""Ten colours that colour-blind readers can distinguish: Paul Tol's muted scheme."""
_HEAT = LinearSegmentedColormap.from_list("heat", ["#ffffff", "#cfe3f1", "#6aaed6", "#1f6fb2", "#08306b"])

MOST_BARS = 40
"""Most clients that are drawn as bars; also, there must be no more classes than colours."""


def draw_labels(held: LabelCounts, figures: Figures, title: str) -> Figure:
    """Bars of examples for at most 40 clients and 10 classes, else a heat map of shares below the sizes."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    clients, classes = held.counts.shape
    if clients <= MOST_BARS and classes <= len(_COLOURS):
        top = figure.add_subplot()
        _bars(figure, top, held)
    else:
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 5])
        _heat(figure, top, below, held)
    heading = top.set_title(title, loc="left", fontsize=11, color=_INK, pad=22)
    heading.set_parse_math(False)
    top.annotate(
        f"distance from i.i.d. {figures.distance:.2f}, by chance {figures.distance_by_chance:.2f}",
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 7),
        textcoords="offset points",
        fontsize=9,
        color=_FAINT,
    )
    return figure


def _bars(figure: Figure, axes: Axes, held: LabelCounts) -> None:
    places = np.arange(len(held.clients))
    below = np.zeros(len(places))
    for label, counts in enumerate(held.counts.T):
        axes.bar(places, counts, 0.8, below, color=_COLOURS[label], label=str(label))
        below += counts
    _name_clients(axes, held.clients)
    axes.set_ylabel("examples", color=_INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlim(-0.7, len(places) - 0.3)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    _plain(axes)
    handles, names = axes.get_legend_handles_labels()
    # Upside down: in the order of the stack.
    figure.legend(handles[::-1], names[::-1], title="class", loc="outside right upper", frameon=False, fontsize=9)


def _heat(figure: Figure, above: Axes, axes: Axes, held: LabelCounts) -> None:
    turn = held.order
    edges = np.arange(len(turn) + 1) - 0.5
    above.stairs(held.sizes[turn], edges, fill=True, color=_SIZES)
    above.set_ylim(0, held.sizes.max() * 1.05)
    above.set_ylabel("examples", color=_INK)
    above.set_yticks([0, held.sizes.max()])
    _plain(above)
    # By the square root, so that small shares show beside a few large ones.
    scale = PowerNorm(0.5, vmin=0, vmax=held.shares.max())
    image = axes.imshow(
        held.shares[turn].T, cmap=_HEAT, norm=scale, origin="lower", aspect="auto", interpolation="nearest"
    )
    axes.set_ylabel("class", color=_INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if held.in_order:
        _name_clients(axes, held.clients)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(turn)} clients, by their most frequent class", color=_INK)
    _plain(axes)
    figure.align_ylabels([above, axes])
    bar = figure.colorbar(image, ax=axes, pad=0.02, format=PercentFormatter(1, decimals=0, symbol=" %"))
    bar.set_label("share of the client's examples", color=_INK)
    bar.ax.tick_params(length=0, colors=_INK)
    bar.outline.set_visible(False)


def _name_clients(axes: Axes, clients: Ints) -> None:
    step = -(-len(clients) // 20)
    axes.set_xticks(np.arange(len(clients))[::step], [str(client) for client in clients[::step]])
    axes.set_xlabel("client", color=_INK)


def _plain(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[:].set_visible(False)
