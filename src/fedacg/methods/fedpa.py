"""FedPA: clients send the difference from their posterior mean, in the metric of its covariance.

    client   K steps of SGD; after a burn-in the others fall into n blocks of equal length, and x_t is the mean of
             the iterates of block t
             Σ̂ = ρ_n I + (1 − ρ_n) Cov(x_1 … x_n),  ρ_n = 1/(1 + (n − 1)ρ);  sends Δ_i = Σ̂⁻¹(x̄ − θ)
    server   θ ← θ + η_g Σ ω_i Δ_i

Cov is the sample covariance, with 1/(n − 1), so that Σ̂⁻¹ = (1 + (n − 1)ρ)(I + ρ Σ_t (x_t − x̄)(x_t − x̄)ᵀ)⁻¹. No
matrix is built: `posterior_delta` adds one sample at a time by the formula of Sherman and Morrison, O(n²d).

The burn-in is a fraction of K_i; what is left over when the rest is cut into n blocks joins it, so the last block
ends with the last step. A client with fewer steps than that has fewer samples; with n = 1 a client sends the mean
of its iterates less θ, which is FedAvg where that block is one step. The first `warmup` rounds are FedAvg's.

Al-Shedivat, Gillenwater, Xing, Rostamizadeh, "Federated learning via posterior averaging", ICLR 2021,
https://arxiv.org/abs/2010.05273

    fedacg run quickstart --method fedpa:rho=0.05:warmup=5
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Empirical
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment, Departure


def posterior_delta(samples: Sequence[Tensor], rho: float) -> Tensor:
    """Σ̂⁻¹ x̄ of samples x_t − θ."""
    negative = -samples[0]  # δ of the paper, θ − x_1 at first
    mean = samples[0]
    before: list[tuple[Tensor, float]] = []
    """v_k and ⟨u_k, v_k⟩ of the samples so far."""
    for t, sample in enumerate(samples[1:], start=2):
        u = sample - mean
        v = u.clone()
        for k, (v_k, product) in enumerate(before, start=2):
            gamma = rho * (k - 1) / k
            v.sub_(v_k, alpha=gamma * float(v_k @ u) / (1 + gamma * product))
        gamma, a, b = rho * (t - 1) / t, float(u @ v), float(u @ negative)
        negative.sub_(v, alpha=(1 + gamma * (t * b - a) / (1 + gamma * a)) / t)
        before.append((v, a))
        mean = mean + u / t
    return negative.mul_(-(1 + (len(samples) - 1) * rho))


class PosteriorSamples(Correction):
    """Observes w, changes no step, and sends Σ̂⁻¹(x̄ − θ) in place of w − θ."""

    def __init__(self, rho: float, samples: int, burn_in: float, warmup: int) -> None:
        self.rho, self.samples, self.burn_in, self.warmup = rho, samples, burn_in, warmup

    def begin(self, assignment: Assignment) -> None:
        assert isinstance(assignment.steps, int)
        self._seen, self._scratch = 0, assignment.scratch
        self._plain = assignment.round.number <= self.warmup
        left = assignment.steps - int(self.burn_in * assignment.steps)
        count = min(self.samples, left)
        self._block = left // count
        self._first = assignment.steps - count * self._block  # steps of the burn-in
        self._sums: list[Tensor] = []

    def correct(self, g: Tensor, w: Tensor) -> None:
        if not self._seen:
            self._start = w.clone()
        if self._place >= 0:
            self._look(torch.sub(w, self._start, out=self._scratch))
        self._seen += 1

    @property
    def _place(self) -> int:
        """Of the iterate that `seen` steps have led to among those that count; negative where it does not."""
        return -1 if self._plain else self._seen - self._first - 1

    def _look(self, offset: Tensor) -> None:
        """Take an iterate that counts into its block."""
        if self._place % self._block:
            self._sums[-1].add_(offset)
        else:
            self._sums.append(offset.clone())

    def end(self, delta: Tensor, departure: Departure) -> None:
        if not self._plain:
            self._look(delta)
            samples = [total / self._block for total in self._sums]
            departure.send("delta", posterior_delta(samples, self.rho))


def fedpa(rho: float, samples: float, burn_in: float, warmup: float, server_lr: float) -> Method:
    looking_on = PosteriorSamples(rho, int(samples), burn_in, int(warmup))
    return Method(Average(server_lr), objective=(Empirical(), looking_on))
