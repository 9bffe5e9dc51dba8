"""What engines and their workers say to each other.

Of worker processes all of it, whose vectors lie in segments beside it; what only Ray's actors are told is in
ray_worker.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedacg.engines.shared_memory import Frozen, Place
from fedacg.simulation.engine import Evaluation, Task


@dataclass(frozen=True)
class Fact:
    """What a worker must know before an order; a new one takes the place of the last of its kind."""


@dataclass(frozen=True)
class Order:
    """Something to do."""

    key: int
    """Comes back with the outcome."""


@dataclass(frozen=True)
class Outcome:
    """What came of an order."""

    key: int


@dataclass(frozen=True)
class Hello:
    """First word to a new worker: where to import the user's modules from, and which worker it is."""

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
    """Evaluate a part of the test set."""

    first: int
    last: int


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
    """A part of the test set is done."""

    sums: Evaluation


@dataclass(frozen=True)
class Failed(Outcome):
    """The work raised an exception, pickled with its traceback as a note."""

    exception: bytes
