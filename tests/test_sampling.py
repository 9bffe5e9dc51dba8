"""Cohorts: the promised number, without replacement, drawn by (seed, round) alone, at no cost in N."""

import pytest

from fedacg.errors import InputError
from fedacg.sampling import CohortSettings, sample, weigh


@pytest.mark.parametrize(
    ("settings", "clients", "count"),
    [
        (CohortSettings(fraction=0.1), 50, 5),
        (CohortSettings(fraction=0.001), 50, 1),
        (CohortSettings(fraction=1.0), 50, 50),
        (CohortSettings(size=7), 50, 7),
    ],
)
def test_a_cohort_has_the_promised_number_of_different_clients(
    settings: CohortSettings, clients: int, count: int
) -> None:
    for round in range(1, 20):
        cohort = sample(settings, clients, seed=3, round=round)
        assert len(cohort) == len(set(cohort)) == count
        assert cohort == sorted(cohort)
        assert 0 <= cohort[0] <= cohort[-1] < clients


def test_a_cohort_is_a_function_of_seed_and_round() -> None:
    settings = CohortSettings(size=10)
    assert sample(settings, 1000, 0, 5) == sample(settings, 1000, 0, 5)
    assert sample(settings, 1000, 0, 5) != sample(settings, 1000, 0, 6)
    assert sample(settings, 1000, 0, 5) != sample(settings, 1000, 1, 5)


def test_everybody_is_sampled_equally_often() -> None:
    counts = [0] * 20
    for round in range(4000):
        for client in sample(CohortSettings(size=5), 20, seed=0, round=round):
            counts[client] += 1
    # 1000 expected, standard deviation 27: five of them is a chance of one in a million a client
    assert all(abs(count - 1000) < 137 for count in counts)


def test_a_huge_population_costs_nothing() -> None:
    cohort = sample(CohortSettings(size=10), 10**12, seed=0, round=1)
    assert len(set(cohort)) == 10


def test_weights_go_by_examples_or_are_all_the_same() -> None:
    assert weigh(CohortSettings(), [1, 3]) == [0.25, 0.75]
    assert weigh(CohortSettings(weights="uniform"), [1, 3]) == [0.5, 0.5]


def test_more_clients_a_round_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match=r"cohort.size = 7: there are only 5 clients"):
        sample(CohortSettings(size=7), 5, seed=0, round=1)
