"""What a method costs: the vectors that a client receives, sends and keeps, as a rehearsal shows."""

from dataclasses import dataclass

import torch

from fedacg import methods, models
from fedacg.config.sections import LocalSettings
from fedacg.core.messages import kind_bytes
from fedacg.data.own import from_pairs
from fedacg.simulation.engine import Job


@dataclass(frozen=True)
class Vectors:
    """Messages counted in model-sized vectors; a quantised one counts for the part that it takes."""

    down: float
    up: float
    kept: float


def traffic_of(name: str) -> Vectors:
    """The traffic of a method with its default options, a round and a client."""
    with torch.random.fork_rng(devices=[]):
        module = models.build("mlp", classes=4, shape=(32,), hidden=[28])
    pair = torch.zeros(4, 32), torch.arange(4)
    job = Job(module, False, from_pairs([pair], pair), methods.build(name), LocalSettings(batch=4), 0, 4)
    traffic = job.traffic
    size = traffic.down["phi"].bytes
    return Vectors(traffic.bytes_down / size, traffic.bytes_up / size, kind_bytes(traffic.kept) / size)
