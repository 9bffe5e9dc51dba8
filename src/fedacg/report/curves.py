"""The curves of a report as pictures for papers: PNG and PDF by matplotlib.

Only through Figure objects, never pyplot, so that a report changes nothing in the caller's session.
The page draws its own pictures, with a script.
"""

import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from fedacg.report.cells import percent
from fedacg.report.series import PALETTE, Axis, Curve, along, heights, ranking
from fedacg.runs.history import ACCURACY

_INK, _GRID = "#333333", "#e4e4e4"


def draw(curves: Sequence[Curve], axis: Axis, targets: Sequence[float]) -> Figure:
    """The moving averages of the test accuracy, raw accuracy faint behind them, targets dotted."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    places, name = along(curves, axis)
    low, high = heights(curves, targets)
    handles = []
    for curve, xs in zip(curves, places, strict=True):
        colour = PALETTE[curve.colour][0]
        marker = "o" if len(xs) == 1 else ""
        average = curve.evaluated["average"]
        axes.plot(xs, curve.evaluated["accuracy"].mean, color=colour, alpha=0.25, linewidth=0.8)
        (handle,) = axes.plot(xs, average.mean, color=colour, linewidth=1.8, marker=marker)
        if curve.dashes:
            handle.set_dashes(list(curve.dashes))
        handles.append(handle)
        if average.band is not None:
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
    axes.set_ylabel(f"{shown.title}, %" if shown.percent else shown.title)
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    order = ranking(curves)
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


def render(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """The bytes of a picture, "png" or "pdf": the same for the same numbers, as no date goes in."""
    buffer = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
