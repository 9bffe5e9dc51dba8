"""What crosses the network: messages of named vectors, their bytes, and how an upload is encoded.

A message's size is the length of its vectors' bytes. The few scalars beside them (number of examples,
of steps, the loss) are not counted.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

Message = Mapping[str, Tensor]
"""Vectors by name. Down: `phi`, `buffers` and what a server rule adds. Up: `delta` and `buffers`."""


def message_bytes(message: Message) -> int:
    """The number of bytes a message takes on the wire."""
    return sum(vector.numel() * vector.element_size() for vector in message.values())


class Link(Protocol):
    """How a model-sized vector of an upload is written and read."""

    def encode(self, vector: Tensor, random: torch.Generator) -> Tensor:
        """The bytes to send (uint8)."""
        ...

    def encode_rows(self, vectors: Tensor, randoms: Iterable[torch.Generator]) -> Tensor:
        """The same for every row of a matrix, each with a generator of its own."""
        ...

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        """The vector that arrived, as long and of the type as `like`."""
        ...

    def decode_rows(self, payloads: Tensor, like: Tensor) -> Tensor:
        """The same for every row of a matrix."""
        ...

    def size(self, entries: int, entry_bytes: int) -> int:
        """The number of bytes that a vector of so many entries takes."""
        ...


class FullPrecision:
    """The vector's own bytes, without a copy at either end."""

    def encode(self, vector: Tensor, random: torch.Generator) -> Tensor:
        return vector.view(torch.uint8)

    def encode_rows(self, vectors: Tensor, randoms: Iterable[torch.Generator]) -> Tensor:
        return vectors.view(torch.uint8)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        return payload.view(like.dtype)

    def decode_rows(self, payloads: Tensor, like: Tensor) -> Tensor:
        return payloads.view(like.dtype)

    def size(self, entries: int, entry_bytes: int) -> int:
        return entries * entry_bytes
