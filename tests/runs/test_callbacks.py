"""Callbacks: what they see, stopping, keeping the best model, and nothing lost when one of them fails."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import fedacg
from fedacg import BestCheckpoint, Callback, EarlyStopping, InputError, TimeLimit
from fedacg.config.experiment import Experiment
from fedacg.data.examples import TensorExamples
from fedacg.data.own_data import from_pairs
from fedacg.runs.callbacks import AtChance, RunView
from fedacg.runs.contents import BEST, load_moment
from fedacg.runs.history import History
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command
from support.runs import StopAfter, tiny


def problem(**settings: Any) -> dict[str, Any]:
    source = torch.Generator().manual_seed(5)
    inputs = [torch.randn(n, 4, generator=source) for n in (8, 9, 10, 11, 53)]
    pairs = [(x, x[:, :3].argmax(dim=1)) for x in inputs]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
    data = {"model": net, "clients": pairs[:-1], "test": pairs[-1]}
    return {**data, "rounds": 6, "local_steps": 2, "lr": 0.3, **settings}


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


class At(Callback):
    """Stops at a round, and says what it was told."""

    def __init__(self, stop: int) -> None:
        self.stop, self.told = stop, [""]

    def begin(self, run: RunView) -> None:
        self.told.append(f"begin {run.done}")

    def round(self, run: RunView) -> None:
        self.told.append(f"round {run.done}")
        if run.done == self.stop:
            run.stop("enough")

    def end(self, run: RunView) -> None:
        self.told.append(f"end {run.done} {run.stopping}")


def test_a_callback_sees_metrics_history_and_a_model_that_it_cannot_change() -> None:
    seen: list[Tensor] = []

    class Look(Callback):
        def round(self, run: RunView) -> None:
            assert run.metrics is run.history[-1]
            assert run.experiment.rounds == 6
            seen.append(parameters_to_vector(run.model.parameters()).detach().clone())
            for parameter in run.model.parameters():
                parameter.data.zero_()

    watched = fedacg.run(**problem(), callbacks=[Look])
    assert torch.equal(seen[-1], watched.vector)
    assert len({tuple(vector.tolist()) for vector in seen}) == 6, "another model in every round"
    assert torch.equal(watched.vector, fedacg.run(**problem()).vector)


def test_the_model_is_made_only_when_it_is_asked_for() -> None:
    def fail() -> nn.Module:
        raise AssertionError("nobody asked")

    view = RunView(Experiment(), History(), model=fail)
    assert view.done == 0
    with pytest.raises(AssertionError):
        assert view.model


def test_a_stopped_run_is_a_finished_one_that_says_why(tmp_path: Path) -> None:
    at = At(4)
    result = fedacg.run(**problem(evaluate_every=3), out=tmp_path / "run", callbacks=[at])
    assert at.told[1:] == ["begin 0", *(f"round {n}" for n in (1, 2, 3, 4)), "end 4 enough"]
    assert result.stopped_early == "enough"
    assert summary(tmp_path / "run")["stopped_early"] == "enough"
    assert summary(tmp_path / "run")["rounds"] == 4
    assert torch.equal(result.vector, fedacg.run(**problem(rounds=4)).vector)
    lines = [
        RoundMetrics.from_json(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [m.round for m in lines if m.evaluated] == [3, 4], "the last round is always evaluated"
    assert lines[-1].test_accuracy == result.history.accuracy[-1]


def test_a_run_that_plays_all_its_rounds_was_not_stopped() -> None:
    result = fedacg.run(**problem(), callbacks=[At(6)])
    assert result.stopped_early is None
    assert "stopped_early" not in result.summary


def test_the_first_reason_counts_and_everybody_is_told() -> None:
    one, other = At(2), At(2)
    other_reason = TimeLimit(1e-9)
    result = fedacg.run(**problem(), callbacks=[one, other_reason, other])
    assert result.stopped_early is not None
    assert result.stopped_early.startswith("the rounds took"), "that of round 1, which came first"
    assert one.told == other.told


def made_up(values: list[float | None], name: str = "validation/loss") -> History:
    return History(
        RoundMetrics(
            round=number,
            lr=0.1,
            cohort=(0,),
            examples=1,
            train_loss=1.0,
            bytes_down=1,
            bytes_up=1,
            seconds_train=1.0,
            seconds_aggregate=0.0,
            scores=None if value is None else {name: value},
        )
        for number, value in enumerate(values, start=1)
    )


def stops(callback: Callback, history: History) -> int | None:
    """The round after which a callback stops."""
    for last in range(1, len(history) + 1):
        view = RunView(Experiment(), History(history[:last]))
        callback.round(view)
        if view.stopping:
            return last
    return None


def test_patience_counts_rounds_since_the_best() -> None:
    losses = made_up([3, 2, 2.5, 2.1, 2.05, 1.9, 2, 2, 2])
    assert stops(EarlyStopping("validation/loss", patience=4), losses) is None
    assert stops(EarlyStopping("validation/loss", patience=3), losses) == 5
    assert stops(EarlyStopping(patience=3), losses) == 5, "validation is followed by itself"
    assert stops(EarlyStopping("validation/loss", patience=3, mode="max"), losses) == 4
    assert stops(EarlyStopping("validation/loss", patience=4, least=0.2), losses) == 6
    rising = made_up([0.1, 0.3, 0.2, 0.25], "test/f1")
    assert stops(EarlyStopping("test/f1", patience=2), rising) == 4
    assert stops(EarlyStopping("test/f1", patience=2, mode="min"), rising) == 3
    sparse = made_up([3, None, None, 2, None, None, 2.5, None])
    assert stops(EarlyStopping("validation/loss", patience=4), sparse) == 8


def test_the_limit_is_of_all_rounds_together() -> None:
    assert stops(TimeLimit(3), made_up([1.0] * 5)) == 3


def test_early_stopping_goes_on_where_it_was_after_a_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 60, "validation": 0.3, "lr": 1.0}
    patience = [{"name": "early-stopping", "metric": "validation/loss", "patience": 2}]
    whole = fedacg.run(**problem(**settings), callbacks=patience)
    assert whole.stopped_early
    last = whole.history.rounds
    for stop in (1, last - 1, last):
        out = tmp_path / f"{stop}"
        with pytest.raises(KeyboardInterrupt):
            fedacg.run(**problem(**settings), out=out, callbacks=[StopAfter(stop), *patience])
        again = fedacg.run(**problem(**settings), out=out, resume=True, callbacks=patience)
        assert again.stopped_early == whole.stopped_early
        assert torch.equal(again.vector, whole.vector)


def test_the_best_model_is_kept_and_loaded(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=8", "local.lr=2", 'callbacks=["best-checkpoint"]')
    result = fedacg.run(experiment, out=tmp_path / "run")
    best = max(result.history.series("test_accuracy").items(), key=lambda each: (each[1], -each[0]))[0]
    assert best < 8, "else last and best are the same"
    assert load_moment(tmp_path / "run", BEST).round == best
    short = fedacg.run(experiment.model_copy(update={"rounds": best, "callbacks": ()}))
    kept = fedacg.load_model(tmp_path / "run", which="best")
    assert torch.equal(parameters_to_vector(kept.parameters()), short.vector)
    last = fedacg.load_model(tmp_path / "run")
    assert torch.equal(parameters_to_vector(last.parameters()), result.vector)
    fedacg.run(experiment.model_copy(update={"callbacks": ()}), out=tmp_path / "run", overwrite=True)
    with pytest.raises(InputError, match=r"has no best\.safetensors"):
        fedacg.load_model(tmp_path / "run", which="best")
    with pytest.raises(InputError, match="must be 'last' or 'best'"):
        fedacg.load_model(tmp_path / "run", which="worst")  # type: ignore[arg-type]


def test_an_error_in_a_callback_keeps_the_last_round_and_is_the_users_own(tmp_path: Path) -> None:
    class Broken(Callback):
        def round(self, run: RunView) -> None:
            if run.done == 3:
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fedacg.run(**problem(), out=tmp_path / "run", callbacks=[Broken()])
    assert load_moment(tmp_path / "run").round == 3
    resumed = fedacg.run(**problem(), out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.vector, fedacg.run(**problem()).vector)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([3], "int has no method begin; derive it from fedacg.Callback"),
        ("early", "must be a list of callbacks"),
        (["early"], "unknown callback 'early'"),
        ([{"name": "early-stopping", "patience": 0}], "patience = 0: must be a number of rounds, 1 or more"),
        ([{"name": "early-stopping", "mode": "up"}], "mode = 'up': must be 'max', 'min'"),
        (
            [{"name": "early-stopping", "patient": 3}],
            "early-stopping: got an unexpected keyword argument 'patient'",
        ),
        (["time-limit"], "time-limit: missing a required argument: 'seconds'"),
        ([{"name": "time-limit", "seconds": -1}], "seconds = -1: must be a number greater than 0"),
        ([BestCheckpoint], "keeps a model in the run folder; set out="),
    ],
)
def test_what_cannot_be_a_callback_is_refused_before_the_first_round(given: Any, error: str) -> None:
    def never(_: object) -> None:
        raise AssertionError("a round was played")

    with pytest.raises(InputError, match=error):
        fedacg.run(**problem(), callbacks=given, on_round=never)


def test_a_figure_that_no_round_has_is_told_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"metric = 'test/f2': no round has it; there are test_accuracy, test_loss"
    ):
        fedacg.run(**problem(), callbacks=[EarlyStopping("test/f2")])


MODULE = """
from fedacg import Callback


class Patience(Callback):
    def __init__(self, rounds=2): self.rounds = rounds
    def round(self, run):
        if run.done == self.rounds: run.stop(f"{self.rounds} rounds are enough")
"""


def test_callbacks_have_names_in_files_and_reach_resumed_runs(fedacg: Command) -> None:
    (fedacg.folder / "my_calls.py").write_text(MODULE)
    sys.modules.pop("my_calls", None)
    text = (fedacg.folder / "tiny.toml").read_text()
    named = 'callbacks = ["my_calls:Patience", {name = "time-limit", seconds = 1000}]\n'
    (fedacg.folder / "tiny.toml").write_text(named + text)
    outcome = fedacg("run", "tiny.toml", "--out", "run")
    assert outcome.code == 0
    assert "stopped early: 2 rounds are enough" in outcome.out
    assert summary(fedacg.folder / "run")["rounds"] == 2
    options = 'callbacks=[{name="my_calls:Patience", rounds=5}]'
    outcome = fedacg("run", "tiny.toml", "--out", "run", "--resume", "--set", options)
    assert outcome.code == 0, outcome.err
    assert summary(fedacg.folder / "run")["rounds"] == 5
    assert "stopped early: 5 rounds are enough" in outcome.out


def watched(values: list[float], every: int = 1, rounds: int = 0, part: str = "test", **more: Any) -> str | None:
    """What is said of a run with these accuracies, where 40 of 200 labels are the same and the others rarer.

    Chance reaches 0.2 + 3·√(0.2·0.8/200) = 0.2849.
    """
    y = torch.cat([torch.zeros(40), 1 + torch.arange(160) % 8]).long()
    pair = (torch.zeros(200, 3), y)
    data = from_pairs([pair], pair)
    settings = {"rounds": rounds or every * len(values), "data": {"validation": 0.1}, "local": {"lr": 0.3}, **more}
    if part == "validation":
        data = replace(data, test=TensorExamples(torch.zeros(0, 3), torch.zeros(0).long()), validation=data.test)
        settings |= {"evaluate": {"test": "end"}}
    history = History(
        RoundMetrics(
            every * (place + 1), 0.3, (0,), 1, 1.0, 1, 1, 0.1, 0.1,
            test_accuracy=value if part == "test" else None,
            scores={"validation/accuracy": value} if part == "validation" else {},
        )
        for place, value in enumerate(values)
    )  # fmt: skip
    return AtChance(Experiment.parse(settings), data).note(history)


@pytest.mark.parametrize(
    ("values", "every", "rounds", "words"),
    [
        ([0.2] * 9, 1, 0, None),  # too early to say
        ([0.2] * 10, 1, 0, "since the start, 20.0 % in round 10"),
        ([0.2] * 20, 1, 84, None),  # a quarter of the rounds is longer than that
        ([0.2] * 21, 1, 84, "since the start"),
        ([0.2, 0.2], 10, 0, None),  # two evaluations are too few
        ([0.2, 0.1, 0.28], 10, 0, "28.0 % in round 30"),  # within three standard errors
        ([0.2, 0.2, 0.29], 10, 0, None),  # it has begun to learn
        ([0.2] * 10 + [0.9], 1, 0, None),
        ([0.9] * 2 + [0.2] * 10, 1, 0, "since round 2"),  # it has forgotten what it knew
        ([0.9] * 3 + [0.2] * 9, 1, 0, None),
    ],
)
def test_a_run_that_stays_at_chance_is_told(
    values: list[float], every: int, rounds: int, words: str | None
) -> None:
    for part in ("test", "validation"):
        note = watched(values, every, rounds, part)
        if words is None:
            assert note is None
        else:
            assert note is not None
            assert words in note
            assert "most frequent label always gets 20.0 %" in note
            assert "local.lr = 0.3" in note
            assert "momentum" not in note


def test_where_answers_are_late_momentum_is_a_suspect_too() -> None:
    note = watched([0.2] * 10, asynchronous={"buffer": 2})
    assert note is not None
    assert "server momentum λ" in note


def test_of_a_run_under_attack_nothing_is_said() -> None:
    assert watched([0.2] * 10) is not None
    assert watched([0.2] * 10, failures={"bad": 0.2}) is None


@pytest.mark.parametrize(
    ("x", "y"), [(torch.zeros(99, 3), torch.zeros(99).long()), (torch.zeros(200, 3), torch.zeros(200, 1))]
)
def test_nothing_is_said_of_few_examples_or_of_labels_that_are_no_classes(x: Tensor, y: Tensor) -> None:
    assert AtChance(Experiment(), from_pairs([(x, y)], (x, y))).chance is None


def test_the_run_and_the_report_name_the_rate(fedacg: Command, caplog: pytest.LogCaptureFixture) -> None:
    """Digits with a rate of 10⁻⁹: nothing moves."""
    arguments = ("run", "tiny.toml", "-s", "rounds=12", "-s", "local.lr=1e-9", "--out", "still")
    outcome = fedacg(*arguments)
    words = "The first suspect is the learning rate, local.lr = 1e-09"
    assert outcome.code == 0
    assert f"note: {summary(fedacg.folder / 'still')['notes'][-1]}" in outcome.out
    assert words in outcome.out
    told = [text for record in caplog.records if words in (text := record.getMessage())]
    assert [text.partition(": ")[0] for text in told] == ["fedacg, round 10"], "once, when it is first seen"
    assert words in fedacg("report", "still", "--out", "page").out.replace("\n", " ")
    assert words in (fedacg.folder / "page" / "index.html").read_text()
    learning = fedacg("run", "tiny.toml", "-s", "rounds=12", "--out", "moves")
    assert (learning.code, summary(fedacg.folder / "moves")["notes"]) == (0, [])
