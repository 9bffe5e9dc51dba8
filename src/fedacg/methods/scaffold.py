"""SCAFFOLD: control variates at the server and at every client remove the client's drift from its steps.

    client   w ← w − η(g(w) + c − c_i);  keeps c_i⁺, sends Δ_i and c_i⁺ − c_i, where
             option II  c_i⁺ = c_i − c − Δ_i/(K_i η)      option I  c_i⁺ = ∇f_i(φ), over all its examples
    server   θ ← θ + η_g mean_S Δ_i;  c ← c + (1/N) Σ_S (c_i⁺ − c_i);  c and all c_i start at zero

K_i η is the sum of the rates of the steps that made Δ_i. So c = (1/N) Σ_i c_i after every round, whoever took
part, and with plain SGD option II makes c_i⁺ the mean of the K_i gradients. Clipping, weight decay and local
momentum change what a step is, and c_i⁺ is then the mean of the steps less the corrections; option I is free of
that.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedacg.core.round import Message, Round
from fedacg.core.vector import add_scaled
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Shift
from fedacg.methods.reply import Reply, ReplyRows, Term, Terms
from fedacg.methods.rules import Around, Average, State, Totals
from fedacg.methods.visit import Assignment, Departure


class ControlVariate(Shift):
    """g ← g + c − c_i"""

    def __init__(self, option: float) -> None:
        self.option = option

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._c, self._own = assignment.broadcast["c"], assignment.state("c")
        self.shift, self._total_lr = self._c - self._own, assignment.total_lr
        self._full = assignment.full_gradient() if self.option == 1 else None

    def end(self, delta: Tensor, departure: Departure) -> None:
        option2 = add_scaled(-self._c, delta, -1 / self._total_lr)
        departure.send("c", option2 if self._full is None else self._full - self._own)

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"c": self._own + arrived("c")}


class Controls(Around):
    """c ← c + (1/N) Σ_S (c_i⁺ − c_i); θ moves by the plain mean of the updates, as the inner rule has it."""

    def init(self, theta: Tensor) -> State:
        return {**super().init(theta), "c": torch.zeros_like(theta)}

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return {**super().broadcast(state, round), "c": state["c"]}

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(replace(reply, weight=reply.share)), "c": (reply.extras["c"], 1.0)}

    def collect_rows(self, replies: ReplyRows) -> Mapping[str, Terms] | None:
        inner = super().collect_rows(replace(replies, weights=[replies.share] * len(replies)))
        return None if inner is None else {**inner, "c": (replies.extras["c"], 1.0)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        c = torch.add(state["c"], totals["c"], alpha=1 / round.clients)
        return {**super().step(state, totals, round), "c": c}


def scaffold(option: float, server_lr: float) -> Method:
    return Method(Controls(Average(server_lr)), objective=(Empirical(), ControlVariate(option)))
