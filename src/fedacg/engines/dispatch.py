"""Who does what when: orders go out longest first, outcomes come back in the order of the cohort.

So the result does not depend on the number of workers, and what waits for its turn has a bound.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedacg.engines.orders import Evaluate, Evaluated, Order, Outcome, Prepare
from fedacg.engines.shared_memory import room
from fedacg.engines.supervisor import Staff
from fedacg.simulation.engine import Evaluation, Job, Task, chunks, total

_REPLY_MEMORY = 256 * 2**20
"""Bytes that replies may take up while they wait for their turn, more only if the workers need it."""


def in_order(
    staff: Staff[Any], keys: Sequence[int], order: Callable[[int], Order], window: int
) -> Iterator[Outcome]:
    """Have orders made and given out in the sequence of these keys; outcomes come by rising key, from 0.

    No more than `window` are under way or wait for their turn.
    """
    waiting = deque(keys)
    done: dict[int, Outcome] = {}
    held = 0
    try:
        for key in range(len(keys)):
            while key not in done:
                while waiting and held < window and staff.least_load < _patience(len(waiting), staff.size):
                    staff.give(order(waiting.popleft()))
                    held += 1
                outcome = staff.collect()
                if outcome is not None:
                    done[outcome.key] = outcome
            yield done.pop(key)
            held -= 1
    finally:
        staff.abandon()


def prepare(staff: Staff[Any]) -> None:
    """Have every worker take on the job it was told of."""
    list(in_order(staff, range(staff.size), Prepare, window=staff.size))


def evaluate(staff: Staff[Any], job: Job) -> Evaluation:
    """Sums over the whole test set for the model that was announced."""
    spans = chunks(len(job.data.test), job.evaluate_batch)
    outcomes = in_order(staff, range(len(spans)), lambda key: Evaluate(key, *spans[key]), window=len(spans))
    return total([outcome.sums for outcome in outcomes if isinstance(outcome, Evaluated)])


def _patience(waiting: int, workers: int) -> int:
    """Orders a worker may hold: a second one hides the way to and fro, but not when few are left."""
    return 2 if waiting > 4 * workers else 1


def longest_first(parts: Sequence[Sequence[Task]], window: int) -> list[int]:
    """The order in which groups are given out: by falling cost within windows of the cohort.

    Places of a window are given out together, so answers that wait for an earlier one always fit.
    """
    order: list[int] = []
    for first in range(0, len(parts), window):
        places = range(first, min(first + window, len(parts)))
        order.extend(sorted(places, key=lambda place: -max(task.steps for task in parts[place])))
    return order


def message_rooms(job: Job) -> tuple[int, int]:
    """Bytes that a broadcast may take, and that a group's messages may: what clients kept, send and keep."""
    traffic = job.traffic
    memory = room(job.group, traffic.kept)
    upload = max(room(job.group, traffic.up), room(job.group, traffic.first))
    return room(1, traffic.down), memory + upload + memory


def widest_window(workers: int, group_room: int) -> int:
    """How many groups may be under way or wait for their turn."""
    return max(workers, _REPLY_MEMORY // group_room)
