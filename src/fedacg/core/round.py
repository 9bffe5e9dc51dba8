"""A round: what is known of it before any client is asked, and the messages of tensors that are sent in it.

A message's size is the length of its tensors' bytes. The numbers that every reply has beside them (examples,
steps, the loss) are not counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedacg.core.randomness import generator, stream_seed


@dataclass(frozen=True)
class Round:
    """One round of a federation."""

    number: int
    """Counted from 1."""
    clients: int
    """N, the number of clients in the federation."""
    expected: int
    """M, the intended number of clients per round."""
    lr: float
    """η, the local learning rate that the round starts with."""
    seed: int = 0
    rounds: int = 0
    """The total number of rounds; 0 where only the server knows."""

    def random(self, purpose: str, *where: int) -> torch.Generator:
        """A stream of randomness for this purpose in this round, at the server or for one client."""
        return generator(self.seed, purpose, self.number, *where)

    def seed_of(self, purpose: str, *where: int) -> int:
        """The seed of that stream."""
        return stream_seed(self.seed, purpose, self.number, *where)


Message = Mapping[str, Tensor]
"""Down: `phi`, `buffers` and what a server rule adds. Up: `delta`, `buffers` and what parts send."""


@dataclass(frozen=True)
class Kind:
    """Type and shape of a tensor in a message."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Kinds = Mapping[str, Kind]

BESIDE = "beside/"
"""Prefix, in an upload, of tensors that are sent unencoded."""


def is_encoded(name: str) -> bool:
    """Whether a tensor of an upload went through the upload chain."""
    return name != "buffers" and not name.startswith(BESIDE)


def kinds(message: Message) -> Kinds:
    """The types and shapes of a message's tensors."""
    return {name: Kind(tuple(tensor.shape), tensor.dtype) for name, tensor in message.items()}


def kind_bytes(kinds: Kinds) -> int:
    """The number of bytes of a message with such tensors."""
    return sum(kind.bytes for kind in kinds.values())


def message_bytes(message: Message) -> int:
    """The number of bytes a message takes on the wire."""
    return kind_bytes(kinds(message))
