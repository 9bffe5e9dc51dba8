"""A client's visit as its parts see it: what they know before the local steps, and what is sent after them.

Everything here holds for one client, whose vectors are vectors, and for many at once, whose vectors are rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedacg.config.sections import LocalSettings
from fedacg.core.round import BESIDE, Message, Round
from fedacg.core.vector import FlatModel, as_rows
from fedacg.errors import InputError
from fedacg.methods.upload import Chain, Memory


class Copies(Protocol):
    """Frozen copies of the network that a worker keeps, one for each name and never one for each client."""

    def load(self, name: str, vector: Tensor, buffers: Tensor) -> nn.Module:
        """The copy of this name, now with these parameters; it takes no gradients of its own."""
        ...


@dataclass(frozen=True)
class Assignment:
    """What a part may know of the client, or the clients, that it is about to serve."""

    flat: FlatModel
    """The worker's model, at φ before the first step."""
    broadcast: Message
    """What the server sent: `phi`, `buffers` and what the server rule adds."""
    kept: Message
    """What the client kept of its last visit; empty when it takes part for the first time."""
    round: Round
    local: LocalSettings
    """How clients train in this run."""
    steps: int | Tensor
    """K of this client; of several a column, with one for each row."""
    total_lr: float | Tensor
    """The sum of the learning rates of its steps; of several clients a column."""
    label_counts: Callable[[], Tensor]
    """n_{i,c}: how many examples of each class the client has; a row each for several clients."""
    full_gradient: Callable[[], Tensor]
    """∇f_i(φ) over all examples of the client, of the sum of the losses; a row each for several clients."""
    copies: Copies
    scratch: Tensor
    """A model-sized vector, or as many rows of it as there are clients, to write to within a step.

    It is the local step's until that has its direction, and then each correction's in turn.
    """
    rates: Sequence[Sequence[float]] = ()
    """The learning rate of every step, for each client."""
    randoms: Sequence[Callable[[str], torch.Generator]] = ()
    """The visit's streams of randomness by purpose, for each client; drawn on the CPU."""

    @property
    def phi(self) -> Tensor:
        """φ, the point that was broadcast; the client's vector w starts there."""
        return self.broadcast["phi"]

    def point(self, name: str) -> Tensor:
        """A point that the client kept by `keep_point`, φ when it takes part for the first time."""
        if name not in self.kept:
            return self.phi.expand(self.scratch.shape)
        return torch.where(self.kept[name + _SEEN] > 0, self.kept[name], self.phi)

    def state(self, name: str) -> Tensor:
        """A vector that the client kept, zero when it takes part for the first time."""
        if name in self.kept:
            return self.kept[name]
        return torch.zeros_like(self.phi).expand(self.scratch.shape)


def keep_point(name: str, point: Tensor) -> Message:
    """What a client keeps of a point, so that `Assignment.point` finds it and knows a client that has none."""
    return {name: point, name + _SEEN: point.new_ones(*point.shape[:-1], 1)}


_SEEN = " kept"
"""Ends the name of a mark beside a point: of many clients at once, those that kept nothing have zeros."""


class Departure:
    """The uploads of clients: vectors that go through the upload chain, and tensors that are sent beside them."""

    def __init__(
        self,
        chain: Chain,
        like: Tensor,
        memories: Sequence[Memory],
        randoms: Sequence[torch.Generator],
        broadcast: Message | None = None,
    ) -> None:
        """Of one client where `like`, its w, is a vector; of several where it is a matrix of rows.

        A chain without links reads neither memories nor randomness.
        """
        self._chain, self._like, self._memories, self._randoms = chain, like, memories, randoms
        for link in chain.links:
            link.hear(broadcast or {})
        self._count = len(like) if like.dim() > 1 else 1
        self._waiting: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}
        self._beside: dict[str, Tensor] = {}

    def send(self, name: str, vector: Tensor) -> None:
        """Put a model-sized vector into the upload."""
        self._waiting[name] = vector

    def attach(self, name: str, tensor: Tensor) -> None:
        """Put something else beside the vectors: a number, class prototypes, counts; it is sent as it is."""
        self._beside[BESIDE + name] = as_rows(tensor, self._count)

    def arrived(self, name: str) -> Tensor:
        """A vector of the upload as the server will see it."""
        if name in self._waiting:
            if self._chain.joint:
                raise InputError(
                    "method: one of its vectors depends on how another arrives, "
                    "but all vectors of the upload must be changed together"
                )
            self._encode(name)
        row = self._rows(self._like)[0]
        rows = self._chain.decode_rows(self._sent[name], row)
        return rows.view(self._like.shape).to(self._like.device)

    def finish(self, delta: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The whole upload, a row for each client: Δ_i unless a part sent something in its place, and the rest."""
        if "delta" not in self._sent:
            self._waiting = {"delta": delta} | self._waiting
        if self._chain.joint:
            if self._beside and any(link.covers for link in self._chain.links):
                sent = ", ".join(name.removeprefix(BESIDE) for name in self._beside)
                raise InputError(
                    f"method: its clients send {sent} beside their vectors, where no noise or seal covers it"
                )
            self._waiting["buffers"] = buffers
            self._prepare()
            buffers = self._waiting.pop("buffers")
        for name in list(self._waiting):
            self._encode(name)
        beside = {name: tensor.cpu() for name, tensor in self._beside.items()}
        return {**self._sent, **beside, "buffers": self._rows(buffers)}

    def _prepare(self) -> None:
        """Let the links that need the whole upload change each client's vectors together."""
        rows = {name: self._rows(vector) for name, vector in self._waiting.items()}
        prepared = []
        for row, random in enumerate(self._randoms):
            upload: Message = {name: vectors[row] for name, vectors in rows.items()}
            for link in self._chain.links:
                upload = link.prepare(upload, random)
            prepared.append(upload)
        for name in prepared[0].keys() - rows.keys():
            self._beside[BESIDE + name] = torch.stack([upload[name] for upload in prepared])
        self._waiting = {name: torch.stack([upload[name] for upload in prepared]) for name in rows}

    def _encode(self, name: str) -> None:
        rows = self._rows(self._waiting.pop(name))
        memories = (memory.within(name) for memory in self._memories)
        self._sent[name] = self._chain.encode_rows(rows, memories, self._randoms)

    def _rows(self, vector: Tensor) -> Tensor:
        """A row for each client, on the CPU."""
        return as_rows(vector.cpu(), self._count)
