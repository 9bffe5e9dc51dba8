"""What the processes engine and its workers say to each other; vectors lie in segments beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedacg.engines.base import Evaluation, Task
from fedacg.engines.shared import Frozen, Place


@dataclass(frozen=True)
class Hello:
    """First word to a new worker: where to import the user's modules from."""

    path: list[str]


@dataclass(frozen=True)
class Setup:
    """A job to take on; the segment of its arrays follows."""

    job: Frozen


@dataclass(frozen=True)
class Room:
    """Where messages are exchanged; the segment of the broadcast and that of the replies' slots follow."""

    slot: int
    """Bytes of one slot."""


@dataclass(frozen=True)
class Broadcast:
    """A message has been written into the broadcast segment."""

    places: list[Place]


@dataclass(frozen=True)
class Prepare:
    """Get ready to serve the job's clients."""

    key: int


@dataclass(frozen=True)
class Train:
    """Train a group of clients and put their uploads into a slot, where what a single one kept lies already."""

    key: int
    tasks: tuple[Task, ...]
    slot: int
    kept: tuple[Place, ...]


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a part of the test set."""

    key: int
    first: int
    last: int


@dataclass(frozen=True)
class Prepared:
    """The worker is ready."""

    key: int


@dataclass(frozen=True)
class Trained:
    """The uploads of a group, and what its clients keep, lie in its slot: a row for each."""

    key: int
    examples: Sequence[int]
    losses: Sequence[float]
    upload: list[Place]
    keep: list[Place]


@dataclass(frozen=True)
class Evaluated:
    """A part of the test set is done."""

    key: int
    sums: Evaluation


@dataclass(frozen=True)
class Failed:
    """The work raised an exception, pickled with its traceback as a note."""

    key: int
    exception: bytes


Fact = Setup | Room | Broadcast
"""What a worker must know before an order; a new one takes the place of the last of its kind."""
Order = Prepare | Train | Evaluate
Outcome = Prepared | Trained | Evaluated | Failed
