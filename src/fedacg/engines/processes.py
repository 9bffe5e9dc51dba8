"""Persistent worker processes with one thread and one resident model each, fed through shared memory.

Tasks go out in groups, longest first, answers come back in the order of the cohort, so the result does not
depend on the number of workers. How the processes are kept alive lives in pool.py.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from fedacg.engines.base import (
    NOBODY,
    Answer,
    Answers,
    ClientMemory,
    Evaluation,
    Job,
    Task,
    chunks,
    groups,
    total,
)
from fedacg.engines.pool import Pool
from fedacg.engines.protocol import (
    Broadcast,
    Evaluate,
    Evaluated,
    Order,
    Outcome,
    Prepare,
    Room,
    Setup,
    Train,
    Trained,
)
from fedacg.engines.shared import Segment, freeze, read_message, room, write_message
from fedacg.link import Message
from fedacg.vector import FlatModel, clone

_REPLY_MEMORY = 256 * 2**20
"""Bytes that replies may take up while they wait for their turn, more only if the workers need it."""


class ProcessEngine:
    """A pool of workers that lives for as many jobs as it is given."""

    lost = NOBODY

    def __init__(self, workers: int) -> None:
        self._pool = Pool(workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return self._pool.pids

    def setup(self, job: Job) -> None:
        flat = FlatModel(clone(job.module), channels_last=job.channels_last)
        method, vector = job.method, flat.w.numel() * flat.w.element_size()
        buffers = room(1, flat.read_buffers().numel() * flat.w.element_size())
        upload = room(method.up, method.link.size(flat.w.numel(), flat.w.element_size())) + buffers
        memory = room(method.state, vector) + buffers if method.state else 0
        frozen, arrays = freeze(job)
        self._job = job
        self._pool.tell(Setup(frozen), arrays)
        self._down = Segment.create(room(method.down, vector) + buffers)
        self._slot = job.group * (memory + upload + memory)
        self._slots = max(self._pool.size, _REPLY_MEMORY // self._slot)
        self._up: Segment | None = None
        self._announce({}, slots=self._pool.size)
        list(self._perform([Prepare(key) for key in range(self._pool.size)]))

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Iterator[Answer]:
        parts = groups(tasks, self._job.group)
        slots = min(self._slots, len(parts))
        replies = self._announce(broadcast, slots)
        free = list(range(slots))
        waiting = deque(_longest_first(parts, window=slots))
        done: dict[int, tuple[Trained, int]] = {}
        slot_of: dict[int, int] = {}
        place = 0
        try:
            while place < len(parts):
                while waiting and free and self._pool.least_load < self._patience(len(waiting)):
                    key = waiting.popleft()
                    slot_of[key] = free.pop()
                    # Clients that are trained at once keep nothing.
                    memory = kept(parts[key][0].client) if self._job.group == 1 else {}
                    places = write_message(replies, memory, start=slot_of[key] * self._slot)
                    self._pool.give(Train(key, tuple(parts[key]), slot_of[key], tuple(places)))
                outcome = self._pool.collect()
                assert isinstance(outcome, Trained)
                done[outcome.key] = outcome, slot_of[outcome.key]
                while place in done:
                    trained, slot = done.pop(place)
                    yield from Answers(
                        parts[place],
                        trained.examples,
                        trained.losses,
                        upload=read_message(replies, trained.upload),
                        keep=read_message(replies, trained.keep),
                    )
                    free.append(slot)
                    place += 1
        finally:
            self._pool.abandon()

    def evaluate(self, model: Message) -> Evaluation:
        self._announce(model, slots=0)
        spans = chunks(len(self._job.data.test), self._job.evaluate_batch)
        outcomes = self._perform([Evaluate(key, first, last) for key, (first, last) in enumerate(spans)])
        parts = {outcome.key: outcome.sums for outcome in outcomes if isinstance(outcome, Evaluated)}
        return total([parts[key] for key in sorted(parts)])

    def close(self) -> None:
        self._pool.close()

    def _perform(self, orders: Sequence[Order]) -> Iterator[Outcome]:
        """Have orders done that need no slot; outcomes come as they are ready."""
        waiting = deque(orders)
        try:
            for _ in orders:
                while waiting and self._pool.least_load < self._patience(len(waiting)):
                    self._pool.give(waiting.popleft())
                yield self._pool.collect()
        finally:
            self._pool.abandon()

    def _announce(self, message: Message, slots: int) -> Segment:
        """Put a message where the workers read it, and make room for this many replies; return the room."""
        if self._up is None or self._up.size < slots * self._slot:
            self._up = Segment.create(slots * self._slot)
            self._pool.tell(Room(self._slot), self._down, self._up)
        self._pool.tell(Broadcast(write_message(self._down, message)))
        return self._up

    def _patience(self, waiting: int) -> int:
        """Orders a worker may hold: a second one hides the way to and fro, but not when few are left."""
        return 2 if waiting > 4 * self._pool.size else 1


def _longest_first(parts: Sequence[Sequence[Task]], window: int) -> list[int]:
    """The order in which groups are given out: by falling cost within windows of the cohort.

    A window has as many places as there are slots, so answers that wait for an earlier one always fit.
    """
    order: list[int] = []
    for first in range(0, len(parts), window):
        places = range(first, min(first + window, len(parts)))
        order.extend(sorted(places, key=lambda place: -max(task.steps for task in parts[place])))
    return order
