"""Persistent worker processes with one thread and one resident model each, fed through shared memory.

The processes are in process_pool.py; scheduling and replacing them in supervisor.py.
"""

from collections.abc import Iterator, Sequence

from fedacg.core.round import Message
from fedacg.engines.orders import (
    Broadcast,
    Room,
    Setup,
    TrainedInSlot,
    TrainInSlot,
)
from fedacg.engines.process_pool import Pool
from fedacg.engines.shared_memory import Segment, freeze, read_message, write_message
from fedacg.engines.supervisor import evaluate, in_order, longest_first, message_rooms, prepare, widest_window
from fedacg.simulation.engine import Answers, ClientMemory, Held, Job, See, Task, Training, groups, recall
from fedacg.simulation.scoring import Evaluation


class ProcessEngine:
    """A pool of workers that lives for as many jobs as it is given."""

    def __init__(self, workers: int) -> None:
        self._pool = Pool(workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, when all have started."""
        self._pool.muster()
        return self._pool.pids

    def setup(self, job: Job) -> None:
        broadcast, self._slot = message_rooms(job)
        frozen, arrays = freeze(job)
        self._job = job
        self._pool.tell(Setup(frozen), arrays)
        self._down = Segment.create(broadcast)
        self._slots = widest_window(self._pool.size, self._slot)
        self._up: Segment | None = None
        self._announce({}, slots=self._pool.size)
        prepare(self._pool)

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        return Training(self._answers(broadcast, tasks, kept))

    def _answers(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Iterator[Answers]:
        parts = groups(tasks, self._job.group)
        slots = max(1, min(self._slots, len(parts)))  # nobody may be asked at all
        replies = self._announce(broadcast, slots)
        free = list(range(slots))
        slot_of: dict[int, int] = {}

        def order(key: int) -> TrainInSlot:
            slot = slot_of[key] = free.pop()
            places = write_message(replies, recall(kept, parts[key]), start=slot * self._slot)
            return TrainInSlot(key, tuple(parts[key]), slot, tuple(places))

        for trained in in_order(self._pool, longest_first(parts, window=slots), order, window=slots):
            assert isinstance(trained, TrainedInSlot)
            yield Answers(
                parts[trained.key],
                trained.examples,
                trained.losses,
                upload=read_message(replies, trained.upload),
                keep=read_message(replies, trained.keep),
            )
            free.append(slot_of[trained.key])

    def evaluate(self, model: Message, part: Held = "test", see: See | None = None) -> Evaluation:
        self._announce(model, slots=0)
        return evaluate(self._pool, self._job, part, see)

    def close(self) -> None:
        self._pool.close()

    def _announce(self, message: Message, slots: int) -> Segment:
        """Put a message where the workers read it, and allocate space for this many replies; return that space."""
        if self._up is None or self._up.size < slots * self._slot:
            self._up = Segment.create(slots * self._slot)
            self._pool.tell(Room(self._slot), self._down, self._up)
        self._pool.tell(Broadcast(write_message(self._down, message)))
        return self._up
