"""Who took part in which round, each history once: methods with the same seed ask the same clients.

Only gathers what the rounds say; the page shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq

from fedacg.report.runs import Run
from fedacg.simulation.metrics import RoundMetrics

Visit = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A round: its number, who was asked, who of them did not answer, who did only part of the work."""


@dataclass(frozen=True)
class Attendance:
    """The rounds of one or several runs that all asked the same clients."""

    labels: tuple[str, ...]
    visits: tuple[Visit, ...]
    clients: int
    """How many clients there are, as far as the run says: at least one more than the largest number."""

    @property
    def size(self) -> int:
        """How many client numbers it takes to write it down."""
        return sum(len(asked) + len(lost) + len(slow) for _, asked, lost, slow in self.visits)


def attendances(runs: Sequence[Run]) -> list[Attendance]:
    """The distinct histories among the runs; one that is the beginning of another counts as the same."""
    found: list[Attendance] = []
    for run in runs:
        if not run.history:
            continue
        visits = tuple(map(_visit, run.history))
        named = run.settings.get("data.clients", 0)
        known = max((client for _, asked, _, _ in visits for client in asked), default=-1) + 1
        mine = Attendance((run.label,), visits, max(known, named if isinstance(named, int) else 0))
        for place, other in enumerate(found):
            if all(map(eq, mine.visits, other.visits)):
                found[place] = _together(other, mine)
                break
        else:
            found.append(mine)
    return found


def _visit(metrics: RoundMetrics) -> Visit:
    arrived = set(metrics.arrived)
    lost = tuple(client for client in metrics.cohort if client not in arrived)
    return metrics.round, metrics.cohort, lost, metrics.stragglers or ()


def _together(one: Attendance, other: Attendance) -> Attendance:
    longer = max(one, other, key=lambda each: len(each.visits))
    return Attendance((*one.labels, *other.labels), longer.visits, max(one.clients, other.clients))
