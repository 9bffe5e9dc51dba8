"""Averages of the server's models: what is evaluated and released is not θ but a mean of it over rounds.

    +swa   after the first share s of the rounds:  n ← n + 1;  θ̄ ← θ̄ + (θ − θ̄)/n
    +ema   after every round:  θ̄ ← θ̄ + a(θ − θ̄),  a = (1 − κ)/(1 − κ^t),  so that round t − j weighs κ^j

Training goes on from θ as if nothing were averaged, and nothing more is sent. Normalisation statistics are θ's.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.rules import Around, ServerRule, State, Totals, released


class Averaged(Around):
    """θ moves as the inner rule has it; `model`, a mean of it, is released."""

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "model": theta.clone(), "averaged": theta.new_zeros(1)}


class WeightAverage(Averaged):
    """θ̄ ← θ̄ + (θ − θ̄)/n in the last rounds"""

    counts_rounds = True

    def __init__(self, start: float, inner: ServerRule) -> None:
        super().__init__(inner)
        self.start = start

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        if round.number <= self.start * round.rounds:
            return {**moved, "model": released(moved).clone(), "averaged": state["averaged"]}
        count = state["averaged"] + 1
        before = state["model"] if count > 1 else moved["theta"]
        return {**moved, "model": before + (moved["theta"] - before) / count, "averaged": count}


class MovingAverage(Averaged):
    """θ̄ ← θ̄ + a(θ − θ̄),  a = (1 − κ)/(1 − κ^t)"""

    def __init__(self, decay: float, inner: ServerRule) -> None:
        super().__init__(inner)
        self.decay = decay

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        count = state["averaged"] + 1
        weight = (1 - self.decay) / (1 - self.decay**count)
        return {**moved, "model": torch.lerp(state["model"], released(moved), weight), "averaged": count}


def add_swa(method: Method, start: float) -> Method:
    return replace(method, rule=WeightAverage(start, method.rule))


def add_ema(method: Method, decay: float) -> Method:
    return replace(method, rule=MovingAverage(decay, method.rule))
