"""What every peer trains: sizes, data, model and local steps, with nothing but torch and numpy.

A workload is written into a folder once, so that all environments read the same bytes. How a peer plays its rounds
is in its own file, when it may play them in turns.py.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """Clients of equal size with random data, a model and the local work of a round."""

    model: str
    clients: int
    examples: int
    shape: tuple[int, ...]
    cohort: int
    epochs: int
    batch: int
    lr: float = 0.01
    clip: float = 10.0
    decay: float = 0.001
    shuffle: bool = True
    """Whether a client's examples are put in a new order for every epoch."""
    dtype: str = "float32"

    def module(self) -> nn.Module:
        return MODELS[self.model](self.shape).to(getattr(torch, self.dtype))

    def write(self, folder: Path) -> None:
        """Random examples and a random θ, as arrays on disk."""
        source = np.random.default_rng(0)
        count = (self.clients, self.examples)
        np.save(folder / "x.npy", source.standard_normal((*count, *self.shape), dtype=self.dtype))
        np.save(folder / "y.npy", source.integers(CLASSES, size=count))
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            np.save(folder / "theta.npy", vector(self.module()).numpy())
        (folder / "workload.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


def workers() -> int:
    """How many workers a peer starts: two, unless bits.py asks for another number."""
    return int(os.environ.get("PEERS_WORKERS", "2"))


def lenet(shape: tuple[int, ...]) -> nn.Module:
    """Layer by layer what `fedacg.models.build("lenet")` makes."""
    channels, *sides = shape
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64 * height * width, 384),
        nn.ReLU(inplace=True),
        nn.Linear(384, 192),
        nn.ReLU(inplace=True),
        nn.Linear(192, CLASSES),
    )


def logistic(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), CLASSES))


MODELS = {"lenet": lenet, "logistic": logistic}

WORKLOADS = {
    "lenet": Workload("lenet", 500, 100, (3, 32, 32), cohort=10, epochs=5, batch=10),
    "logistic": Workload("logistic", 1000, 20, (64,), cohort=100, epochs=1, batch=10),
}
"""Those of benchmarks/speed.py."""

_SMALL = {"lr": 0.1, "clip": 0.5, "decay": 0.01, "epochs": 2, "examples": 25, "shuffle": False, "dtype": "float64"}
CHECKS = {
    "lenet": replace(WORKLOADS["lenet"], clients=4, cohort=4, **_SMALL),
    "logistic": replace(WORKLOADS["logistic"], clients=32, cohort=32, **_SMALL),
}
"""Small ones on which all peers must agree: everybody takes part, and a step has the same examples for all. The
last batch of an epoch is short, and gradients are long enough to be clipped. In float64, because in float32 a ReLU
or a max-pool goes the other way now and then, and clipping spreads that over all parameters."""


@dataclass(frozen=True)
class Given:
    """A workload as a peer finds it."""

    workload: Workload
    x: Tensor
    """Of client i at x[i]."""
    y: Tensor
    theta: Tensor

    def module(self) -> nn.Module:
        """The model at θ."""
        module = self.workload.module()
        load(module, self.theta)
        return module


def read(folder: Path) -> Given:
    fields = json.loads((folder / "workload.json").read_text(encoding="utf-8"))
    # Mapped, so that all processes share the pages; copy-on-write, as torch wants arrays that can be written.
    arrays = {
        name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in ("x", "y", "theta")
    }
    return Given(Workload(**{**fields, "shape": tuple(fields["shape"])}), **arrays)


def vector(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def load(module: nn.Module, theta: Tensor) -> None:
    """Overwrite the parameters."""
    parameters = list(module.parameters())
    with torch.no_grad():
        for p, part in zip(parameters, theta.split([p.numel() for p in parameters]), strict=True):
            p.copy_(part.view_as(p))


def train(module: nn.Module, x: Tensor, y: Tensor, workload: Workload) -> None:
    """A client's steps, as anybody would write them."""
    sgd = torch.optim.SGD(module.parameters(), lr=workload.lr, weight_decay=workload.decay)
    for _ in range(workload.epochs):
        order = torch.randperm(len(y)) if workload.shuffle else torch.arange(len(y))
        for index in order.split(workload.batch):
            sgd.zero_grad()
            nn.functional.cross_entropy(module(x[index]), y[index]).backward()
            nn.utils.clip_grad_norm_(module.parameters(), workload.clip)
            sgd.step()
