"""From storage type to what the model eats: images normalised by channel, anything else nearly as it is.

A pipeline is the last step before the model and the only one that makes floating point.
How images are augmented lives in augment.py.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedacg.data.augment import Augment


@dataclass(frozen=True)
class ImagePipeline:
    """Integer images (B, C, H, W) to float32, with the given mean and deviation per channel taken out.

    `mean` and `std` are on the scale where `white`, the largest storage value, is 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None
    white: int = 255

    def __call__(self, x: Tensor, augment: torch.Generator | None = None) -> Tensor:
        if self.augment is not None and augment is not None:
            x = self.augment(x, augment)
        scale, shift = _normalising(self.mean, self.std, self.white, x.device)
        return x.to(torch.float32).mul(scale).add_(shift)


@lru_cache(maxsize=16)
def _normalising(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What to multiply with and what to add, per channel."""
    scale = torch.tensor([1 / (white * s) for s in std]).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(-1, 1, 1)
    return scale.to(device), shift.to(device)


@dataclass(frozen=True)
class PlainPipeline:
    """Bytes to float32 between 0 and 1; every other type, floats and token ids among them, untouched."""

    def __call__(self, x: Tensor, augment: torch.Generator | None = None) -> Tensor:
        return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x
