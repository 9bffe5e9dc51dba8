"""Differential privacy without secret coins, `+dpftrl`: noise that later rounds partly cancel (DP-FTRL).

    client   all that it sends is one vector u_i:  u_i ← u_i · min(1, C/‖u_i‖)
    server   Δ_t = (Σ_S u_i + x_t)/M,  x_t = N(0, z²C²) − Σ_{j<b} c_j x_{t−j},  c = 1, 1/2, 3/8, 5/16, …

So x = K⁻¹Z, where K has the first b coefficients of the square root of the matrix of prefix sums. Sums over many
rounds, which are what a model is made of, have far less noise than with fresh noise in every round. K·sums + Z is
one Gaussian mechanism; a client that rests for b − 1 rounds after it was asked (cohort.draw = "spaced",
cohort.gap = b) has columns of K with no row in common, so that what it adds has norm C·√(Σ_visits ‖column‖²). No
amplification by sampling is claimed. b = 1 is `+dp` without coins. Models with buffers are refused.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.accounting import square_root
from fedacg.methods.dp import ClipTogether, Noised, Promise, noised, refuse_second
from fedacg.methods.method import Method
from fedacg.methods.rules import ServerRule, State


class Correlated(Noised):
    """Noised, with x_t in place of fresh noise; the last b − 1 of them are kept."""

    needs = frozenset({"spaced cohorts", "no buffers"})

    def __init__(self, inner: ServerRule, promise: Promise, *, clip: float) -> None:
        super().__init__(inner, promise, clip=clip, quantile=0, clip_lr=0, bit_noise=0)

    def init(self, theta: Tensor) -> State:
        past = [_past(name, lag) for name in self.vectors for lag in range(1, len(self.promise.bands))]
        return {**super().init(theta), **{name: torch.zeros_like(theta) for name in past}}

    def release(
        self, sums: Mapping[str, Tensor], scale: float, state: State, random: torch.Generator
    ) -> tuple[dict[str, Tensor], State]:
        released, kept, bands = dict(sums), dict[str, Tensor](), self.promise.bands
        for name in self.vectors:
            noise = noised(torch.zeros_like(sums[name]), scale, random)
            for lag in range(1, len(bands)):
                noise.sub_(state[_past(name, lag)], alpha=bands[lag])
            released[name] = sums[name] + noise
            if len(bands) > 1:
                kept |= {_past(name, lag): state[_past(name, lag - 1)] for lag in range(2, len(bands))}
                kept[_past(name, 1)] = noise
        return released, kept


def _past(name: str, lag: int) -> str:
    """The name of the noise of some rounds ago in the server's state."""
    return f"noise {lag} {name}"


def add_dp_ftrl(
    method: Method, clip: float, noise: float, delta: float, budget: float, bands: float, cohort: float
) -> Method:
    refuse_second(method)
    promise = Promise("banded", noise, delta, budget, cohort, square_root(int(bands)))
    rule = Correlated(method.rule, promise, clip=clip)
    return replace(method, rule=rule, upload=(ClipTogether(clip), *method.upload))
