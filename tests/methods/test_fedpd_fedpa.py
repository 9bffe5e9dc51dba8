"""FedPD and FedPA: rounds by hand in float64, what they are equal to, and the mistakes that would show."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedacg
from fedacg.errors import InputError
from fedacg.methods import fedpd
from fedacg.methods.fedpa import posterior_delta
from fedacg.methods.rules import State, Totals
from support.quadratics import Bowl, client, kept, states

TWO = [client((8, 0)), client((0, 16))]


def exact(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == list(expected)


def test_fedpd_over_two_rounds(tmp_path: Path) -> None:
    # μ = η = ½, one step each. Round 1 from θ = 0:
    #   w_0 = ½(8, 0) = (4, 0), λ_0 = ½w_0 = (2, 0);   w_1 = (0, 8), λ_1 = (0, 4)
    #   θ = mean(w_i + 2λ_i) = mean((8, 0), (0, 16)) = (4, 8)
    # Round 2, each from its own w_i:
    #   client 0 at (4, 0): g + λ + ½(w − θ) = (−4, 0) + (2, 0) + (0, −4) = (−2, −4), w_0 = (5, 2)
    #                       λ_0 = (2, 0) + ½(1, −6) = (2.5, −3)
    #   client 1 at (0, 8): (0, −8) + (0, 4) + (−2, 0) = (−2, −4), w_1 = (1, 10)
    #                       λ_1 = (0, 4) + ½(−3, 2) = (−1.5, 5)
    #   θ = mean((5, 2) + (5, −6), (1, 10) + (−3, 10)) = (4, 8)
    first, second = states(TWO, "fedpd", {"mu": 0.5}, rounds=2, lr=0.5, memory=tmp_path)
    exact(first["theta"], 4, 8)
    exact(second["theta"], 4, 8)
    exact(second["h"], -0.5, -1)  # −mean λ
    mine, other = kept(tmp_path, 2)
    exact(mine["w"], 5, 2)
    exact(mine["g"], -2.5, 3)  # −λ_0
    exact(other["w"], 1, 10)
    exact(other["g"], 1.5, -5)


def test_fedpd_started_at_theta_is_feddyn_to_the_bit_and_else_it_is_not() -> None:
    clients = [client((1, 0), (3, 1)), client((0, 2)), client((-1, 4), (2, 2), (0, 0))]
    dyn, pd, own = (
        list(states(clients, method, options, rounds=4, batch=2, epochs=2, lr=0.1))[-1]["theta"]
        for method, options in (
            ("feddyn", {"alpha": 0.3}),
            ("fedpd", {"mu": 0.3, "own_start": 0}),
            ("fedpd", {"mu": 0.3}),
        )
    )
    assert torch.equal(dyn, pd)
    assert not torch.allclose(dyn, own)


BOWLS = [client((8, 0, 1, 2)), client((0, 16, 2, 1)), client((-4, 4, 1.5, 1))]
"""(c, √a): the optimum of Σ ½ a(w − c)² is Σ a c/Σ a, coordinate by coordinate."""


def optimum() -> Tensor:
    a = torch.stack([x[0, 2:].square() for x, _ in BOWLS])
    return (a * torch.stack([x[0, :2] for x, _ in BOWLS])).sum(dim=0) / a.sum(dim=0)


def distance(method: str, **options: float) -> float:
    last = list(states(BOWLS, method, options, rounds=150, steps=5, lr=0.05, model=Bowl))[-1]
    return float((last["theta"] - optimum()).norm())


def test_fedpd_finds_the_optimum_where_fedavg_does_not_and_not_without_its_dual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert distance("fedavg") > 0.1
    assert distance("fedpd", mu=1.0) < 1e-6

    def mean_of_points_alone(self: object, state: State, totals: Totals, round: object) -> State:
        return {"theta": state["theta"] + totals["delta"] / totals.count, "h": state["h"]}

    monkeypatch.setattr(fedpd.PrimalDualServer, "step", mean_of_points_alone)
    assert distance("fedpd", mu=1.0) > 0.1


@pytest.mark.parametrize("settings", [{"participation": 0.5}, {"participation": 1.0, "failures": {"drop": 0.1}}])
def test_fedpd_is_refused_where_not_everybody_takes_part(settings: dict[str, object]) -> None:
    x, y = torch.randn(6, 3), torch.arange(6) % 3
    with pytest.raises(InputError, match="'fedpd': needs every client in every round"):
        fedacg.run(
            model=torch.nn.Linear(3, 3), clients=[(x, y)] * 4, test=(x, y), method="fedpd", rounds=1, **settings
        )


def dense(samples: Tensor, rho: float) -> Tensor:
    """Σ̂⁻¹ x̄ with the matrix written out."""
    n, d = samples.shape
    shrink = 1 / (1 + (n - 1) * rho)
    covariance = torch.cov(samples.T) if n > 1 else torch.zeros(d, d, dtype=samples.dtype)
    return torch.linalg.solve(
        shrink * torch.eye(d, dtype=samples.dtype) + (1 - shrink) * covariance, samples.mean(0)
    )


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.3, 2.0])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_fedpas_recursion_is_the_dense_solve(n: int, rho: float) -> None:
    samples = torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) + 3
    found = posterior_delta(list(samples), rho)
    torch.testing.assert_close(found, dense(samples, rho), rtol=1e-10, atol=1e-12)
    if n > 1 and rho:  # the factor forgotten, or the covariance over n in place of n − 1, would show
        assert not torch.allclose(found / (1 + (n - 1) * rho), dense(samples, rho), rtol=1e-3)
        other = dense((samples - samples.mean(0)) * ((n - 1) / n) ** 0.5 + samples.mean(0), rho)
        assert not torch.allclose(found, other, rtol=1e-3)


def test_fedpa_in_one_round() -> None:
    # η = ½ from 0 towards (8, 0): the iterates are 4, 6, 7, 7.5 in the first coordinate. Two blocks of two steps:
    # x_1 = 5, x_2 = 7.25, x̄ = 6.125, variance 2.53125. ρ = 1: ρ_2 = ½, Σ̂ = ½ + ½·2.53125 = 1.765625.
    settings = {"rho": 1, "samples": 2, "burn_in": 0, "warmup": 0}
    (found,) = states([client((8, 0))], "fedpa", settings, steps=4, lr=0.5)
    torch.testing.assert_close(found["theta"], torch.tensor([6.125 / 1.765625, 0], dtype=torch.float64))


def test_fedpa_with_one_sample_averages_its_block_after_the_burn_in() -> None:
    settings = {"samples": 1, "burn_in": 0.5, "warmup": 0}
    (found,) = states([client((8, 0))], "fedpa", settings, steps=4, lr=0.5)
    exact(found["theta"], 7.25, 0)  # the mean of 7 and 7.5
    # Five steps and a burn-in of two leave three, which two blocks of one step each end with: 7.5 and 7.75.
    settings = {"samples": 2, "burn_in": 0.4, "rho": 0, "warmup": 0}
    (found,) = states([client((8, 0))], "fedpa", settings, steps=5, lr=0.5)
    exact(found["theta"], 7.625, 0)


@pytest.mark.parametrize("options", [{"samples": 1, "burn_in": 0.99, "warmup": 0}, {"warmup": 4}])
def test_fedpa_is_fedavg_to_the_bit_with_the_last_iterate_alone_and_in_its_warmup(
    options: dict[str, float],
) -> None:
    clients = [client((1, 0), (3, 1)), client((0, 2)), client((-1, 4), (2, 2), (0, 0))]
    run, plain = (
        list(states(clients, method, given, rounds=4, batch=1, epochs=2, lr=0.1))[-1]["theta"]
        for method, given in (("fedpa", options), ("fedavg", {}))
    )
    assert torch.equal(run, plain)


def test_fedpa_counts_whole_samples() -> None:
    with pytest.raises(InputError, match=r"samples = 1.5: must lie in whole numbers of \[1, ∞\)"):
        next(states(TWO, "fedpa", {"samples": 1.5}))
