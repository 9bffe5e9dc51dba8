"""The clients of a real federation by number, as the server knows them: those of a split, or nodes by name.

`federation.json` in the run folder keeps what a restarted server must find again: the federation's own name, under
which nodes keep their states, and for nodes with their own data who is which number, classes and shape.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import torch

from fedacg.core.files import write_whole
from fedacg.data.examples import Examples, FederatedData, TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.errors import InputError, RunError
from fedacg.flower.checks import Refused
from fedacg.flower.records import Announcement

FILE = "federation.json"


@dataclass
class Membership:
    """What federation.json holds."""

    name: str
    clients: list[str]
    classes: int = 0
    shape: tuple[int, ...] = ()

    @classmethod
    def open(cls, folder: Path) -> "Membership":
        """That of a run folder, or a new one."""
        path = folder / FILE
        if not path.exists():
            return cls(uuid4().hex, [])
        try:
            tree = json.loads(path.read_text())
            return cls(tree["name"], list(tree["clients"]), int(tree["classes"]), tuple(tree["shape"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None

    def save(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())
        except OSError as error:
            raise RunError(f"{folder / FILE}: cannot be written: {error}") from error


class Roll(Protocol):
    """Who may take part, and under which number."""

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
        if found.examples != clients.size(number):
            raise Refused(f"it has {found.examples} examples, client {number} has {clients.size(number)}")
        return number


class NamedClients:
    """Clients whose examples only their nodes have."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.sizes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._members.clients)

    def __getitem__(self, client: int, /) -> Examples:
        raise RunError(f"client {client}: its examples are at its node")

    def size(self, client: int) -> int:
        return self.sizes[client]


class NamedRoll:
    """Nodes with their own data. A name keeps its number for good; a new one gets the next."""

    def __init__(self, folder: Path, members: Membership, first: Sequence[Announcement], classes: int) -> None:
        self._folder, self._members = folder, members
        self._clients = NamedClients(members)
        if not members.shape:
            # What most have: one node that does not fit must not keep all the others out.
            (members.shape, _), *_ = Counter(found.shape for found in first).most_common(1)
            members.classes = classes or max(found.classes for found in first if found.shape == members.shape)
        nothing = TensorExamples(torch.empty(0), torch.empty(0, dtype=torch.int64))
        self.data = FederatedData(
            "folder", self._clients, nothing, PlainPipeline(), members.classes, members.shape
        )

    def enrol(self, found: Announcement) -> int:
        members, name = self._members, found.client
        if not isinstance(name, str):
            raise Refused(f"it is client {name}, expected a node with its own data")
        if found.shape != members.shape:
            raise Refused(f"its examples have shape {found.shape}, those of the federation {members.shape}")
        if found.classes > members.classes:
            raise Refused(f"it has {found.classes} classes, the federation {members.classes}")
        if name not in members.clients:
            members.clients.append(name)
            members.save(self._folder)
        number = members.clients.index(name)
        self._clients.sizes[number] = found.examples
        return number
