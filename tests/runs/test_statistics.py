"""The statistics of the paper's tables against independent computations: exact fractions, and by hand.

`test_metrics.py` tests the records; here it is the numbers that are printed: moving averages, rounds and bytes to
a target, means and deviations over seeds, with ties, targets never reached, rounds without evaluation, with NaN,
and rounds that nobody answered.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedacg.config.experiment import Experiment
from fedacg.report.runs import Group, load_run
from fedacg.report.table import Effort, Spread, rows_of
from fedacg.runs.history import History, Reached, read_metrics
from fedacg.simulation.metrics import RoundMetrics

TENTH = Fraction(1, 10)


@dataclass(frozen=True)
class Played:
    """A round as a test makes it up."""

    accuracy: float | None
    down: int
    up: int
    asked: int


def record(number: int, played: Played) -> RoundMetrics:
    """A round of so many clients; one that nobody answered has no loss and sends nothing up."""
    failed = played.up == 0
    clients = tuple(range(played.asked))
    return RoundMetrics(
        round=number,
        lr=0.1,
        cohort=clients,
        examples=0 if failed else 10 * played.asked,
        train_loss=math.nan if failed else 1.0,
        bytes_down=played.down,
        bytes_up=played.up,
        seconds_train=0.5,
        seconds_aggregate=0.0,
        test_accuracy=played.accuracy,
        test_loss=None if played.accuracy is None else 1.0,
        answered=() if failed else clients,
    )


def history_of(rounds: list[Played]) -> History:
    return History(record(number, played) for number, played in enumerate(rounds, start=1))


def evaluations(rounds: list[Played]) -> list[tuple[int, Fraction]]:
    """The rounds that count, with their accuracies as fractions."""
    found = []
    for number, played in enumerate(rounds, start=1):
        if played.accuracy is not None and played.accuracy == played.accuracy:
            found.append((number, Fraction(played.accuracy)))
    return found


def averages_in_closed_form(rounds: list[Played], keep: Fraction = 1 - TENTH) -> dict[int, Fraction]:
    """Not step by step: the weight of each accuracy in each average, exactly.

    The accuracy of round s, which stands for the k rounds since the evaluation before it, has weight
    (1 − dᵏ)·d^(r − s) in the average of round r; the first evaluation starts the average and has d^(r − s).
    """
    known = evaluations(rounds)
    averages = {}
    for place, (r, _) in enumerate(known):
        total = Fraction(0)
        for earlier in range(place + 1):
            s, accuracy = known[earlier]
            weight = keep ** (r - s)
            if earlier:
                weight *= 1 - keep ** (s - known[earlier - 1][0])
            total += weight * accuracy
        averages[r] = total
    return averages


def first_at_least(averages: dict[int, Fraction], target: Fraction) -> int | None:
    return min((number for number, average in averages.items() if average >= target), default=None)


def sent_until(rounds: list[Played], last: int | None) -> int | None:
    return None if last is None else sum(played.down + played.up for played in rounds[:last])


accuracies = st.one_of(st.none(), st.just(math.nan), st.floats(0, 1))
played = st.builds(Played, accuracies, st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 5))
histories = st.lists(played, max_size=40)


@st.composite
def every_so_often(draw: st.DrawFn) -> list[Played]:
    """Histories as the round loop makes them: evaluated every k rounds and in the last one."""
    rounds, every = draw(st.lists(played, min_size=1, max_size=40)), draw(st.integers(2, 9))
    last = len(rounds)
    return [
        replace(each, accuracy=(each.accuracy or 0.0) if number % every == 0 or number == last else None)
        for number, each in enumerate(rounds, start=1)
    ]


@given(st.one_of(histories, every_so_often()))
def test_moving_averages_are_the_weighted_sums_that_they_should_be(rounds: list[Played]) -> None:
    history, expected = history_of(rounds), averages_in_closed_form(rounds)
    assert [m.round for m in history.evaluated] == list(expected)
    assert history.moving_average() == pytest.approx([float(value) for value in expected.values()], abs=1e-12)


@given(st.one_of(histories, every_so_often()), st.floats(0, 1))
def test_rounds_and_bytes_to_a_target_are_those_of_the_exact_averages(rounds: list[Played], target: float) -> None:
    expected = averages_in_closed_form(rounds)
    # Where an average equals the target but for rounding, either answer is right; ties have a test of their own.
    assume(all(abs(average - Fraction(target)) > 1e-12 for average in expected.values()))
    last = first_at_least(expected, Fraction(target))
    history = history_of(rounds)
    assert history.rounds_to(target) == last
    assert history.bytes_to(target) == sent_until(rounds, last)


# With halves in place of tenths, and accuracies in 1024ths, twenty rounds are exact in floating point.
exact = st.builds(
    Played,
    st.one_of(st.none(), st.just(math.nan), st.integers(0, 1024).map(lambda n: n / 1024)),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(1, 5),
)


@given(st.lists(exact, min_size=1, max_size=20), st.data())
def test_an_average_that_equals_the_target_has_reached_it(rounds: list[Played], data: st.DataObject) -> None:
    expected = averages_in_closed_form(rounds, keep=Fraction(1, 2))
    assume(expected)
    target = data.draw(st.sampled_from(list(expected.values())))
    history, last = history_of(rounds), first_at_least(expected, target)
    assert last is not None
    assert history.rounds_to(float(target), decay=0.5) == last
    assert history.bytes_to(float(target), decay=0.5) == sent_until(rounds, last)


@given(st.lists(exact, max_size=20), st.integers(1, 25))
def test_the_average_at_a_round_is_that_of_the_last_evaluation_up_to_it(rounds: list[Played], at: int) -> None:
    expected = {r: value for r, value in averages_in_closed_form(rounds, Fraction(1, 2)).items() if r <= at}
    found = history_of(rounds).moving_average_at(at, decay=0.5)
    assert found == (float(expected[max(expected)]) if expected else None)


@given(histories)
def test_a_target_never_reached_costs_all_that_was_spent(rounds: list[Played]) -> None:
    history = history_of(rounds)
    assert history.rounds_to(1.0000001) is None
    assert history.bytes_to(1.0000001) is None
    assert str(Reached.of(history.rounds_to(1.0000001), history.rounds)) == f"{len(rounds)}+"
    assert history.total_bytes == sent_until(rounds, len(rounds))


def test_bytes_to_a_target_count_rounds_that_nobody_answered_and_that_were_not_evaluated() -> None:
    rounds = [Played(0.5, 10, 1, 2), Played(None, 10, 1, 2), Played(math.nan, 10, 0, 2), Played(1.0, 10, 1, 2)]
    # The average of round 4 is 0.5 + (1 − 0.9³)·0.5 = 0.6355.
    history = history_of(rounds)
    assert history.moving_average() == pytest.approx([0.5, 0.6355])
    assert (history.rounds_to(0.6355 - 1e-9), history.bytes_to(0.6355 - 1e-9)) == (4, 43)
    assert (history.rounds_to(0.6355 + 1e-9), history.bytes_to(0.6355 + 1e-9)) == (None, None)


@given(histories)
def test_what_is_written_and_read_back_has_the_same_statistics(tmp_path_factory, rounds: list[Played]) -> None:
    path: Path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    history = history_of(rounds)
    path.write_text("".join(m.to_json() + "\n" for m in history))
    again, notes = read_metrics(path)
    assert notes == []
    assert again.moving_average() == history.moving_average()
    assert again.cumulative_bytes == history.cumulative_bytes


# Over seeds


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_mean_and_deviation_over_seeds_are_those_of_the_textbook(values: list[float]) -> None:
    exactly = [Fraction(value) for value in values]
    mean = sum(exactly, Fraction(0)) / len(exactly)
    variance = sum(((value - mean) ** 2 for value in exactly), Fraction(0)) / (len(exactly) - 1)
    spread = Spread.over(values)
    assert spread.mean == pytest.approx(float(mean), abs=1e-9)
    assert spread.std == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-9)


def test_one_seed_has_no_deviation_and_one_that_missed_leaves_no_mean() -> None:
    assert Spread.over([3.0]) == Spread(3.0, None)
    missed = Effort((Reached(40, True), Reached(100, False), Reached(90, False)))
    assert (missed.spread, missed.spent, missed.reached) == (None, 90, 1)


def run_folder(folder: Path, seed: int, rounds: list[Played]) -> Path:
    folder.mkdir()
    (folder / "experiment.toml").write_text(Experiment.parse({"seed": seed, "rounds": len(rounds)}).to_toml())
    (folder / "metrics.jsonl").write_text("".join(m.to_json() + "\n" for m in history_of(rounds)))
    return folder


def test_a_row_of_a_report_has_these_statistics_over_its_seeds(tmp_path: Path) -> None:
    """Two seeds of three rounds, worked out by hand: averages 0.4, 0.44, 0.496 and 0.4, 0.4, 0.46."""
    first = [Played(0.4, 10, 5, 1), Played(0.8, 10, 5, 1), Played(1.0, 10, 5, 1)]
    second = [Played(0.4, 10, 5, 1), Played(0.4, 10, 0, 1), Played(1.0, 10, 5, 1)]
    runs = [load_run(run_folder(tmp_path / f"s{seed}", seed, each)) for seed, each in enumerate((first, second))]
    (row,) = rows_of([Group("both", tuple(runs))], [0.43, 0.46 - 1e-9, 0.48])
    assert row.moving_average is not None
    assert row.moving_average.mean == pytest.approx(47.8)
    assert row.moving_average.std == pytest.approx(math.sqrt(2) * 1.8)
    sooner, both, one = row.rounds_to
    assert [seed.value for seed in sooner.seeds] == [2, 3]
    assert both.spread == Spread(3.0, 0.0)
    assert [(seed.value, seed.reached) for seed in one.seeds] == [(3, True), (3, False)]
    assert [seed.value for seed in row.bytes_to[0].seeds] == [30, 40]
