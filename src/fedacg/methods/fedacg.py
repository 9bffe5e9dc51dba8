"""FedACG: clients start from a model already moved along its momentum; and `+acg`, that server rule alone.

    server   broadcast φ = θ + λm
    client   minimise ℓ_i(w) + β/2 ‖w − φ‖² from w = φ;  Δ_i = w_i − φ
    server   m ← λm + η_g Σ ω_i Δ_i;  θ ← θ + m

Clients keep nothing between rounds, and nothing but φ and Δ_i is sent.
"""

from dataclasses import replace

from fedacg.methods.method import Entry, Method, Modifier, fraction, positive, rate
from fedacg.methods.parts import Empirical, Proximal
from fedacg.methods.rules import Lookahead


def fedacg(lam: float, beta: float, server_lr: float) -> Method:
    return Method(Lookahead(lam, server_lr), objective=(Empirical(), Proximal(beta)))


def swap_in_lookahead(method: Method, lam: float) -> Method:
    return replace(method, rule=method.rule.in_place_of_average(lambda average: Lookahead(lam, average.server_lr)))


FEDACG = Entry(
    name="fedacg",
    title="FedACG",
    reference="Kim, Kim, Han, CVPR 2024",
    equation="φ = θ + λm; ℓ + β/2 ‖w − φ‖²; m ← λm + Δ; θ ← θ + m",
    options={"lam": fraction(0.85), "beta": rate(0.01), "server_lr": positive(1.0)},
    build=fedacg,
)

ACG = Modifier(
    name="acg",
    title="lookahead server momentum",
    equation="φ = θ + λm; m ← λm + Δ; θ ← θ + m in place of averaging",
    options={"lam": fraction(0.85)},
    apply=swap_in_lookahead,
)
