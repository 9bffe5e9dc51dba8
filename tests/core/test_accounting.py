"""ε: against dp-accounting itself, against values by hand and from papers, and the search for noise and rounds."""

import builtins
import math
from itertools import combinations, pairwise
from statistics import NormalDist
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedacg.core.accounting import GRID, Banded, Gaussian, least_noise, most_releases, square_root
from fedacg.errors import InputError


@pytest.mark.parametrize(("noise", "rate", "rounds"), [(1.1, 0.01, 9), (0.8, 0.1, 6), (2.0, 0.5, 4)])
def test_epsilon_is_that_of_dp_accounting_composed_round_by_round(noise: float, rate: float, rounds: int) -> None:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    renyi, distribution = RdpAccountant(), PLDAccountant(value_discretization_interval=GRID)
    for _ in range(rounds):
        renyi.compose(event)
    distribution.compose(event, rounds)
    ours = Gaussian(noise, rate)
    assert ours.epsilon_rdp(rounds, 1e-5) == pytest.approx(renyi.get_epsilon(1e-5), rel=1e-9)
    assert ours.epsilon(rounds, 1e-5) == pytest.approx(distribution.get_epsilon(1e-5), rel=1e-6)
    assert ours.epsilon(rounds, 1e-5) < ours.epsilon_rdp(rounds, 1e-5)


def sampled_rdp(noise: float, rate: float, order: int) -> float:
    """RDP of the Poisson-sampled Gaussian at a whole order, from its binomial sum (Mironov et al., 2019)."""
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-rate)
        + k * math.log(rate)
        + k * (k - 1) / (2 * noise**2)
        for k in range(order + 1)
    ]
    top = max(terms)
    return (top + math.log(sum(math.exp(term - top) for term in terms))) / (order - 1)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "published"),
    [
        # TensorFlow Privacy's example for MNIST: 60 epochs of batches of 256, δ = 1e-5.
        (1.12, 256 / 60000, 14063, 2.92),
        # Abadi et al., CCS 2016, section 3.2: σ = 4, q = 0.01, 10,000 steps, δ = 1e-5.
        (4.0, 0.01, 10_000, 1.26),
    ],
)
def test_published_values_are_met(noise: float, rate: float, steps: int, published: float) -> None:
    """Papers convert RDP by ε = RDP + log(1/δ)/(α − 1); dp-accounting's conversion (Canonne et al.) gives less."""
    delta, ours = 1e-5, Gaussian(noise, rate)
    spent = {order: steps * sampled_rdp(noise, rate, order) for order in range(2, 128)}
    then = min(rdp - math.log(delta) / (order - 1) for order, rdp in spent.items())
    now = min(rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) for order, rdp in spent.items())
    assert then == pytest.approx(published, abs=0.006)
    assert ours.epsilon_rdp(steps, delta) == pytest.approx(now, rel=5e-3)
    assert ours.epsilon(steps, delta) < now < then


def test_without_coins_it_is_the_exact_curve_of_the_gaussian() -> None:
    """δ(ε) = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ), with σ = z/√rounds (Balle and Wang, 2018)."""
    normal = NormalDist()
    for noise, rounds in ((1.0, 1), (3.0, 20)):
        epsilon, sigma = Gaussian(noise).epsilon(rounds, 1e-5), noise / math.sqrt(rounds)
        first, second = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        assert normal.cdf(first) - math.exp(epsilon) * normal.cdf(second) == pytest.approx(1e-5, rel=1e-4)


def test_no_noise_is_no_privacy_and_no_release_costs_nothing() -> None:
    assert Gaussian(0.0, 0.1).epsilon(1, 1e-5) == Gaussian(0.0).epsilon_rdp(1, 1e-5) == math.inf
    assert Gaussian(1.0, 0.1).epsilon(0, 1e-5) == Gaussian(1.0).epsilon_rdp(0, 1e-5) == 0


def dense(coefficients: tuple[float, ...], rounds: int) -> torch.Tensor:
    matrix = torch.zeros(rounds, rounds, dtype=torch.float64)
    for lag, coefficient in enumerate(coefficients):
        matrix += (
            coefficient * torch.diag(torch.ones(max(0, rounds - lag), dtype=torch.float64), -lag)[:rounds, :rounds]
            if lag < rounds
            else 0
        )
    return matrix


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
def test_the_sensitivity_is_that_of_the_dense_matrix_over_all_ways_to_take_part(bands: int, rounds: int) -> None:
    """Each visit adds a vector of norm one; two of them may point anywhere, so every sign is tried."""
    mechanism = Banded(1.0, square_root(bands))
    matrix, largest = dense(mechanism.coefficients, rounds), 0.0
    for count in range(1, rounds + 1):
        for visits in combinations(range(rounds), count):
            if any(later - earlier < bands for earlier, later in pairwise(visits)):
                continue
            for signs in range(2**count):
                added = sum(
                    (1 - 2 * (signs >> place & 1)) * matrix[:, visit] for place, visit in enumerate(visits)
                )
                largest = max(largest, float(torch.linalg.vector_norm(added)))
    assert mechanism.sensitivity(rounds) == pytest.approx(largest, rel=1e-12)


def test_square_root_coefficients_square_to_prefix_sums() -> None:
    root = dense(square_root(6), 6)
    torch.testing.assert_close(root @ root, torch.tril(torch.ones(6, 6, dtype=torch.float64)))


def test_banded_noise_costs_what_one_gaussian_release_costs() -> None:
    mechanism = Banded(4.0, square_root(3))
    assert mechanism.epsilon(7, 1e-5) == Gaussian(4.0 / mechanism.sensitivity(7)).epsilon(1, 1e-5)
    assert Banded(2.0, (1.0,)).epsilon(9, 1e-5) == pytest.approx(Gaussian(2.0).epsilon(9, 1e-5))


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_noise_and_the_rounds_that_are_found_are_the_last_that_fit(rate: float) -> None:
    noise = least_noise(lambda z: Gaussian(z, rate), 20, 3.0, 1e-5)
    assert Gaussian(noise, rate).epsilon(20, 1e-5) <= 3.0 < Gaussian(noise * 0.999, rate).epsilon(20, 1e-5)
    rounds = most_releases(Gaussian(noise, rate), 4.0, 1e-5)
    assert Gaussian(noise, rate).epsilon(rounds, 1e-5) <= 4.0 < Gaussian(noise, rate).epsilon(rounds + 1, 1e-5)
    assert most_releases(Gaussian(noise, rate), 4.0, 1e-5, most=5) == 5
    assert most_releases(Gaussian(0.1, rate), 0.5, 1e-5) == 0


def test_without_dp_accounting_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'fedacg\[privacy\]'"):
        Gaussian(1.2345).epsilon(1, 1e-5)  # not one that is remembered
