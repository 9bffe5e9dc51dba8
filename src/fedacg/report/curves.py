"""The curves of a report as pictures for papers: PNG and PDF by matplotlib.

Only through Figure objects, never pyplot, so that a report changes nothing in the caller's session.
The page draws its own pictures, with a script.
"""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedacg.report.cells import percent
from fedacg.report.series import Axis, Curve, Floats, along, heights, ranking
from fedacg.runs.history import ACCURACY

_INK, _GRID = "#333333", "#e4e4e4"


_MOST_IN_LEGEND = 7
"""With more curves, each is labelled at its end: a long legend is hard to read."""


def draw(curves: Sequence[Curve], axis: Axis, targets: Sequence[float], *, each_seed: bool = False) -> Figure:
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
            arrowprops={"arrowstyle": "-", "color": curve.style.paper, "lw": 0.6, "relpos": (0, 0.5)},
        )
        text.set_parse_math(False)
    axes.set_xlim(0, right)


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
    return buffer.getvalue()
