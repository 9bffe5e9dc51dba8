"""Convolutional networks: `cnn` for small-scale runs, `lenet`, LEAF's for FEMNIST and CelebA, and ResNet-18.

ReLU follows the max-pool, not the other way round: both orders have the same values and gradients, and
this one rectifies a quarter of the entries. ResNet-18 is as the FedACG paper trains
it: a 3×3 stride-1 stem, no max-pool, GroupNorm with 2 groups throughout. Shapes are checked in __init__.py.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedacg.models.staged import StagedModel

CNN_SMALLEST = 8  # three halvings leave one pixel
LENET_SMALLEST = 16  # 16 → 12 → 6 → 2 → 1
FEMNIST_SMALLEST = 4  # two halvings
CELEBA_SMALLEST = 16  # four halvings


def cnn(shape: Sequence[int], classes: int) -> StagedModel:
    """Three 3×3 convolutions of 16, 32 and 64 channels with GroupNorm, ReLU and 2×2 max-pool; linear head."""
    channels, height, width = shape
    stages = [
        nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1, bias=False),
            nn.GroupNorm(2, o),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
        )
        for i, o in pairwise((channels, 16, 32, 64))
    ]
    stages[-1].append(nn.Flatten())
    return StagedModel(stages, nn.Linear(64 * (height // 8) * (width // 8), classes), channels_last=True)


def lenet(shape: Sequence[int], classes: int) -> StagedModel:
    """Two 5×5 convolutions of 64 channels with ReLU and 2×2 max-pool, then 384 and 192 hidden units."""
    channels, height, width = shape
    flat = 64 * _after_convolutions(height) * _after_convolutions(width)
    stages = [
        nn.Sequential(nn.Conv2d(channels, 64, 5), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Flatten()),
        nn.Sequential(nn.Linear(flat, 384), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Linear(384, 192), nn.ReLU(inplace=True)),
    ]
    return StagedModel(stages, nn.Linear(192, classes), channels_last=True)


def femnist_cnn(shape: Sequence[int], classes: int) -> StagedModel:
    """Two 5×5 convolutions of 32 and 64 channels with ReLU and 2×2 max-pool, then 2048 hidden units."""
    channels, height, width = shape
    flat = 64 * (height // 4) * (width // 4)
    stages = [
        nn.Sequential(nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Flatten()),
        nn.Sequential(nn.Linear(flat, 2048), nn.ReLU(inplace=True)),
    ]
    return StagedModel(stages, nn.Linear(2048, classes), channels_last=True)


def celeba_cnn(shape: Sequence[int], classes: int) -> StagedModel:
    """Four 3×3 convolutions of 32 channels, each with GroupNorm, 2×2 max-pool and ReLU; linear head.

    LEAF has BatchNorm in the place of GroupNorm, whose two groups are those of the paper's ResNet-18.
    """
    channels, height, width = shape
    stages = [
        nn.Sequential(
            nn.Conv2d(inputs, 32, 3, padding=1), nn.GroupNorm(2, 32), nn.MaxPool2d(2), nn.ReLU(inplace=True)
        )
        for inputs in (channels, 32, 32, 32)
    ]
    stages[-1].append(nn.Flatten())
    return StagedModel(stages, nn.Linear(32 * (height // 16) * (width // 16), classes), channels_last=True)


def _after_convolutions(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


GROUPS = 2


def resnet18(shape: Sequence[int], classes: int) -> StagedModel:
    """A stem and four stages of two blocks, the last one ending in the global average pool; linear head."""
    stages = [
        nn.Sequential(_conv3x3(shape[0], 64), nn.GroupNorm(GROUPS, 64), nn.ReLU(inplace=True)),
        nn.Sequential(Block(64, 64), Block(64, 64)),
        nn.Sequential(Block(64, 128, stride=2), Block(128, 128)),
        nn.Sequential(Block(128, 256, stride=2), Block(256, 256)),
        nn.Sequential(Block(256, 512, stride=2), Block(512, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ]
    model = StagedModel(stages, nn.Linear(512, classes), channels_last=False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv3x3(inputs, outputs, stride),
            nn.GroupNorm(GROUPS, outputs),
            nn.ReLU(inplace=True),
            _conv3x3(outputs, outputs),
            nn.GroupNorm(GROUPS, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.GroupNorm(GROUPS, outputs)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        # GroupNorm's backward reads its input, not its output, so the sum may take the output's place.
        y: Tensor = self.residual(x).add_(self.shortcut(x))
        out: Tensor = self.relu(y)
        return out


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
