"""The clients of a real federation by number, as the server knows them: those of a split, or nodes by name.

`federation.json` in the run folder keeps what a restarted server must find again: the federation's own name, under
which nodes keep their states, and for nodes with their own data the number of each, the classes and the shape.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import torch

from fedacg.core.files import write_whole
from fedacg.data.examples import Examples, FederatedData, TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError, RunError
from fedacg.flower.checks import EXAMPLES_FACTOR, Refused, Remembered, middle
from fedacg.flower.deployment import ServerOptions
from fedacg.flower.records import Announcement

FILE = "federation.json"
_CLASSES_FACTOR = 10
"""Most classes of a node relative to the usual number."""
_FEW_CLASSES = 1000
"""Most classes of a node if there are too few nodes to compare, or one per example."""
_LISTED = 5


@dataclass
class Membership:
    """What federation.json holds."""

    name: str
    clients: list[str]
    classes: int = 0
    shape: tuple[int, ...] = ()
    norms: dict[str, list[Remembered]] = field(default_factory=dict)
    """What is usual (checks.py), by what is measured."""

    @classmethod
    def open(cls, folder: Path) -> "Membership":
        """The federation of a run folder, or a new one."""
        path = folder / FILE
        if not path.exists():
            return cls(uuid4().hex, [])
        try:
            tree = json.loads(path.read_text())
            norms = {
                str(name): [(int(round), float(size), float(steps)) for round, size, steps in entries]
                for name, entries in tree.get("norms", {}).items()
            }
            return cls(tree["name"], list(tree["clients"]), int(tree["classes"]), tuple(tree["shape"]), norms)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None

    def save(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())
        except OSError as error:
            raise RunError(f"{folder / FILE}: cannot be written: {error}") from error


class Roll(Protocol):
    """Decides which nodes may take part, and under which number."""

    data: FederatedData
    """What the server knows of the clients' examples, and its own test set if it has one."""

    def enrol(self, found: Announcement) -> int:
        """The number of the client that announced itself; Refused if it cannot be one."""
        ...


class SplitRoll:
    """The clients of the experiment's own split: the server knows how many examples each must have."""

    def __init__(self, data: FederatedData) -> None:
        self.data = data

    def enrol(self, found: Announcement) -> int:
        clients, number = self.data.clients, found.client
        if not isinstance(number, int) or not 0 <= number < len(clients):
            raise Refused(f"it is client {number!r}, expected a number from 0 to {len(clients) - 1}")
        for what, theirs, ours in (
            ("examples", found.examples, clients.size(number)),
            ("test examples", found.tests, len(self.data.test)),
            ("classes", found.classes, self.data.classes),
        ):
            if theirs != ours:
                raise Refused(f"it has {theirs} {what}, client {number} has {ours}")
        if found.shape != self.data.shape:
            raise Refused(f"its examples have shape {found.shape}, those of the split {self.data.shape}")
        return number


class NamedClients:
    """Clients whose examples only their nodes have; in their place are zeros, for the rehearsal of a step."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.sizes: dict[int, int] = {}
        self.dtype = torch.float32
        """The type of an input that the network takes."""

    def __len__(self) -> int:
        return len(self._members.clients)

    def __getitem__(self, client: int, /) -> Examples:
        count, shape = self.size(client), self._members.shape
        x = torch.zeros(1, *shape, dtype=self.dtype).expand(count, *shape)  # takes the memory of one
        return TensorExamples(x, torch.zeros(1, dtype=torch.int64).expand(count))

    def size(self, client: int) -> int:
        """What its node announced; of a client that has not come back since the server was started, one."""
        return self.sizes.get(client, 1)


class NamedRoll:
    """Nodes with their own data. A name keeps its number for good; a new one gets the next."""

    def __init__(
        self, folder: Path, members: Membership, first: Sequence[Announcement], options: ServerOptions
    ) -> None:
        self._folder, self._members, self._most = folder, members, options.max_examples
        self.clients = NamedClients(members)
        self._known = {found.client: found for found in first}
        if not members.shape:
            members.shape = options.sides or _agreed_shape(first)
            members.classes = options.classes or _agreed_classes([f for f in first if f.shape == members.shape])
        nothing = TensorExamples(torch.empty(0), torch.empty(0, dtype=torch.int64))
        self.data = FederatedData("folder", self.clients, nothing, PlainPipeline(), members.classes, members.shape)

    def enrol(self, found: Announcement) -> int:
        members, name = self._members, found.client
        try:
            if not isinstance(name, str):
                raise Refused(f"it is client {name}, expected a node with its own data")
            if found.shape != members.shape:
                raise Refused(f"its examples have shape {found.shape}, those of the federation {members.shape}")
            if found.classes > members.classes:
                raise Refused(
                    f"it has {found.classes} classes, the federation {members.classes}; the option classes sets it"
                )
            self._known[name] = found
            self._check_count("examples", found.examples, [known.examples for known in self._known.values()])
            self._check_count("test examples", found.tests, [known.tests for known in self._known.values()])
        except Refused:
            self._known.pop(name, None)
            raise
        if name not in members.clients:
            members.clients.append(name)
            members.save(self._folder)
        number = members.clients.index(name)
        self.clients.sizes[number] = found.examples
        return number

    def _check_count(self, what: str, count: int, all_counts: Sequence[int]) -> None:
        """Refuse a node that claims far more examples than others, as it would dominate the average."""
        usual = middle(all_counts)
        most = self._most or (EXAMPLES_FACTOR * max(usual, 1) if usual is not None else count)
        if count > most:
            raise Refused(f"it has {count} {what}, at most {most:g} are accepted; max-examples sets the limit")


def _agreed_shape(first: Sequence[Announcement]) -> tuple[int, ...]:
    """The most common input shape: one deviating node must not exclude all others."""
    (shape, count), *_ = Counter(found.shape for found in first).most_common(1)
    if 2 * count <= len(first):
        listed = "; ".join(f"client {found.client!r} has {found.shape}" for found in first[:_LISTED])
        raise InputError(f"shape: no input shape has a majority: {listed}; set shape=")
    return shape


def _agreed_classes(fitting: Sequence[Announcement]) -> int:
    """The most classes that a node has seen, apart from those that are far from what is usual."""
    counts = [found.classes for found in fitting]
    usual = middle(counts)
    if usual is None:
        return max((found.classes for found in fitting if found.classes <= _most_classes(found)), default=0)
    return max(count for count in counts if count <= _CLASSES_FACTOR * usual)


def _most_classes(found: Announcement) -> int:
    """The most classes of a node that cannot be compared with others."""
    return max(_FEW_CLASSES, found.examples)
