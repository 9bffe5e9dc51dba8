"""Theorem 1 as a test: the gradient at the lookahead point falls at least as fast as the bound's leading term.

F_i(w) = ½‖w − c_i‖² has L = 1, and Σ‖∇F_i‖²/N = ‖∇F‖² + Σ‖c̄ − c_i‖²/N, so B² = 1. At the theorem's largest
step size η = (1−λ)²/(64KL(B²+1)), min_{t≤T} ‖∇F(θ_t + λm_t)‖² must fall like 1/√T or faster.
"""

import math
from itertools import pairwise

import torch

from support.quadratics import client, states

LAM, STEPS = 0.5, 4
LR = (1 - LAM) ** 2 / (64 * STEPS * 1 * (1 + 1))
CENTRES = [(1.0, 0.0), (-1.0, 0.5), (0.0, -1.0), (0.5, 1.5), (-0.5, -1.0)]
ROUNDS = 1600


def test_the_gradient_at_the_lookahead_point_falls_as_fast_as_theorem_1_says() -> None:
    source = torch.Generator().manual_seed(0)
    cohorts = [torch.randperm(5, generator=source)[:2].tolist() for _ in range(ROUNDS)]
    run = states(
        [client(centre) for centre in CENTRES],
        "fedacg",
        {"lam": LAM, "beta": 0.01},
        rounds=ROUNDS,
        cohorts=cohorts,
        start=(40.0, -30.0),
        lr=LR,
        steps=STEPS,
    )
    centre = torch.tensor(CENTRES, dtype=torch.float64).mean(dim=0)
    least, smallest = math.inf, []
    for state in run:
        phi = state["theta"] + LAM * state["m"]
        least = min(least, float((phi - centre).square().sum()))
        smallest.append(least)
    checkpoints = [100, 200, 400, 800, 1600]
    for earlier, later in pairwise(checkpoints):
        rate = math.log2(smallest[later - 1] / smallest[earlier - 1])
        assert rate <= -0.5, f"from round {earlier} to {later} it fell by 2^{rate:.2f}, less than 1/√2"
