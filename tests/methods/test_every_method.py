"""Every method and combination as users run them: from the shell, from a file and from Python, on any engine."""

import json
import os
import signal
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedacg as package
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, with_method
from fedacg.data.examples import Examples, FederatedData
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.methods import METHODS, build
from fedacg.runs.build import load_data, prepare
from fedacg.runs.callbacks import Callback, RunView
from fedacg.runs.runner import Result, play
from support.command import Command
from support.runs import StopAfter

COMBINATIONS = [
    "fedmlb+acg",
    "fedlc+acg",
    "feddecorr+acg",
    "moon+acg",
    "fedntd+acg+prox",
    "fedacg+paq",
    "feddyn+paq",
    "feddc+paq",
]
MORE = [
    "scaffold+acg",
    "scaffold+paq",
    "scaffold+topk",
    "mime+acg+paq",
    "fednova+acg",
    "fedavg+acg+ri+swa",
    "fedmoswa+asam",
]
ABLATION = [
    "fedavg",
    "fedprox:mu=0.01",
    "fedavgm:beta=0.85",
    "fedavgm+prox:beta=0.85:mu=0.01",
    "fedavg+acg",
    "fedacg:beta=0.01",
]
"""The parts of FedACG one by one: the pull, momentum, both, the lookahead, all of it."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def digits() -> FederatedData:
    return load_data(Experiment.parse(find("quickstart")))


def quickstart(method: str, *settings: str) -> Experiment:
    return Experiment.parse(override(with_method(find("quickstart"), method), settings))


def played(experiment: Experiment, data: FederatedData, engine: ProcessEngine | SerialEngine) -> Result:
    return play(experiment, prepare(experiment, data), engine=engine)


def cohorts(method: str) -> list[list[int]]:
    """Cohorts whose clients come back; everybody where a method needs that."""
    return [list(range(50))] * 3 if "full participation" in build(method).needs else RETURNING


RETURNING = [[4, 0, 1, 7], [7, 2, 1], [0, 7, 4, 3]]
"""Cohorts whose clients come back, so that what they keep is used."""


@pytest.mark.parametrize("method", sorted({*METHODS, *COMBINATIONS, *MORE}))
def test_a_method_gives_the_same_bits_serially_and_with_two_workers(
    method: str, pool: ProcessEngine, digits: FederatedData
) -> None:
    experiment = quickstart(method, "rounds=3", "local.epochs=1")
    one, two = (
        play(experiment, prepare(experiment, digits), engine=engine, cohorts=cohorts(method))
        for engine in (SerialEngine(), pool)
    )
    assert one.summary["vector_sha256"] == two.summary["vector_sha256"]
    assert [m.train_loss for m in one.history] == [m.train_loss for m in two.history]
    assert (one.summary["bytes_down"], one.summary["bytes_up"]) == (
        two.summary["bytes_down"],
        two.summary["bytes_up"],
    )


@pytest.mark.parametrize("method", sorted({*METHODS, *COMBINATIONS, *MORE}))
def test_a_run_with_dropped_and_slow_clients_resumes_to_the_bit(method: str, tmp_path: Path) -> None:
    failures = ["failures.straggle=0.4", "failures.drop=0.3", "cohort.size=4"]
    if "full participation" in build(method).needs:
        failures = ["failures.straggle=0.4", "cohort.size=8"]
    few = ("rounds=4", "local.steps=3", "data.clients=8", "data.alpha=1.0", "save.seconds=0", *failures)
    experiment = quickstart(method, *few)
    ingredients, folder = prepare(experiment), tmp_path / "run"
    whole = play(experiment, ingredients, engine=SerialEngine())
    with pytest.raises(KeyboardInterrupt):
        play(experiment, ingredients, engine=SerialEngine(), folder=folder, callbacks=[StopAfter(2)])
    resumed = play(experiment, ingredients, engine=SerialEngine(), folder=folder, resume=True)
    assert resumed.summary["vector_sha256"] == whole.summary["vector_sha256"]
    assert bool(resumed.vector.isfinite().all())


TEN_CLIENTS = ("rounds=4", "data.clients=10", "data.alpha=1.0", "cohort.size=5", "local.epochs=2")


@pytest.mark.parametrize("method", COMBINATIONS)
def test_a_combination_learns_and_is_the_same_from_the_shell_a_file_and_python(
    method: str, fedacg: Command
) -> None:
    settings = [word for setting in (*TEN_CLIENTS, "engine.name=serial") for word in ("--set", setting)]
    assert fedacg("run", "quickstart", "--method", method, *settings, "--out", "shell", "--quiet").code == 0

    experiment = quickstart(method, *TEN_CLIENTS, "engine.name=serial")
    (fedacg.folder / "described.toml").write_text(experiment.to_toml())
    assert fedacg("run", "described.toml", "--out", "file", "--quiet").code == 0

    shell, file = (
        json.loads((fedacg.folder / folder / "summary.json").read_text()) for folder in ("shell", "file")
    )
    python = from_python(experiment)
    assert shell["vector_sha256"] == file["vector_sha256"] == python.summary["vector_sha256"]
    assert shell["accuracy"] == python.summary["accuracy"]
    assert shell["accuracy"] > 0.5, "chance is one in ten"


def from_python(experiment: Experiment) -> Result:
    """The same run as a program of a user's own would have it: a network, and tensors for every client."""
    ingredients = prepare(experiment)
    data = ingredients.data

    def tensors(examples: Examples) -> tuple[Tensor, Tensor]:
        x, y = examples.fetch(torch.arange(len(examples)))
        return data.pipeline(x), y

    return package.run(
        model=ingredients.module,
        clients=[tensors(data.clients[i]) for i in range(len(data.clients))],
        test=tensors(data.test),
        method=experiment.method.name,
        options=experiment.method.options,
        rounds=experiment.rounds,
        cohort_size=experiment.cohort.size,
        local_epochs=experiment.local.epochs,
        batch_size=experiment.local.batch,
        lr=experiment.local.lr,
        seed=experiment.seed,
    )


def test_the_papers_ablation_is_six_names(pool: ProcessEngine, digits: FederatedData) -> None:
    results = [played(quickstart(name, "rounds=4", "local.epochs=2"), digits, pool) for name in ABLATION]
    for one, other in combinations(results, 2):
        assert not torch.allclose(one.vector, other.vector, rtol=1e-3, atol=1e-6)
    assert all(bool(result.vector.isfinite().all()) for result in results)


def test_fedacg_is_the_sum_of_its_parts_to_the_bit(pool: ProcessEngine, digits: FederatedData) -> None:
    names = ("fedacg:lam=0.8:beta=0.05", "fedavg+acg+prox:lam=0.8:mu=0.05", "fedprox+acg:lam=0.8:mu=0.05")
    results = [played(quickstart(name, "rounds=4", "local.epochs=2"), digits, pool) for name in names]
    assert len({result.summary["vector_sha256"] for result in results}) == 1


class Killer(Callback):
    """Ends all workers of an engine after the first round."""

    def __init__(self, engine: ProcessEngine) -> None:
        self._engine = engine

    def round(self, run: RunView) -> None:
        if run.done == 1:
            for pid in self._engine.pids:
                os.kill(pid, signal.SIGKILL)


def test_what_moon_keeps_follows_a_client_from_worker_to_worker(
    pool: ProcessEngine, digits: FederatedData
) -> None:
    experiment = quickstart("moon:mu=5", "rounds=3", "local.epochs=1")
    before = set(pool.pids)
    serial, mortal = (
        play(experiment, prepare(experiment, digits), engine=engine, cohorts=RETURNING, callbacks=callbacks)
        for engine, callbacks in ((SerialEngine(), []), (pool, [Killer(pool)]))
    )
    assert before.isdisjoint(pool.pids), "the workers of the first round served no other"
    assert torch.equal(mortal.vector, serial.vector)
    assert [m.train_loss for m in mortal.history] == [m.train_loss for m in serial.history]
