"""Clients that fail, straggle, come and go: what the server makes of it, what is recorded, and resuming."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedacg
from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.runs.build import prepare
from fedacg.runs.contents import load_moment
from fedacg.runs.runner import Result, play
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command
from support.quadratics import Point, client, half_square
from support.runs import StopAfter, digest, tiny

CLIENTS = [client([1.0, 0.0]), client([0.0, 2.0], [0.0, 4.0]), client([-3.0, 1.0]), client([5.0, 5.0])]


def points(method: str = "fedacg", **options: Any) -> Result:
    """Four clients of which all are asked, for six rounds; client i pulls the point to its own mean."""
    settings: dict[str, Any] = {"rounds": 6, "participation": 1.0, "local_steps": 4, "lr": 0.3, "seed": 3}
    return fedacg.run(
        model=Point(), clients=CLIENTS, test=CLIENTS[0], method=method, loss=half_square, **(settings | options)
    )


SAMPLED = [name for name in methods.METHODS if "full participation" not in methods.build(name).needs]


@pytest.mark.parametrize("method", SAMPLED)
def test_a_lost_update_is_as_if_its_client_had_not_been_asked(tmp_path: Path, method: str) -> None:
    settings = [f"method.name={method}", "rounds=5", "cohort.size=6", "data.clients=12"]
    failing = tiny(tmp_path, *settings, "failures.drop=0.4")
    result = play(failing, prepare(failing))
    answered = [metrics.arrived for metrics in result.history]
    assert {len(who) for who in answered} & {1, 2, 3, 4, 5}, "some are lost"
    assert all(answered), "and in no round all"
    whole = tiny(tmp_path, *settings)
    assert digest(play(whole, prepare(whole), cohorts=answered)) == digest(result)


def test_weights_are_those_of_the_clients_that_answered() -> None:
    """By hand: one step of size 1 ends at the client's mean; client 1 has two examples, the others one."""
    result = points("fedavg", rounds=1, local_steps=1, lr=1.0, seed=1, failures={"drop": 0.5})
    answered = result.history[0].arrived
    assert 1 in answered
    assert 1 < len(answered) < 4
    means = torch.stack([CLIENTS[i][0].mean(dim=0) for i in answered])
    weights = torch.tensor([2.0 if i == 1 else 1.0 for i in answered], dtype=torch.float64)
    assert torch.allclose(result.vector, (weights / weights.sum()) @ means, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadam", "fedacg", "feddyn", "fedcm", "feddc"])
def test_a_round_that_nobody_answers_leaves_everything_as_it_was(tmp_path: Path, method: str) -> None:
    """θ, m, v, h and g alike, and what clients keep: the run ends as one in which the round never was."""
    out = tmp_path / "run"
    result = points(method, rounds=12, failures={"drop": 0.75}, out=out)
    empty = [metrics for metrics in result.history if not metrics.answered]
    assert 0 < len(empty) < 12
    for metrics in empty:
        assert math.isnan(metrics.train_loss)
        assert (metrics.examples, metrics.bytes_up, metrics.cohort) == (0, 0, (0, 1, 2, 3))
    others = [metrics.arrived for metrics in result.history if metrics.answered]
    without = tmp_path / "without"
    points(method, rounds=len(others), cohorts=others, out=without)
    ours, theirs = load_moment(out).vectors, load_moment(without).vectors
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert _kept(out) == _kept(without)


def _kept(run: Path) -> dict[str, dict[str, list[float]]]:
    """What every client has kept; not when, which is another round without the empty ones."""
    files = (run / "clients").rglob("*.safetensors")
    return {
        path.stem.partition("-")[0]: {name: vector.tolist() for name, vector in load_file(path).items()}
        for path in files
    }


def test_rounds_that_nobody_answers_at_all_end_where_they_began() -> None:
    result = points(rounds=3, failures={"drop": 1.0})
    assert torch.equal(result.vector, torch.zeros(2, dtype=torch.float64))
    assert result.history.bytes_up == 0


def test_what_was_downloaded_is_paid_for() -> None:
    for metrics in points("feddc", failures={"drop": 0.5}).history:
        assert metrics.bytes_down == 4 * 2 * 16, "four were asked, of two vectors of two doubles each"
        assert metrics.bytes_up == len(metrics.arrived) * 2 * 16


def test_a_straggler_takes_its_part_of_the_steps() -> None:
    """By hand: K steps of size η from φ = 0 end at (1 − (1 − η)^K) c̄."""
    result = points("fedavg", rounds=1, weights="uniform", failures={"straggle": 0.5, "work": 0.25})
    slow = result.history[0].stragglers
    assert slow is not None
    assert 0 < len(slow) < 4
    ends = [(1 - 0.7 ** (1 if i in slow else 4)) * x.mean(dim=0) for i, (x, _) in enumerate(CLIENTS)]
    assert torch.allclose(result.vector, torch.stack(ends).mean(dim=0), atol=1e-12)


def test_a_method_is_told_how_many_steps_a_straggler_took() -> None:
    """FedCM's Δ is −Σ ω_i Δ_i / (K_i η): the second round sees whether K was the straggler's own."""
    slow = points("fedcm", rounds=2, failures={"straggle": 1.0, "work": 0.25})
    once = points("fedcm", rounds=2, local_steps=1)
    assert torch.equal(slow.vector, once.vector)


def test_a_new_client_needs_no_state(tmp_path: Path) -> None:
    """Of the clients that come at the second stage those never seen before take part at once."""
    experiment = tiny(
        tmp_path, "rounds=8", "population.present=8", "population.stage=4", "method.name=feddyn", "cohort.size=6"
    )
    result = play(experiment, prepare(experiment), folder=tmp_path / "run")
    early, late = ({c for m in part for c in m.arrived} for part in (result.history[:4], result.history[4:]))
    assert len(early) <= 8
    assert late - early
    assert {int(client) for client in _kept(tmp_path / "run")} == early | late


WORLDS = {
    "coins": ["cohort.draw=coin", "cohort.fraction=0.15", "cohort.size=0"],
    "failures": ["failures.drop=0.3", "failures.straggle=0.3", "failures.work=0.4"],
    "dynamic": ["population.present=8", "population.stage=3", "population.replace=0.5"],
    "all": [
        "cohort.draw=coin",
        "failures.drop=0.4",
        "failures.straggle=0.3",
        "population.present=8",
        "population.stage=2",
    ],
}


def world(tmp_path: Path, which: str, *settings: str) -> Experiment:
    return tiny(tmp_path, "rounds=12", *WORLDS[which], *settings)


@pytest.mark.parametrize("method", ["fedacg", "feddyn"])
@pytest.mark.parametrize("which", WORLDS)
def test_resuming_is_to_the_bit_in_every_world(tmp_path: Path, which: str, method: str) -> None:
    experiment = world(tmp_path, which, f"method.name={method}")
    ingredients = prepare(experiment)
    whole = play(experiment, ingredients, folder=tmp_path / "whole")
    for stop in (2, 7):
        with pytest.raises(KeyboardInterrupt):
            play(experiment, ingredients, folder=tmp_path / "cut", resume=stop > 2, callbacks=[StopAfter(stop)])
    resumed = play(experiment, ingredients, folder=tmp_path / "cut", resume=True)
    assert digest(resumed) == digest(whole)
    assert [_who(m) for m in resumed.history] == [_who(m) for m in whole.history]


def _who(metrics: RoundMetrics) -> tuple[object, ...]:
    return metrics.cohort, metrics.answered, metrics.stragglers, metrics.bytes_down, metrics.bytes_up


def test_engines_agree_to_the_bit_in_a_world_where_everything_happens(tmp_path: Path) -> None:
    digests = set()
    for engine in ("serial", "processes"):
        experiment = world(tmp_path, "all", f"engine.name={engine}", "engine.workers=2", "method.name=feddyn")
        digests.add(digest(play(experiment, prepare(experiment))))
    assert len(digests) == 1


def test_who_was_asked_and_who_answered_stands_in_the_metrics(fedacg: Command) -> None:
    words = [word for setting in WORLDS["failures"] for word in ("--set", setting)]
    assert fedacg("run", "tiny.toml", "--out", "run", "--quiet", *words, "--set", "rounds=20").code == 0
    lines = [json.loads(line) for line in (fedacg.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(set(line["answered"]) <= set(line["cohort"]) for line in lines)
    assert any(len(line["answered"]) < len(line["cohort"]) for line in lines)
    assert any(line.get("stragglers") for line in lines)
    assert {line["bytes_down"] for line in lines} == {3 * 4 * 1210}, "three downloads of 1210 parameters per round"
    read = [RoundMetrics.from_json(json.dumps(line)) for line in lines]
    assert [list(metrics.arrived) for metrics in read] == [line["answered"] for line in lines]


def test_a_line_without_answers_is_read_as_one_that_all_answered() -> None:
    line = '{"round": 1, "lr": 0.1, "cohort": [3, 5], "examples": 9, "train_loss": 1.0, "bytes_down": 8,'
    line += ' "bytes_up": 8, "seconds_train": 0.1, "seconds_aggregate": 0.1}'
    assert RoundMetrics.from_json(line).arrived == (3, 5)


@pytest.mark.slow
def test_digits_are_learned_with_thirty_percent_failures_and_thirty_percent_stragglers(fedacg: Command) -> None:
    settings = ["failures.drop=0.3", "failures.straggle=0.3", "engine.name=serial", "rounds=100"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert fedacg("run", "quickstart", "--out", "run", "--quiet", *words).code == 0
    summary = json.loads((fedacg.folder / "run" / "summary.json").read_text())
    assert summary["moving_average"] > 0.85


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("failures.drop=1.5", "failures.drop = 1.5: must be less than or equal to 1"),
        ("failures.drop=-0.1", "failures.drop = -0.1: must be greater than or equal to 0"),
        ("failures.work=0.0", "failures.work = 0.0: must be greater than 0"),
        ("failures.dorp=0.5", "did you mean 'failures.drop'?"),
        ("population.present=21", "population.present = 21: there are only 20 clients"),
        ("population.present=15", "population.replace = 0.5: of 15 present clients 7.5 would leave"),
        ("population.stage=0", "population.stage = 0: must be greater than or equal to 1"),
        ("population.present=2", "cohort.size = 3: there are only 2 clients"),
        ("cohort.draw=dice", "unknown draw 'dice': choose from coin, exact, spaced, or module:function"),
    ],
)
def test_worlds_that_cannot_be_are_refused(fedacg: Command, setting: str, message: str) -> None:
    outcome = fedacg("run", "tiny.toml", "--out", "run", "--set", setting)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())


def test_the_world_of_a_call_from_python_is_checked_too() -> None:
    with pytest.raises(fedacg.InputError, match=r"failures\.drop = 2"):
        points(failures={"drop": 2.0})
    with pytest.raises(fedacg.InputError, match="unknown draw 'dice': choose from coin, exact"):
        points(draw="dice")
