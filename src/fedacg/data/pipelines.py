"""From storage type to model input: images normalised by channel, anything else nearly unchanged.

A pipeline is the last step before the model and the only one that converts to floating point.
Random rotation, crop and flip of training images come first, composed into one integer gather.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_OUTSIDE = 1e6
"""A coordinate so far away that no rotation brings it back into an image."""


@dataclass(frozen=True)
class Augment:
    """Rotation within ±degrees, then a crop after zero padding, then a mirror image half of the time.

    The conventions are torchvision's (RandomRotation's defaults, RandomCrop(padding=…),
    RandomHorizontalFlip): rotation about the centre, counter-clockwise for positive angles, nearest
    neighbour, zeros where there was nothing.
    """

    degrees: float = 10.0
    padding: int = 4
    flip: bool = True

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Another version of each image of a batch (B, C, H, W), in its storage type."""
        shifts = 2 * self.padding + 1
        draw = torch.rand(3, len(x), generator=rng, dtype=torch.float64)
        angle = (draw[0] * 2 - 1) * math.radians(self.degrees)
        down = (draw[1] * shifts).long()
        across = (draw[2] * (2 * shifts if self.flip else shifts)).long()
        return transform(x, angle, down, across, self.padding)


def transform(x: Tensor, angle: Tensor, down: Tensor, across: Tensor, padding: int) -> Tensor:
    """Each image rotated by its angle (radians), then cut out of its padded self and perhaps mirrored.

    The cut starts `down` rows and `across` columns into the padded image; from 2·padding + 1 on,
    `across` stands for the same cuts again, mirrored.
    """
    batch, channels, height, width = x.shape
    rows = _cuts(height, padding).index_select(0, down)
    columns = _cuts(width, padding).index_select(0, across)
    cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
    # A frame of zeros, one pixel wide, catches everything that falls outside the image. Truncation to
    # integers is the floor, since the clamp leaves nothing negative; float64, so that adding the row's
    # offset does not round a column up.
    column = (cos * columns + (width / 2 + 1)).unsqueeze(1) - (sin * rows).unsqueeze(2)
    row = (sin * columns + (height / 2 + 1)).unsqueeze(1) + (cos * rows).unsqueeze(2)
    column.clamp_(0, width + 1)
    row.clamp_(0, height + 1).floor_()
    source = row.mul_(width + 2).add_(column).long().view(batch, 1, height * width).to(x.device)
    framed = torch.nn.functional.pad(x, (1, 1, 1, 1)).view(batch, channels, -1)
    return framed.gather(2, source.expand(batch, channels, -1)).view_as(x)


@lru_cache(maxsize=16)
def _cuts(size: int, padding: int) -> Tensor:
    """Every cut along one dimension: where its pixels' centres lie, from the image's centre.

    The 2·padding + 1 cuts in order of their start, then the same ones mirrored.
    """
    at = torch.arange(-padding, size + padding, dtype=torch.float64)
    centre = torch.where((at >= 0) & (at < size), at - (size - 1) / 2, _OUTSIDE)
    cuts = centre.unfold(0, size, 1)
    return torch.cat([cuts, cuts.flip(1)])


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
    """Factor and offset per channel."""
    scale = torch.tensor([1 / (white * s) for s in std]).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(-1, 1, 1)
    return scale.to(device), shift.to(device)


@dataclass(frozen=True)
class PlainPipeline:
    """Bytes to float32 between 0 and 1; every other type, floats and token ids among them, untouched."""

    def __call__(self, x: Tensor, augment: torch.Generator | None = None) -> Tensor:
        return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x
