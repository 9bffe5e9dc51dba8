"""Who takes part: the promised number, drawn by (seed, round) alone, at no cost in N; populations and failures."""

from itertools import pairwise

import numpy as np
import pytest

from fedacg.config.participation import CohortSettings, FailureSettings, PopulationSettings
from fedacg.errors import InputError
from fedacg.simulation.sampling import Attendance, Population, Sampling


def asked(settings: CohortSettings, clients: int, seed: int, round: int) -> tuple[int, ...]:
    return Sampling(settings, clients=clients, seed=seed).attendance(round).asked


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
        cohort = list(asked(settings, clients, seed=3, round=round))
        assert len(cohort) == len(set(cohort)) == count
        assert cohort == sorted(cohort)
        assert 0 <= cohort[0] <= cohort[-1] < clients


def test_a_cohort_is_a_function_of_seed_and_round() -> None:
    settings = CohortSettings(size=10)
    assert asked(settings, 1000, 0, 5) == asked(settings, 1000, 0, 5)
    assert asked(settings, 1000, 0, 5) != asked(settings, 1000, 0, 6)
    assert asked(settings, 1000, 0, 5) != asked(settings, 1000, 1, 5)


@pytest.mark.parametrize("draw", ["exact", "coin"])
def test_everybody_is_asked_equally_often(draw: str) -> None:
    sampling = Sampling(CohortSettings.model_validate({"size": 5, "draw": draw}), clients=20, seed=0)
    counts = [0] * 20
    for round in range(1, 4001):
        for client in sampling.attendance(round).asked:
            counts[client] += 1
    # 1000 expected, standard deviation 27: five of them is a chance of one in a million a client
    assert all(abs(count - 1000) < 137 for count in counts)


@pytest.mark.parametrize("draw", ["exact", "coin"])
def test_a_huge_population_costs_nothing(draw: str) -> None:
    cohort = asked(CohortSettings.model_validate({"size": 1000, "draw": draw}), 10**12, seed=0, round=1)
    assert len(set(cohort)) == len(cohort)
    assert abs(len(cohort) - 1000) < 5 * 1000**0.5


@pytest.mark.parametrize("part", [{"fraction": 0.3}, {"size": 6}])
def test_coins_are_flipped_for_every_client_on_its_own(part: dict[str, float]) -> None:
    """The number asked is binomial: mean Np, variance Np(1 − p); two clients are asked together p² of the time."""
    sampling = Sampling(CohortSettings.model_validate({**part, "draw": "coin"}), clients=20, seed=1)
    cohorts = [set(sampling.attendance(round).asked) for round in range(1, 4001)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert abs(sizes.mean() - 6) < 5 * (4.2 / 4000) ** 0.5
    assert abs(sizes.var() - 4.2) < 5 * 4.2 * (2 / 4000) ** 0.5
    together = sum({0, 1} <= cohort for cohort in cohorts)
    assert abs(together - 360) < 5 * (4000 * 0.09 * 0.91) ** 0.5


def test_coins_may_ask_nobody() -> None:
    sampling = Sampling(CohortSettings(fraction=0.01, draw="coin"), clients=10, seed=0)
    assert Attendance((), (), ()) in [sampling.attendance(round) for round in range(1, 20)]


def test_weights_go_by_examples_or_are_all_the_same() -> None:
    assert Sampling(CohortSettings(), clients=2, seed=0).weigh([1, 3]) == [0.25, 0.75]
    assert Sampling(CohortSettings(weights="uniform"), clients=2, seed=0).weigh([1, 3]) == [0.5, 0.5]


def test_cohorts_that_are_given_take_the_place_of_sampling() -> None:
    sampling = Sampling(CohortSettings(), clients=9, seed=0, cohorts=[[3, 1], [8]])
    assert [sampling.attendance(round).asked for round in (1, 2)] == [(3, 1), (8,)]


DYNAMIC = PopulationSettings(present=250, stage=100, replace=0.5)


def test_the_population_changes_at_the_stages_and_only_there() -> None:
    population = Population(DYNAMIC, clients=500, seed=0)
    stages = []
    for round in range(1, 1001):
        present = population.present(round)
        assert present is not None
        assert len(np.unique(present)) == 250
        assert 0 <= present[0] <= present[-1] < 500
        if round % 100 == 1:
            stages.append(present.copy())
        assert np.array_equal(present, stages[-1])
    assert len(stages) == 10
    assert all(not np.array_equal(a, b) for a, b in pairwise(stages))


@pytest.mark.parametrize(("present", "replace"), [(250, 0.5), (100, 0.9), (400, 0.1), (250, 0.0), (250, 1.0)])
def test_each_present_client_is_replaced_with_the_promised_probability(present: int, replace: float) -> None:
    population = Population(
        PopulationSettings(present=present, stage=1, replace=replace), clients=500, seed=present
    )
    stages = [set(np.asarray(population.present(round)).tolist()) for round in range(1, 402)]
    left = [len(before - after) for before, after in pairwise(stages)]
    assert all(len(stage) == present for stage in stages)
    trials = 400 * present
    assert abs(sum(left) - trials * replace) <= 5 * (trials * replace * (1 - replace)) ** 0.5


def test_everybody_outside_is_as_likely_to_come() -> None:
    population = Population(PopulationSettings(present=10, stage=1, replace=1.0), clients=40, seed=2)
    stages = [set(np.asarray(population.present(round)).tolist()) for round in range(1, 3002)]
    came = [sum(client in after - before for before, after in pairwise(stages)) for client in range(40)]
    # A quarter of the time there: of 3000 changes 750 entries each.
    assert all(abs(count - 750) < 5 * 750**0.5 for count in came)


def test_a_population_is_the_same_wherever_one_begins() -> None:
    first, later = (Population(DYNAMIC, clients=500, seed=7) for _ in range(2))
    walked = [np.asarray(first.present(round)).copy() for round in (1, 150, 950)]
    assert np.array_equal(np.asarray(later.present(950)), walked[2])
    assert np.array_equal(np.asarray(later.present(1)), walked[0])
    assert np.array_equal(np.asarray(later.present(150)), walked[1])
    other = Population(DYNAMIC, clients=500, seed=8)
    assert not np.array_equal(np.asarray(other.present(1)), walked[0])


def test_cohorts_come_from_those_who_are_there() -> None:
    settings = CohortSettings(fraction=0.04)
    sampling = Sampling(settings, clients=500, seed=0, population=DYNAMIC)
    population = Population(DYNAMIC, clients=500, seed=0)
    seen: set[int] = set()
    for round in range(1, 1001):
        cohort = sampling.attendance(round).asked
        assert len(cohort) == 10, "a fraction of those who are there"
        assert set(cohort) <= set(np.asarray(population.present(round)).tolist())
        seen |= set(cohort)
    assert len(seen) > 450


def test_a_client_fails_or_straggles_with_the_promised_probability() -> None:
    failures = FailureSettings(drop=0.3, straggle=0.2)
    sampling = Sampling(CohortSettings(size=50), clients=100, seed=0, failures=failures)
    rounds = [sampling.attendance(round) for round in range(1, 401)]
    lost = sum(len(r.asked) - len(r.answered) for r in rounds)
    slow = sum(len(r.stragglers) for r in rounds)
    assert abs(lost - 6000) < 5 * (20000 * 0.3 * 0.7) ** 0.5
    assert abs(slow - 2800) < 5 * (20000 * 0.14 * 0.86) ** 0.5, "a fifth of those that answered"
    assert all(set(r.stragglers) <= set(r.answered) <= set(r.asked) for r in rounds)
    assert all(list(r.answered) == sorted(r.answered) for r in rounds)
    by_client = [sum(c in r.asked and c not in r.answered for r in rounds) for c in range(100)]
    assert max(by_client) < 60 + 5 * 42**0.5, "nobody is bound to fail"
    assert min(by_client) > 60 - 5 * 42**0.5


def test_failures_do_not_change_who_is_asked() -> None:
    settings = CohortSettings(size=10)
    plain = Sampling(settings, clients=100, seed=0)
    failing = Sampling(settings, clients=100, seed=0, failures=FailureSettings(drop=0.5))
    assert all(plain.attendance(r).asked == failing.attendance(r).asked for r in range(1, 50))
    assert all(plain.attendance(r).answered == plain.attendance(r).asked for r in range(1, 50))


@pytest.mark.parametrize(
    ("work", "planned", "done"), [(0.5, 50, 25), (0.3, 50, 15), (0.01, 50, 1), (1.0, 7, 7), (0.29, 100, 29)]
)
def test_a_straggler_does_its_part_of_the_steps_and_at_least_one(work: float, planned: int, done: int) -> None:
    sampling = Sampling(CohortSettings(), clients=10, seed=0, failures=FailureSettings(work=work))
    assert sampling.steps(planned, straggles=True) == done
    assert sampling.steps(planned, straggles=False) == planned


@pytest.mark.parametrize(
    ("cohort", "population", "message"),
    [
        (CohortSettings(size=7), PopulationSettings(), "cohort.size = 7: there are only 5 clients"),
        (CohortSettings(size=3), PopulationSettings(present=2), "cohort.size = 3: there are only 2 clients"),
        (CohortSettings(), PopulationSettings(present=6), "population.present = 6: there are only 5 clients"),
        (
            CohortSettings(),
            PopulationSettings(present=4),
            "population.replace = 0.5: of 4 present clients 2 would leave per stage, but only 1 are absent",
        ),
    ],
)
def test_what_so_few_clients_cannot_make_up_is_refused(
    cohort: CohortSettings, population: PopulationSettings, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(cohort, clients=5, seed=0, population=population)
