"""Server rules: what is broadcast, what is summed over the replies, and how the sums move the server.

A rule holds no vectors. Its state is a record of named vectors that a checkpoint can hold, and `step` returns a
new one, so that an interrupted round leaves the old one whole. As a rule sees only sums, replies stream through
the server one by one, and sealed or noisy sums serve it as well as plain ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods.reply import Reply, ReplyRows, Term, Terms

State = Mapping[str, Tensor]
"""The server's vectors by name: `theta` (θ) and what a rule adds, such as `m`.

The model that is evaluated and released is θ, or `model` where a rule keeps such a vector: an average of iterates.
"""


class Network(Protocol):
    """What a server rule may know of the model."""

    @property
    def classes(self) -> int:
        """C, the classes of the data."""
        ...

    @property
    def width(self) -> int:
        """How many features the head of a staged model takes."""
        ...

    def head(self, vector: Tensor, features: Tensor) -> Tensor:
        """The logits that the head of a staged model with these parameters makes of features."""
        ...


class Totals:
    """Sums over a round's replies by name, added up in the order of the cohort."""

    def __init__(self, rule: "ServerRule", network: Network | None = None) -> None:
        self._rule, self._network = rule, network
        self._sums: dict[str, Tensor] = {}
        self.count = 0
        """The number of replies."""
        self.replies: list[Reply] = []
        """The replies themselves, only for rules that need single updates."""
        self.figures: dict[str, float] = {}
        """Measurements of the rule, by names of `RoundMetrics.scores`."""

    def add_rows(self, replies: ReplyRows) -> None:
        """Add the replies of a group, with the same bits as one by one."""
        terms = None if "single updates" in self._rule.needs else self._rule.collect_rows(replies)
        if terms is None:
            for reply in replies:
                self.add(reply)
            return
        self.count += len(replies)
        for name, (rows, factors) in terms.items():
            each = [factors] * len(rows) if isinstance(factors, float) else factors
            first = 0
            if name not in self._sums:
                self._sums[name], first = rows[0] * each[0], 1
            if min(each) == max(each):  # one call for all, which adds row by row
                same = torch.zeros(len(rows) - first, dtype=torch.int64)
                self._sums[name].unsqueeze(0).index_add_(0, same, rows[first:], alpha=each[0])
            else:
                for row, factor in zip(rows[first:].unbind(), each[first:], strict=True):
                    self._sums[name].add_(row, alpha=factor)

    def add(self, reply: Reply) -> None:
        """Add a reply to the sums that the rule asks for."""
        self.count += 1
        for name, (tensor, factor) in self._rule.collect(reply).items():
            if name in self._sums:
                self._sums[name].add_(tensor, alpha=factor)
            else:
                self._sums[name] = tensor * factor
        if "single updates" in self._rule.needs:
            extras = {name: tensor.clone() for name, tensor in reply.extras.items()}
            delta, buffers = reply.delta.clone(), reply.buffers.clone()
            self.replies.append(replace(reply, delta=delta, extras=extras, buffers=buffers, payloads={}))

    def __getitem__(self, name: str) -> Tensor:
        return self._sums[name]

    @property
    def network(self) -> Network:
        """The model that the replies belong to."""
        assert self._network is not None
        return self._network

    def get(self, name: str, default: Tensor) -> Tensor:
        """A sum, or its default in a round without answers."""
        return self._sums.get(name, default)

    def changed(self, **sums: Tensor) -> "Totals":
        """The same with other sums in place of these, for a rule around another."""
        totals = copy(self)
        totals._sums = {**self._sums, **sums}
        return totals

    def of_mean(self, rule: "ServerRule", reply: Reply, count: int) -> "Totals":
        """The totals of another rule if `count` replies equal to this one had arrived."""
        totals = copy(self)
        totals._rule, totals.count, totals.replies = rule, count, []
        totals._sums = {name: tensor * (factor * count) for name, (tensor, factor) in rule.collect(reply).items()}
        return totals


def released(state: State) -> Tensor:
    """The parameters that are evaluated and released."""
    return state["model"] if "model" in state else state["theta"]


class ServerRule(ABC):
    """How the server moves; the base broadcasts θ itself, sums up Δ and keeps nothing else."""

    needs: frozenset[str] = frozenset()
    """Its requirements of a federation, as keys of `methods.method.NEEDS`."""
    first_exchange: bool = False
    """Whether clients first send the full gradient of their losses at φ; `learn` is given its mean."""
    moves_buffers: bool = False
    """Whether `step` gives normalisation buffers as well; by default they move by the weighted mean."""
    always: bool = False
    """Whether it also takes a step in a round without answers."""

    counts_rounds: bool = False
    """Whether what it does depends on how many rounds there are in all, `Round.rounds`."""
    silent: bool = False
    """Whether nothing crosses a network, so that no bytes are counted; for baselines."""
    common: bool = True
    """Whether there is one model for all; without it the models that clients keep are tested."""

    def init(self, theta: Tensor) -> State:
        """The state before the first round."""
        return {"theta": theta}

    def extras(self, network: Network, like: Tensor) -> State:
        """Further tensors of the state before the first round, for rules that keep some by class or feature.

        `like` is a vector of the model, and has the type to use.
        """
        return {}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        """What every client of the cohort is sent: φ, and whatever else the method needs."""
        return {"phi": state["theta"]}

    def learn(self, state: State, gradient: Tensor, round: Round) -> State:
        """The state with Σ ω_i ∇f_i(φ) in it, after the first exchange and before what is broadcast next."""
        return {**state, "gradient": gradient}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        """What a reply adds to the round's sums; by default Σ ω_i Δ_i, called `delta`."""
        return {"delta": (reply.delta, reply.weight)}

    def collect_rows(self, replies: ReplyRows) -> Mapping[str, Terms] | None:
        """The same for a group of replies at once, a row each; None where they are collected one by one.

        A subclass with another `collect` is asked reply by reply, unless it has this as well.
        """
        return {"delta": (replies.deltas, replies.weights)}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "collect" in vars(cls) and "collect_rows" not in vars(cls):
            cls.collect_rows = lambda self, replies: None  # type: ignore[method-assign]

    @abstractmethod
    def step(self, state: State, totals: Totals, round: Round) -> State:
        """The state after the round that these sums are of. The old state is left as it was."""

    def momentum(self, state: State) -> Tensor | None:
        """m, of rules that have one; its norm is recorded every round."""
        return state.get("m")

    def beside_bytes(self, asked: int, answered: int) -> tuple[int, int]:
        """Bytes down and up that a round takes beside its messages, as for an exchange of keys."""
        return 0, 0

    def in_place_of_average(self, make: "Callable[[Average], ServerRule]") -> "ServerRule":
        """This rule with another one where it averages; refused by rules that do not average."""
        raise InputError("it has a server rule already, and a method has only one")


class Average(ServerRule):
    """θ ← θ + η_g Δ"""

    def __init__(self, server_lr: float = 1.0) -> None:
        self.server_lr = server_lr

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {"theta": torch.add(state["theta"], totals["delta"], alpha=self.server_lr)}

    def in_place_of_average(self, make: "Callable[[Average], ServerRule]") -> ServerRule:
        return make(self) if type(self) is Average else super().in_place_of_average(make)


class Around(ServerRule):
    """A rule that leaves θ to another, `inner`, and adds vectors of its own; `+acg` reaches through it."""

    def __init__(self, inner: ServerRule) -> None:
        self.inner = inner
        self.needs = self.needs | inner.needs
        self.first_exchange = self.first_exchange or inner.first_exchange
        self.counts_rounds = self.counts_rounds or inner.counts_rounds
        self.moves_buffers = self.moves_buffers or inner.moves_buffers
        self.always = self.always or inner.always

    def init(self, theta: Tensor) -> State:
        return self.inner.init(theta)

    def extras(self, network: Network, like: Tensor) -> State:
        return self.inner.extras(network, like)

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return self.inner.broadcast(state, round)

    def learn(self, state: State, gradient: Tensor, round: Round) -> State:
        return self.inner.learn(state, gradient, round)

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return self.inner.collect(reply)

    def collect_rows(self, replies: ReplyRows) -> Mapping[str, Terms] | None:
        return self.inner.collect_rows(replies)

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return self.inner.step(state, totals, round)

    def momentum(self, state: State) -> Tensor | None:
        return self.inner.momentum(state)

    def beside_bytes(self, asked: int, answered: int) -> tuple[int, int]:
        return self.inner.beside_bytes(asked, answered)

    def in_place_of_average(self, make: "Callable[[Average], ServerRule]") -> ServerRule:
        changed = copy(self)
        changed.inner = self.inner.in_place_of_average(make)
        return changed


class Momentum(ServerRule):
    """m ← βm + η_g Δ;  θ ← θ + m"""

    def __init__(self, beta: float, server_lr: float = 1.0) -> None:
        self.beta, self.server_lr = beta, server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "m": torch.zeros_like(theta)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        m = (state["m"] * self.beta).add_(totals["delta"], alpha=self.server_lr)
        return {"theta": state["theta"] + m, "m": m}


class Lookahead(Momentum):
    """φ = θ + λm is broadcast;  m ← λm + η_g Δ;  θ ← θ + m"""

    def __init__(self, lam: float, server_lr: float = 1.0) -> None:
        super().__init__(beta=lam, server_lr=server_lr)

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {"phi": torch.add(state["theta"], state["m"], alpha=self.beta)}


class Adam(ServerRule):
    """m ← β₁m + (1−β₁)Δ;  v ← β₂v + (1−β₂)Δ²;  θ ← θ + η_g m/(√v + τ);  v₀ = τ², no bias correction.

    Its relatives differ in the second moment alone.
    """

    def __init__(self, beta1: float, beta2: float, tau: float, server_lr: float) -> None:
        self.beta1, self.beta2, self.tau, self.server_lr = beta1, beta2, tau, server_lr

    def init(self, theta: Tensor) -> State:
        return {"theta": theta, "m": torch.zeros_like(theta), "v": torch.full_like(theta, self.tau**2)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        delta = totals["delta"]
        m = (state["m"] * self.beta1).add_(delta, alpha=1 - self.beta1)
        v = self.second(state["v"], delta)
        theta = torch.addcdiv(state["theta"], m, v.sqrt().add_(self.tau), value=self.server_lr)
        return {"theta": theta, "m": m, "v": v}

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        """The second moment after this round."""
        return (v * self.beta2).addcmul_(delta, delta, value=1 - self.beta2)
