"""Server aggregations that a few bad clients cannot steer: `+median`, `+trim`, `+krum` and `+bound`.

    +median  Δ = the median of the updates, entry by entry
    +trim    Δ = the mean of what is left of each entry without its ⌊s·n⌋ smallest and largest values
    +krum    Δ = the mean of the m updates with the smallest sum of squared distances to their n − f − 2 nearest,
             f = ⌊s·n⌋;  m = 1 is Krum, more is multi-Krum, and 0 takes n − f
    +bound   Δ = Σ ω_i u_i min(1, C/‖u_i‖), u_i all vectors that a client sends together

The server's own step comes after them, so each goes with `+acg`: `fedavg+median+acg`. The first three need each
single update, and every client counts the same; where a method sends several vectors, each is aggregated so, and
buffers too, but distances and norms are those of all together. (Yin et al., ICML 2018; Blanchard et al., NeurIPS
2017; Sun et al., 2019.)
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Around, ServerRule, State, Totals
from fedacg.methods.sums import StandIn


class Robust(StandIn):
    """Passes a robust centre of the replies to the inner rule in place of their mean."""

    needs = frozenset({"single updates", "uniform weights"})

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {}  # the replies themselves are kept

    def step(self, state: State, totals: Totals, round: Round) -> State:
        replies = totals.replies
        sent = {
            "delta": torch.stack([reply.delta for reply in replies]),
            **{name: torch.stack([reply.extras[name] for reply in replies]) for name in self.vectors[1:]},
            "buffers": torch.stack([reply.buffers for reply in replies]),
        }
        return self.hand_on(state, totals, round, self.middle(sent), len(replies))

    @abstractmethod
    def middle(self, sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """One vector for each matrix, which has a row for each client."""


class Median(Robust):
    """The median of each entry; of an even number the mean of the two in the middle."""

    def middle(self, sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: _trimmed(rows, (len(rows) - 1) // 2) for name, rows in sent.items()}


class Trimmed(Robust):
    """The mean of each entry without its extremes."""

    def __init__(self, inner: ServerRule, share: float) -> None:
        super().__init__(inner)
        self.share = share

    def middle(self, sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: _trimmed(rows, math.floor(self.share * len(rows))) for name, rows in sent.items()}


class Krum(Robust):
    """The mean of the updates that lie closest to their neighbours."""

    def __init__(self, inner: ServerRule, share: float, keep: int) -> None:
        super().__init__(inner)
        self.share, self.keep = share, keep

    def middle(self, sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        chosen = self.chosen(torch.cat(list(sent.values()), dim=1))
        return {name: rows[chosen].mean(dim=0) for name, rows in sent.items()}

    def chosen(self, rows: Tensor) -> Tensor:
        """Which updates are taken, in ascending order; of equals the first."""
        count = len(rows)
        bad = math.floor(self.share * count)
        near = min(max(1, count - bad - 2), count - 1)
        squares = torch.stack([(rows - row).double().square().sum(dim=1) for row in rows])
        # The nearest of all is the update itself, at no distance.
        scores = squares.sort(dim=1).values[:, : near + 1].sum(dim=1)
        keep = min(self.keep or count - bad, count)
        return scores.argsort(stable=True)[:keep].sort().values


class NormBound(Around):
    """Scales an upload to at most this norm before the inner rule sees it."""

    def __init__(self, inner: ServerRule, norm: float) -> None:
        super().__init__(inner)
        self.norm = norm

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        vectors = (reply.delta, *reply.extras.values())
        norm = math.sqrt(sum(float(vector.double().square().sum()) for vector in vectors))
        if norm <= self.norm:
            return super().collect(reply)
        scale = self.norm / norm
        extras = {name: vector * scale for name, vector in reply.extras.items()}
        return super().collect(replace(reply, delta=reply.delta * scale, extras=extras))


def _trimmed(rows: Tensor, cut: int) -> Tensor:
    """The mean of each column without its `cut` smallest and largest entries."""
    return rows.sort(dim=0).values[cut : len(rows) - cut].mean(dim=0)


def add_median(method: Method) -> Method:
    return replace(method, rule=Median(method.rule))


def add_trim(method: Method, share: float) -> Method:
    return replace(method, rule=Trimmed(method.rule, share))


def add_krum(method: Method, share: float, keep: float) -> Method:
    return replace(method, rule=Krum(method.rule, share, int(keep)))


def add_bound(method: Method, norm: float) -> Method:
    return replace(method, rule=NormBound(method.rule, norm))
