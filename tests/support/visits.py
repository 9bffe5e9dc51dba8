"""One client's visit without a federation: what a part is given before the local steps."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedacg.config.sections import LocalSettings
from fedacg.core.vector import FlatModel, clone
from fedacg.methods.visit import Assignment
from fedacg.simulation.worker import FrozenCopies
from support.tasks import round_of


def visit(
    model: nn.Module,
    broadcast: Mapping[str, Tensor] | None = None,
    *,
    kept: Mapping[str, Tensor] | None = None,
    counts: Sequence[int] = (1, 1, 1, 1),
    round: int = 1,
    steps: int = 1,
    lr: float = 0.1,
) -> Assignment:
    """An assignment of a client that was sent the model's own parameters, unless `broadcast` has others."""
    flat = FlatModel(clone(model))

    def full_gradient() -> Tensor:
        raise AssertionError("nobody here asks for the full gradient")

    return Assignment(
        flat=flat,
        broadcast={"phi": flat.w.clone(), "buffers": flat.read_buffers(), **(broadcast or {})},
        kept=dict(kept or {}),
        round=round_of(round, lr=lr),
        local=LocalSettings(batch=1000),
        steps=steps,
        total_lr=steps * lr,
        label_counts=lambda: torch.tensor(counts),
        full_gradient=full_gradient,
        copies=FrozenCopies(model, channels_last=False),
        scratch=torch.empty_like(flat.w),
        rates=[[lr] * steps],
    )
