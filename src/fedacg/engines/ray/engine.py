"""Workers on a Ray cluster: actors with one CPU, one thread and one resident model each.

A job's data and a round's broadcast are put into the object store once, and every node maps its one copy. What
is given out when lives in schedule.py, the actors in ray_pool.py, how they are kept alive in staff.py.
"""

from collections.abc import Iterator, Sequence

import ray

from fedacg.core.devices import Device
from fedacg.core.messages import Message
from fedacg.engines.dispatch import evaluate, in_order, longest_first, message_rooms, prepare, widest_window
from fedacg.engines.ray.cluster import Cluster
from fedacg.engines.ray.pool import RayPool
from fedacg.engines.ray.worker import PlacedBroadcast, PlacedJob, TrainByParcel, TrainedByParcel, pack, unpack
from fedacg.errors import InputError
from fedacg.simulation.engine import Answers, ClientMemory, Evaluation, Job, Task, Training, groups, recall


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

    def evaluate(self, model: Message) -> Evaluation:
        self._announce(model)
        return evaluate(self._pool, self._job)

    def close(self) -> None:
        self._pool.close()
        self._cluster.close()

    def _announce(self, message: Message) -> None:
        """Put a message where the workers read it; the one before it is freed when the last has let go of it."""
        self._pool.tell(PlacedBroadcast(ray.put(pack(message))))
