"""A federation of nodes and the simulation of it end in the same vectors, to the bit, with every method."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import fedacg
from fedacg.errors import InputError
from fedacg.methods import METHODS, build
from fedacg.runs.contents import load_moment
from support.federation_processes import QUIET
from support.flower_grid import OWN, Trial, write_clients

EXACT = ("cohort", "answered", "examples", "train_loss", "bytes_down", "bytes_up", "test_accuracy", "test_loss")
"""What the lines of both metrics.jsonl must have in common; drift and seconds follow or may differ."""


def assert_same(trial: Trial) -> None:
    simulated = trial.folder / "simulated"
    there, here = load_moment(trial.out).vectors, load_moment(simulated).vectors
    assert there.keys() == here.keys()
    assert [name for name in here if not there[name].equal(here[name])] == []


FIRST = [name for name in METHODS if build(name).rule.first_exchange]


@pytest.mark.parametrize("method", FIRST)
def test_a_method_with_a_first_exchange_is_refused_with_the_reason(method: str, tmp_path: Path) -> None:
    trial = Trial(tmp_path, f"method.name={method}", "cohort.size=2")
    with pytest.raises(InputError, match="first exchange full gradients"):
        trial.federate(trial.grid())


@pytest.mark.parametrize("method", [*sorted(set(METHODS) - set(FIRST)), "fedacg+paq", "feddc+paq", "fedmlb+acg"])
def test_nodes_and_a_simulation_agree_to_the_bit(method: str, tmp_path: Path) -> None:
    size = 3 if "full participation" in build(method).needs else 2
    trial = Trial(tmp_path, f"method.name={method}", f"cohort.size={size}")
    result = trial.simulate()
    trial.federate(trial.grid())
    assert trial.digest == result.summary["vector_sha256"]
    assert_same(trial)
    for line, metrics in zip(trial.rounds, result.history, strict=True):
        assert line == {**line, **{key: _plain(getattr(metrics, key)) for key in EXACT}}


def test_nodes_with_folders_of_their_own_agree_with_a_simulation_of_the_folders(tmp_path: Path) -> None:
    write_clients(tmp_path / "data", {"a": 12, "b": 7, "c": 20})
    (tmp_path / "simulated").mkdir()
    result = Trial(tmp_path, f"data.path={tmp_path / 'data'}", text=OWN).simulate()
    trial = Trial(tmp_path, text=OWN)
    grid = trial.grid([])
    for number, name in enumerate(["c", "a", "b"]):  # the order in which they come does not count
        grid.nodes[number + 1] = trial.node(data=str(tmp_path / "data" / name))
    trial.federate(grid, nodes=3)
    assert trial.digest == result.summary["vector_sha256"]
    assert_same(trial)
    # The nodes test on their own test examples, which together are those of the simulation.
    assert [line["test_accuracy"] for line in trial.rounds] == result.history.accuracy


def test_the_bits_do_not_depend_on_the_ids_of_nodes_or_the_order_they_come_in(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    digest = trial.simulate().summary["vector_sha256"]
    grid = trial.grid([2, 0, 1])
    grid.nodes = dict(enumerate(grid.nodes.values(), start=5))
    trial.federate(grid)
    assert trial.digest == digest


@pytest.mark.slow
def test_flowers_own_simulation_agrees_too(tmp_path: Path) -> None:
    """In a process of its own: Ray leaves threads, sockets and warnings behind."""
    pytest.importorskip("ray")
    trial = Trial(tmp_path, "method.name=feddyn", "rounds=2")
    digest = trial.simulate().summary["vector_sha256"]
    program = (
        "from pathlib import Path\n"
        "from flwr.simulation import run_simulation\n"
        "from fedacg.flower import client_app, server_app\n"
        "path = Path('experiment.toml')\n"
        "resources = {'client_resources': {'num_cpus': 1, 'num_gpus': 0.0}, 'init_args': {'num_cpus': 1}}\n"
        "run_simulation(server_app.make(path), client_app.make(path.resolve()), 3, backend_config=resources)\n"
    )
    source = str(Path(fedacg.__file__).parents[1])
    home = {"HOME": str(tmp_path), "FLWR_HOME": str(tmp_path / "flwr"), "PYTHONPATH": source}
    with TemporaryDirectory(prefix="ray") as short:  # the names of Ray's sockets must be short
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, **QUIET, **home, "RAY_TMPDIR": short},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    trial.out = tmp_path / "runs" / "tiny-feddyn-s3"
    assert trial.digest == digest


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
