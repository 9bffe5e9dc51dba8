"""Workers on a Ray cluster: actors with one CPU, one thread and one resident model each.

A job's data and a round's broadcast are put into the object store once, and every node maps its one copy.
Scheduling and replacing actors is in supervisor.py.
"""

import math
import os
import platform
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError

from fedacg import __version__
from fedacg.core.round import Message
from fedacg.core.tensors import Device
from fedacg.engines.orders import Fact, Hello, Order, Outcome, Train, WorkerLoop
from fedacg.engines.ray.cluster import Cluster
from fedacg.engines.shared_memory import put_together, take_apart
from fedacg.engines.supervisor import (
    Handle,
    Lost,
    News,
    Supervisor,
    evaluate,
    in_order,
    longest_first,
    message_rooms,
    prepare,
    widest_window,
)
from fedacg.errors import InputError, RunError
from fedacg.simulation.engine import Answers, ClientMemory, Held, Job, See, Task, Training, groups, recall
from fedacg.simulation.scoring import Evaluation
from fedacg.simulation.worker import Worker


@dataclass(frozen=True, eq=False)
class Parcel:
    """An object on its way through Ray: its arrays lie beside its structure, and nodes map them without a copy."""

    structure: bytes
    arrays: list[NDArray[np.uint8]]


def pack(value: object) -> Parcel:
    structure, arrays, _ = take_apart(value)
    return Parcel(structure, [np.asarray(array) for array in arrays])


def unpack(parcel: Parcel) -> Any:
    """The object, its tensors and arrays as views on the parcel's, which are read-only."""
    return put_together(parcel.structure, parcel.arrays)


@dataclass(frozen=True)
class PlacedJob(Fact):
    """A job to take on, as a parcel in the object store."""

    parcel: "ray.ObjectRef[Parcel]"


@dataclass(frozen=True)
class PlacedBroadcast(Fact):
    """A message to all clients, as a parcel in the object store."""

    parcel: "ray.ObjectRef[Parcel]"


@dataclass(frozen=True)
class TrainByParcel(Train):
    """Train a group of clients; what a single one kept comes along."""

    kept: Parcel


@dataclass(frozen=True)
class TrainedByParcel(Outcome):
    """The answers of a group."""

    answers: Parcel


@dataclass(frozen=True)
class Introduction:
    """First message of an actor: its identity and its versions."""

    pid: int
    node: str
    versions: dict[str, str]


def versions() -> dict[str, str]:
    """What must be the same on all nodes for the same bits, or for understanding each other at all."""
    return {
        "fedacg": __version__,
        "Python": platform.python_version(),
        "ray": ray.__version__,
        "torch": str(torch.__version__),
    }


class RayWorker(WorkerLoop):
    """Serves orders as an actor; Ray calls its methods one after the other."""

    def __init__(self, hello: Hello) -> None:
        self.greet(hello)

    def introduce(self) -> Introduction:
        node: Callable[[], str] = ray.util.get_node_ip_address
        return Introduction(os.getpid(), node(), versions())

    def work(self, facts: Sequence[Fact], order: Order) -> Outcome:
        """Take note of what is new, then do what is ordered."""
        for fact in facts:
            match fact:
                case PlacedJob(parcel):
                    self._placed, self._worker = parcel, None
                case PlacedBroadcast(parcel):
                    self._message = unpack(ray.get(parcel))
        return self.serve(order)

    def _job(self) -> Job:
        job: Job = unpack(ray.get(self._placed))
        return job

    def _train(self, worker: Worker, order: Train) -> TrainedByParcel:
        assert isinstance(order, TrainByParcel)
        kept = unpack(order.kept)
        return TrainedByParcel(order.key, pack(worker.serve(order.tasks, self._message, kept)))


_PATIENCE = 60.0
"""Seconds to wait for a free CPU while no worker is at work."""
_LONGEST_CAUSE = 500


class RayHandle(Handle):
    """One actor, seen from the driver."""

    def __init__(self, number: int, actors: Any) -> None:
        super().__init__(number)
        self.ready = False
        self._pid = 0
        self._cause = "stopped"
        self._actor = actors.remote(Hello(sys.path, number))
        self._replies: deque[ray.ObjectRef[Any]] = deque([self._actor.introduce.remote()])

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def next_reply(self) -> "ray.ObjectRef[Any]":
        return self._replies[0]

    def give(self, order: Order, news: News) -> None:
        self._replies.append(self._actor.work.remote([fact for fact, _ in news], order))

    def receive(self) -> Outcome | None:
        try:
            word: Outcome | Introduction = ray.get(self._replies.popleft())
        except RayError as error:
            self._cause = " ".join(str(error).strip().splitlines()[-1].split())[:_LONGEST_CAUSE]
            raise Lost from None
        if isinstance(word, Introduction):
            _compare(word)
            self._pid, self.ready = word.pid, True
            return None
        return word

    def end(self) -> str:
        ray.kill(self._actor)
        return self._cause


class RayPool(Supervisor[RayHandle]):
    """Workers that are actors of a cluster."""

    def __init__(self, cluster: Cluster, size: int, device: Device) -> None:
        self._cluster = cluster
        actors: Any = ray.remote(RayWorker)
        share = _share_of_gpu(cluster, size) if device == "cuda" else 0
        self._actors = actors.options(num_cpus=1, num_gpus=share, max_restarts=0, scheduling_strategy="SPREAD")
        super().__init__(size)
        try:
            self.muster()
        except RunError as error:
            self.close()
            raise InputError(f"engine.workers = {size}: {error}") from None
        except BaseException:
            self.close()
            raise

    def _hire(self, number: int) -> RayHandle:
        return RayHandle(number, self._actors)

    def _speaking(self, workers: Sequence[RayHandle]) -> Iterable[RayHandle]:
        replies = {worker.next_reply: worker for worker in workers}
        starting = not any(worker.orders for worker in workers)
        done, _ = ray.wait(list(replies), timeout=_PATIENCE if starting else None)
        if not done:
            there = sum(worker.ready for worker in self._workers)
            found = f"{there} of {self.size} workers found a free CPU within {_PATIENCE:g} s"
            raise RunError(f"{found} at the cluster at {self._cluster.address}")
        return [replies[reply] for reply in done]


def _share_of_gpu(cluster: Cluster, workers: int) -> float:
    """A whole GPU, or a fraction if several workers must share it."""
    gpus = cluster.count("GPU")
    if not gpus:
        raise InputError(f"engine.device = 'cuda': the cluster at {cluster.address} has no GPU")
    return 1 / math.ceil(workers / gpus)


def _compare(word: Introduction) -> None:
    """Refuse an actor whose versions are not the driver's."""
    here = versions()
    for name, version in word.versions.items():
        if version != here[name]:
            there = f"node {word.node} of the cluster has {name} {version}"
            raise InputError(f"engine.name = 'ray': {there}, this program has {here[name]}")


class RayEngine:
    """Actors that live for as many jobs as they are given."""

    def __init__(self, workers: int, cores: int, address: str = "", device: Device = "cpu") -> None:
        """As many workers as there are CPUs if `workers` is 0; a cluster of its own then has `cores` of them."""
        self._cluster = Cluster(address, workers or cores)
        try:
            cpus = self._cluster.count("CPU")
            if workers > cpus or not cpus:
                there = f"the cluster at {self._cluster.address} has {cpus} CPUs"
                raise InputError(f"engine.workers = {workers}: {there}")
            self._pool = RayPool(self._cluster, workers or cpus, device)
        except BaseException:
            self._cluster.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, each on its node."""
        return self._pool.pids

    def setup(self, job: Job) -> None:
        _, group_room = message_rooms(job)
        self._job = job
        self._window = widest_window(self._pool.size, group_room)
        self._pool.tell(PlacedJob(ray.put(pack(job))))
        self._announce({})
        prepare(self._pool)

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        return Training(self._answers(broadcast, tasks, kept))

    def _answers(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Iterator[Answers]:
        parts = groups(tasks, self._job.group)
        self._announce(broadcast)

        def order(key: int) -> TrainByParcel:
            return TrainByParcel(key, tuple(parts[key]), pack(recall(kept, parts[key])))

        for trained in in_order(self._pool, longest_first(parts, self._window), order, self._window):
            assert isinstance(trained, TrainedByParcel)
            yield unpack(trained.answers)

    def evaluate(self, model: Message, part: Held = "test", see: See | None = None) -> Evaluation:
        self._announce(model)
        return evaluate(self._pool, self._job, part, see)

    def close(self) -> None:
        self._pool.close()
        self._cluster.close()

    def _announce(self, message: Message) -> None:
        """Put a message where the workers read it; the one before it is freed when the last has let go of it."""
        self._pool.tell(PlacedBroadcast(ray.put(pack(message))))
