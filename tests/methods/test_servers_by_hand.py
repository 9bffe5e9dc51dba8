"""Methods that change how the server moves: rounds by hand, and known mistakes."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedacg import methods
from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods.fedams import AMSGrad
from fedacg.methods.fedexp import Extrapolation
from fedacg.methods.fedgloss import LookBack
from fedacg.methods.fednova import Normalised, reaches
from fedacg.methods.method import Method
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Average, State, Totals
from support.quadratics import client, states

ONE = [client((32, 0))]
UNEVEN = [client((32, 0)), client((0, 64), (0, 64), (0, 64))]


def near(actual: Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-12)


def test_slowmo_keeps_its_momentum_when_the_rate_falls() -> None:
    # β = ½, one step at c = 32. Round 1, η = ½: Δ = 16, u = −32, θ = 16.
    # Round 2, η = ¼: Δ = 4, u = −16 − 16 = −32, θ = 16 + 8. FedAvgM, which keeps Δ, would move by 8 + 4.
    first, second = states(ONE, "slowmo", {"beta": 0.5}, lr=0.5, lr_decay=0.5, rounds=2)
    near(first["u"], -32, 0)
    near(second["theta"], 24, 0)
    *_, plain = states(ONE, "fedavgm", {"beta": 0.5}, lr=0.5, lr_decay=0.5, rounds=2)
    near(plain["theta"], 28, 0)


def test_at_a_constant_rate_slowmo_is_fedavgm() -> None:
    # η = ¼ is a power of two, so that dividing by it and multiplying rounds nothing.
    for one, other in zip(
        states(UNEVEN, "slowmo", {"beta": 0.7}, lr=0.25, steps=3, rounds=6),
        states(UNEVEN, "fedavgm", {"beta": 0.7}, lr=0.25, steps=3, rounds=6),
        strict=True,
    ):
        assert torch.equal(one["theta"], other["theta"])


ADAPTIVE = {"beta1": 0.5, "beta2": 0.75, "tau": 2, "server_lr": 1}


def test_fedyogi_and_fedadagrad_in_one_round() -> None:
    # Δ = ½(32, −2) = (16, −1), Δ² = (256, 1), τ = 2, v₀ = 4.
    # Yogi: v = 4 + ¼·256 where Δ² is larger, and 4 − ¼·1 where it is smaller; m = ½Δ.
    # Adagrad: v = 4 + Δ², m = Δ.
    (yogi,) = states([client((32, -2))], "fedyogi", ADAPTIVE, lr=0.5)
    near(yogi["v"], 68, 3.75)
    near(yogi["theta"], 8 / (68**0.5 + 2), -0.5 / (3.75**0.5 + 2))
    (adagrad,) = states([client((32, -2))], "fedadagrad", {"tau": 2, "server_lr": 1}, lr=0.5)
    near(adagrad["v"], 260, 5)
    near(adagrad["theta"], 16 / (260**0.5 + 2), -1 / (5**0.5 + 2))


AMS = {"beta1": 0.5, "beta2": 0.75, "epsilon": 1, "server_lr": 1}


def test_fedams_over_two_rounds() -> None:
    # Round 1: Δ = (16, −1), v = ¼Δ² = (64, ¼), v̂ = (64, 1), m = ½Δ = (8, −½): θ = (1, −½).
    # Round 2: Δ = ½((32, −2) − θ) = (15.5, −0.75), m = (11.75, −0.625), v = (108.0625, 0.328125),
    #   v̂ = (108.0625, 1): θ = (1 + 11.75/√108.0625, −1.125)
    first, second = states([client((32, -2))], "fedams", AMS, lr=0.5, rounds=2)
    near(first["theta"], 1, -0.5)
    near(second["largest"], 108.0625, 1)
    near(second["theta"], 1 + 11.75 / 108.0625**0.5, -1.125)


class Forgets(AMSGrad):
    """v̂ = max(v, ε), without the largest so far"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return super().step({**state, "largest": torch.full_like(state["theta"], self.epsilon)}, totals, round)


def test_fedams_never_takes_a_larger_step_for_a_second_moment_that_falls() -> None:
    def falls(rule: AMSGrad) -> bool:
        run = [state["largest"] for state in states(ONE, Method(rule), lr=0.5, steps=3, rounds=12)]
        return any(bool((later < earlier).any()) for earlier, later in pairwise(run))

    options = {"beta1": 0.0, "beta2": 0.5, "epsilon": 1e-3, "server_lr": 0.5}
    assert not falls(AMSGrad(**options))
    assert falls(Forgets(**options))


def test_fednova_on_uneven_steps() -> None:
    # K = 1 and 2, ω = ¼ and ¾, η = ½: Δ_0 = (16, 0), Δ_1 = (0, 48).
    # Σ ω Δ/K = (4, 18), τ = ¼·1 + ¾·2 = 1.75: θ = (7, 31.5). FedAvg's is (4, 36).
    (state,) = states(UNEVEN, "fednova", batch=2, lr=0.5)
    near(state["theta"], 7, 31.5)


def test_fednova_with_the_pull_and_with_momentum() -> None:
    # μ = 1, η = ½: ημ = ½, ‖a‖ = 1 and (1 − ¼)/½ = 1.5; τ = Σ ω K = 1.75.
    #   Δ_0 = (16, 0);  client 1: 32, then (0, −32) + (0, 32) = 0: Δ_1 = (0, 32)
    #   θ = 1.75·(¼·16, ¾·32/1.5) = (7, 28)
    (pulled,) = states(UNEVEN, "fednova", {"mu": 1}, batch=2, lr=0.5)
    near(pulled["theta"], 7, 28)
    # ρ = ½: ‖a‖ = 1 and 2.5. Client 1: v = −64, w = 32;  v = −32 − 32 = −64, w = 64: Δ_1 = (0, 64).
    #   τ = ¼ + ¾·2.5 = 2.125: θ = 2.125·(4, ¾·64/2.5) = (8.5, 40.8)
    (rolling,) = states(UNEVEN, "fednova", batch=2, lr=0.5, momentum=0.5)
    near(rolling["theta"], 8.5, 40.8)


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_fednovas_reach_is_that_of_its_formulas(steps: int) -> None:
    rho, pull = 0.9, 0.05
    assert reaches(steps, 0, 0)[-1] == steps
    assert reaches(steps, rho, 0)[-1] == pytest.approx((steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))
    assert reaches(steps, 0, pull)[-1] == pytest.approx((1 - (1 - pull) ** steps) / pull)


def test_fednova_is_fedavg_when_all_take_as_many_steps() -> None:
    for one, other in zip(
        states(UNEVEN, "fednova", steps=4, lr=0.3, rounds=4),
        states(UNEVEN, "fedavg", steps=4, lr=0.3, rounds=4),
        strict=True,
    ):
        torch.testing.assert_close(one["theta"], other["theta"], rtol=0, atol=1e-12)


class ByEpochs(Normalised):
    """Takes every client for one of one step, as where epochs are counted."""

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        one = torch.ones(1, dtype=reply.delta.dtype)
        return {"delta": (reply.delta, reply.weight), "tau": (one, reply.weight)}


def test_counting_epochs_makes_fednova_fedavg() -> None:
    method = Method(ByEpochs(0.0, Average()), objective=methods.build("fednova").objective)
    (state,) = states(UNEVEN, method, batch=2, lr=0.5)
    near(state["theta"], 4, 36)  # and not (7, 31.5)


@pytest.mark.parametrize(
    "local", [{"optimiser": "adam"}, {"within": "linear"}, {"momentum": 0.5, "nesterov": True}]
)
def test_fednova_refuses_steps_whose_reach_it_does_not_know(local: dict[str, float]) -> None:
    with pytest.raises(InputError, match="its normalisation is that of SGD"):
        list(states(UNEVEN, "fednova", **local))


def test_fednova_with_acg_has_the_normalised_update_in_its_momentum() -> None:
    # Round 1: m = θ = (7, 31.5). Round 2 starts from φ = θ + ½m = (10.5, 47.25):
    #   Δ_0 = ½(21.5, −47.25), Δ_1 = ¾(−10.5, 16.75);  m = ½(7, 31.5) + 1.75(¼Δ_0 + ¾Δ_1/2)
    _, second = states(UNEVEN, "fednova+acg", {"lam": 0.5}, batch=2, lr=0.5, rounds=2)
    x = 3.5 + 1.75 * (0.25 * 0.5 * 21.5 - 0.375 * 0.75 * 10.5)
    y = 15.75 + 1.75 * (-0.25 * 0.5 * 47.25 + 0.375 * 0.75 * 16.75)
    near(second["m"], x, y)
    near(second["theta"], 7 + x, 31.5 + y)


APART = [client((32, 0)), client((-16, 0))]


def test_fedexp_goes_further_the_less_updates_agree() -> None:
    # Δ_0 = 16, Δ_1 = −8: Σ ω ‖Δ_i‖² = 160, ‖Δ‖² = 16, M = 2, ε = 2: η_g = 160/(2(16 + 4)) = 4.
    # θ = 4·4 = 16, and the mean of 0 and 16 is evaluated. With ε in place of Mε, θ = 4·160/36.
    (state,) = states(APART, "fedexp", {"epsilon": 2}, lr=0.5)
    near(state["theta"], 16, 0)
    near(state["model"], 8, 0)


def test_fedexp_never_goes_less_far_than_fedavg() -> None:
    for one, other in zip(
        states(APART, "fedexp", {"epsilon": 1e9}, lr=0.3, rounds=3),
        states(APART, "fedavg", lr=0.3, rounds=3),
        strict=True,
    ):
        assert torch.equal(one["theta"], other["theta"])


class OfTheMean(Extrapolation):
    """‖Σ ω_i Δ_i‖² above the line too, so that the ratio never exceeds ½"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return super().step(state, totals.changed(squares=totals["delta"].square().sum()), round)


def test_the_norm_of_the_mean_is_not_the_mean_of_the_norms() -> None:
    (state,) = states(APART, Method(OfTheMean(2)), lr=0.5)
    near(state["theta"], 4, 0)  # and not 16


GLOSS = [client((12, 0)), client((0, 16))]


def test_fedgloss_over_two_rounds() -> None:
    # α = 1, η = ½, N = 2. Round 1 is FedDyn's: Δ_0 = (6, 0), Δ_1 = (0, 8), mean (3, 4) of length 5; h = −½(6, 8),
    # θ = (3, 4) − h = (6, 8).
    # Round 2, ρ = 5: φ = (6, 8) − (3, 4). Client 0: (−9, 4) + (6, 0) = (−3, 4);
    # client 1: (3, −12) + (0, 8) = (3, −4).
    # The updates cancel, h stays, and θ = (6, 8) + (3, 4).
    first, second = states(GLOSS, "fedgloss", {"rho": 5, "alpha": 1}, lr=0.5, rounds=2)
    near(first["theta"], 6, 8)
    near(first["update"], 3, 4)
    near(second["theta"], 9, 12)
    near(second["update"], 0, 0)


class LookAhead(LookBack):
    """φ = θ + ρΔ/‖Δ‖, the sign flipped"""

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        return super().broadcast({**state, "update": -state["update"]}, round)


def test_looking_ahead_is_not_fedgloss() -> None:
    method = Method(LookAhead(5.0, 1.0), objective=methods.build("fedgloss", {"alpha": 1}).objective)
    _, second = states(GLOSS, method, lr=0.5, rounds=2)
    assert not torch.allclose(second["theta"], torch.tensor([9.0, 12.0]).double())


@pytest.mark.parametrize("name", ["fedavg", "fedacg", "fedavg+acg", "fedexp"])
def test_swa_evaluates_the_mean_of_the_last_models_and_trains_on_as_before(name: str) -> None:
    plain = list(states(UNEVEN, name, lr=0.25, rounds=8))
    averaged = list(states(UNEVEN, f"{name}+swa", {"start": 0.5}, lr=0.25, rounds=8))
    for number, (one, other) in enumerate(zip(plain, averaged, strict=True), 1):
        assert torch.equal(one["theta"], other["theta"])
        if number <= 4:
            assert torch.equal(other["model"], one.get("model", one["theta"]))
        else:
            mean = torch.stack([state["theta"] for state in plain[4:number]]).mean(dim=0)
            torch.testing.assert_close(other["model"], mean, rtol=0, atol=1e-12)


def test_ema_weighs_a_round_by_its_age_and_trains_on_as_before() -> None:
    plain = list(states(UNEVEN, "fedacg", lr=0.25, rounds=3))
    one, two, three = (state["theta"] for state in plain)
    averaged = list(states(UNEVEN, "fedacg+ema", {"decay": 0.5}, lr=0.25, rounds=3))
    assert all(torch.equal(a["theta"], b["theta"]) for a, b in zip(plain, averaged, strict=True))
    torch.testing.assert_close(averaged[0]["model"], one, rtol=0, atol=0)
    torch.testing.assert_close(averaged[1]["model"], (one + 2 * two) / 3, rtol=0, atol=1e-12)
    torch.testing.assert_close(averaged[2]["model"], (one + 2 * two + 4 * three) / 7, rtol=0, atol=1e-12)


def test_ema_without_decay_releases_the_models_themselves() -> None:
    for state in states(UNEVEN, "fedacg+ema", {"decay": 0}, lr=0.25, rounds=3):
        assert torch.equal(state["model"], state["theta"])
