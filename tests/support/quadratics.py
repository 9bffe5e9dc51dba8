"""Problems small enough to work out by hand: every client pulls a point of two coordinates to one of its own.

Client i's loss is ½‖w − c‖² averaged over its examples c, so its gradient is w − c̄_i and K steps of size η
from φ end at c̄_i + (1 − η)^K (φ − c̄_i).
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from fedacg import methods
from fedacg.config.participation import CohortSettings, FailureSettings
from fedacg.config.sections import EvaluateSettings, LocalSettings
from fedacg.data.own_data import from_pairs
from fedacg.engines.serial import SerialEngine
from fedacg.methods import Method
from fedacg.runs.client_states import ClientStates
from fedacg.simulation.engine import Job
from fedacg.simulation.federation import Federation
from fedacg.simulation.sampling import Sampling


class Point(nn.Module):
    """A model that is nothing but its two parameters."""

    def __init__(self, start: Sequence[float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


class Bowl(Point):
    """A point whose examples are (c, √a): client i's loss is ½ Σ_k a_k (w_k − c_k)², a curvature of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 2:] * (self.w - x[:, :2])


def half_square(outputs: Tensor, _: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(dim=1).mean()


def client(*centres: Sequence[float]) -> tuple[Tensor, Tensor]:
    x = torch.tensor(centres, dtype=torch.float64)
    return x, torch.zeros(len(x), dtype=torch.float64)


def states(
    clients: Sequence[tuple[Tensor, Tensor]],
    method: str | Method,
    options: Mapping[str, float] | None = None,
    *,
    rounds: int = 1,
    cohorts: Sequence[Sequence[int]] | None = None,
    start: Sequence[float] = (0.0, 0.0),
    weights: str = "examples",
    model: type[Point] = Point,
    memory: Path | None = None,
    failures: Mapping[str, float] | None = None,
    **local: float,
) -> Iterator[dict[str, Tensor]]:
    """The server's vectors after every round; everybody takes part unless cohorts are given.

    What clients keep goes into the folder `memory`, for those who want to look at it.
    """
    settings = LocalSettings.model_validate({"epochs": 1, "batch": 1000, **local})
    job = Job(
        module=model(start),
        channels_last=False,
        data=from_pairs(clients, clients[0]),
        method=(methods.build(method, options) if isinstance(method, str) else method).with_loss(half_square),
        local=settings,
        seed=0,
        evaluate_batch=100,
    )
    everybody = [range(len(clients))] * rounds
    with TemporaryDirectory() as folder:
        yield from _states(job, rounds, weights, cohorts or everybody, memory or Path(folder), failures or {})


def _states(
    job: Job,
    rounds: int,
    weights: str,
    cohorts: Sequence[Sequence[int]],
    folder: Path,
    failures: Mapping[str, float],
) -> Iterator[dict[str, Tensor]]:
    federation = Federation(
        job,
        SerialEngine(),
        rounds=rounds,
        sampling=Sampling(
            CohortSettings.model_validate({"weights": weights}),
            clients=len(job.data.clients),
            seed=0,
            cohorts=cohorts,
            failures=FailureSettings.model_validate(failures),
        ),
        evaluate=EvaluateSettings(),
        memory=ClientStates(folder),
    )
    for _ in federation.run():
        yield dict(federation.server.vectors)


def kept(folder: Path, clients: int) -> list[dict[str, Tensor]]:
    """What every client has kept of its last visit, nothing where it never took part."""
    memory = ClientStates(folder)
    memory.rewind(sys.maxsize)
    return [dict(memory.read(client)) for client in range(clients)]
