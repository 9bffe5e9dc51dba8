"""The upload chain: what happens to a client's vectors on their way to the server, link by link.

A chain is what the name of a method says, from left to right: `+clip+paq` clips and then quantises. Every link
passes its result to the rest of the chain; the last produces the bytes that are sent. What a link keeps at the
client, such as its error, is in a namespace of its own.
"""

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedacg.core.round import Message


@dataclass(frozen=True)
class Memory:
    """What one link keeps for one vector of a client between visits."""

    kept: Message = field(default_factory=dict)
    keep: dict[str, Tensor] = field(default_factory=dict)
    space: str = ""

    def within(self, name: str) -> "Memory":
        """The part of it with this name."""
        return Memory(self.kept, self.keep, f"{self.space}{name}/")

    def read(self, name: str, like: Tensor) -> Tensor:
        """A vector that was kept at the last visit, zero at the first."""
        found = self.kept.get(self.space + name)
        return torch.zeros_like(like) if found is None else found

    def write(self, name: str, vector: Tensor) -> None:
        self.keep[self.space + name] = vector


class Link(ABC):  # noqa: B024 - each of its methods has a sensible default
    """One link of an upload chain; the base passes everything on."""

    needs: frozenset[str] = frozenset()
    """Its requirements of a federation, as keys of `methods.method.NEEDS`."""
    last: bool = False
    """Whether it writes bytes itself, so that nothing can come after it."""
    joint: bool = False
    """Whether it looks at all vectors of an upload together before any is encoded, in `prepare`."""
    bounds: bool = False
    """Whether it promises a largest norm of the whole upload, which no other link may undo."""
    covers: bool = False
    """Whether it must cover everything sent, so that nothing may be sent beside the vectors."""
    shrinks: bool = False
    """Whether what arrives of a vector is never longer than the vector."""

    def hear(self, broadcast: Message) -> None:  # noqa: B027 - most links need nothing from the server
        """What the server sent, before anything of a round is encoded or decoded, at either end."""

    def prepare(self, upload: Mapping[str, Tensor], random: torch.Generator) -> Mapping[str, Tensor]:
        """All vectors of one client's upload, changed together, as by one clip of their common norm.

        A name that is new is put beside the vectors, and sent as it is.
        """
        return upload

    def encode(self, vector: Tensor, rest: "Chain", memory: Memory, random: torch.Generator) -> Tensor:
        """The bytes to send (uint8)."""
        return rest.encode(vector, memory, random)

    def decode(self, payload: Tensor, like: Tensor, rest: "Chain") -> Tensor:
        """The vector that arrived, with the length and type of `like`."""
        return rest.decode(payload, like)


@dataclass(frozen=True)
class Chain:
    """Links in their order; an empty chain sends a vector's own bytes, without a copy at either end."""

    links: tuple[Link, ...] = ()
    position: int = 0

    @property
    def rest(self) -> "Chain":
        return Chain(self.links[1:], self.position + 1)

    @property
    def joint(self) -> bool:
        return any(link.joint for link in self.links)

    def encode(self, vector: Tensor, memory: Memory, random: torch.Generator) -> Tensor:
        if not self.links:
            return vector.contiguous().view(torch.uint8)
        link = self.links[0]
        return link.encode(vector, self.rest, memory.within(f"{self.position}"), random)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        if not self.links:
            return payload.view(like.dtype)
        return self.links[0].decode(payload, like, self.rest)

    def encode_rows(
        self, vectors: Tensor, memories: Iterable[Memory], randoms: Iterable[torch.Generator]
    ) -> Tensor:
        """The bytes of every row of a matrix, one client each."""
        if not self.links:
            return vectors.contiguous().view(torch.uint8)
        return torch.stack([self.encode(*one) for one in zip(vectors, memories, randoms, strict=True)])

    def decode_rows(self, payloads: Tensor, like: Tensor) -> Tensor:
        """The vectors that arrived, a row each."""
        if not self.links:
            return payloads.view(like.dtype)
        vectors = [self.decode(payload, like) for payload in payloads]
        return torch.stack(vectors) if len(vectors) > 1 else vectors[0].unsqueeze(0)


class ErrorFeedback(Link):
    """Sends C(Δ_i + e_i), where C is the rest of the chain, and keeps e_i ← Δ_i + e_i − C(Δ_i + e_i)."""

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        wanted = vector + memory.read("error", vector)
        payload = rest.encode(wanted, memory, random)
        memory.write("error", wanted - rest.decode(payload, wanted))
        return payload
