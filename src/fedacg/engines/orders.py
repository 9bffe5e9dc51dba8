"""The messages between engines and workers, and how a worker handles an order, wherever it runs.

The vectors of worker processes are in separate segments; messages of Ray actors only are in ray/engine.py.
"""

import ctypes
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from numpy.typing import NDArray

from fedacg.core.round import Message
from fedacg.engines.shared_memory import Frozen, Place
from fedacg.simulation.engine import Held, Job, Task
from fedacg.simulation.scoring import Evaluation
from fedacg.simulation.worker import Worker


@dataclass(frozen=True)
class Fact:
    """What a worker must know before an order; a new one takes the place of the last of its kind."""


@dataclass(frozen=True)
class Order:
    """A task for a worker."""

    key: int
    """Comes back with the outcome."""


@dataclass(frozen=True)
class Outcome:
    """What came of an order."""

    key: int


@dataclass(frozen=True)
class Hello:
    """First message to a new worker: where to import the user's modules from, and its number."""

    path: list[str]
    number: int


@dataclass(frozen=True)
class Setup(Fact):
    """A job to take on; the segment of its arrays follows."""

    job: Frozen


@dataclass(frozen=True)
class Room(Fact):
    """Where messages are exchanged; the segment of the broadcast and that of the replies' slots follow."""

    slot: int
    """Bytes of one slot."""


@dataclass(frozen=True)
class Broadcast(Fact):
    """A message has been written into the broadcast segment."""

    places: list[Place]


@dataclass(frozen=True)
class Prepare(Order):
    """Get ready to serve the job's clients."""


@dataclass(frozen=True)
class Train(Order):
    """Train a group of clients."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class TrainInSlot(Train):
    """Train a group and put their uploads into a slot, where what its clients kept lies already."""

    slot: int
    kept: tuple[Place, ...]


@dataclass(frozen=True)
class Evaluate(Order):
    """Evaluate a stretch of a part of the data that is held out."""

    first: int
    last: int
    part: Held = "test"
    outputs: bool = False
    """Whether outputs and labels are sent back."""


@dataclass(frozen=True)
class Prepared(Outcome):
    """The worker is ready."""


@dataclass(frozen=True)
class TrainedInSlot(Outcome):
    """The uploads of a group, and what its clients keep, lie in its slot: a row for each."""

    examples: Sequence[int]
    losses: Sequence[float]
    upload: list[Place]
    keep: list[Place]


@dataclass(frozen=True)
class Evaluated(Outcome):
    """A stretch is done."""

    sums: Evaluation
    seen: tuple[NDArray[Any], NDArray[Any]] | None = None
    """Outputs and labels, where they were asked for."""


@dataclass(frozen=True)
class Failed(Outcome):
    """The work raised an exception, pickled with its traceback as a note."""

    exception: bytes


class WorkerLoop(ABC):
    """Serves the orders of one job after the other; the worker is made when a job's first order comes."""

    _worker: Worker | None
    """None while a new job waits to be taken on."""
    _message: Message
    """The last broadcast."""

    def greet(self, hello: Hello) -> None:
        self._number = hello.number
        sys.path.extend(folder for folder in hello.path if folder not in sys.path)
        torch.set_num_threads(1)
        keep_freed_memory()

    def serve(self, order: Order) -> Outcome:
        """Do what is ordered; an exception is an outcome, too."""
        try:
            if self._worker is None:
                self._worker = Worker(self._job(), self._number)
            if isinstance(order, Train):
                return self._train(self._worker, order)
            if isinstance(order, Evaluate):
                return self._evaluate(self._worker, order)
            return Prepared(order.key)
        except Exception as error:
            # Raised again in the parent, where the user sees it.
            error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)))
            return Failed(order.key, _pickled(error))

    def _evaluate(self, worker: Worker, order: Evaluate) -> Evaluated:
        seen: list[tuple[NDArray[Any], NDArray[Any]]] = []
        see = (lambda outputs, labels: seen.append((outputs.numpy(), labels.numpy()))) if order.outputs else None
        sums = worker.evaluate(self._message, order.first, order.last, order.part, see)
        return Evaluated(order.key, sums, *seen)

    @abstractmethod
    def _job(self) -> Job:
        """The job to take on."""

    @abstractmethod
    def _train(self, worker: Worker, order: Train) -> Outcome:
        """Train a group of clients and say where the answers are."""


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The C library's numbers of what `mallopt` sets."""
_KEPT = 2**30
"""Bytes; it takes no more than 2³¹ − 1."""


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees, as the next step asks for as much again.

    By default glibc gives back what is free at the end of its heap beyond a threshold that it adapts to single
    tensors, not to all of a step, and then every page of every step is zeroed and mapped anew. Other C libraries
    have no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _KEPT)


def _pickled(error: Exception) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:
        # An exception that cannot be pickled is sent as text.
        data = cloudpickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return data
