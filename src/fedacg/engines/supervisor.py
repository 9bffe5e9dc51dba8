"""Workers and their lifetimes, wherever they run: they get orders, are kept up to date, and replaced when lost.

It knows what a worker must have received before an order, not what the orders mean. Orders go out
longest first, and outcomes come back in the order of the cohort.
"""

import pickle
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from fedacg.core.round import Kind
from fedacg.engines.orders import Evaluate, Evaluated, Fact, Failed, Order, Outcome, Prepare, Train
from fedacg.engines.shared_memory import Segment, room
from fedacg.errors import RunError
from fedacg.simulation.clients import FIGURES
from fedacg.simulation.engine import Held, Job, See, Task, chunks
from fedacg.simulation.scoring import Evaluation, total

_ATTEMPTS = 3

News = Sequence[tuple[Fact, Sequence[Segment]]]
"""Facts that a worker has not received yet, each with the segments that follow it."""


class Lost(Exception):
    """A worker is gone, or out of reach."""


class Handle(ABC):
    """One worker, seen from the parent."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Its place among the workers; one that takes over from a lost one has the same."""
        self.orders: deque[Order] = deque()
        """Orders given and not yet answered; the first is the one being worked on."""
        self.told: dict[type[Fact], Fact] = {}
        self.ready = True
        """Whether it takes orders; one that is still being started does not."""

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def give(self, order: Order, news: News) -> None:
        """Send an order, after what the worker must know before it; may raise Lost."""

    @abstractmethod
    def receive(self) -> Outcome | None:
        """Its next message; None means that it is now ready. May raise Lost."""

    @abstractmethod
    def end(self) -> str:
        """Stop it; return how it ended if it had ended before."""


H = TypeVar("H", bound=Handle)


class Supervisor(ABC, Generic[H]):
    """A fixed number of workers; one that is lost is replaced and its orders are given again."""

    def __init__(self, size: int) -> None:
        self._workers = [self._hire(number) for number in range(size)]
        self._facts: dict[type[Fact], tuple[Fact, Sequence[Segment]]] = {}
        self._again: deque[Order] = deque()
        """Orders of lost workers, to be given again."""
        self._deaths: Counter[Order | None] = Counter()

    @abstractmethod
    def _hire(self, number: int) -> H:
        """A new worker."""

    @abstractmethod
    def _speaking(self, workers: Sequence[H]) -> Iterable[H]:
        """Wait until one or more of these have something to say."""

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def least_load(self) -> int:
        """Number of orders of the least busy worker; infinite if none takes any."""
        return min((len(worker.orders) for worker in self._workers if worker.ready), default=sys.maxsize)

    def tell(self, fact: Fact, *segments: Segment) -> None:
        """Set a fact for all workers; each receives it before its next order."""
        self._facts[type(fact)] = fact, segments

    def give(self, order: Order) -> None:
        """Give an order to the worker that has the fewest."""
        ready = [worker for worker in self._workers if worker.ready]
        if not ready:
            self._again.append(order)
            return
        worker = min(ready, key=lambda worker: len(worker.orders))
        news = [told for kind, told in self._facts.items() if worker.told.get(kind) is not told[0]]
        worker.told.update((type(fact), fact) for fact, _ in news)
        worker.orders.append(order)
        try:
            worker.give(order, news)
        except Lost:
            self._replace(worker)

    def collect(self) -> Outcome | None:
        """The next outcome, whichever order it belongs to; None when a worker takes orders that did not before."""
        while True:
            for worker in self._speaking([w for w in self._workers if w.orders or not w.ready]):
                try:
                    outcome = worker.receive()
                except Lost:
                    self._replace(worker)
                    break
                if outcome is None:
                    self._take_on()
                    return None
                worker.orders.popleft()
                if isinstance(outcome, Failed):
                    raise pickle.loads(outcome.exception)
                return outcome

    def muster(self) -> None:
        """Wait until all workers are ready."""
        while starting := [worker for worker in self._workers if not worker.ready]:
            for worker in self._speaking(starting):
                try:
                    worker.receive()
                except Lost:
                    self._replace(worker)
                    break
                self._take_on()

    def abandon(self) -> None:
        """Drop all orders that are out; workers in the middle of one are replaced."""
        self._deaths.clear()
        self._again.clear()
        for number, worker in enumerate(self._workers):
            if worker.orders:
                worker.end()
                self._workers[number] = self._hire(number)

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _replace(self, lost: H) -> None:
        """Put a new worker in the place of a lost one and give its orders again."""
        cause = lost.end()
        self._workers[lost.number] = self._hire(lost.number)
        victim = lost.orders[0] if lost.orders else None
        self._deaths[victim] += 1
        if self._deaths[victim] == _ATTEMPTS:
            raise RunError(f"{_describe(victim)} ended its worker {_ATTEMPTS} times ({cause}); giving up")
        self._again.extendleft(reversed(lost.orders))
        self._give_again()

    def _take_on(self) -> None:
        """Make use of a worker that has become ready."""
        self._deaths.pop(None, None)  # starting does not fail every time
        self._give_again()

    def _give_again(self) -> None:
        while self._again and any(worker.ready for worker in self._workers):
            self.give(self._again.popleft())


def _describe(order: Order | None) -> str:
    if order is None:
        return "starting"
    if isinstance(order, Evaluate):
        return f"evaluating {order.part} examples {order.first} to {order.last - 1}"
    if isinstance(order, Train):
        round, clients = order.tasks[0].round.number, ", ".join(str(task.client) for task in order.tasks)
        work = "measuring" if order.tasks[0].measure else "training"
        return f"{work} client{'s' if len(order.tasks) > 1 else ''} {clients} in round {round}"
    return "taking on the job"


_REPLY_MEMORY = 256 * 2**20
"""Bytes that replies may take up while they wait for their turn, more only if the workers need it."""


def in_order(
    supervisor: Supervisor[Any], keys: Sequence[int], order: Callable[[int], Order], window: int
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
                while (
                    waiting and held < window and supervisor.least_load < _patience(len(waiting), supervisor.size)
                ):
                    supervisor.give(order(waiting.popleft()))
                    held += 1
                outcome = supervisor.collect()
                if outcome is not None:
                    done[outcome.key] = outcome
            yield done.pop(key)
            held -= 1
    finally:
        supervisor.abandon()


def prepare(supervisor: Supervisor[Any]) -> None:
    """Have every worker take on the announced job."""
    list(in_order(supervisor, range(supervisor.size), Prepare, window=supervisor.size))


def evaluate(supervisor: Supervisor[Any], job: Job, part: Held, see: See | None) -> Evaluation:
    """Sums over a held-out part of the data, for the announced model."""
    spans = chunks(len(job.held(part)), job.evaluate_batch)

    def order(key: int) -> Evaluate:
        return Evaluate(key, *spans[key], part, see is not None)

    sums = []
    for outcome in in_order(supervisor, range(len(spans)), order, window=len(spans)):
        assert isinstance(outcome, Evaluated)
        if see is not None and outcome.seen is not None:
            see(*map(torch.tensor, outcome.seen))  # copied, as what comes from Ray may only be read
        sums.append(outcome.sums)
    return total(sums)


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
    figures = {"figures": Kind((FIGURES,), torch.float64)}
    upload = max(room(job.group, kinds) for kinds in (traffic.up, traffic.first, figures))
    return room(1, traffic.down), memory + upload + memory


def widest_window(workers: int, group_room: int) -> int:
    """How many groups may be under way or wait for their turn."""
    return max(workers, _REPLY_MEMORY // group_room)
