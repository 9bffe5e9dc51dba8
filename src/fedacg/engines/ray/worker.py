"""A worker that is a Ray actor, and what it is told beyond protocol.py: vectors travel through the object store.

This is what a node of a cluster imports. The driver's side lives in ray_pool.py.
"""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from fedacg.engines.orders import Fact, Hello, Order, Outcome, Train
from fedacg.engines.shared_memory import put_together, take_apart
from fedacg.engines.worker_loop import Service
from fedacg.simulation.engine import Job
from fedacg.simulation.worker import Worker
from fedacg.version import __version__


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
    """First word of an actor: who it is, and with what it works."""

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


class RayWorker(Service):
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
