"""Which nodes are connected, and which client each of them serves.

A node is asked who it is once, when it is first seen, and its answer is waited for only before the first round and
when there are too few nodes to begin another. Nobody else waits for a newcomer.
"""

import logging
import time
from collections.abc import Callable

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedacg.flower.checks import Refused
from fedacg.flower.exchange import Post, content
from fedacg.flower.membership import Roll
from fedacg.flower.records import Announcement, read_announcement
from fedacg.version import __version__

_log = logging.getLogger("flwr")
_REMIND = 30
"""Seconds from one line that says what is waited for to the next."""


class Nodes:
    """The nodes of a grid; once they have a roll, the clients that are there to be asked."""

    def __init__(self, grid: Grid, check: Callable[[Announcement], None]) -> None:
        """Nodes whose announcements pass a check; it raises Refused."""
        self._grid, self._check = grid, check
        self._post: Post[int] = Post(grid)
        self._asked: set[int] = set()
        self._announced: dict[int, Announcement] = {}
        self._numbers: dict[int, int] = {}
        """The client that each node serves, of those that were enrolled."""
        self._twins: set[int] = set()
        """Nodes that wait for the place of another, once it has been said."""
        self._roll: Roll | None = None
        self._fewest = 1

    @property
    def announced(self) -> list[Announcement]:
        """What the connected nodes said of themselves, by client; of twins the first to be heard counts."""
        found: dict[int | str, Announcement] = {}
        for said in self._announced.values():
            found.setdefault(said.client, said)
        return sorted(found.values(), key=_place)

    def gather(self, count: int) -> None:
        """Wait until nodes of so many clients have said who they are."""
        self._wait(lambda: len(self.announced), count)

    def open(self, roll: Roll, fewest: int) -> None:
        """Enrol the nodes that are there, in the order of their clients; no round begins with fewer than this."""
        self._roll, self._fewest = roll, fewest
        self._enrol()

    @property
    def size(self) -> int:
        """How many clients are there."""
        return len(self.serving)

    def present(self, round: int) -> NDArray[np.int64]:
        """The clients that are there as a round begins."""
        self._wait(lambda: self.size, self._fewest)
        return np.array(sorted(self.serving), dtype=np.int64)

    @property
    def serving(self) -> dict[int, int]:
        """The node of each client that is there."""
        return {client: node for node, client in self._numbers.items()}

    def tests(self, client: int) -> int:
        """How many test examples the node of a client that is there announced."""
        return self._announced[self.serving[client]].tests

    def _wait(self, there: Callable[[], int], count: int) -> None:
        self._look()
        reminded = -float("inf")
        while there() < count:
            if time.monotonic() - reminded >= _REMIND:
                _log.info("waiting for nodes: %d of %d are there", there(), count)
                reminded = time.monotonic()
            self._post.pause()
            self._look()

    def _look(self) -> None:
        """Notice who has gone, ask who has come, and hear who has answered."""
        connected = set(self._grid.get_node_ids())
        for table in (self._announced, self._numbers):
            for node in table.keys() - connected:
                del table[node]
        self._asked &= connected
        for node in sorted(connected - self._asked):
            if self._post.send(node, Message(RecordDict(), node, MessageType.QUERY)):
                self._asked.add(node)
        for node, reply in self._post.collect().items():
            try:
                self._announced[node] = self._hear(node, reply)
            except Refused as reason:
                _log.warning("node %d cannot take part: %s", node, reason)
        self._enrol()

    def _hear(self, node: int, reply: Message | str) -> Announcement:
        found = read_announcement(content(reply))
        self._check(found)
        if found.version != __version__:
            _log.warning("node %d has fedacg %s, the server %s", node, found.version, __version__)
        return found

    def _enrol(self) -> None:
        """Give a number to those who have announced themselves, by client; of twins only one can have it."""
        if self._roll is None:
            return
        served = {self._announced[node].client for node in self._numbers}
        for node, found in sorted(self._announced.items(), key=lambda item: _place(item[1])):
            if node in self._numbers:
                continue
            if found.client in served:
                if node not in self._twins:
                    _log.warning("node %d waits: another serves client %r already", node, found.client)
                    self._twins.add(node)
                continue
            try:
                self._numbers[node] = self._roll.enrol(found)
            except Refused as reason:
                _log.warning("node %d cannot take part: %s", node, reason)
                del self._announced[node]
                continue
            served.add(found.client)
            _log.info(
                "node %d is client %d (%s), %d examples", node, self._numbers[node], found.client, found.examples
            )


def _place(found: Announcement) -> tuple[bool, int | str]:
    """Numbers in their order, then names in theirs."""
    return isinstance(found.client, str), found.client
