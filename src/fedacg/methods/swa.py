"""Stochastic weight averaging at the server, `+swa`: late in a run, the mean of its models is evaluated.

    server   after the first share s of the rounds:  n ← n + 1;  θ̄ ← θ̄ + (θ − θ̄)/n;  θ̄ is evaluated and released

Training goes on from θ as if nothing were averaged. Normalisation statistics are those of θ.
"""

from dataclasses import replace

from torch import Tensor

from fedacg.core.round import Round
from fedacg.methods.method import Method
from fedacg.methods.rules import Around, ServerRule, State, Totals, released


class WeightAverage(Around):
    """θ̄ ← θ̄ + (θ − θ̄)/n in the last rounds; θ moves as the inner rule has it"""

    counts_rounds = True

    def __init__(self, start: float, inner: ServerRule) -> None:
        super().__init__(inner)
        self.start = start

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "model": theta.clone(), "averaged": theta.new_zeros(1)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        if round.number <= self.start * round.rounds:
            return {**moved, "model": released(moved).clone(), "averaged": state["averaged"]}
        count = state["averaged"] + 1
        before = state["model"] if count > 1 else moved["theta"]
        return {**moved, "model": before + (moved["theta"] - before) / count, "averaged": count}


def add_swa(method: Method, start: float) -> Method:
    return replace(method, rule=WeightAverage(start, method.rule))
