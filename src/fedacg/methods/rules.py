"""Server rules: what is broadcast and how the replies change the server's state.

A rule holds no vectors. Its state is a record of named vectors that the store can write, and `step` returns
a new one, so that an interrupted round leaves the old one whole. What clients do lives in objective.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

State = Mapping[str, Tensor]
"""The server's vectors by name: `theta` (θ) and what a rule adds, such as `m`."""


@dataclass(frozen=True)
class Reply:
    """A client's answer as it reached the server. Its vectors are valid until the next reply is asked for."""

    client: int
    weight: float
    """ω_i; the weights of a round's replies sum to one."""
    examples: int
    """n_i"""
    steps: int
    """K_i"""
    lr: float
    """η of the round that made the update."""
    loss: float
    """Mean training loss over the examples seen."""
    delta: Tensor
    """Δ_i = w_i − φ, or what a method sends in its place"""
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    """Further vectors that a method's clients send."""


def mean_delta(replies: Iterable[Reply]) -> Tensor:
    """Δ = Σ ω_i Δ_i, summed in the order of the cohort."""
    return _sum((reply.delta, reply.weight) for reply in replies)


def sum_deltas(replies: Iterable[Reply]) -> tuple[Tensor, int]:
    """The plain sum Σ Δ_i over the cohort, and how many they were."""
    count = 0

    def deltas() -> Iterator[tuple[Tensor, float]]:
        nonlocal count
        for reply in replies:
            count += 1
            yield reply.delta, 1.0

    return _sum(deltas()), count


def _sum(terms: Iterator[tuple[Tensor, float]]) -> Tensor:
    first, weight = next(terms)
    total = first * weight
    for vector, weight in terms:
        total.add_(vector, alpha=weight)
    return total


class ServerRule(ABC):
    """How the server moves; the base broadcasts θ itself and keeps nothing else."""

    def init(self, theta: Tensor) -> State:
        """The state before the first round."""
        return {"theta": theta}

    def broadcast(self, state: State) -> dict[str, Tensor]:
        """What every client of the cohort is sent: φ, and whatever else the method needs."""
        return {"phi": state["theta"]}

    @abstractmethod
    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        """The state after a round of a federation of N `clients`. The old state is left as it was."""


class Average(ServerRule):
    """θ ← θ + η_g Δ"""

    def __init__(self, server_lr: float = 1.0) -> None:
        self.server_lr = server_lr

    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        delta = mean_delta(replies)
        return {"theta": torch.add(state["theta"], delta, alpha=self.server_lr)}


class Momentum(ServerRule):
    """m ← βm + η_g Δ;  θ ← θ + m"""

    def __init__(self, beta: float, server_lr: float = 1.0) -> None:
        self.beta, self.server_lr = beta, server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "m": torch.zeros_like(theta)}

    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        delta = mean_delta(replies)
        m = (state["m"] * self.beta).add_(delta, alpha=self.server_lr)
        return {"theta": state["theta"] + m, "m": m}


class Lookahead(Momentum):
    """φ = θ + λm is broadcast;  m ← λm + η_g Δ;  θ ← θ + m"""

    def __init__(self, lam: float, server_lr: float = 1.0) -> None:
        super().__init__(beta=lam, server_lr=server_lr)

    def broadcast(self, state: State) -> dict[str, Tensor]:
        return {"phi": torch.add(state["theta"], state["m"], alpha=self.beta)}


class Adam(ServerRule):
    """m ← β₁m + (1−β₁)Δ;  v ← β₂v + (1−β₂)Δ²;  θ ← θ + η_g m/(√v + τ);  v₀ = τ², no bias correction."""

    def __init__(self, beta1: float, beta2: float, tau: float, server_lr: float) -> None:
        self.beta1, self.beta2, self.tau, self.server_lr = beta1, beta2, tau, server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "m": torch.zeros_like(theta), "v": torch.full_like(theta, self.tau**2)}

    def step(self, state: State, replies: Iterable[Reply], clients: int) -> State:
        delta = mean_delta(replies)
        m = (state["m"] * self.beta1).add_(delta, alpha=1 - self.beta1)
        v = (state["v"] * self.beta2).addcmul_(delta, delta, value=1 - self.beta2)
        theta = torch.addcdiv(state["theta"], m, v.sqrt().add_(self.tau), value=self.server_lr)
        return {"theta": theta, "m": m, "v": v}
