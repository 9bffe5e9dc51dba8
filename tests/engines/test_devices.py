"""Devices: what is computed on an accelerator, tested on one that is pretended; mixed precision on the CPU.

No accelerator is available, so what is special to CUDA and MPS (their kernels, their memory, their speed) is not
tested.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedacg import Result, methods, run
from fedacg.core import tensors
from fedacg.data.device_copy import settle
from fedacg.data.examples import (
    FederatedData,
    ListedClients,
    OwnedClients,
    SpanExamples,
    SplitClients,
    TensorExamples,
    ViewExamples,
)
from fedacg.data.pipelines import PlainPipeline
from fedacg.engines.orders import Prepare
from fedacg.engines.process_pool import Pool
from fedacg.errors import InputError
from support.command import Command
from support.runs import digest

SCRIPT = Path(__file__).parents[1] / "support" / "pretended_device.py"
GPU = SCRIPT.with_name("pretended_gpu.py")


@pytest.fixture(scope="module")
def pretended() -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_on_another_device_every_method_gives_the_same_bits_and_never_mixes_the_two(
    pretended: list[dict[str, Any]],
) -> None:
    refused, *runs = pretended
    assert refused == {
        "refused": ["aten::add was given tensors on two devices", "aten::rand was given a generator of the CPU"]
    }
    exact = [run for run in runs if run["run"] != "channels last"]
    assert {run["run"] for run in exact} >= {*methods.METHODS, "fedacg+paq", "buffers and dropout", "fuse on"}
    assert [run["run"] for run in exact if run["here"] != run["there"]] == []
    assert all(run["operations"] > 500 for run in runs), "the work was done there"


@pytest.mark.slow
def test_the_steps_of_a_client_never_wait_for_the_device(pretended: list[dict[str, Any]]) -> None:
    """However many there are: FedRCL alone must know how many examples of a batch have a term of its loss."""
    runs = [run for run in pretended if "run" in run]
    assert len(runs) > 2 * len(methods.METHODS)
    assert {run["run"] for run in runs if run["waits in steps"]} == {"fedrcl"}


@pytest.mark.slow
def test_examples_stay_on_the_device_as_far_as_they_fit(pretended: list[dict[str, Any]]) -> None:
    """Two more steps of two clients in two rounds take 40 more images of 192 bytes."""
    moved = {run["resident"]: run["moved in steps"] for run in pretended if run.get("run") == "fedavg"}
    assert "torch.uint8" not in moved[True]
    assert moved[False]["torch.uint8"] == 40 * 192


@pytest.mark.slow
def test_the_script_for_gpus_prints_its_whole_table_with_several_workers_on_a_device(tmp_path: Path) -> None:
    command = [sys.executable, GPU, tmp_path, "--device", "mps", "--rounds", "1", "logistic"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(GPU.parents[1])}
    )
    assert done.returncode == 0, done.stderr
    title, _, header, _, *rows = done.stdout.splitlines()
    assert title.startswith("mps, fedacg ")
    assert header.startswith("| workload | where | workers |")
    cells = [row.strip("| ").split(" | ") for row in rows]
    places = [("cpu", str(os.cpu_count())), ("mps", "1"), ("mps", "2"), ("mps", "4")]
    assert [(row[0], row[1], row[2]) for row in cells] == [("logistic", *place) for place in places]
    assert all(float(cell.replace(",", "")) > 0 for row in cells for cell in row[3:])


@pytest.mark.slow
def test_the_script_for_gpus_says_so_where_there_is_none() -> None:
    script = GPU.parents[2] / "benchmarks" / "gpu.py"
    there = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=there)
    assert done.returncode == 2
    assert "finds no cuda device on this machine" in done.stdout


@pytest.mark.slow
def test_with_convolutions_channels_last_another_device_rounds_differently(
    pretended: list[dict[str, Any]],
) -> None:
    """PyTorch chooses the kernels of such convolutions by the kind of tensor."""
    played = [run for run in pretended if run.get("run") == "channels last"]
    assert len(played) == 2
    for found in played:
        assert found["there"][1] == pytest.approx(found["here"][1], rel=1e-5)


@pytest.mark.slow
def test_generators_of_the_device_are_seeded_for_every_client(pretended: list[dict[str, Any]]) -> None:
    seeds = {run["seeds"] for run in pretended if run.get("run") == "buffers and dropout"}
    assert seeds == {4}, "two rounds of two clients"


def test_a_device_that_is_not_there_is_refused(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    done = fedacg("run", "tiny.toml", "--set", "engine.device=cuda", "--out", "run")
    assert done.code == 2
    assert "engine.device = 'cuda': torch" in done.err
    assert "finds no such device on this machine; 'cpu' always works" in " ".join(done.err.split())
    assert not Path("run", "experiment.toml").exists(), "a run was begun that could not be"
    done = fedacg("run", "tiny.toml", "--set", "engine.device=tpu")
    assert done.code == 2
    assert "engine.device = 'tpu'" in done.err
    assert "'cpu', 'cuda' or 'mps'" in done.err


def test_workers_take_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [str(tensors.device_of_worker("cuda", number)) for number in range(4)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:0",
    ]
    assert str(tensors.device_of_worker("cpu", 5)) == "cpu"


def test_a_worker_that_takes_over_has_the_number_of_the_dead_one() -> None:
    pool = Pool(2)
    try:
        pool.muster()
        before = pool.pids
        pool._workers[1].orders.append(Prepare(0))
        pool.abandon()
        pool.muster()
        assert [worker.number for worker in pool._workers] == [0, 1]
        assert pool.pids[0] == before[0]
        assert pool.pids[1] != before[1]
    finally:
        pool.close()


def federated(clients: Any, test: Any) -> FederatedData:
    return FederatedData("test", clients, test, PlainPipeline(), 2, (3,))


def examples(count: int = 6) -> TensorExamples:
    return TensorExamples(torch.zeros(count, 3), torch.zeros(count, dtype=torch.int64))


AWAY = torch.device("meta")


def give_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr("fedacg.data.device_copy.spare", lambda device: room)


def test_examples_move_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    base = examples()
    give_room(monkeypatch, base.x.nbytes + base.y.nbytes)
    order, offsets = torch.arange(6), torch.tensor([0, 2, 6])
    data = settle(federated(SplitClients(base, order, offsets), ViewExamples(base, order)), AWAY)
    client = data.clients[1]
    assert isinstance(client, ViewExamples)
    assert isinstance(data.test, ViewExamples)
    assert client.base is data.test.base, "there was room for one copy"
    x, y = client.fetch(torch.tensor([0, 3]))
    assert (x.device, y.device) == (AWAY, AWAY)
    assert client.index.device.type == "cpu"
    assert base.x.device.type == "cpu", "the examples themselves stay where they are"


def test_clients_of_every_kind_move(monkeypatch: pytest.MonkeyPatch) -> None:
    give_room(monkeypatch, 10**6)
    owned = OwnedClients(examples(), torch.tensor([0, 2, 6]), torch.tensor([1]))
    listed = ListedClients([SpanExamples(examples(), 0, 3), examples()])
    for clients in (owned, listed):
        data = settle(federated(clients, examples()), AWAY)
        assert all(
            data.clients[number].fetch(torch.tensor([0]))[0].device == AWAY for number in range(len(clients))
        )
        assert [data.clients.size(number) for number in range(len(clients))] == [
            clients.size(number) for number in range(len(clients))
        ]


class Own:
    """A user's own examples."""

    def __len__(self) -> int:
        return 2

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(index), 3), torch.zeros(len(index), dtype=torch.int64)


def test_what_does_not_fit_or_cannot_move_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    base, own = examples(), Own()
    give_room(monkeypatch, base.x.nbytes + base.y.nbytes - 1)
    data = settle(federated(ListedClients([base, own]), examples(1)), AWAY)
    assert data.clients[0] is base
    assert data.clients[1] is own
    assert data.test.fetch(torch.tensor([0]))[0].device == AWAY, "what is smaller still fits"


def test_a_model_is_handed_over_on_the_cpu() -> None:
    with pytest.raises(InputError, match="model: its parameters are not on the CPU"):
        run(model=nn.Linear(3, 2, device="meta"), clients=points(), test=points()[0])


class Watching(nn.Module):
    """A linear network that tells which type it computed in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x)
        self.seen.append(output.dtype)
        return output

    def __deepcopy__(self, memo: Any) -> "Watching":
        other = Watching()
        other.load_state_dict(self.state_dict())
        other.seen = self.seen
        return other


def points() -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(4, 12, 3, generator=source)
    return [(part, (part[:, 0] > 0).long()) for part in x]


def trained(precision: str, **settings: Any) -> tuple[Result, list[torch.dtype]]:
    model = Watching()
    result = run(
        model=model,
        clients=points(),
        test=points()[0],
        method="fedacg",
        rounds=3,
        participation=1.0,
        local_epochs=2,
        batch_size=4,
        precision=precision,
        **settings,
    )
    return result, model.seen


def test_mixed_precision_trains_in_bfloat16_and_keeps_its_vectors() -> None:
    (full, before), (mixed, seen) = trained("full"), trained("mixed")
    assert set(before) == {torch.float32}
    assert set(seen) == {torch.bfloat16, torch.float32}, "training in one, evaluation in the other"
    assert mixed.vector.dtype == torch.float32
    assert not torch.equal(mixed.vector, full.vector)
    assert torch.allclose(mixed.vector, full.vector, atol=0.02)


def test_mixed_precision_is_the_same_for_one_client_and_many_at_once() -> None:
    alone, together = trained("mixed", fuse="off")[0], trained("mixed", fuse="on")[0]
    assert torch.allclose(alone.vector, together.vector, atol=0.01)
    full = trained("full", fuse="on")[0]
    assert not torch.equal(together.vector, full.vector)


def test_mixed_precision_gives_the_same_bits_in_worker_processes() -> None:
    assert digest(trained("mixed")[0]) == digest(trained("mixed", workers=2)[0])


def test_a_precision_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"precision = 'half'.*'full' or 'mixed'"):
        trained("half")
