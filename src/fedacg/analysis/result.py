"""What an analysis returns: pictures with captions, numbers as CSV, and columns of the summary.

Each analysis makes one `Finding` and reports its progress to a `Watcher`; `run` puts the findings together.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from matplotlib.figure import Figure

from fedacg.analysis.load import Subject
from fedacg.core.output import csv_text
from fedacg.report.cells import ABSENT, Cell, Column
from fedacg.report.table import Spread


class Watcher(Protocol):
    """An observer of an analysis that takes a while."""

    def estimate(self, work: str, seconds: float) -> None:
        """Announce how long some work will take in all, before it begins."""
        ...

    def work(self, name: str, steps: int) -> AbstractContextManager[Callable[[], None]]:
        """A block of work; the function it gives is called after each step."""
        ...


@dataclass(frozen=True)
class Drawing:
    """A picture with its title and caption on the page."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


@dataclass(frozen=True)
class Finding:
    """The result of one analysis."""

    drawings: Sequence[Drawing]
    tables: Mapping[str, str]
    """CSV by the name of its file."""
    columns: Sequence[Column]
    """Of the summary: a row for every group of runs."""


def to_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers in full precision; what is absent or not finite is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return csv_text(value) if isinstance(value, str) else value


def by_group(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """The runs grouped: those that differ only in the seed go together."""
    groups: dict[int, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.ink.place, []).append(subject)
    return list(groups.values())


def summary_column(
    heading: str,
    subjects: Sequence[Subject],
    values: Sequence[float | None],
    *,
    decimals: int | None = None,
    spare: bool = False,
) -> Column:
    """A figure of every group, in three digits or `decimals`: mean over seeds, and deviation."""
    found = dict(zip((subject.folder for subject in subjects), values, strict=True))
    cells = []
    for group in by_group(subjects):
        values_of = [found[subject.folder] for subject in group]
        known = [value for value in values_of if value is not None and math.isfinite(value)]
        cells.append(Cell(_text(Spread.over(known), decimals) if known else ABSENT))
    return Column(heading, tuple(cells), spare)


def _text(spread: Spread, decimals: int | None) -> str:
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(abs(spread.mean)))) if spread.mean else 0
    return f"{spread.mean:.{decimals}f}" + ("" if spread.std is None else f" ±{spread.std:.{decimals}f}")


class Words(NamedTuple):
    """The title of a picture, its caption, and its alternative text."""

    title: str
    caption: str
    alt: str


LEAD = (
    "How the local models of a round relate to each other, and how steadily the global model learns. Divergence "
    "(relative) and cosine are means over all rounds, stability is one over all evaluated rounds. CKA, at the "
    "output of the head, and the losses of three local models and of their mean are those of the recorded "
    "round that is drawn."
)
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
DIVERGENCE = Words(
    title="Weight divergence",
    caption=(
        "How far the local models of a round lie from their mean, relative to the length of that mean; below, the "
        "plain distance for every stage of the network and its head. Faint lines are single rounds, bold ones "
        "the mean over the rounds around them. A low line means that the clients stay close together, so "
        "averaging loses little of what they have learnt."
    ),
    alt=("Weight divergence along the rounds, a line for each method, for the whole model and for its parts."),
)
CKA = Words(
    title="Similarity of features",
    caption=(
        "How similarly the local models of round {round} see the same {examples} test examples, after every stage "
        "and at the output of the head: linear CKA, the mean over all pairs of clients. 1 means the same features "
        "up to rotation and scale, 0 unrelated ones; the scale need not begin at 0. Lines often fall towards the "
        "end, where each client fits its own labels. High is good."
    ),
    alt=("CKA between local models along the layers of the network, a line for each method."),
)
STABILITY = Words(
    title="Stability",
    caption=(
        "The squared distance of the test accuracy from its own moving average over some {window} rounds, in "
        "percentage points squared: along the rounds, on a scale by powers of ten, and as bars the mean over all "
        "of them. Low is steady: the model of one round is about as good as that of the next."
    ),
    alt=(
        "Squared distance of the accuracy from its moving average along the rounds, and a bar with the mean for "
        "each method."
    ),
)
DRIFT = Words(
    title="Drift of the clients",
    caption=(
        "The cosine between the update that a client sends and the mean update of its cohort. 1 means that it "
        "pulls where the cohort goes, 0 that it pulls sideways, below 0 that it pulls back. One panel has the "
        "mean of the cohort in every round; where rounds were recorded, the other has every client as a dot, and "
        "their mean as a bar. High is good: little of the updates cancels out."
    ),
    alt=(
        "Mean cosine between client updates and the mean update along the rounds, a line for each method, and dots"
        " for single clients."
    ),
)
