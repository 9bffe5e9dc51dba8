"""The distribution of clients' accuracies as a picture: for every method the share of clients up to each value.

Reads `clients.csv` of the runs that have one. Only through Figure objects, never pyplot, as in `curves`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedacg.core import files
from fedacg.report.runs import Group
from fedacg.report.series import Curve
from fedacg.report.style import PALETTE
from fedacg.runs.folder import CLIENT_TABLE
from fedacg.simulation.clients import ClientFigures, from_csv

_INK, _GRID = "#333333", "#e4e4e4"


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


def gather(groups: Sequence[Group], curves: Sequence[Curve]) -> list[Distribution]:
    """Those of the groups whose runs measured accuracies of single clients."""
    colours = {curve.label: curve.style.colour for curve in curves}
    found = []
    for group in groups:
        clients = [each for run in group.runs for each in _read(run.folder / CLIENT_TABLE)]
        each = Distribution(group.label, colours.get(group.label, 0), clients)
        if each.accuracies:
            found.append(each)
    return found


def _read(path: Path) -> list[ClientFigures]:
    """A run's table; empty if there is none, or it cannot be read."""
    try:
        return from_csv(files.read_text(path))
    except (OSError, ValueError, TypeError, KeyError):
        return []


def draw(distributions: Sequence[Distribution]) -> Figure:
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
