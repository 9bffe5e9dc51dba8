"""Who takes part in a round. A pure function of (seed, round), so it needs no state and resumes exactly."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedacg.errors import InputError
from fedacg.randomness import numpy_generator
from fedacg.settings import Section


class CohortSettings(Section):
    """How many clients take part in a round, and what their updates weigh."""

    fraction: float = Field(0.1, gt=0, le=1)
    """Part of all clients that is sampled a round, unless `size` is set."""
    size: int = Field(0, ge=0)
    """A fixed number of clients a round; 0 goes by fraction."""
    weights: Literal["examples", "uniform"] = "examples"
    """ω_i in proportion to the client's number of examples, or all the same."""

    def count(self, clients: int) -> int:
        """M, the number of clients a round out of N."""
        if self.size > clients:
            raise InputError(f"cohort.size = {self.size}: there are only {clients} clients")
        return self.size or max(1, round(self.fraction * clients))


def sample(settings: CohortSettings, clients: int, seed: int, round: int) -> list[int]:
    """The cohort of a round, without replacement, in ascending order; costs M, not N."""
    rng = numpy_generator(seed, "cohort", round)
    return sorted(rng.choice(clients, size=settings.count(clients), replace=False).tolist())


def weigh(settings: CohortSettings, examples: Sequence[int]) -> list[float]:
    """ω_i of clients with these numbers of examples."""
    if settings.weights == "uniform":
        return [1 / len(examples)] * len(examples)
    total = sum(examples)
    return [n / total for n in examples]
