"""Two rounds of FedDyn, FedCM and FedDC against numbers worked out by hand, in float64.

Four clients (N = 4) with their examples at c_0 = (32, 0), c_1 = (0, 64), c_2 and c_3; round 1 has the cohort
{0, 1} and round 2 {1, 2}, so |S| = 2 and client 1 comes back with a state while client 2 is new. Client 1 has
three examples and the others one: with batches of two, K = 2 for client 1 and K = 1 for the others. η = ½ in
round 1 and ¼ in round 2. Every number is a binary fraction, so the comparisons are exact.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.quadratics import client, kept, states

COHORTS = [[0, 1], [1, 2]]


def four(c_2: tuple[float, float]) -> list[tuple[Tensor, Tensor]]:
    return [client((32, 0)), client((0, 64), (0, 64), (0, 64)), client(c_2), client((-9, 7))]


def two_rounds(
    method: str, alpha: float, c_2: tuple[float, float], memory: Path | None = None
) -> list[Mapping[str, Tensor]]:
    played = states(
        four(c_2),
        method,
        {"alpha": alpha},
        cohorts=COHORTS,
        rounds=2,
        batch=2,
        lr=0.5,
        lr_decay=0.5,
        memory=memory,
    )
    return list(played)


def exact(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == list(expected)


def test_feddyn_over_two_rounds(tmp_path: Path) -> None:
    # α = ½. A step is w ← w − η((w − c) + ½(w − φ) − g_i).
    #
    # Round 1, η = ½, φ = 0, all g_i = 0 and h = 0:
    #   client 0, one step:  w = ½(32, 0) = (16, 0) = Δ_0;                     g_0 = −½Δ_0 = (−8, 0)
    #   client 1, two steps: w = (0, 32), then g = (0, −32) + ½(0, 32) = (0, −16), so w = (0, 40) = Δ_1;
    #                        g_1 = −½Δ_1 = (0, −20)
    #   h = 0 − (½/4)(16, 40) = (−2, −5);   θ = ½(16, 40) − h/½ = (8, 20) + (4, 10) = (12, 30)
    # (h over |S| in place of N would be (−4, −10), θ = (16, 40).)
    #
    # Round 2, η = ¼, φ = (12, 30), c_2 = (20, −2):
    #   client 1: g = (12, −34) − (0, −20) = (12, −14), w = (12 − 3, 30 + 3.5) = (9, 33.5);
    #             g = (9, −30.5) + ½(−3, 3.5) + (0, 20) = (7.5, −8.75), w = (9 − 1.875, 33.5 + 2.1875);
    #             Δ_1 = (7.125, 35.6875) − φ = (−4.875, 5.6875);  g_1 = (0, −20) − ½Δ_1 = (2.4375, −22.84375)
    #   client 2: g = (−8, 32), w = (12 + 2, 30 − 8);  Δ_2 = (2, −8);  g_2 = −½Δ_2 = (−1, 4)
    #   ΣΔ = (−2.875, −2.3125);  h = (−2, −5) − ⅛ΣΔ = (−1.640625, −4.7109375)
    #   θ = φ + ½ΣΔ − 2h = (12 − 1.4375 + 3.28125, 30 − 1.15625 + 9.421875) = (13.84375, 38.265625)
    # (Σ(w_i) − φ in place of Σ(w_i − φ) would add φ = (12, 30) to the sum: h = (−3.140625, −8.4609375).)
    first, second = two_rounds("feddyn", 0.5, (20, -2), tmp_path)
    exact(first["h"], -2, -5)
    exact(first["theta"], 12, 30)
    exact(second["h"], -1.640625, -4.7109375)
    exact(second["theta"], 13.84375, 38.265625)
    g_0, g_1, g_2, g_3 = kept(tmp_path, 4)
    exact(g_0["g"], -8, 0)
    exact(g_1["g"], 2.4375, -22.84375)
    exact(g_2["g"], -1, 4)
    assert g_3 == {}, "client 3 never took part"


def test_feddyn_sums_updates_and_not_points() -> None:
    # One step from φ = (4, 8) with α = ½, η = ½, N = 4, S = {0, 1}, both with one example, at (8, 0) and (0, 16):
    #   Δ_0 = ½(4, −8) = (2, −4), Δ_1 = ½(−4, 8) = (−2, 4): ΣΔ = 0, so h = 0 and θ = φ = (4, 8).
    # Σ(w_i) − φ would be ΣΔ + φ, h = −⅛(4, 8), and θ = (5, 10).
    clients = [client((8, 0)), client((0, 16)), client((1, 1)), client((1, 1))]
    (state,) = states(clients, "feddyn", {"alpha": 0.5}, cohorts=[[0, 1]], lr=0.5, start=(4, 8))
    exact(state["h"], 0, 0)
    exact(state["theta"], 4, 8)


def test_feddyn_pulls_towards_the_broadcast_point() -> None:
    # One client at (32, 0), α = 1, η = ½, two steps from φ = (0, 64):
    #   g = (−32, 64), w = (16, 32);  g = (−16, 32) + 1·(16, −32) = 0, so w stays: Δ = (16, −32)
    #   h = −Δ, θ = w − h = (16, 32) + (16, −32) = (32, 0)
    # Without the pull, w = (24, 16) and θ = (48, −32). Without its part α/2‖w‖², which leaves −α⟨φ, w⟩, even
    # the first step differs: g = (−32, 64) − (0, 64).
    (state,) = states([client((32, 0))], "feddyn", {"alpha": 1.0}, lr=0.5, steps=2, start=(0, 64))
    exact(state["h"], -16, 32)
    exact(state["theta"], 32, 0)


@pytest.mark.parametrize("method", ["feddyn", "feddc"])
def test_what_a_client_keeps_is_its_own_and_not_its_workers(method: str, tmp_path: Path) -> None:
    # The one worker serves 0, 1 and then 2. With one step each, the update of a client that is new depends on
    # the broadcast alone, whoever was served before it; a client that is back finds its own state.
    clients = [client((1, 0)), client((0, 2)), client((3, 3))]
    orders = {}
    for order in ((0, 1, 2), (2, 1, 0)):
        cohorts = [order, order]
        folder = tmp_path / str(order[0])
        list(states(clients, method, {"alpha": 0.5}, cohorts=cohorts, rounds=2, steps=1, lr=0.5, memory=folder))
        orders[order] = kept(folder, 3)
    forwards, backwards = orders.values()
    for one, other in zip(forwards, backwards, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-15)


def test_fedcm_over_two_rounds() -> None:
    # α = ½. A step is w ← w − η(½(w − c) + ½D). ω = (¼, ¾) in round 1 and (¾, ¼) in round 2.
    #
    # Round 1, η = ½, φ = 0, D = 0:
    #   client 0, K = 1: w = ¼(32, 0) = (8, 0) = Δ_0
    #   client 1, K = 2: w = ¼(0, 64) = (0, 16), then + ¼(0, 48) = (0, 28) = Δ_1
    #   θ = ¼Δ_0 + ¾Δ_1 = (2, 21);   D = −(¼(8, 0)/(½·1) + ¾(0, 28)/(½·2)) = (−4, −21)
    # (K = 1 for both would give D = (−4, −42), K = 2 for both (−2, −21).)
    #
    # Round 2, η = ¼: w ← w − ⅛(w − c + D), and w − c + D shrinks by ⅞ a step; c_2 = (14, 8):
    #   client 1, K = 2: φ − c + D = (−2, −64);   Δ_1 = (1 − ⁴⁹⁄₆₄)(2, 64) = (0.46875, 15)
    #   client 2, K = 1: φ − c + D = (−16, −8);   Δ_2 = ⅛(16, 8) = (2, 1)
    #   θ = (2, 21) + ¾Δ_1 + ¼Δ_2 = (2 + 0.3515625 + 0.5, 21 + 11.25 + 0.25) = (2.8515625, 32.5)
    #   D = −(¾Δ_1/(¼·2) + ¼Δ_2/(¼·1)) = −(0.703125 + 2, 22.5 + 1) = (−2.703125, −23.5)
    # (With the η of round 1, D would be half of that.)
    first, second = two_rounds("fedcm", 0.5, (14, 8))
    exact(first["theta"], 2, 21)
    exact(first["direction"], -4, -21)
    exact(second["theta"], 2.8515625, 32.5)
    exact(second["direction"], -2.703125, -23.5)


def test_feddc_over_two_rounds_with_drifts_averaged_over_everybody(tmp_path: Path) -> None:
    # α = ½. A step is w ← w − η((w − c) + ½(w − φ + h_i) + g − g_i).
    #
    # Round 1, η = ½, φ = 0, all states zero:
    #   client 0, K = 1: w = (16, 0) = Δ_0 = h_0;                         g_0 = −Δ_0/(½·1) = (−32, 0)
    #   client 1, K = 2: w = (0, 32), then as FedDyn's (0, 40) = Δ_1 = h_1;  g_1 = −Δ_1/(½·2) = (0, −40)
    #   h = ¼(h_0 + h_1) = (4, 10);  θ = mean_S(w_i) + h = (8, 20) + (4, 10);  g = ¼(g_0 + g_1) = (−8, −10)
    # (mean_S(w_i + h_i), as in the text of the paper, would be (16, 40).)
    #
    # Round 2, η = ¼, φ = (12, 30), c_2 = (20, −2):
    #   client 1: g − g_1 = (−8, 30)
    #     step 1: (12, −34) + ½(0, 40) + (−8, 30) = (4, 16), w = (11, 26)
    #     step 2: (11, −38) + ½(−1, 36) + (−8, 30) = (2.5, 10), w = (10.375, 23.5)
    #     Δ_1 = (−1.625, −6.5);  h_1 = (0, 40) + Δ_1 = (−1.625, 33.5)
    #     g_1⁺ − g_1 = −g − Δ_1/(¼·2) = (8, 10) + (3.25, 13) = (11.25, 23), so g_1 = (11.25, −17)
    #   client 2: (−8, 32) + g = (−16, 22), w = (12 + 4, 30 − 5.5);  Δ_2 = (4, −5.5) = h_2
    #     g_2⁺ − 0 = (8, 10) − (4, −5.5)/(¼·1) = (−8, 32)
    #   h = (4, 10) + ¼(2.375, −12) = (4.59375, 7)
    #   θ = φ + ½(2.375, −12) + h = (12 + 1.1875 + 4.59375, 30 − 6 + 7) = (17.78125, 31)
    #   g = (−8, −10) + ¼((11.25, 23) + (−8, 32)) = (−7.1875, 3.75)
    first, second = two_rounds("feddc", 0.5, (20, -2), tmp_path)
    exact(first["theta"], 12, 30)
    exact(first["h"], 4, 10)
    exact(first["g"], -8, -10)
    exact(second["theta"], 17.78125, 31)
    exact(second["h"], 4.59375, 7)
    exact(second["g"], -7.1875, 3.75)
    zero, one, two, three = kept(tmp_path, 4)
    exact(zero["h"], 16, 0)
    exact(zero["g"], -32, 0)
    exact(one["h"], -1.625, 33.5)
    exact(one["g"], 11.25, -17)
    exact(two["h"], 4, -5.5)
    exact(two["g"], -8, 32)
    assert three == {}


@pytest.mark.parametrize("method", ["feddyn", "feddc"])
def test_the_plain_mean_is_taken_whatever_the_weights(method: str) -> None:
    by_examples, uniform = (
        list(states(four((1, 1)), method, cohorts=COHORTS, rounds=2, lr=0.5, weights=weights))
        for weights in ("examples", "uniform")
    )
    for one, other in zip(by_examples, uniform, strict=True):
        assert torch.equal(one["theta"], other["theta"])


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_first_round_of_feddc_is_fedprox_at_a_longer_server_step(alpha: float) -> None:
    # With all states zero the correction is α(w − φ), FedProx's, and h = (1/N) Σ_S Δ_i after it, so that
    # θ = φ + (1 + |S|/N) mean_S Δ_i. Even α = 0 is not FedAvg: it is FedAvg at η_g = 1.5 here, for one round.
    local = {"cohorts": COHORTS, "rounds": 2, "lr": 0.3, "steps": 3, "start": (4.0, -1.0)}
    drift = list(states(four((20, -2)), "feddc", {"alpha": alpha}, **local))
    longer = {"mu": alpha, "server_lr": 1.5}
    plain = list(states(four((20, -2)), "fedprox", longer, weights="uniform", **local))
    torch.testing.assert_close(drift[0]["theta"], plain[0]["theta"], rtol=0, atol=1e-13)
    assert not torch.allclose(drift[1]["theta"], plain[1]["theta"])


def test_feddyn_has_no_neutral_setting() -> None:
    # α must be positive, and as α → 0 the pull and g_i vanish while h/α does not: −h/α = (1/N) Σ of all updates
    # so far, a momentum that never decays. The first round is FedAvg's with (1 + |S|/N) times the step:
    # here θ = φ + ½ΣΔ + ¼ΣΔ, with Δ_i = ½(c_i − φ) from φ = 0, ΣΔ = (16, 32), so θ = (12, 24).
    # Round 2, S = {1, 2}, c_2 = (20, −2): Δ_1 = ½(−12, 40) = (−6, 20), Δ_2 = ½(8, −26) = (4, −13),
    # ΣΔ = (−2, 7): θ = (12, 24) + ½(−2, 7) + ¼((16, 32) + (−2, 7)) = (14.5, 37.25)
    first, second = states(four((20, -2)), "feddyn", {"alpha": 1e-9}, cohorts=COHORTS, rounds=2, lr=0.5)
    for state, expected in ((first, (12, 24)), (second, (14.5, 37.25))):
        torch.testing.assert_close(state["theta"], torch.tensor(expected).double(), rtol=0, atol=1e-6)
