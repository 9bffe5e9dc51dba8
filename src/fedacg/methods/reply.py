"""A client's answer as a server rule sees it, alone or as a row among those of its group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedacg.core.round import Message

Term = tuple[Tensor, float]
"""A reply's share of a sum: what is added, and its factor."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A client's answer as it reached the server. Its tensors are valid until the next reply is taken."""

    client: int
    weight: float
    """ω_i; the weights of a round's replies sum to one."""
    share: float
    """1/|S|, the weight of each reply in a plain mean."""
    examples: int
    """n_i"""
    steps: int
    """K_i"""
    total_lr: float
    """The sum of the learning rates of its steps: K_i·η where the rate is constant."""
    loss: float
    """Mean training loss over the examples seen."""
    delta: Tensor
    """Δ_i = w_i − φ, or what a method sends in its place"""
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    """Whatever else a method's clients send: further vectors, class prototypes, single numbers."""
    buffers: Tensor = field(default_factory=lambda: torch.empty(0))
    """How its normalisation buffers changed."""
    payloads: Message = field(default_factory=dict)
    """Its vectors as an upload chain's links encoded them, for rules that add up the sent numbers themselves."""


Terms = tuple[Tensor, float | Sequence[float]]
"""The shares of many replies in a sum: a row for each, and its factor, or one factor for all."""


@dataclass(frozen=True)
class ReplyRows:
    """The answers of a group of clients: matrices with a row for each; iterated, they are single replies."""

    clients: Sequence[int]
    weights: Sequence[float]
    share: float
    examples: Sequence[int]
    steps: Sequence[int]
    total_lr: Callable[[int], float]
    """Of the client in this row."""
    losses: Sequence[float]
    deltas: Tensor
    extras: Message
    buffers: Tensor
    payloads: Message

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Reply]:
        delta, buffers = self.deltas.unbind(), self.buffers.unbind()
        extras = {name: rows.unbind() for name, rows in self.extras.items()}
        payloads = {name: rows.unbind() for name, rows in self.payloads.items()}
        for row, client in enumerate(self.clients):
            yield Reply(
                client=client,
                weight=self.weights[row],
                share=self.share,
                examples=self.examples[row],
                steps=self.steps[row],
                total_lr=self.total_lr(row),
                loss=self.losses[row],
                delta=delta[row],
                buffers=buffers[row],
                extras={name: rows[row] for name, rows in extras.items()},
                payloads={name: rows[row] for name, rows in payloads.items()},
            )
