"""Comparisons over seeds and settings against SciPy on the same numbers, and what tables make of them."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedacg.report import statistics, write
from fedacg.report.cells import columns_of
from fedacg.report.table import Effort, Row, Spread
from fedacg.runs.history import Reached
from support.folders import fake_run

NUMBERS = st.lists(st.floats(-50, 50).map(lambda x: round(x, 3)), min_size=2, max_size=12)


@given(NUMBERS, st.integers(0, 1000))
def test_the_paired_test_is_that_of_scipy(values: list[float], shift: int) -> None:
    other = np.random.default_rng(shift).normal(size=len(values)) * 10
    ours = np.array(values)
    expected = stats.ttest_rel(ours, other).pvalue
    assert statistics.paired_test(ours - other) == pytest.approx(expected, rel=1e-9)


def test_a_difference_by_hand() -> None:
    """Ours less theirs is 1, 1 and 4. Of the 27 resamples one has the mean 4 and six have 3: 97.5 % of the way
    from the first to the last is 35 % of the way from 3 to 4.

    The standard error is √3/√3 = 1, so t = 2 with two degrees of freedom, and p = 1 − 2/√6 = 0.1835. Of nine pairs
    of runs ours is the better one in six, as 2 and 12 are each less than some of theirs.
    """
    found = statistics.difference({0: 2.0, 1: 12.0, 2: 24.0, 9: 0.0}, {2: 20.0, 1: 11.0, 0: 1.0, 5: 99.0})
    assert found is not None
    assert (found.pairs, found.mean) == (3, 2.0)
    assert (found.low, found.high) == pytest.approx((1.0, 3.35))
    assert found.p == pytest.approx(1 - 2 / 6**0.5)
    assert found.improvement == pytest.approx(6 / 9)
    assert [replace(found, p=p).told for p in (0.049, 0.05, 0.07)] == [True, False, False]
    assert statistics.difference({0: 1.0, 1: 2.0}, {1: 1.0, 2: 1.0}) is None, "one common seed is no pair of pairs"


def test_differences_without_any_spread_are_certain_or_none() -> None:
    assert statistics.paired_test([2.0, 2.0, 2.0]) == 0.0
    assert statistics.paired_test([0.0, 0.0]) == 1.0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_holm_rejects_what_the_definition_rejects(thousandths: list[int]) -> None:
    """Step down: as long as the k-th smallest is at most α/(m − k + 1), reject."""
    p_values, level = [each / 1000 for each in thousandths], 0.05037  # no multiple of a p-value is just this
    order, rejected = sorted(p_values), 0
    while rejected < len(order) and order[rejected] <= level / (len(order) - rejected):
        rejected += 1
    last = order[rejected - 1] if rejected else -1.0
    assert [p <= level for p in statistics.holm(p_values)] == [p <= last for p in p_values]


def test_holm_by_hand() -> None:
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_the_interval_of_few_values_takes_every_resample() -> None:
    values = [1.0, 2.0, 6.0]
    means = [np.mean([a, b, c]) for a in values for b in values for c in values]
    assert statistics.interval(values) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_the_interval_of_many_values_is_that_of_scipy_and_always_the_same() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.5, size=40)
    found = statistics.interval(values)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert found == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert statistics.interval(values) == found


@given(NUMBERS, NUMBERS)
def test_the_probability_of_improvement_is_mann_whitneys(ours: list[float], theirs: list[float]) -> None:
    u = (
        stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic
        if set(ours + theirs) != {ours[0]}
        else None
    )
    expected = 0.5 if u is None else u / (len(ours) * len(theirs))
    assert statistics.probability_of_improvement([ours], [theirs]) == pytest.approx(expected)


@given(NUMBERS)
def test_the_interquartile_mean_is_scipys_trimmed_mean(values: list[float]) -> None:
    assert statistics.interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_the_interquartile_interval_draws_seeds_within_their_setting() -> None:
    constant = [[10.0] * 3, [20.0] * 3, [30.0] * 3, [40.0] * 3]
    assert statistics.interquartile_interval(constant) == (25.0, 25.0)  # over all runs it would vary


def test_the_interquartile_interval_draws_all_seeds() -> None:
    """Of 27 resamples of 0, 0 and 9 one has the mean 9 and eight have 0: more than 2.5 % at either end."""
    low, high = statistics.interquartile_interval([[0.0, 0.0, 9.0]])
    assert (low, high) == (0.0, 9.0)


def test_a_profile_is_the_part_of_runs_above_a_threshold() -> None:
    scores = [[1.0, 2.0], [2.0, 3.0, 4.0, 5.0]]
    assert statistics.performance_profile(scores, [0.0, 2.0, 4.5, 9.0]).tolist() == [1.0, 0.375, 0.125, 0.0]


def row(label: str, values: list[float], seeds: tuple[int, ...] = (0, 1, 2)) -> Row:
    spread = Spread.over(values)
    rounds = Effort(tuple(Reached(int(100 - v), True) for v in values))
    return Row(label, label, seeds, spread, spread, (rounds,), (rounds,), Spread.over([1.0]))


def marks(rows: list[Row]) -> dict[str, list[str]]:
    return {column.heading: [cell.mark for cell in column.cells] for column in columns_of(rows, [0.5])}


def test_a_table_marks_what_cannot_be_told_from_the_best() -> None:
    rows = [row("noisy", [80.0, 60.0, 71.0]), row("best", [72.0, 71.0, 73.0]), row("worse", [62.0, 61.1, 62.9])]
    found = marks(rows)
    assert found["moving average %"] == ["best", "best", ""]
    assert found["rounds to 50 %"] == ["best", "best", ""]


def test_pairs_tell_what_means_alone_would_not() -> None:
    """Seeds differ a lot, methods little but always in the same direction."""
    rows = [row("one", [50.0, 60.0, 70.0, 80.0], (0, 1, 2, 3)), row("two", [49.0, 58.9, 69.1, 79.0], (0, 1, 2, 3))]
    assert marks(rows)["accuracy %"] == ["best", ""]
    unpaired = [rows[0], row("two", [49.0, 58.9, 69.1, 79.0], (3, 2, 1, 0))]
    assert marks(unpaired)["accuracy %"] == ["best", "best"]


def test_methods_without_a_common_seed_are_ranked_as_before() -> None:
    rows = [row("a", [50.0], (0,)), row("b", [60.0], (1,)), row("c", [55.0], (2,))]
    assert marks(rows)["accuracy %"] == ["", "best", "second"]


def test_a_baseline_is_the_best_of_no_column() -> None:
    """What bounds a contest does not win it, and takes no mark from who does, nor shares it."""
    rows = [
        row("centralised", [80.0, 81.0, 82.0]),
        row("fedavg", [60.0, 61.2, 62.0]),
        row("fedacg", [70.0, 71.0, 72.5]),
    ]
    assert marks(rows)["accuracy %"] == marks(rows)["rounds to 50 %"] == ["", "", "best"]
    level = [row("centralised", [70.1, 70.9, 72.6]), *rows[1:]]
    assert marks(level)["accuracy %"] == ["", "", "best"], "not even where it cannot be told from the best"
    single = [row("local-only", [90.0], (0,)), row("fedavg", [60.0], (0,)), row("fedacg", [70.0], (0,))]
    assert marks(single)["accuracy %"] == ["", "second", "best"]
    assert marks([row("local-only", [50.0], (0,)), row("centralised", [70.0], (0,))])["accuracy %"] == [
        "second",
        "best",
    ]
    assert marks(single[:2])["accuracy %"] == ["", ""], "one method alone is not compared"


def test_differences_are_from_the_best_that_is_no_baseline(tmp_path: Path) -> None:
    ends = {"centralised": 0.9, "fedavg": 0.5, "fedacg": 0.55}
    for name, end in ends.items():
        for seed in range(3):
            fake_run(tmp_path / f"{name}{seed}", [end + 0.1 * seed / 3 + 0.001 * seed**2], method=name, seed=seed)
    write([tmp_path], tmp_path / "out")
    lines = list(csv.DictReader((tmp_path / "out" / "differences.csv").read_text(encoding="utf-8").splitlines()))
    assert {line["less"] for line in lines} == {"FedACG"}
    assert len(lines) == 2
    assert "baselines aside" in (tmp_path / "out" / "differences.md").read_text(encoding="utf-8")


def test_a_report_writes_the_differences(tmp_path: Path) -> None:
    for seed in range(3):
        fake_run(tmp_path / f"a{seed}", [0.5 + 0.1 * seed], method="fedavg", seed=seed)
        fake_run(tmp_path / f"b{seed}", [0.55 + 0.1 * seed], method="fedacg", seed=seed)
    write([tmp_path], tmp_path / "out")
    (line,) = csv.DictReader((tmp_path / "out" / "differences.csv").read_text(encoding="utf-8").splitlines())
    assert (line["label"], line["less"], line["pairs"], line["told"]) == ("FedAvg", "FedACG", "3", "True")
    assert float(line["mean"]) == pytest.approx(-5)
    assert float(line["improvement"]) == pytest.approx(3 / 9)
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Differences</h2>" in page
    assert "do not differ from it significantly" in page


def test_a_report_over_several_settings_has_an_overall_table(tmp_path: Path) -> None:
    for alpha in (0.1, 0.3):
        for seed in range(2):
            fake_run(tmp_path / f"a{alpha}{seed}", [0.5 + alpha + 0.01 * seed], seed=seed, alpha=alpha)
            fake_run(tmp_path / f"b{alpha}{seed}", [0.6 + alpha], method="fedacg", seed=seed, alpha=alpha)
    write([tmp_path], tmp_path / "out")
    lines = {
        line["label"]: line for line in csv.DictReader((tmp_path / "out" / "overall.csv").read_text().splitlines())
    }
    assert float(lines["FedAvg"]["interquartile_mean_percent"]) == pytest.approx((61 + 80) / 2)
    assert float(lines["FedACG"]["better_than_FedAvg"]) == 1.0
    assert (tmp_path / "out" / "profiles.pdf").stat().st_size > 1000


def test_one_seed_says_nothing_about_chance(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", [0.5])
    fake_run(tmp_path / "b", [0.6], method="fedacg")
    write([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out" / "differences.csv").exists()
    assert "with one seed nothing says" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
