"""The statistics of a history, each against a plain computation written here; reading metrics back."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedacg.core.files import seal, unseal
from fedacg.errors import InputError
from fedacg.runs.history import History, Reached, bytes_unit, human_bytes, read_metrics
from fedacg.simulation.metrics import RoundMetrics


def one_round(number: int, accuracy: float | None = None, down: int = 10, up: int = 7) -> RoundMetrics:
    return RoundMetrics(
        round=number,
        lr=0.1,
        cohort=(3, 17),
        examples=90,
        train_loss=2.1,
        bytes_down=down,
        bytes_up=up,
        seconds_train=0.5,
        seconds_aggregate=0.25,
        seconds_evaluate=0.125,
        test_accuracy=accuracy,
        test_loss=None if accuracy is None else 1.2,
    )


def history_of(accuracies: list[float | None]) -> History:
    return History(one_round(number, accuracy) for number, accuracy in enumerate(accuracies, start=1))


accuracies = st.lists(st.one_of(st.none(), st.floats(0, 1), st.just(math.nan)), max_size=60)


@given(accuracies)
def test_moving_average_holds_the_last_accuracy_back_to_the_evaluation_before(values):
    # Independent of decayᵏ: every round is averaged by the paper's rule, with the accuracy that the next
    # evaluation finds; the average is read off where there was an evaluation.
    evaluated = [(n, v) for n, v in enumerate(values, start=1) if v is not None and not math.isnan(v)]
    expected, ema, last = [], None, 0
    for number, accuracy in evaluated:
        for _ in range(last, number):
            ema = accuracy if ema is None else 0.9 * ema + 0.1 * accuracy
        expected.append(ema)
        last = number
    assert history_of(values).moving_average() == pytest.approx(expected)


def test_moving_average_of_every_round_is_the_papers():
    history = history_of([0.5, 0.7, 0.2])
    assert history.moving_average() == pytest.approx([0.5, 0.52, 0.488])
    assert history.moving_average(decay=0.5) == pytest.approx([0.5, 0.6, 0.4])


def test_moving_average_weighs_an_evaluation_by_the_rounds_since_the_last():
    history = history_of([None, None, 0.4, None, None, None, None, 0.8])
    assert history.moving_average() == pytest.approx([0.4, 0.9**5 * 0.4 + (1 - 0.9**5) * 0.8])


@given(st.floats(0, 1), st.integers(1, 50))
def test_constant_accuracy_has_itself_as_average(accuracy, rounds):
    assert history_of([accuracy] * rounds).moving_average() == [accuracy] * rounds


def test_nan_neither_reaches_a_target_nor_poisons_the_average():
    history = history_of([0.5, math.nan, 0.9])
    assert [m.round for m in history.evaluated] == [1, 3]
    assert history.moving_average()[-1] == pytest.approx(0.81 * 0.5 + 0.19 * 0.9)
    assert history_of([math.nan]).rounds_to(0.0) is None
    assert history_of([0.5, math.nan]).rounds_to(0.6) is None


@given(accuracies, st.floats(0, 1))
def test_rounds_and_bytes_to_target_agree_with_a_walk_through_the_rounds(values, target):
    history = History(one_round(n, v, down=n, up=2 * n) for n, v in enumerate(values, start=1))
    averages = dict(zip([m.round for m in history.evaluated], history.moving_average(), strict=True))
    sent, found = 0, None
    for number in range(1, len(values) + 1):
        sent += 3 * number
        if averages.get(number, -1.0) >= target:
            found = (number, sent)
            break
    assert (history.rounds_to(target), history.bytes_to(target)) == (found or (None, None))


def test_target_is_reached_when_equalled_and_by_the_average_not_the_accuracy():
    history = history_of([0.5, 1.0, 1.0])
    assert history.rounds_to(0.5) == 1
    assert history.rounds_to(0.55) == 2
    assert history.rounds_to(0.9) is None
    assert history.bytes_to(0.9) is None


def test_values_at_a_round_are_those_of_the_last_evaluation():
    history = history_of([None, 0.4, None, 0.8])
    assert [history.accuracy_at(r) for r in range(1, 7)] == [None, 0.4, 0.4, 0.8, 0.8, 0.8]
    assert history.moving_average_at(1) is None
    assert history.moving_average_at(3) == 0.4
    assert history.moving_average_at(4) == pytest.approx(0.81 * 0.4 + 0.19 * 0.8)
    assert history.moving_average_at(4, decay=0.5) == pytest.approx(0.25 * 0.4 + 0.75 * 0.8)


def test_totals_are_sums_over_rounds():
    history = history_of([0.5, None, 0.6])
    assert (history.bytes_down, history.bytes_up, history.total_bytes) == (30, 21, 51)
    assert history.cumulative_bytes == [17, 34, 51]
    assert history.seconds == {"train": 1.5, "aggregate": 0.75, "evaluate": 0.375, "total": 2.625}
    assert history.accuracy == [0.5, 0.6]


def test_empty_history_has_no_values():
    history = History()
    assert (history.rounds, len(history), history.total_bytes) == (0, 0, 0)
    assert history.moving_average() == []
    assert history.accuracy_at(10) is None


def test_rounds_only_go_up():
    history = history_of([0.1, 0.2])
    with pytest.raises(InputError, match="round 2 after round 2"):
        history.append(one_round(2))
    with pytest.raises(InputError, match="round 0"):
        History([one_round(0)])


def test_reached_says_plus_when_it_was_not():
    assert str(Reached.of(41, 100)) == "41"
    assert str(Reached.of(None, 100)) == "100+"
    assert Reached.of(100, 100) != Reached.of(None, 100)


finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.one_of(st.none(), st.booleans(), st.integers(), finite, st.text(), st.lists(finite))


@given(
    accuracy=st.one_of(st.none(), st.floats(0, 1)),
    losses=st.one_of(st.none(), st.lists(finite).map(tuple)),
    extra=st.dictionaries(st.text().map(lambda key: f"new_{key}"), json_values),
)
def test_a_round_survives_json_with_keys_nobody_knows(accuracy, losses, extra):
    metrics = RoundMetrics(
        1, 0.1, (1, 2), 5, 0.5, 3, 4, 0.1, 0.2, 0.3, accuracy, answered=(2,), client_losses=losses, extra=extra
    )
    line = metrics.to_json()
    assert "\n" not in line
    assert RoundMetrics.from_json(line) == metrics
    assert RoundMetrics.from_json(line).to_json() == line


def test_absent_stays_absent_and_unknown_keys_are_kept():
    record = unseal(one_round(1).to_json().encode())
    assert not {"test_accuracy", "test_loss", "client_losses", "extra"} & set(record)
    back = RoundMetrics.from_json(json.dumps(record | {"dropped": [4]}))
    assert back.extra == {"dropped": [4]}
    assert unseal(back.to_json().encode()) == record | {"dropped": [4]}


def test_what_is_not_finite_is_strict_json_and_comes_back_as_nan():
    metrics = RoundMetrics(1, 0.1, (), 0, math.nan, 3, 4, 0.1, 0.2, test_accuracy=math.nan, test_loss=math.inf)
    record = json.loads(metrics.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["train_loss"] is record["test_accuracy"] is record["test_loss"] is None
    back = RoundMetrics.from_json(metrics.to_json())
    assert math.isnan(back.train_loss)
    assert back.test_accuracy is not None
    assert math.isnan(back.test_accuracy)


def written(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


def changed(old: str, new: str) -> str:
    """The second line with something else in it, and a checksum that fits."""
    record = json.dumps(unseal(LINES[1].encode()))
    assert old in record
    return seal(record.replace(old, new))


LINES = [one_round(n, 0.1 * n).to_json() for n in (1, 2, 3)]


def test_metrics_are_read_as_written(tmp_path):
    history, notes = read_metrics(written(tmp_path / "metrics.jsonl", *LINES))
    assert [m.to_json() for m in history] == LINES
    assert notes == []


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("cut", [1, 20, len(LINES[2]) - 1])
def test_half_written_last_line_is_left_out_with_a_note(tmp_path, cut, end):
    path = written(tmp_path / "metrics.jsonl", *LINES[:2], LINES[2][:cut], end=end)
    history, notes = read_metrics(path)
    assert history.rounds == 2
    assert len(notes) == 1
    assert "line 3" in notes[0]


def test_last_line_cut_within_a_character_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINES[0].encode() + b'\n{"round": 2, "who": "\xc3')
    history, notes = read_metrics(path)
    assert (history.rounds, len(notes)) == (1, 1)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (LINES[1][:30], "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"round": 2}', "lacks lr, cohort"),
        (LINES[1].replace("0.2", "0.3"), "damaged: its checksum does not match"),
        (changed('"round": 2', '"round": "2"'), "round is '2', not a whole number"),
        (changed('"round": 2', f'"round": {10**400}'), "round is of 1329 bits, must be from 0"),
        (changed('"round": 2', f'"round": {"9" * 5000}'), "cannot be read: Exceeds the limit"),
        (changed('"lr": 0.1', '"lr": true'), "lr is True, not a number"),
        (changed('"lr": 0.1', f'"lr": {10**400}'), "lr is of 1329 bits, which is too large"),
        (changed('"lr": 0.1', f'"lr": 0.1, "new": {"[" * 5000}{"]" * 5000}'), "cannot be read: maximum recursion"),
        (changed('"test_accuracy": 0.2', '"test_accuracy": 1.2'), "test_accuracy is 1.2, must be from 0 to 1"),
        (changed("[3, 17]", "3"), "cohort is 3, not a list"),
        (changed("[3, 17]", "[3, -17]"), "cohort is -17, must be from 0"),
        (LINES[0], "round 1 after round 1"),
    ],
)
def test_broken_line_in_the_middle_names_file_and_line(tmp_path, broken, said):
    path = written(tmp_path / "metrics.jsonl", LINES[0], broken, LINES[2])
    with pytest.raises(InputError) as error:
        read_metrics(path)
    assert f"{path}, line 2: " in str(error.value)
    assert said in str(error.value)


def test_missing_metrics_are_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl"):
        read_metrics(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (1_234_567, "1.23 MB"),
        (9_996_000, "10.0 MB"),
        (45_600_000_000, "45.6 GB"),
        (7.5e15, "7500 TB"),
    ],
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text


@given(st.integers(1, 10**17))
def test_human_bytes_are_right_to_three_digits(count):
    number, unit = human_bytes(count).split()
    size = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert bytes_unit(count) == (size, unit)
    assert float(number) * size == pytest.approx(count, rel=0.0051)


def test_scores_are_written_read_and_found_by_name():
    first = replace(one_round(1, 0.5), scores={"test/f1": 0.25, "privacy/epsilon": math.nan})
    history = History([RoundMetrics.from_json(first.to_json()), one_round(2, 0.75)])
    assert history[0].score("test/f1") == 0.25
    assert history[0].score("test/recall") is None
    assert history.series("test/f1") == {1: 0.25}
    assert history.series("privacy/epsilon") == {}
    assert history.series("test_accuracy") == {1: 0.5, 2: 0.75}
    assert history.score_names == ["test/f1", "privacy/epsilon"]


@pytest.mark.parametrize("scores", [[1.0], {"test/f1": "high"}, {"test/f1": [1.0]}])
def test_scores_that_are_no_numbers_are_refused(scores):
    record = unseal(one_round(1).to_json().encode()) | {"scores": scores}
    with pytest.raises(InputError, match="scores"):
        RoundMetrics.from_json(json.dumps(record))
