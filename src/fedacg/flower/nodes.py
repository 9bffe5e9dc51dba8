"""Which nodes are connected, and which client each of them serves.

A node is asked for its identity once, when it is first seen. The server waits for the answer only before the first
round and when there are too few nodes to begin another; otherwise newcomers delay nobody.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fedacg import __version__
from fedacg.flower.checks import Refused
from fedacg.flower.membership import Roll
from fedacg.flower.records import Announcement, read_announcement

_PAUSE = 1.0
"""Seconds between polls for replies, more when many are awaited."""
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    MemoryError,
    DecodeError,
)
"""Exceptions of Flower's reader on malformed bytes; a lost SuperLink is not among them."""

Key = TypeVar("Key")


class Post(Generic[Key]):
    """Messages that are on their way, each with a key that its reply is found by."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._awaited: dict[str, tuple[Key, int]] = {}
        """By the id of a message, what its reply is found by and the node that must send it."""

    def send(self, key: Key, message: Message) -> bool:
        """Send a message; False where Flower does not take it, as when its node has just gone."""
        sent = [identity for identity in self._grid.push_messages([message]) if identity]
        self._awaited.update(dict.fromkeys(sent, (key, message.metadata.dst_node_id)))
        return bool(sent)

    def collect(self) -> dict[Key, Message | str]:
        """The replies that have come since the last time, one to a message, or why one cannot be read."""
        come: dict[Key, Message | str] = {}
        for identity, (key, node) in list(self._awaited.items()):
            try:
                found = list(self._grid.pull_messages([identity]))
            except _UNREADABLE as error:
                come[key] = f"it cannot be read: {type(error).__name__}"
            else:
                if not found:
                    continue
                # That a node is gone is said by the SuperLink in its place.
                fitting = (reply for reply in found if reply.has_error() or reply.metadata.src_node_id == node)
                come[key] = next(fitting, "it is another node's reply")
            del self._awaited[identity]
        return come

    def pause(self, seconds: float | None = None) -> None:
        """Wait before the next poll, at most this long."""
        pause = max(_PAUSE, 0.02 * len(self._awaited))
        time.sleep(pause if seconds is None else max(0.0, min(pause, seconds)))


def ask(grid: Grid, messages: Mapping[Key, Message], seconds: float) -> dict[Key, Message | str]:
    """The replies to messages within this many seconds (0 waits for all), and why others are missing."""
    post: Post[Key] = Post(grid)
    end = time.monotonic() + seconds if seconds else None
    outcome: dict[Key, Message | str] = {}
    for key, message in messages.items():
        if not post.send(key, message):
            outcome[key] = "the message could not be sent"
    while True:
        outcome.update(post.collect())
        if len(outcome) == len(messages):
            return outcome
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            late = f"no reply within {seconds:g} seconds"
            return {key: outcome.get(key, late) for key in messages}
        post.pause(left)


def content(reply: Message | str) -> RecordDict:
    """What a reply holds; Refused, in one line, where it holds an error or there is none."""
    if isinstance(reply, str):
        raise Refused(reply)
    if reply.has_error():
        raise Refused(reply.error.reason or "an error")
    return reply.content


_log = logging.getLogger("flwr")
_REMIND = 30
"""Seconds between messages about waiting."""


class Nodes:
    """The nodes of a grid and, once they are enrolled, the available clients."""

    def __init__(self, grid: Grid, check: Callable[[Announcement], None]) -> None:
        """Nodes whose announcements pass a check; it raises Refused."""
        self._grid, self._check = grid, check
        self._post: Post[int] = Post(grid)
        self._asked: set[int] = set()
        self._announced: dict[int, Announcement] = {}
        self._numbers: dict[int, int] = {}
        """The client that each node serves, of those that were enrolled."""
        self._twins: set[int] = set()
        """Nodes that wait for another to leave, once that was logged."""
        self._roll: Roll | None = None
        self._fewest = 1

    @property
    def announced(self) -> list[Announcement]:
        """Announcements of the connected nodes, by client; of duplicates the first counts."""
        found: dict[int | str, Announcement] = {}
        for said in self._announced.values():
            found.setdefault(said.client, said)
        return sorted(found.values(), key=_place)

    def gather(self, count: int) -> None:
        """Wait until nodes of this many clients have announced themselves."""
        self._wait(lambda: len(self.announced), count)

    def open(self, roll: Roll, fewest: int) -> None:
        """Enrol the connected nodes, in the order of their clients; no round begins with fewer than this."""
        self._roll, self._fewest = roll, fewest
        self._enrol()

    @property
    def size(self) -> int:
        """The number of connected clients."""
        return len(self.serving)

    def present(self, round: int) -> NDArray[np.int64]:
        """The clients connected when a round begins."""
        self._wait(lambda: self.size, self._fewest)
        return np.array(sorted(self.serving), dtype=np.int64)

    @property
    def serving(self) -> dict[int, int]:
        """The node of each connected client."""
        return {client: node for node, client in self._numbers.items()}

    def tests(self, client: int) -> int:
        """The number of test examples that the node of a connected client announced."""
        return self._announced[self.serving[client]].tests

    def _wait(self, there: Callable[[], int], count: int) -> None:
        self._look()
        reminded = -float("inf")
        while there() < count:
            if time.monotonic() - reminded >= _REMIND:
                _log.info("waiting for nodes: %d of %d are connected", there(), count)
                reminded = time.monotonic()
            self._post.pause()
            self._look()

    def _look(self) -> None:
        """Notice nodes that left, ask new ones, and read their answers."""
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
        """Number the announced nodes, by client; of duplicates only one gets the number."""
        if self._roll is None:
            return
        served = {self._announced[node].client for node in self._numbers}
        for node, found in sorted(self._announced.items(), key=lambda item: _place(item[1])):
            if node in self._numbers:
                continue
            if found.client in served:
                if node not in self._twins:
                    _log.warning("node %d waits: another node already serves client %r", node, found.client)
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
