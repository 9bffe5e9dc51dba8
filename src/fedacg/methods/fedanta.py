"""FedANTA: FedACG with not-true distillation at clients and a moving average of θ as the released model.

    server   broadcast φ = θ + λm
    client   minimise (1−γ)·CE + γ·KL(softmax(z_φ^{≠y}/T) ‖ softmax(z^{≠y}/T)) + β/2 ‖w − φ‖² from w = φ
    server   m ← λm + η_g Σ ω_i Δ_i;  θ ← θ + m
             θ̄ ← θ̄ + a(θ − θ̄),  a = (1 − κ)/(1 − κ^t);  θ̄ is evaluated and released

It is `fedntd+acg+prox+ema`, with options that were chosen on validation data of one split of CIFAR-10 and then
tried unchanged in six other settings (docs/results/claims.md). What is sent is FedACG's, and clients keep nothing;
the logits of φ cost them one more forward pass per step.
"""

from fedacg.methods.averaging import add_ema
from fedacg.methods.fedacg import swap_in_lookahead
from fedacg.methods.fedntd import fedntd
from fedacg.methods.fedprox import add_proximal
from fedacg.methods.method import Method


def fedanta(lam: float, beta: float, gamma: float, temperature: float, decay: float, server_lr: float) -> Method:
    distilled = swap_in_lookahead(fedntd(gamma, temperature, server_lr), lam)
    return add_ema(add_proximal(distilled, beta), decay)
