"""Engines: the same bits whatever does the work, dead workers replaced, errors brought home."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import engines, methods, models
from fedacg.config.sections import EngineSettings, LocalSettings
from fedacg.core.vector import FlatModel, clone, sha256
from fedacg.data.own_data import from_pairs
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.shared_memory import freeze, thaw
from fedacg.errors import RunError
from fedacg.simulation.engine import Job
from support.tasks import task


def problem(sizes: tuple[int, ...] = (9, 4, 17, 6, 30, 2)) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 3, 16, 16, generator=source), torch.randint(4, (n,), generator=source)) for n in sizes]


def network(dropout: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.5 if dropout else 0.0),
            nn.Flatten(),
            nn.Linear(6 * 14 * 14, 4),
        )


def job(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> Job:
    clients = problem()
    method = methods.build("fedavg")
    return Job(
        module=module,
        channels_last=False,
        data=from_pairs(clients, clients[4]),
        method=method.with_loss(loss) if loss else method,
        local=LocalSettings(epochs=1, batch=4),
        seed=0,
        evaluate_batch=7,
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(2)
    yield engine
    engine.close()


def broadcast(module: nn.Module) -> dict[str, Tensor]:
    flat = FlatModel(clone(module))
    return {"phi": flat.w, "buffers": flat.read_buffers()}


def nothing(client: int) -> dict[str, Tensor]:
    return {}


TASKS = [task(1, client, cost) for client, cost in enumerate((3, 1, 5, 2, 8, 1))]


@pytest.mark.parametrize("channels_last", [False, True])
def test_serial_and_any_number_of_processes_give_the_same_bits(channels_last: bool) -> None:
    clients = problem()
    results = [
        fedacg.run(
            model=network(dropout=True),
            clients=clients,
            test=clients[4],
            rounds=3,
            participation=0.8,
            local_epochs=2,
            batch_size=4,
            channels_last=channels_last,
            workers=workers,
        )
        for workers in ((0, 1, 2) if channels_last else (0, 2))
    ]
    assert len({sha256(result.vector) for result in results}) == 1
    buffers = [torch.cat([b.double().reshape(-1) for b in result.model.buffers()]) for result in results]
    assert all(torch.equal(buffers[0], other) for other in buffers)
    losses = [[(m.test_loss, m.test_accuracy, m.train_loss) for m in result.history] for result in results]
    assert all(other == losses[0] for other in losses)


def test_answers_come_in_the_order_of_the_cohort(pool: ProcessEngine) -> None:
    module = network()
    pool.setup(job(module))
    answers = [
        (a.client, a.examples) for a in chain.from_iterable(pool.train(broadcast(module), TASKS, nothing).answers)
    ]
    assert answers == [(i, len(y)) for i, (_, y) in enumerate(problem())]


def test_few_slots_are_enough_for_a_large_cohort(pool: ProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedacg.engines.supervisor._REPLY_MEMORY", 0)
    module = network()
    pool.setup(job(module))
    tasks = [task(round, one.client, one.steps) for round in range(1, 9) for one in TASKS]
    few = [
        a.upload["delta"].clone()
        for a in chain.from_iterable(pool.train(broadcast(module), tasks, nothing).answers)
    ]
    serial = engines.start(EngineSettings(name="serial"))
    serial.setup(job(module))
    with engines.one_thread():
        one = [
            a.upload["delta"].clone()
            for a in chain.from_iterable(serial.train(broadcast(module), tasks, nothing).answers)
        ]
    assert all(torch.equal(a, b) for a, b in zip(few, one, strict=True))


def test_a_killed_worker_is_replaced_and_its_task_done_again(pool: ProcessEngine) -> None:
    module = network()
    pool.setup(job(module))
    expected = [
        a.upload["delta"].clone()
        for a in chain.from_iterable(pool.train(broadcast(module), TASKS, nothing).answers)
    ]
    before = pool.pids
    answers = chain.from_iterable(pool.train(broadcast(module), TASKS, nothing).answers)
    found = [next(answers).upload["delta"].clone()]
    os.kill(pool.pids[0], signal.SIGKILL)
    os.kill(pool.pids[1], signal.SIGKILL)
    found += [a.upload["delta"].clone() for a in answers]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    evaluation = pool.evaluate({"theta": broadcast(module)["phi"], "buffers": broadcast(module)["buffers"]})
    assert evaluation.examples == 30
    assert set(before).isdisjoint(pool.pids)


def test_a_task_that_kills_its_workers_ends_the_run_and_is_named(pool: ProcessEngine) -> None:
    here = os.getpid()  # where a step is rehearsed

    def deadly(outputs: Tensor, y: Tensor) -> Tensor:
        if len(y) == 2 and os.getpid() != here:  # only client 5 has a batch of two
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(outputs, y)

    module = network()
    pool.setup(job(module, deadly))
    two = [one for one in TASKS if one.client in (2, 5)]
    with pytest.raises(RunError, match=r"training client 5 in round 1 ended its worker 3 times \(SIGKILL"):
        list(pool.train(broadcast(module), two, nothing).answers)
    pool.setup(job(module))
    assert len(list(pool.train(broadcast(module), TASKS, nothing).answers)) == 6, "the pool can be used again"


def test_an_exception_in_a_worker_is_raised_here_with_its_traceback(pool: ProcessEngine) -> None:
    here = os.getpid()  # where a step is rehearsed

    def broken(outputs: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != here:
            raise ZeroDivisionError("the user's own mistake")
        return nn.functional.cross_entropy(outputs, y)

    pool.setup(job(network(), broken))
    with pytest.raises(ZeroDivisionError, match="the user's own mistake") as caught:
        list(pool.train(broadcast(network()), TASKS, nothing).answers)
    assert "in broken" in "".join(caught.value.__notes__)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\n"
        "from fedacg.engines.processes import ProcessEngine\n"
        "engine = ProcessEngine(2)\n"
        "print(*engine.pids, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path(f"/proc/{pid}").exists() else True


def test_tensors_are_shared_and_not_copied_to_workers() -> None:
    x = torch.arange(1000.0)
    value = {"x": x, "views": [x[:10], x[5:7]], "half": x.bfloat16(), "empty": torch.empty(0, 3)}
    frozen, segment = freeze(value)
    assert len(frozen.structure) < 2000
    one, other = thaw(frozen, segment), thaw(frozen, segment)
    assert torch.equal(one["x"], x)
    assert torch.equal(one["half"], x.bfloat16())
    assert one["empty"].shape == (0, 3)
    one["x"][3] = -1
    assert other["x"][3] == -1


def test_a_model_of_the_catalogue_trains_in_workers_with_its_layout() -> None:
    clients = [(torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8), torch.arange(8) % 4) for _ in range(3)]
    vectors = [
        fedacg.run(
            model=seeded_cnn(), clients=clients, test=clients[0], rounds=2, participation=1.0, workers=workers
        ).vector
        for workers in (0, 2)
    ]
    assert torch.equal(*vectors)


def seeded_cnn() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.build("cnn", classes=4, shape=(3, 16, 16))


def test_tensors_that_own_their_memory_move_into_the_shared_segment() -> None:
    base = torch.arange(100.0)
    own, view = torch.arange(50.0), base[10:20]
    frozen, segment = freeze({"own": own, "view": view})
    there = thaw(frozen, segment)
    there["own"][3] = -1
    there["view"][3] = -1
    assert own[3] == -1, "a data set is in memory once"
    assert base[13] == 13, "a view of something else is left where it is"


def test_what_cannot_work_at_all_fails_here_before_anybody_is_asked(pool: ProcessEngine) -> None:
    def broken(outputs: Tensor, y: Tensor) -> Tensor:
        raise ZeroDivisionError("the user's own mistake")

    with pytest.raises(ZeroDivisionError, match="the user's own mistake") as caught:
        pool.setup(job(network(), broken))
    assert not hasattr(caught.value, "__notes__"), "it comes from this process"
