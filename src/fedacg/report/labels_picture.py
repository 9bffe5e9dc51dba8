"""The label distribution of the clients as a picture: stacked bars of few clients, a heat map of many.

The figures come from `labels`. Only through Figure objects, never pyplot, as in `curves`.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedacg.report.labels import Figures, Ints, LabelCounts

_INK, _FAINT, _GRID = "#333333", "#6b6b6b", "#e4e4e4"
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


def draw(held: LabelCounts, figures: Figures, title: str) -> Figure:
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
    for label, heights in enumerate(held.counts.T):
        axes.bar(places, heights, 0.8, below, color=_COLOURS[label], label=str(label))
        below += heights
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
