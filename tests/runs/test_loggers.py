"""Weights & Biases and MLflow: what they are told, by stand-ins, and by the libraries themselves where installed.

TensorBoard is tried with whole runs in test_cli.py.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedacg.errors import InputError
from fedacg.runs import loggers
from fedacg.runs.build import prepare
from fedacg.runs.callbacks import Callback
from fedacg.runs.history import History
from fedacg.runs.runner import play
from support.runs import StopAfter, tiny


def run(tmp_path: Path, logger: str, resume: bool = False, stop: int = 0) -> History:
    """Four rounds of a small run with an evaluation in the second and the fourth, or as many as it is left."""
    tmp_path.mkdir(exist_ok=True)
    experiment = tiny(tmp_path, "rounds=4", "evaluate.every=2")
    folder = tmp_path / "run"
    callbacks: list[Callback] = [*loggers.make_loggers([logger], folder), *([StopAfter(stop)] if stop else [])]
    try:
        result = play(experiment, prepare(experiment), folder=folder, resume=resume, callbacks=callbacks)
    except KeyboardInterrupt:
        return History()
    return result.history


def expected(history: History) -> list[dict[str, float]]:
    """The figures of each round, with the names that all loggers have."""
    averages = dict(zip((m.round for m in history.evaluated), history.moving_average(), strict=True))
    rounds = []
    for m in history:
        figures: dict[str, Any] = {
            "train/lr": m.lr,
            "train/loss": m.train_loss,
            "bytes/down": m.bytes_down,
            "bytes/up": m.bytes_up,
            "seconds/train": m.seconds_train,
            "seconds/aggregate": m.seconds_aggregate,
            "seconds/evaluate": m.seconds_evaluate,
        }
        if m.round in averages:
            figures |= {"test/accuracy": m.test_accuracy, "test/loss": m.test_loss}
            figures["test/moving_average"] = averages[m.round]
        rounds.append(figures)
    return rounds


# Weights & Biases


class FakeWandb(ModuleType):
    """Keeps what it is told, run by run."""

    Error = type("Error", (Exception,), {})

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[SimpleNamespace] = []
        self.fails = ""

    Settings = staticmethod(dict)

    def init(self, **given: Any) -> SimpleNamespace:
        if self.fails:
            raise self.Error(self.fails)
        logged: list[dict[str, Any]] = []
        told = SimpleNamespace(given=given, logged=logged, metrics=[], finished=0)
        told.log = logged.append
        told.define_metric = lambda name, step_metric: told.metrics.append((name, step_metric))
        told.finish = lambda: setattr(told, "finished", told.finished + 1)
        self.runs.append(told)
        return told


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_is_told_every_round_under_its_number(tmp_path: Path, fake_wandb: FakeWandb) -> None:
    history = run(tmp_path, "wandb")
    (told,) = fake_wandb.runs
    assert told.logged == [{"round": n, **each} for n, each in enumerate(expected(history), start=1)]
    assert told.metrics == [("*", "round")]
    assert told.finished == 1
    given = told.given
    assert (given["project"], given["name"], given["dir"]) == ("tiny", "run", str(tmp_path / "run"))
    assert given["config"]["local"]["batch"] == 10
    assert given["config"]["rounds"] == 4


def test_a_resumed_run_goes_on_in_the_same_run_of_wandb_and_a_new_one_does_not(
    tmp_path: Path, fake_wandb: FakeWandb
) -> None:
    run(tmp_path, "wandb", stop=2)
    run(tmp_path, "wandb", resume=True)
    run(tmp_path / "other", "wandb")
    first, second, third = fake_wandb.runs
    assert first.given["id"] == second.given["id"] != third.given["id"]
    assert second.given["resume"] == "allow"
    assert [each["round"] for each in first.logged] == [1, 2]
    assert [each["round"] for each in second.logged] == [3, 4]
    assert first.finished == 1


def test_what_wandb_refuses_is_said_with_the_way_out(tmp_path: Path, fake_wandb: FakeWandb) -> None:
    fake_wandb.fails = "No API key configured."
    with pytest.raises(InputError, match="--log wandb: No API key configured; WANDB_MODE=offline keeps it"):
        run(tmp_path, "wandb")


@pytest.mark.slow
def test_wandb_offline_keeps_the_figures_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="no Weights & Biases: pip install 'fedacg[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    history = run(tmp_path, "wandb")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for figures in expected(history):
        for name in ("train/loss", "test/accuracy"):
            assert name not in figures or repr(figures[name]).encode() in content


# MLflow


class FakeClient:
    """Keeps what it is told in a dictionary that stands for the database."""

    database: dict[str, Any]

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if name in self.database["experiments"] else None

    def create_experiment(self, name: str) -> str:
        self.database["experiments"].append(name)
        return name

    def create_run(self, experiment_id: str, run_name: str) -> SimpleNamespace:
        run_id = f"run {len(self.database['runs'])}"
        self.database["runs"][run_id] = {
            "experiment": experiment_id,
            "name": run_name,
            "params": {},
            "metrics": [],
            "status": "RUNNING",
        }
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run: str, metrics: list[Any] = [], params: list[Any] = []) -> None:  # noqa: B006
        assert len(metrics) <= 1000
        self.database["calls"] += 1
        self.database["runs"][run]["params"].update(dict(params))
        self.database["runs"][run]["metrics"] += metrics

    def update_run(self, run: str, status: str) -> None:
        if run not in self.database["runs"]:
            raise MlflowError(f"no {run}")
        self.database["runs"][run]["status"] = status

    set_terminated = update_run


class MlflowError(Exception):
    pass


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {"experiments": [], "runs": {}, "calls": 0}
    fake = ModuleType("mlflow")
    fake.MlflowClient = type("MlflowClient", (FakeClient,), {"database": found})  # type: ignore[attr-defined]
    fake.entities = SimpleNamespace(Metric=_record, Param=_record)  # type: ignore[attr-defined]
    fake.exceptions = SimpleNamespace(MlflowException=MlflowError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return found


def _record(*values: Any) -> tuple[Any, ...]:
    return values


def by_round(metrics: list[Any]) -> list[dict[str, float]]:
    rounds: dict[int, dict[str, float]] = {}
    for name, value, _, step in metrics:
        rounds.setdefault(step, {})[name] = value
    return [rounds[step] for step in sorted(rounds)]


def test_mlflow_is_told_every_round_and_the_settings(tmp_path: Path, database: dict[str, Any]) -> None:
    history = run(tmp_path, "mlflow")
    (found,) = database["runs"].values()
    assert by_round(found["metrics"]) == expected(history)
    assert (found["experiment"], found["name"], found["status"]) == ("tiny", "run", "FINISHED")
    assert found["params"]["local.batch"] == "10"
    assert found["params"]["model.hidden"] == "[16]"


def test_a_resumed_run_goes_on_in_the_same_run_of_mlflow(tmp_path: Path, database: dict[str, Any]) -> None:
    run(tmp_path, "mlflow", stop=2)
    (found,) = database["runs"].values()
    assert (found["status"], len(by_round(found["metrics"]))) == ("KILLED", 2)
    history = run(tmp_path, "mlflow", resume=True)
    assert by_round(found["metrics"]) == expected(history)
    assert (found["status"], len(database["runs"]), database["experiments"]) == ("FINISHED", 1, ["tiny"])


def test_a_run_that_mlflow_has_lost_begins_anew(tmp_path: Path, database: dict[str, Any]) -> None:
    run(tmp_path, "mlflow", stop=2)
    database["runs"].clear()
    run(tmp_path, "mlflow", resume=True)
    (found,) = database["runs"].values()
    assert {step for _, _, _, step in found["metrics"]} == {3, 4}


def test_mlflow_is_told_in_few_requests(
    tmp_path: Path, database: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, "mlflow")
    assert database["calls"] == 2
    monkeypatch.setattr(loggers, "PATIENCE", 0.0)
    monkeypatch.setattr(loggers, "_MOST", 4)
    history = run(tmp_path / "other", "mlflow")
    _, second = database["runs"].values()
    assert by_round(second["metrics"]) == expected(history)
    # The settings, then 7 figures in a round and 10 in one with an evaluation.
    assert database["calls"] == 2 + 1 + 2 + 3 + 2 + 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_keeps_the_figures_in_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no MLflow: pip install 'fedacg[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/figures.db")
    history = run(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    found = client.get_run((tmp_path / "run" / "mlflow-run").read_text().strip())
    assert found.info.status == "FINISHED"
    kept = client.get_metric_history(found.info.run_id, "train/loss")
    assert {each.step: each.value for each in kept} == {m.round: m.train_loss for m in history}


# All of them


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tool_that_is_not_installed_is_told_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"--log {name}: needs pip install 'fedacg\[{name}\]'"):
        loggers.make_loggers([name], tmp_path)
