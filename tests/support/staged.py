"""Staged networks small enough to follow, and how a method's losses are asked and its rounds are played."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from fedacg import methods
from fedacg.config.participation import CohortSettings
from fedacg.config.sections import EvaluateSettings, LocalSettings
from fedacg.core.vector import FlatModel, clone
from fedacg.data.own_data import from_pairs
from fedacg.engines.serial import SerialEngine
from fedacg.methods.parts import Forward, Part
from fedacg.methods.visit import Assignment
from fedacg.models import StagedModel
from fedacg.runs.client_states import ClientStates
from fedacg.simulation.engine import Job
from fedacg.simulation.federation import Federation
from fedacg.simulation.sampling import Sampling
from fedacg.simulation.worker import FrozenCopies
from support.tasks import round_of

Pair = tuple[Tensor, Tensor]


class TanhNet(StagedModel):
    """Two stages of a linear map and tanh, of widths 4 and 5, and a linear head: 3 inputs, 4 classes.

    tanh is smooth, so that rounding stays rounding, and not idempotent, so that passing it twice shows.
    """

    def __init__(self) -> None:
        stages = [nn.Sequential(nn.Linear(i, o), nn.Tanh()) for i, o in ((3, 4), (4, 5))]
        super().__init__(stages, nn.Linear(5, 4))


def tanh_net(dtype: torch.dtype = torch.float64) -> StagedModel:
    """The same one every time."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return TanhNet().to(dtype)


def dealt(*labels: Sequence[int], dtype: torch.dtype = torch.float64, width: int = 3, seed: int = 1) -> list[Pair]:
    """Clients with these labels and random inputs."""
    source = torch.Generator().manual_seed(seed)
    return [(torch.randn(len(y), width, generator=source, dtype=dtype), torch.tensor(y)) for y in labels]


def job(
    model: nn.Module, clients: Sequence[Pair], method: str, options: Mapping[str, float], **local: float
) -> Job:
    return Job(
        module=model,
        channels_last=False,
        data=from_pairs(clients, clients[0]),
        method=methods.build(method, options),
        local=LocalSettings.model_validate({"epochs": 1, "batch": 1000, "lr": 0.5, **local}),
        seed=0,
        evaluate_batch=1000,
    )


def rounds(work: Job, cohorts: Sequence[Sequence[int]]) -> Iterator[dict[str, Tensor]]:
    """The server's vectors after every round."""
    with TemporaryDirectory() as folder:
        federation = Federation(
            work,
            SerialEngine(),
            rounds=len(cohorts),
            sampling=Sampling(CohortSettings(), clients=len(work.data.clients), seed=0, cohorts=cohorts),
            evaluate=EvaluateSettings(),
            memory=ClientStates(Path(folder)),
        )
        for _ in federation.run():
            yield dict(federation.server.vectors)


def asked(
    part: Part,
    model: nn.Module,
    batch: Pair,
    *,
    phi: Tensor | None = None,
    kept: Mapping[str, Tensor] | None = None,
    counts: Sequence[int] = (1, 1, 1, 1),
) -> tuple[float, Tensor]:
    """The value and the gradient of a loss at the model's own parameters, for a client that was sent φ."""
    flat = FlatModel(clone(model))
    buffers = flat.read_buffers()
    part.begin(
        Assignment(
            flat=flat,
            broadcast={"phi": flat.w.clone() if phi is None else phi, "buffers": buffers},
            kept=dict(kept or {}),
            round=round_of(1),
            local=LocalSettings(),
            steps=1,
            total_lr=0.1,
            label_counts=lambda: torch.tensor(counts),
            full_gradient=_not_asked,
            copies=FrozenCopies(model, channels_last=False),
            scratch=torch.empty_like(flat.w),
        )
    )
    loss = part(Forward(flat.module, *batch))  # type: ignore[operator]
    if loss.requires_grad:
        loss.backward()
    return float(loss.detach()), flat.g


def _not_asked() -> Tensor:
    raise AssertionError("no loss of ours looks at the full gradient")
