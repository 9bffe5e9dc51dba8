"""ResNet-18 as the paper trains it: a 3×3 stride-1 stem, no max-pool, GroupNorm with 2 groups throughout.

He et al., "Deep residual learning for image recognition", CVPR 2016; initialised as torchvision does it.
Smaller networks live in convolutional.py.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from fedacg.models.staged import StagedModel

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
    model = StagedModel(stages, nn.Linear(512, classes))
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
