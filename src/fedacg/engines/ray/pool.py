"""Ray's actors as workers: how they are started, spoken with and ended; the supervisor replaces them."""

import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from fedacg.core.devices import Device
from fedacg.engines.orders import Hello, Order, Outcome
from fedacg.engines.ray.cluster import Cluster
from fedacg.engines.ray.worker import Introduction, RayWorker, versions
from fedacg.engines.supervisor import Handle, Lost, News, Staff
from fedacg.errors import InputError, RunError

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


class RayPool(Staff[RayHandle]):
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
    """All of one, or a part that leaves room for as many workers as must share it."""
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
