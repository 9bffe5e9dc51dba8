"""Attacks by bad clients (`failures.bad` and `failures.attack`): they train on wrong labels or send false updates.

    sign-flip   Δ_i ← −s Δ_i                        scale       Δ_i ← s Δ_i
    noise       Δ_i ← s‖Δ_i‖ times a random direction   label-flip  trains on C − 1 − y for y

The update is changed after the local steps and before the upload chain, so the chain's bounds still hold.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedacg.config.participation import FailureSettings
from fedacg.core.tensors import Inputs
from fedacg.data.examples import Examples, labels


@dataclass(frozen=True)
class Mislabelled:
    """Examples with the label C − 1 − y in place of y."""

    base: Examples
    classes: int

    def __len__(self) -> int:
        return len(self.base)

    def fetch(self, index: Tensor) -> tuple[Inputs, Tensor]:
        x, y = self.base.fetch(index)
        return x, self.classes - 1 - y

    def labels(self, index: Tensor) -> Tensor:
        return self.classes - 1 - labels(self.base, index)


def falsify(settings: FailureSettings, delta: Tensor, random: torch.Generator) -> None:
    """Turn a bad client's update into what it sends, in place."""
    strength = settings.attack_strength
    if settings.attack == "sign-flip":
        delta.mul_(-strength)
    elif settings.attack == "scale":
        delta.mul_(strength)
    elif settings.attack == "noise":
        direction = torch.randn(delta.shape, generator=random, dtype=delta.dtype)
        length = strength * float(torch.linalg.vector_norm(delta))
        delta.copy_(direction * (length / float(torch.linalg.vector_norm(direction))))
