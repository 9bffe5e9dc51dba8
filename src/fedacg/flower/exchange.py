"""Messages to nodes and their replies, one by one, so that a reply that cannot be had costs its sender only."""

import time
from collections.abc import Mapping
from typing import Generic, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedacg.flower.checks import Refused

_PAUSE = 1.0
"""Seconds from one look for replies to the next, more where many are awaited."""
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    MemoryError,
    DecodeError,
)
"""How Flower's reader ends on bytes that no honest node sends; that the SuperLink is gone is no node's fault."""

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
                come[key] = next(fitting, "it is the reply of another node")
            del self._awaited[identity]
        return come

    def pause(self, seconds: float | None = None) -> None:
        """Wait before the next look, at most so long."""
        pause = max(_PAUSE, 0.02 * len(self._awaited))
        time.sleep(pause if seconds is None else max(0.0, min(pause, seconds)))


def ask(grid: Grid, messages: Mapping[Key, Message], seconds: float) -> dict[Key, Message | str]:
    """The replies to messages that came in so many seconds (0 waits for all), and why others did not."""
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
