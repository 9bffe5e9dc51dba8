"""`fedacg.compare`, `fedacg.sweep`, `fedacg.load` and progress from Python: the same runs as the commands'."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import fedacg
from fedacg import Comparison, InputError
from fedacg.runs import progress
from support.command import Command


def pairs(sizes: tuple[int, ...] = (8, 5, 12, 9)) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(3)
    inputs = [torch.randn(n, 4, generator=source) for n in sizes]
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


OWN: dict[str, Any] = {
    "model": network(),
    "clients": {f"u{client}": pair for client, pair in enumerate(pairs())},
    "test": pairs((30,))[0],
    "rounds": 2,
    "participation": 0.5,
    "local_steps": 2,
    "batch_size": 12,
}
QUICK: dict[str, Any] = {"rounds": 2, "engine": "serial", "local": {"steps": 1}}


# Compare


def test_a_comparison_has_the_bits_of_single_runs_and_a_row_for_each_method() -> None:
    found = fedacg.compare(methods=["centralised", "fedavg", "fedacg:lam=0.5"], seeds=[0, 1], **OWN)
    assert list(found.results) == [
        *("centralised-s0", "fedavg-s0", "fedacg-s0-lam=0.5"),
        *("centralised-s1", "fedavg-s1", "fedacg-s1-lam=0.5"),
    ]
    alone = fedacg.run(method="fedacg", options={"lam": 0.5}, seed=1, **OWN)
    assert torch.equal(found["fedacg-s1-lam=0.5"].vector, alone.vector)
    assert [row.method for row in found.rows] == ["centralised", "fedavg", "fedacg"]
    assert [row.seeds for row in found.rows] == [(0, 1)] * 3
    assert "FedAvg" in str(found)
    assert found.folder is None


class Counts(fedacg.Callback):
    """Counts the rounds of all runs that it is told of, and of those that it was made for."""

    all = 0

    def __init__(self) -> None:
        self.own = 0

    def round(self, run: Any) -> None:
        self.own += 1
        Counts.all += 1
        assert self.own == run.done, "a class is made anew for every run"


def test_callbacks_are_told_of_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counts, "all", 0)
    found = fedacg.compare(methods=["fedavg", "fedacg"], callbacks=[Counts], **OWN)
    assert (Counts.all, [each.history.rounds for each in found.results.values()]) == (4, [2, 2])
    patient = fedacg.EarlyStopping("train_loss", patience=1, least=1e9)
    swept = fedacg.sweep(grid={"lr": [0.1, 0.2]}, callbacks=[Counts, patient], **{**OWN, "rounds": 5})
    assert [each.history.rounds for each in swept.results.values()] == [2, 2]
    assert Counts.all == 8
    for call in (lambda: fedacg.compare(methods=["fedavg"], callbacks=[3], **OWN),
                 lambda: fedacg.sweep(grid={"lr": [0.1]}, callbacks="no", **OWN)):  # fmt: skip
        with pytest.raises(InputError, match="callbacks"):
            call()


def test_a_comparison_writes_what_the_command_writes(fedacg: Command, tmp_path: Path) -> None:
    outcome = fedacg("compare", "quickstart", "--methods", "fedavg,local-only", "--out", "typed", "--quiet",
                     "--set", "rounds=2", "--set", "engine.name=serial", "--set", "local.steps=1")  # fmt: skip
    assert outcome.code == 0, outcome.err
    found = compare("quickstart", methods=["fedavg", "local-only"], out=tmp_path / "called", **QUICK)
    names = [sorted(path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())
             for top in (fedacg.folder / "typed", tmp_path / "called")]  # fmt: skip
    assert names[0] == names[1]
    for run in ("fedavg-s0", "local-only-s0"):
        typed, called = (
            json.loads((top / run / "summary.json").read_text())
            for top in (fedacg.folder / "typed", tmp_path / "called")
        )
        assert typed["vector_sha256"] == called["vector_sha256"]
        assert typed["accuracy"] == called["accuracy"]
    assert found.folder == tmp_path / "called"


def compare(*given: Any, **options: Any) -> Comparison:
    return fedacg.compare(*given, **options)


def test_a_comparison_goes_on_and_takes_finished_runs_as_they_are(tmp_path: Path) -> None:
    first = fedacg.compare(methods=["fedavg"], out=tmp_path, **OWN)
    stamp = (tmp_path / "fedavg-s0" / "summary.json").stat().st_mtime_ns
    with pytest.raises(InputError, match="holds a run"):
        fedacg.compare(methods=["fedavg"], out=tmp_path, **OWN)
    both = fedacg.compare(methods=["fedavg", "fedacg"], out=tmp_path, resume=True, **OWN)
    assert (tmp_path / "fedavg-s0" / "summary.json").stat().st_mtime_ns == stamp
    assert torch.equal(both["fedavg-s0"].vector, first["fedavg-s0"].vector)
    assert len(both.rows) == 2


def test_a_recipe_that_was_changed_can_be_compared_and_swept() -> None:
    experiment = fedacg.recipe("quickstart", **QUICK)
    found = fedacg.compare(experiment, methods=["fedavg", "fedprox"])
    assert torch.equal(
        found["fedavg-s0"].vector, fedacg.run(fedacg.recipe("quickstart", method="fedavg", **QUICK)).vector
    )
    swept = fedacg.sweep(experiment, grid={"method.lam": [0.5, 0.9]})
    assert list(swept.results) == ["lam=0.5-s0", "lam=0.9-s0"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "fedavg"}, "methods = 'fedavg': must be a list"),
        ({"methods": []}, "methods: is empty"),
        ({"methods": [3]}, "methods: 3 is a int; must be str"),
        ({"methods": ["fedavg", "fedavg"]}, "is given twice"),
        ({"methods": ["fedavgg"]}, "fedavgg"),
        ({"methods": ["fedavg"], "seeds": [True]}, "seeds: True is a bool"),
        ({"methods": ["fedavg"], "seeds": 3}, "seeds = 3: must be a list"),
        ({"methods": ["fedavg"], "method": "fedacg"}, "method: compare takes several"),
        ({"methods": ["fedavg"], "progress": 1}, "progress: is a int; must be True or False"),
        ({"methods": ["fedavg"], "cohort_size": 99}, "cohort_size = 99: there are only 4 clients"),
        ({"methods": ["fedavg", "fedlc"], "loss": nn.functional.mse_loss}, "leave loss out"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fedacg.compare(**{**OWN, **options})


# Sweep


def test_a_sweep_has_the_bits_of_single_runs(tmp_path: Path) -> None:
    grid = {"lr": [0.05, np.float64(0.1)], "weights": ["uniform", "examples"]}
    found = fedacg.sweep(grid=grid, out=tmp_path / "sweep", **OWN)
    assert len(found.results) == 4
    name = "local.lr=0.05-cohort.weights=uniform-s0"
    assert torch.equal(found[name].vector, fedacg.run(lr=0.05, weights="uniform", **OWN).vector)
    assert (tmp_path / "sweep" / "effect.png").exists()
    assert (tmp_path / "sweep" / "sweep.csv").read_text().startswith("local.lr,cohort.weights,")
    stamp = (tmp_path / "sweep" / "runs" / name / "summary.json").stat().st_mtime_ns
    again = fedacg.sweep(grid=grid, out=tmp_path / "sweep", **OWN)
    assert (tmp_path / "sweep" / "runs" / name / "summary.json").stat().st_mtime_ns == stamp
    assert torch.equal(again[name].vector, found[name].vector)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "needs at least one key"),
        ({"seed": [1, 2]}, "grid: give seeds with seeds="),
        ({"lr": 0.1}, r"grid\['lr'\] = 0.1: must be a list"),
        ({"lr": []}, r"grid\['lr'\]: is empty"),
        ({"lr": [0.1, -1.0]}, "local.lr = -1"),
        ({"local.lrr": [0.1]}, "unknown key 'local.lrr'"),
        ({"lr": [0.1, 0.10]}, "are the same experiment"),
    ],
)
def test_what_cannot_be_swept_is_refused(grid: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fedacg.sweep(grid=grid, **OWN)


# Load


def test_a_folder_is_loaded_as_the_result_that_was_returned(tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate": {"clients": "train"}, "name": "mine", "channels_last": True}
    result = fedacg.run(out=tmp_path / "run", **OWN, **options)
    found = fedacg.load(tmp_path / "run", model=network())
    assert torch.equal(found.vector, result.vector)
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor), name
    assert list(found.history) == list(result.history)
    assert found.clients == result.clients
    assert found.experiment == result.experiment
    assert (found.experiment.name, found.summary["name"]) == ("mine", "mine")
    assert {**found.summary, "checksum": 0} == {**json.loads(json.dumps(result.summary)), "checksum": 0}


def test_a_run_of_the_catalogue_is_loaded_without_its_model(tmp_path: Path) -> None:
    result = fedacg.run(fedacg.recipe("quickstart", **QUICK), out=tmp_path / "run")
    found = fedacg.load(tmp_path / "run")
    assert torch.equal(found.vector, result.vector)
    assert found.experiment == result.experiment


def test_a_run_that_was_stopped_is_loaded_up_to_its_checkpoint(tmp_path: Path) -> None:
    def stop(metrics: Any) -> None:
        if metrics.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedacg.run(out=tmp_path / "run", on_round=stop, **OWN)
    found = fedacg.load(tmp_path / "run", model=network())
    assert (found.history.rounds, found.summary["rounds"]) == (1, 1)


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        fedacg.load(tmp_path)
    fedacg.run(out=tmp_path / "run", **OWN)
    with pytest.raises(InputError, match="its model was given from Python; give it again, as model="):
        fedacg.load(tmp_path / "run")
    with pytest.raises(InputError, match="the given model has 5 parameters, the checkpoint has 29"):
        fedacg.load(tmp_path / "run", model=nn.Linear(4, 1))


# Progress


def test_progress_is_shown_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fedacg.run(**OWN)
    assert capsys.readouterr().out == ""
    fedacg.run(**OWN, progress=True)
    assert "round 2 of 2" in capsys.readouterr().out
    fedacg.compare(**OWN, methods=["fedavg", "fedacg"], progress=True)
    shown = capsys.readouterr().out
    assert shown.index("fedavg-s0: round 2 of 2") < shown.index("fedacg-s0: round 2 of 2")


@pytest.mark.parametrize(
    ("console", "widgets", "kind"),
    [
        ({"force_terminal": True}, False, progress.Block),
        ({"force_jupyter": True}, True, progress.Block),
        ({"force_jupyter": True}, False, progress.Lines),
        ({}, True, progress.Lines),
    ],
)
def test_bars_live_at_terminals_and_in_notebooks(
    console: dict[str, Any], widgets: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if widgets else None)
    found = progress.make_progress(Console(file=io.StringIO(), **console), False, {"one": 2})
    assert type(found) is kind
