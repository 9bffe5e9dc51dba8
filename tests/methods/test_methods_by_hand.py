"""One round of each method against numbers worked out by hand, in float64.

Two clients: one example at (1, 0), and three at (0, 2), so ω = (1/4, 3/4). With η = ½ and one step from
φ = (0, 0): Δ_0 = ½(1, 0) = (0.5, 0), Δ_1 = ½(0, 2) = (0, 1), Δ = ¼Δ_0 + ¾Δ_1 = (0.125, 0.75).
"""

import pytest
import torch
from torch import Tensor

from support.quadratics import client, states

CLIENTS = [client((1, 0)), client((0, 2), (0, 2), (0, 2))]


def close(actual: Tensor, expected: tuple[float, float]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


def test_fedavg_moves_by_the_mean_weighed_by_examples() -> None:
    (state,) = states(CLIENTS, "fedavg", lr=0.5)
    close(state["theta"], (0.125, 0.75))


def test_fedavg_with_uniform_weights_takes_the_plain_mean() -> None:
    (state,) = states(CLIENTS, "fedavg", lr=0.5, weights="uniform")
    close(state["theta"], (0.25, 0.5))


def test_server_learning_rate_scales_the_mean_update() -> None:
    (state,) = states(CLIENTS, "fedavg", {"server_lr": 0.5}, lr=0.5)
    close(state["theta"], (0.0625, 0.375))


def test_fedprox_pulls_with_mu_and_not_twice_mu() -> None:
    # Two steps. The first is FedAvg's, as w = φ: w = (0.5, 0) and (0, 1).
    # The second has gradient (w − c) + μ(w − φ) with μ = 0.2:
    #   client 0: (−0.5, 0) + 0.2(0.5, 0) = (−0.4, 0), so w = (0.5 + 0.2, 0) = (0.7, 0)
    #   client 1: (0, −1) + 0.2(0, 1) = (0, −0.8), so w = (0, 1 + 0.4) = (0, 1.4)
    # Δ = ¼(0.7, 0) + ¾(0, 1.4) = (0.175, 1.05)
    (state,) = states(CLIENTS, "fedprox", {"mu": 0.2}, lr=0.5, steps=2)
    close(state["theta"], (0.175, 1.05))


def test_fedavgm_moves_in_its_first_round_and_carries_momentum_into_the_second() -> None:
    # Round 1: m = Δ = (0.125, 0.75) = θ.
    # Round 2 starts at θ: Δ_0 = ½((1, 0) − θ) = (0.4375, −0.375), Δ_1 = ½((0, 2) − θ) = (−0.0625, 0.625),
    #   Δ = (0.0625, 0.375); m = 0.4(0.125, 0.75) + Δ = (0.1125, 0.675); θ = (0.2375, 1.425)
    first, second = states(CLIENTS, "fedavgm", {"beta": 0.4}, lr=0.5, rounds=2)
    close(first["theta"], (0.125, 0.75))
    close(first["m"], (0.125, 0.75))
    close(second["m"], (0.1125, 0.675))
    close(second["theta"], (0.2375, 1.425))


def test_fedadam_has_no_bias_correction_and_starts_v_at_tau_squared() -> None:
    # Δ = (0.125, 0.75), β₁ = 0.5, β₂ = 0.75, τ = 0.5, η_g = 0.1:
    #   m = ½Δ = (0.0625, 0.375)
    #   v = 0.75·0.25 + 0.25·Δ² = (0.1875 + 0.00390625, 0.1875 + 0.140625) = (0.19140625, 0.328125)
    #   θ = 0.1·m/(√v + 0.5) = 0.1·(0.0625/(0.4375 + 0.5), 0.375/(0.572821961869… + 0.5))
    (state,) = states(CLIENTS, "fedadam", {"beta1": 0.5, "beta2": 0.75, "tau": 0.5, "server_lr": 0.1}, lr=0.5)
    close(state["m"], (0.0625, 0.375))
    close(state["v"], (0.19140625, 0.328125))
    close(state["theta"], (0.00625 / 0.9375, 0.0375 / 1.0728219618694812))


def test_fedacg_broadcasts_the_lookahead_point_and_pulls_towards_it() -> None:
    # λ = 0.5, β = 0.2, two steps per round. Round 1: m = 0, so φ = θ = 0 and it is FedProx's round:
    #   m = Δ = (0.175, 1.05) = θ.
    # Round 2: φ = θ + ½m = (0.2625, 1.575). With e = φ − c, a step is w ← w − ½((w − c) + 0.2(w − φ)):
    #   first step w = φ − ½e; second w = φ − ½e − ½(½e − 0.1e) = φ − 0.7e, so Δ_i = 0.7(c_i − φ)
    #   Δ_0 = 0.7(0.7375, −1.575) = (0.51625, −1.1025), Δ_1 = 0.7(−0.2625, 0.425) = (−0.18375, 0.2975)
    #   Δ = ¼Δ_0 + ¾Δ_1 = (0.1290625 − 0.1378125, −0.275625 + 0.223125) = (−0.00875, −0.0525)
    #   m = ½(0.175, 1.05) + Δ = (0.07875, 0.4725); θ = (0.175, 1.05) + m = (0.25375, 1.5225)
    first, second = states(CLIENTS, "fedacg", {"lam": 0.5, "beta": 0.2}, lr=0.5, steps=2, rounds=2)
    close(first["theta"], (0.175, 1.05))
    close(first["m"], (0.175, 1.05))
    close(second["m"], (0.07875, 0.4725))
    close(second["theta"], (0.25375, 1.5225))


def test_plus_acg_is_the_lookahead_without_the_penalty() -> None:
    # As above with β = 0: two steps leave Δ_i = 0.75(c_i − φ). Round 1: Δ = 0.75(0.25, 1.5) = (0.1875, 1.125).
    # Round 2: φ = 1.5·(0.1875, 1.125) = (0.28125, 1.6875); Δ = 0.75((0.25, 1.5) − φ) = (−0.0234375, −0.140625)
    #   m = ½(0.1875, 1.125) + Δ = (0.0703125, 0.421875); θ = (0.2578125, 1.546875)
    _, second = states(CLIENTS, "fedavg+acg", {"lam": 0.5}, lr=0.5, steps=2, rounds=2)
    close(second["theta"], (0.2578125, 1.546875))


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        # g = −(3, 4) has norm 5, clipped to 1 → (−0.6, −0.8)/(1 + 2·10⁻⁷): w = ½·that, opposite sign
        ({"clip": 1.0}, (0.3 / (1 + 2e-7), 0.4 / (1 + 2e-7))),
        # decay pulls by 0.1·w; w starts at (0, 0): step 1 → (1.5, 2); step 2: g = (−1.5, −2) + (0.15, 0.2)
        ({"weight_decay": 0.1, "steps": 2}, (1.5 + 0.675, 2 + 0.9)),
        # the velocity of step 2 is ½(−3, −4) + (−1.5, −2) = (−3, −4)
        ({"momentum": 0.5, "steps": 2}, (1.5 + 1.5, 2 + 2)),
    ],
)
def test_local_sgd_clips_decays_and_has_momentum(local: dict[str, float], expected: tuple[float, float]) -> None:
    (state,) = states([client((3, 4))], "fedavg", lr=0.5, **local)
    torch.testing.assert_close(state["theta"], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)


def test_weight_decay_comes_after_the_clip() -> None:
    # From (10, 0) towards (13, 4): g = (−3, −4) → clipped to norm 1 → (−0.6, −0.8); decay adds 0.1·(10, 0);
    # w = (10, 0) − ½(0.4, −0.8) = (9.8, 0.4). Were the decay clipped too, g = (−2, −4) would come out other.
    (state,) = states([client((13, 4))], "fedavg", lr=0.5, clip=1.0, weight_decay=0.1, start=(10.0, 0.0))
    torch.testing.assert_close(state["theta"], torch.tensor([9.8, 0.4], dtype=torch.float64), rtol=0, atol=1e-6)


def test_clipping_sees_the_correction_terms() -> None:
    # One client at (1, 0), μ = 3, η = ½, clip ½, two steps from φ = (0, 0). Step 1: g = (−1, 0) → (−½, 0),
    # so w = (¼, 0). Step 2: g = (−¾, 0) + 3(¼, 0) = (0, 0), so w stays. Were only the loss's gradient clipped,
    # g would be (−½ + ¾, 0) and w = (⅛, 0).
    (state,) = states([client((1, 0))], "fedprox", {"mu": 3.0}, lr=0.5, steps=2, clip=0.5)
    torch.testing.assert_close(state["theta"], torch.tensor([0.25, 0.0], dtype=torch.float64), rtol=0, atol=1e-6)


def test_learning_rate_decays_by_round() -> None:
    # η is ½ in round 1 and ¼ in round 2: w = (½, 0), then (½ + ¼·½, 0).
    first, second = states([client((1, 0))], "fedavg", lr=0.5, lr_decay=0.5, rounds=2)
    close(first["theta"], (0.5, 0))
    close(second["theta"], (0.625, 0))


def test_epoch_decay_is_an_option_that_decays_once_more_in_every_epoch() -> None:
    # η = ½ in the first epoch and ¼ in the second, as the authors' code has it.
    (state,) = states([client((1, 0))], "fedavg", lr=0.5, lr_decay=0.5, epochs=2, epoch_decay=True)
    close(state["theta"], (0.625, 0))
