"""Privacy accounting: ε at a given δ, by Google's `dp-accounting`; and the noise or rounds that ε allows.

Neighbouring data sets differ by all data of one client. A mechanism releases something in every round, and says
what ε all releases cost together. Needs no torch.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from fedacg.errors import InputError

GRID = 1e-3
"""Grid of the privacy loss distribution; ε is rounded up, never down."""
_MOST_ROUNDS = 10**7


class Mechanism(Protocol):
    """A repeated release."""

    def epsilon(self, releases: int, delta: float) -> float:
        """The tightest known ε at this δ after this many releases."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """A sum of vectors of norm at most C in every release, with noise N(0, z²C²) on each entry.

    If each client takes part by its own secret coin, that amplifies privacy; with `rate` = 1 no amplification is
    claimed.
    """

    noise: float
    """z, the noise multiplier."""
    rate: float = 1.0
    """q, the probability that a client takes part in a release."""

    @lru_cache(maxsize=1024)  # noqa: B019 - frozen, and few instances
    def epsilon(self, releases: int, delta: float) -> float:
        """By the distribution of the privacy loss (PLD); without coins by the Gaussian's own curve, exactly."""
        if not releases:
            return 0.0
        if not self.noise:
            return math.inf
        if self.rate == 1:
            return float(_library().get_epsilon_gaussian(self.noise / math.sqrt(releases), delta))
        return float(_loss(self.noise, self.rate).self_compose(releases).get_epsilon_for_delta(delta))

    @lru_cache(maxsize=1024)  # noqa: B019 - frozen, and few instances
    def epsilon_rdp(self, releases: int, delta: float) -> float:
        """By Rényi differential privacy: larger, and what most papers report."""
        if not releases:
            return 0.0
        if not self.noise:
            return math.inf
        library = _library()
        event = library.GaussianDpEvent(self.noise)
        if self.rate < 1:
            event = library.PoissonSampledDpEvent(self.rate, event)
        from dp_accounting.rdp import RdpAccountant

        # It warns about each order it skips; the bound from the others still holds.
        log = logging.getLogger("absl")
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            return float(RdpAccountant().compose(event, releases).get_epsilon(delta))
        finally:
            log.setLevel(before)


@dataclass(frozen=True)
class Banded:
    """Sums with correlated noise: of round t, Σ_S Δ_i + (K⁻¹Z)_t, where Z is N(0, z²C²) on each entry.

    K is lower triangular and Toeplitz with these coefficients on and below the diagonal, so that K·sums + Z is one
    release of a Gaussian. A client takes part in two rounds at least `len(coefficients)` apart: its columns of K
    then have no row in common, and the norm of all it can add to K·sums is the root of the sum of their squares.
    """

    noise: float
    coefficients: tuple[float, ...]

    def sensitivity(self, rounds: int) -> float:
        """The largest norm of what one client adds to the first rows of K·sums, in units of C.

        Columns are cut at the last row, so earlier ones are longer: the worst client takes part in the first round
        and then as often as it may.
        """
        bands = len(self.coefficients)
        squares = [sum(c * c for c in self.coefficients[: rounds - first]) for first in range(0, rounds, bands)]
        return math.sqrt(sum(squares))

    def epsilon(self, releases: int, delta: float) -> float:
        return Gaussian(self.noise / self.sensitivity(releases) if releases else 1.0).epsilon(
            1 if releases else 0, delta
        )


def square_root(bands: int) -> tuple[float, ...]:
    """The first coefficients of the square root of the matrix of prefix sums: 1, 1/2, 3/8, 5/16, …"""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return tuple(found)


def most_releases(mechanism: Mechanism, epsilon: float, delta: float, most: int = _MOST_ROUNDS) -> int:
    """The number of releases that cost at most ε, up to `most`."""

    def affordable(releases: int) -> bool:
        return mechanism.epsilon(releases, delta) <= epsilon

    low, high = 0, 1
    while high <= most and affordable(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def least_noise(make: Callable[[float], Mechanism], releases: int, epsilon: float, delta: float) -> float:
    """The least noise multiplier with which this many releases cost at most ε, rounded up to four digits."""
    low, high = 0.0, 1.0
    while make(high).epsilon(releases, delta) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise InputError(f"epsilon = {epsilon:g}: no noise up to a million is enough for {releases} rounds")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if make(middle).epsilon(releases, delta) > epsilon else (low, middle)
    digits = 10.0 ** (4 - math.ceil(math.log10(high)))
    return math.ceil(high * digits) / digits


@lru_cache(maxsize=8)
def _loss(noise: float, rate: float) -> Any:
    """The distribution of one release's privacy loss."""
    library = _library()
    from dp_accounting.pld import privacy_loss_distribution as distributions

    return distributions.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=GRID,
        neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InputError("privacy accounting needs dp-accounting: pip install 'fedacg[privacy]'") from None
    return dp_accounting
