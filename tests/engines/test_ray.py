"""Workers on a Ray cluster: the same bits, lost actors and nodes replaced, clear errors, nothing left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from fedacg import engines, methods
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, with_method
from fedacg.config.sections import EngineSettings, LocalSettings
from fedacg.core.round import Message
from fedacg.core.vector import FlatModel, clone
from fedacg.data.own_data import from_pairs
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.engines.supervisor import Lost
from fedacg.errors import InputError, RunError
from fedacg.runs import api
from fedacg.runs.build import Ingredients, prepare
from fedacg.runs.callbacks import Callback, RunView
from fedacg.runs.runner import play
from fedacg.simulation.engine import Answers, ClientMemory, Engine, Job, Task, Training
from support.command import Command
from support.ray_nodes import Nodes, members, until
from support.runs import digest
from support.tasks import task

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedacg[ray]'")

from fedacg.engines.ray.engine import (  # noqa: E402
    RayEngine,
    RayHandle,
    _share_of_gpu,
    versions,
)

# Ray leaves processes that it has killed for the interpreter to collect.
pytestmark = pytest.mark.filterwarnings("ignore:.*subprocess .* is still running:ResourceWarning")


class Shared:
    """Two nodes, and an engine that stays connected from test to test until one wants to be alone."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._engine: RayEngine | None = None

    def engine(self) -> RayEngine:
        if len(self.nodes.groups) < 2:
            self.nodes.add()
        if self._engine is None:
            self._engine = RayEngine(2, cores=2, address=self.nodes.address)
        return self._engine

    def disconnect(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    shared = Shared()
    try:
        yield shared
        shared.disconnect()
    finally:
        shared.nodes.close()


@pytest.fixture
def nodes(shared: Shared) -> Nodes:
    """Two nodes that nobody is connected to."""
    shared.disconnect()
    return shared.nodes


@pytest.fixture
def engine(shared: Shared) -> RayEngine:
    """A worker on each of the two nodes."""
    return shared.engine()


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(2)
    yield engine
    engine.close()


def described(method: str, *settings: str) -> Experiment:
    common = ["rounds=4", "data.clients=6", "cohort.size=4", "local.epochs=1"]
    return Experiment.parse(override(with_method(find("quickstart"), method), [*common, *settings]))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(1176, 4)
        )


def pairs() -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 3, 16, 16, generator=source), torch.randint(4, (n,), generator=source))
        for n in (9, 4, 17, 6, 30, 2)
    ]


def job(loss: Callable[[Tensor, Tensor], Tensor]) -> Job:
    return Job(
        module=network(),
        channels_last=False,
        data=from_pairs(pairs(), pairs()[4]),
        method=methods.build("fedavg").with_loss(loss),
        local=LocalSettings(epochs=1, batch=4),
        seed=0,
        evaluate_batch=7,
    )


TASKS = [task(1, client, steps) for client, steps in enumerate((3, 1, 5, 2, 8, 1))]


def broadcast() -> dict[str, Tensor]:
    flat = FlatModel(clone(network()))
    return {"phi": flat.w, "buffers": flat.read_buffers()}


def train(engine: Engine, tasks: Sequence[Task] = TASKS) -> list[Tensor]:
    return [
        answer.upload["delta"].clone()
        for answers in engine.train(broadcast(), tasks, lambda _: {}).answers
        for answer in answers
    ]


# Clear errors


def test_without_ray_the_error_says_how_to_get_it(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedacg.engines.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = fedacg("run", "tiny.toml", "--set", "engine.name=ray")
    assert outcome.code == 2
    assert outcome.err == "error: engine.name = 'ray': Ray is not installed; pip install 'fedacg[ray]'\n"


def test_only_the_ray_engine_imports_ray() -> None:
    code = "import sys, fedacg, fedacg.cli; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cluster_that_does_not_answer_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedacg.engines.ray.cluster._TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(InputError, match=rf"engine.address = '127.0.0.1:{port}': no Ray .*: timed out"):
            RayEngine(2, cores=2, address=f"127.0.0.1:{port}")
    with pytest.raises(InputError, match=rf"address = '127.0.0.1:{port}': no Ray .*: Connection refused"):
        RayEngine(2, cores=2, address=f"127.0.0.1:{port}")
    for address in ("ray://head:10001", "head", "head:65536"):
        with pytest.raises(InputError, match=f"engine.address = '{address}': must be host:port"):
            RayEngine(2, cores=2, address=address)
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(InputError, match="RAY_ADDRESS = 'nonsense': must be host:port"):
        RayEngine(2, cores=2)


def test_what_answers_but_is_no_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: object, **__: object) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n")
        kept.append(theirs)
        return ours

    kept: list[socket.socket] = []
    monkeypatch.setattr("socket.create_connection", answer)
    with pytest.raises(InputError, match=r"address = 'there:80': no Ray .*: it does not speak gRPC"):
        RayEngine(2, cores=2, address="there:80")
    kept[0].close()


def test_fewer_cpus_than_workers_are_refused(nodes: Nodes, fedacg: Command) -> None:
    settings = ["engine.name=ray", "engine.workers=8", f"engine.address={nodes.address}"]
    outcome = fedacg("run", "tiny.toml", *(word for setting in settings for word in ("--set", setting)))
    assert outcome.code == 2
    port = nodes.address.partition(":")[2]
    assert outcome.err.startswith("error: engine.workers = 8: the cluster at ")
    assert outcome.err.endswith(f":{port} has 2 CPUs\n")
    assert not list(Path("runs").rglob("experiment.toml")), "a run was begun that could not be"
    assert not ray.is_initialized()
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InputError, match=r"workers = 8: the cluster at .* has 2 CPUs"):
        api.run(
            model=torch.nn.Linear(3, 2),
            clients=[(x, y)],
            test=(x, y),
            workers=8,
            engine="ray",
            address=nodes.address,
        )
    with pytest.raises(InputError, match=r"engine.device = 'cuda': the cluster at .* has no GPU"):
        engines.start(EngineSettings(name="ray", address=nodes.address, device="cuda"))


@pytest.mark.parametrize(("gpus", "workers", "share"), [(2, 1, 1), (2, 2, 1), (2, 3, 1 / 2), (1, 3, 1 / 3)])
def test_workers_that_share_gpus_all_find_room(gpus: int, workers: int, share: float) -> None:
    cluster = SimpleNamespace(count={"GPU": gpus}.get)
    assert _share_of_gpu(cluster, workers) == share


def test_a_node_with_other_versions_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("fedacg.engines.ray.engine.versions", lambda: {**versions(), "torch": "1.0"})
    there = re.escape(versions()["torch"])
    expected = rf"node [\d.]+ of the cluster has torch {there}, this program has 1\.0"
    with pytest.raises(InputError, match=expected):
        RayEngine(2, cores=2, address=nodes.address)
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before, "what ends the program is its own matter"


def test_a_node_where_workers_cannot_start_is_told_with_the_reason(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stranger:
        def __init__(self, hello: object) -> None:
            raise ModuleNotFoundError("No module named 'fedacg'")

        def introduce(self) -> None: ...

    monkeypatch.setattr("fedacg.engines.ray.engine.RayWorker", Stranger)
    with pytest.raises(InputError, match=r"= 1: starting ended its worker 3 times \(.*No module named 'fedacg'\)"):
        RayEngine(1, cores=1, address=nodes.address)


def test_cpus_that_others_hold_are_waited_for_only_so_long(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedacg.engines.ray.engine._PATIENCE", 0.5)
    with pytest.raises(InputError, match=r"engine.workers = 1: 0 of 1 workers found a free CPU within 0.5 s at"):
        RayEngine(1, cores=2)
    assert ray.is_initialized(), "a connection that was there before is left alone"
    engine.setup(job(nn.functional.cross_entropy))
    assert len(train(engine)) == 6


# The same bits


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", ["engine.fuse=off"]),
        ("feddyn", []),
        ("moon", []),
        ("fedacg+paq", ["model.hidden=[600]"]),
        ("fedacg", ["model.name=logistic", "engine.fuse=on"]),
    ],
)
def test_a_run_has_the_bits_of_worker_processes(
    method: str, settings: list[str], engine: RayEngine, pool: ProcessEngine
) -> None:
    experiment = described(method, *settings)
    ours, theirs = (play(experiment, prepare(experiment), engine=each) for each in (engine, pool))
    assert digest(ours) == digest(theirs)
    assert [m.train_loss for m in ours.history] == [m.train_loss for m in theirs.history]
    assert [m.test_loss for m in ours.history] == [m.test_loss for m in theirs.history]


def test_running_means_and_dropout_have_the_bits_of_worker_processes(
    engine: RayEngine, pool: ProcessEngine
) -> None:
    tree = {"rounds": 3, "cohort": {"size": 4}, "local": {"epochs": 2, "batch": 4}}
    data = from_pairs(pairs(), pairs()[4])
    ingredients = Ingredients(network(), True, data, methods.build("fedacg"))
    ours, theirs = (play(Experiment.parse(tree), ingredients, engine=each) for each in (engine, pool))
    assert digest(ours) == digest(theirs)
    buffers = [torch.cat([b.double().reshape(-1) for b in run.model.buffers()]) for run in (ours, theirs)]
    assert torch.equal(*buffers)


def test_few_replies_at_a_time_are_enough_for_a_large_cohort(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedacg.engines.supervisor._REPLY_MEMORY", 0)
    engine.setup(job(nn.functional.cross_entropy))
    few = train(engine)
    serial = SerialEngine()
    serial.setup(job(nn.functional.cross_entropy))
    with engines.one_thread():
        assert all(torch.equal(a, b) for a, b in zip(few, train(serial), strict=True))


# Memory


def anonymous(pid: int | str) -> float:
    """Megabytes of a process that it shares with nobody."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def test_data_are_mapped_and_not_copied_by_an_actor(engine: RayEngine) -> None:
    x, y = torch.zeros(200_000, 64), torch.arange(200_000) % 4  # 51 MB
    module, few = nn.Sequential(nn.Linear(64, 4)), (x[:10], y[:10])
    flat = FlatModel(clone(module))
    used = []
    for data in (from_pairs([few], few), from_pairs([(x, y)], few)):
        engine.setup(Job(module, False, data, methods.build("fedavg"), LocalSettings(steps=2), 0, 9))
        message = {"phi": flat.w, "buffers": flat.read_buffers()}
        training = engine.train(message, [task(1, 0, 2)] * 4, lambda _: {})
        assert [a.client for (a,) in training.answers] == [0] * 4
        used.append([anonymous(pid) for pid in engine.pids])
    assert all(after - before < 15 for before, after in zip(*used, strict=True))


READ_ONLY = """
import mmap, tempfile
import torch
from fedacg import methods
from fedacg.data.own_data import from_pairs
from fedacg.config.sections import LocalSettings
from fedacg.core.round import Round
from fedacg.simulation.engine import Job, Task
from fedacg.engines.shared_memory import put_together, take_apart
from fedacg.simulation.worker import Worker
from fedacg.models import build
from fedacg.core.vector import FlatModel, clone

def read_only(value):
    structure, arrays, _ = take_apart(value)
    views = []
    for array in arrays:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(array) or b"-")
            file.flush()
            views.append(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[: len(array)])
    return put_together(structure, views)

torch.set_num_threads(1)
x, y = torch.rand(12, 1, 16, 16), torch.arange(12) % 3
for name in [*methods.METHODS, "fedacg+paq"]:
    module = build("cnn", classes=3, shape=(1, 16, 16))
    data = from_pairs([(x, y)], (x, y))
    job = Job(module, False, data, methods.build(name), LocalSettings(batch=4), 0, 5)
    worker = Worker(read_only(job))
    flat = FlatModel(clone(module))
    kept = {}
    for round in (Round(number, 1, 1, lr=0.1) for number in (1, 2)):
        rule, state = job.method.rule, job.first_state(flat.w)
        state = rule.learn(state, torch.zeros_like(flat.w), round) if rule.first_exchange else state
        down = {**rule.broadcast(state, round), "buffers": flat.read_buffers()}
        kept = read_only(worker.serve([Task(round, 0, 3)], read_only(down), kept).keep)
    worker.evaluate(read_only({"theta": flat.w, "buffers": flat.read_buffers()}), 0, 12)
    print(name)
"""


def test_no_method_writes_into_what_it_is_given_nor_warns_of_read_only_memory() -> None:
    command = [sys.executable, "-W", "error", "-c", READ_ONLY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [*methods.METHODS, "fedacg+paq"]


def test_metrics_of_ones_own_and_validation_are_the_same_through_ray(engine: RayEngine) -> None:
    def weighed(outputs: Tensor, y: Tensor) -> float:
        places = torch.arange(len(y), dtype=torch.float64)
        return float((outputs.double().sum(dim=1) * places).sum() + (places * y).sum())

    experiment = described("fedacg", "rounds=2", "evaluate.batch=50", "data.validation=0.1")
    alone, far = (
        play(experiment, prepare(experiment), engine=each, metrics={"weighed": weighed})
        for each in (SerialEngine(), engine)
    )
    assert [m.scores for m in far.history] == [m.scores for m in alone.history]
    assert set(far.history.score_names) >= {"test/weighed", "validation/weighed", "validation/accuracy"}
    assert torch.equal(far.vector, alone.vector)


class Watch(Callback):
    """A callback that measures this process after some rounds: references to objects, megabytes of its own."""

    def __init__(self, *rounds: int) -> None:
        self._rounds = rounds
        self.seen: list[tuple[int, float]] = []

    def round(self, run: RunView) -> None:
        if run.done in self._rounds:
            references = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
            self.seen.append((len(references), anonymous("self")))


@pytest.mark.slow
def test_memory_does_not_grow_over_two_hundred_rounds(engine: RayEngine) -> None:
    # 180 kB a vector: all that is sent makes 250 MB, and goes through the object store.
    experiment = described("feddyn", "rounds=200", "model.hidden=[600]", "local.steps=1", "cohort.size=2")
    watch = Watch(40, 200)
    play(experiment, prepare(experiment), engine=engine, callbacks=[watch])
    (references, early), (references_later, late) = watch.seen
    assert references_later == references <= 4
    assert late - early < 40


# Losses and errors on the way


class Disturbed:
    """An engine that something happens to in the middle of some rounds."""

    def __init__(self, engine: Engine, events: dict[int, Callable[[], None]]) -> None:
        self._engine, self._events = engine, events
        self.setup, self.evaluate, self.close = engine.setup, engine.evaluate, engine.close

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        training = self._engine.train(broadcast, tasks, kept)
        return Training(self._disturbed(tasks[0].round.number, training.answers), training.lost)

    def _disturbed(self, round: int, all: Iterator[Answers]) -> Iterator[Answers]:
        for answers in all:
            self._events.pop(round, lambda: None)()
            yield answers


def test_an_exception_on_an_actor_is_raised_here_with_its_traceback(engine: RayEngine) -> None:
    here = os.getpid()  # where a step is rehearsed

    def broken(outputs: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != here:
            raise ZeroDivisionError("the user's own mistake")
        return nn.functional.cross_entropy(outputs, y)

    engine.setup(job(broken))
    with pytest.raises(ZeroDivisionError, match="the user's own mistake") as caught:
        train(engine)
    assert "in broken" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "error", ["ActorDiedError", "ActorUnavailableError", "ObjectLostError", "OutOfMemoryError"]
)
def test_an_actor_is_lost_whatever_ray_calls_it(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(reply: object) -> None:
        kind = getattr(ray.exceptions, error)
        raise kind.__new__(kind)

    monkeypatch.setattr(ray, "get", lose)
    monkeypatch.setattr(getattr(ray.exceptions, error), "__str__", lambda _: "Traceback:\n  the  last line\n")
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    handle = RayHandle(0, MagicMock())
    with pytest.raises(Lost):
        handle.receive()
    assert handle.end() == "the last line"


@pytest.mark.slow
def test_a_task_that_kills_its_actors_ends_the_run_and_is_named(engine: RayEngine) -> None:
    here = os.getpid()  # where a step is rehearsed

    def deadly(outputs: Tensor, y: Tensor) -> Tensor:
        if len(y) == 2 and os.getpid() != here:  # only client 5 has a batch of two
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(outputs, y)

    engine.setup(job(deadly))
    two = [one for one in TASKS if one.client in (2, 5)]
    with pytest.raises(RunError, match=r"training client 5 in round 1 ended its worker 3 times \(The actor"):
        train(engine, two)
    engine.setup(job(nn.functional.cross_entropy))
    assert len(train(engine)) == 6, "the engine can be used again"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the program on `tiny.toml` in a session of its own, as at a terminal."""
    started: list[subprocess.Popen[str]] = []

    def start(*settings: str, **environment: str) -> subprocess.Popen[str]:
        words = [word for setting in ("engine.name=ray", *settings) for word in ("--set", setting)]
        program = subprocess.Popen(
            [sys.executable, "-m", "fedacg", "run", "tiny.toml", *words, "--out", "run", "--resume", "--quiet"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(program)
        return program

    yield start
    for program in started:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


def rounds_in(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


OWN_DATA = """
import torch
from fedacg.data import dataset


class Rows:
    def __init__(self, count):
        source = torch.Generator().manual_seed(count)
        self.x, self.y = torch.randn(count, 5, generator=source), torch.arange(count) % 3

    def __len__(self):
        return len(self.y)

    def fetch(self, index):
        return self.x[index], self.y[index]


def rows():
    return dataset(train=Rows(400), test=Rows(50), classes=3)
"""


@pytest.mark.slow
def test_a_run_is_stopped_killed_and_resumed_and_leaves_nothing_behind(
    nodes: Nodes,
    run: Callable[..., subprocess.Popen[str]],
    fedacg: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "own_rows.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    own = ("data.name=own_rows:rows", "method.name=feddyn", "rounds=80")
    scratch = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))

    first = run(*own, "engine.workers=3", "engine.address=local", RAY_TMPDIR=str(scratch))
    until(lambda: rounds_in(tmp_path) > 3 or first.poll() is not None, "no round was played")
    os.killpg(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=180)
    assert first.returncode == 130, said
    until(lambda: not members(first.pid), f"left behind: {members(first.pid)}")
    assert list(scratch.iterdir()) == []
    scratch.rmdir()

    done = rounds_in(tmp_path)
    second = run(*own, RAY_ADDRESS=nodes.address)
    until(lambda: rounds_in(tmp_path) > done + 3 or second.poll() is not None, "no further round was played")
    second.kill()
    said, _ = second.communicate()
    assert second.returncode == -signal.SIGKILL, said

    last = run(*own, RAY_ADDRESS=nodes.address)
    said, _ = last.communicate(timeout=300)
    assert last.returncode == 0, said
    words = [word for setting in own for word in ("--set", setting)]
    assert fedacg("run", "tiny.toml", "--out", "whole", *words).code == 0
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "whole")]
    assert summaries[0]["vector_sha256"] == summaries[1]["vector_sha256"]


@pytest.mark.slow
def test_an_actor_and_then_a_node_killed_during_a_run_change_no_bit(shared: Shared, engine: RayEngine) -> None:
    # Vectors of 180 kB lie in the object store of the node that made them, and go with it.
    experiment = described("feddyn", "rounds=5", "model.hidden=[600]", "local.epochs=5")
    near, far = sorted(engine.pids, key=lambda pid: os.getpgid(pid) == shared.nodes.groups[-1])
    assert [os.getpgid(pid) for pid in (near, far)] == shared.nodes.groups
    events: dict[int, Callable[[], None]] = {
        2: lambda: os.kill(near, signal.SIGKILL),
        4: shared.nodes.kill_last,
    }
    disturbed = play(experiment, prepare(experiment), engine=Disturbed(engine, events))
    assert events == {}
    assert not {near, far} & set(engine.pids)
    assert digest(disturbed) == digest(play(experiment, prepare(experiment), engine=SerialEngine()))
