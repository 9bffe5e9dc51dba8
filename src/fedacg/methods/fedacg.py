"""FedACG: clients start from a model already moved along the server's momentum; `+acg` is that server rule alone.

    server   broadcast φ = θ + λm
    client   minimise ℓ_i(w) + β/2 ‖w − φ‖² from w = φ;  Δ_i = w_i − φ
    server   m ← λm + η_g Σ ω_i Δ_i;  θ ← θ + m

Clients keep nothing between rounds, and nothing but φ and Δ_i is sent.
"""

from dataclasses import replace

from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Proximal
from fedacg.methods.rules import Lookahead


def fedacg(lam: float, beta: float, server_lr: float) -> Method:
    return Method(Lookahead(lam, server_lr), objective=(Empirical(), Proximal(beta)))


def swap_in_lookahead(method: Method, lam: float) -> Method:
    return replace(method, rule=method.rule.in_place_of_average(lambda average: Lookahead(lam, average.server_lr)))
