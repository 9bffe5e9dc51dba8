"""Benchmarks that are played: what they cost, what is kept and shared, interruptions, and runs that go wrong."""

import signal
import time
from pathlib import Path

import pytest

from fedacg.bench.estimate import count, estimate
from fedacg.bench.paper import make_plan
from fedacg.config.experiment import Experiment
from fedacg.data.examples import FederatedData
from fedacg.data.files import missing
from fedacg.methods import METHODS, build
from fedacg.runs.build import load_data, prepare
from fedacg.runs.history import human_seconds
from fedacg.runs.runner import play
from fedacg.runs.session import Session
from support.command import Command, refused, start
from support.runs import StopAfter, tiny

TINY = [
    "data.name=digits",
    "data.augment=false",
    "data.clients=20",
    "model.name=mlp",
    "cohort.size=3",
    "rounds=8",
    "local.epochs=1",
    "local.clip=0.0",
    "engine.name=serial",
    "save.seconds=0",
]
"""A table's recipe, made small enough for a test."""
ON = ["--on", "cifar10-large", "--out", "out", *(word for setting in TINY for word in ("--set", setting))]


def tables(folder: Path) -> list[bytes]:
    """What a benchmark has written that holds no times."""
    names = ("bench.md", "bench.csv", "bench.tex")
    return [(folder / "ablation-components-small" / "cifar10-large" / name).read_bytes() for name in names]


def rounds_written(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.read_bytes().count(b"\n") for path in folder.rglob("metrics.jsonl")}


# Cost


@pytest.mark.parametrize("method", [*METHODS, "fedacg+paq", "fedmlb+acg"])
def test_estimated_bytes_are_those_that_are_sent(tmp_path: Path, method: str) -> None:
    everybody = ["cohort.size=0", "cohort.fraction=1"] if "full participation" in build(method).needs else []
    experiment = tiny(tmp_path, f"method.name={method}", "rounds=3", *everybody)
    ingredients = prepare(experiment)
    work, history = count(experiment, ingredients), play(experiment, ingredients).history
    assert work.bytes == history.total_bytes
    assert work.updates == sum(len(m.arrived) for m in history)


def test_estimated_work_knows_who_drops_out_and_who_straggles(tmp_path: Path) -> None:
    settings = ["failures.drop=0.4", "failures.straggle=0.5", "rounds=6", "evaluate.every=4", "cohort.draw=coin"]
    experiment = tiny(tmp_path, *settings)
    ingredients = prepare(experiment)
    work, history = count(experiment, ingredients), play(experiment, ingredients).history
    sizes, late = ingredients.data.clients, [set(m.stragglers or ()) for m in history]
    assert 0 < work.updates < sum(len(m.cohort) for m in history)
    assert work.bytes == history.total_bytes
    steps = [experiment.local.steps_for(sizes.size(c)) for m in history for c in m.arrived]
    halves = [c in stragglers for m, stragglers in zip(history, late, strict=True) for c in m.arrived]
    assert any(halves)
    assert work.steps == sum(max(1, round(k / 2)) if half else k for k, half in zip(steps, halves, strict=True))
    assert work.tests == 2 * len(ingredients.data.test), "rounds 4 and 6"


def test_time_comes_from_a_trial_from_the_run_itself_or_from_another_seed(tmp_path: Path) -> None:
    first, second = tiny(tmp_path, "rounds=4"), tiny(tmp_path, "rounds=4", "seed=5")
    runs = {tmp_path / "a": first, tmp_path / "b": second}
    with Session(first.engine) as session:
        before = estimate(session, runs)
        assert all(cost.seconds is not None and cost.seconds > 0 and cost.done == 0 for cost in before.values())
        assert not any(folder.exists() for folder in runs), "a trial leaves nothing behind"
        with pytest.raises(KeyboardInterrupt):
            session.play(first, folder=tmp_path / "a", callbacks=[StopAfter(1)])
        half = estimate(session, {tmp_path / "a": first})[tmp_path / "a"]
        result = session.play(first, folder=tmp_path / "a", resume=True)
        after = estimate(session, runs)
    taken = result.history.seconds["total"]
    assert half.done == 1
    assert half.seconds == pytest.approx(
        3
        * (
            result.history[0].seconds_train
            + result.history[0].seconds_aggregate
            + result.history[0].seconds_evaluate
        )
    )
    assert (after[tmp_path / "a"].done, after[tmp_path / "a"].seconds) == (4, 0.0)
    assert after[tmp_path / "b"].seconds == pytest.approx(taken)
    assert after[tmp_path / "a"].bytes == before[tmp_path / "a"].bytes == result.history.total_bytes


def test_what_diverges_at_once_has_no_estimate(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "local.lr=1e30")
    with Session(experiment.engine) as session:
        assert estimate(session, {tmp_path / "a": experiment})[tmp_path / "a"].seconds is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (200_000, "2.3 days")],
)
def test_times_are_told_in_a_unit_that_suits_them(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


# Playing


def test_a_dry_run_lists_the_runs_and_leaves_no_trace(fedacg: Command) -> None:
    outcome = fedacg("bench", "ablation-components", *ON, "--dry-run")
    assert outcome.code == 0
    assert outcome.out.startswith("6 runs below out/runs, 0 of them finished\n")
    assert "cifar10-large-small/fedavg+acg-s0" in outcome.out
    assert "together" in outcome.out
    assert not (fedacg.folder / "out").exists()


def test_settings_without_their_data_are_left_out_and_none_at_all_is_an_error(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(fedacg.folder / "empty"))
    outcome = fedacg("bench", "ablation-components", "--dry-run")
    assert outcome.code == 2
    assert "skipped cifar100-large: its data are missing; to get them: fedacg data get cifar100\n" in outcome.err
    assert outcome.err.count("error: ") == 1
    assert "error: data set 'cifar10' was not found." in outcome.err

    def without_cifar100(experiment: Experiment) -> FederatedData:
        if experiment.data.name == "cifar100":
            raise missing("cifar100", [], "it")
        return load_data(tiny(fedacg.folder))

    monkeypatch.setattr("fedacg.runs.session.load_data", without_cifar100)
    small = ["--methods", "fedavg", "--set", "cohort.size=2", "--set", "rounds=1", "--set", "engine.name=serial"]
    outcome = fedacg("bench", "ablation-components", "--dry-run", *small)
    assert outcome.code == 0
    assert outcome.err == "skipped cifar100-large: its data are missing; to get them: fedacg data get cifar100\n"
    assert "1 run below" in outcome.out
    outcome = fedacg("bench", "ablation-components", "--dry-run", "--on", "cifar10-large,cifar100-large")
    assert outcome.code == 2, "what was asked for by name is not left out"


def test_finished_runs_are_kept_and_shared_between_tables(fedacg: Command) -> None:
    assert fedacg("bench", "fedpaq", *ON, "--quiet").code == 0
    written = {path: path.stat().st_mtime_ns for path in fedacg.folder.rglob("summary.json")}
    assert {path.parent.name for path in written} == {"fedavg-s0", "fedavg+paq-s0", "fedacg+paq-s0"}
    outcome = fedacg("bench", "main-large", "--methods", "fedavg,fedacg+paq,fedacg", *ON)
    assert outcome.out.startswith("3 runs below out/runs, 2 of them finished\n")
    assert [line for line in outcome.out.splitlines() if line.endswith(": 8 rounds")] == ["fedacg-s0: 8 rounds"]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    other = fedacg("bench", "fedpaq", *ON, "--set", "rounds=2", "--quiet")
    assert other.code == 0
    assert rounds_written(fedacg.folder / "out")["fedavg-s0-2"] == 2, "another experiment has a folder of its own"
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_a_run_that_was_stopped_is_gone_on_with_only_when_asked(fedacg: Command) -> None:
    plan = ["bench", "main-large", "--methods", "fedavg", *ON]
    (block,) = make_plan(
        "main-large", "small", Path("out"), on=["cifar10-large"], methods=["fedavg"], settings=TINY
    )
    ((folder, experiment),) = block.runs.items()
    with pytest.raises(KeyboardInterrupt):
        play(experiment, prepare(experiment), folder=folder, callbacks=[StopAfter(3)])
    refused(fedacg(*plan), f"{folder}: holds a run that was stopped", "--resume")
    assert rounds_written(fedacg.folder)["fedavg-s0"] == 3
    outcome = fedacg(*plan, "--resume")
    assert outcome.code == 0
    assert "fedavg-s0: 8 rounds, after round 3" in outcome.out


def test_a_run_that_cannot_go_on_leaves_the_others_and_the_table(fedacg: Command) -> None:
    broken = "fedprox:mu=1e30"
    outcome = fedacg("bench", "main-large", "--methods", f"fedavg,{broken},fedacg", *ON)
    assert outcome.code == 1
    assert "fedprox-mu=1e+30-s0: diverged in round 1" in outcome.err
    assert "Traceback" not in outcome.err
    assert rounds_written(fedacg.folder / "out")["fedacg-s0"] == 8
    assert f"note: {broken}, seed 0: ended after 0 of 8 rounds" in outcome.out
    assert (fedacg.folder / "out/main-large-small/cifar10-large/bench.md").exists()
    again = fedacg("bench", "main-large", "--methods", f"fedavg,{broken},fedacg", *ON, "--resume", "--quiet")
    assert (again.code, again.err.count("diverged in round 1")) == (1, 1)


@pytest.mark.slow
def test_interrupted_twice_and_resumed_a_benchmark_gives_the_same_table(fedacg: Command) -> None:
    command = ["bench", "ablation-components", *ON, "--set", "rounds=30", "--quiet"]
    whole, stopped = fedacg.folder / "whole", fedacg.folder / "out"
    assert fedacg(*command, "--out", "whole").code == 0
    reached = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        run = start(fedacg.folder, *command, "--resume")
        while sum(rounds_written(stopped).values()) <= reached + 12 and run.poll() is None:
            time.sleep(0.005)
        run.send_signal(number)
        said, _ = run.communicate(timeout=60)
        assert run.returncode == code, said
        assert ("the same command with --resume" in said) == (code == 130)
        reached = sum(rounds_written(stopped).values())
        assert 0 < reached < 6 * 30
        assert not (stopped / "ablation-components-small").exists()
    assert fedacg(*command, "--resume").code == 0
    assert tables(stopped) == tables(whole)
    assert rounds_written(stopped) == rounds_written(whole)
