"""The networks of the catalogue: `StagedModel`, the one class that every one of them is, and how each is built.

A network is stages and a head, so that features, branches and layer comparisons need no special cases. Shapes and
classes are checked in __init__.py; here only the options that are a network's own.

ReLU follows the max-pool, not the other way round: both orders have the same values and gradients, and
this one rectifies a quarter of the entries. ResNet-18 is as the FedACG paper trains
it: a 3×3 stride-1 stem, no max-pool, GroupNorm with 2 groups throughout.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from math import prod

from torch import Tensor, nn

from fedacg.errors import InputError


class StagedModel(nn.Module):
    """`head(stage_L(… stage_0(x)))`.

    A stage ends with its own activation, and the last one with its pooling and flattening too: what a
    stage puts out is what the next one takes, so a feature passes its activation exactly once however
    the stages of two networks are mixed. No stage may write into what it is given.

    `channels_last` is the memory layout in which this network was measured to train fastest
    (benchmarks/layout.py): a preference about weights and inputs; with None the run chooses. The results do not
    depend on it beyond rounding.
    """

    def __init__(self, stages: Iterable[nn.Module], head: nn.Module, *, channels_last: bool | None = None) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.head = head
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x, 0)

    def features(self, x: Tensor) -> Tensor:
        """The head's input: the last stage's output, shape (B, d)."""
        for stage in self.stages:
            x = stage(x)
        return x

    def stage_outputs(self, x: Tensor) -> list[Tensor]:
        """The output of every stage, in order; the last is `features(x)`."""
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs

    def branch(self, x: Tensor, first: int) -> Tensor:
        """The logits from x, taken in at stage `first`: the output of stage l goes on at `first = l + 1`.

        `first = len(stages)` is the head alone, `first = 0` the whole network.
        """
        for stage in islice(self.stages, first, None):
            x = stage(x)
        logits: Tensor = self.head(x)
        return logits


# Networks without convolutions


def logistic(shape: Sequence[int], classes: int) -> StagedModel:
    """Multinomial logistic regression: convex in its parameters."""
    return StagedModel([nn.Flatten()], nn.Linear(prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, *, hidden: Sequence[int] = (64,)) -> StagedModel:
    """One stage, linear and ReLU, for every width in `hidden`."""
    if not _are_widths(hidden):
        raise InputError(f"model.hidden = {hidden!r}: must be one or more positive whole numbers, as in [64, 64]")
    widths = (prod(shape), *hidden)
    stages = [nn.Sequential(nn.Linear(i, o), nn.ReLU(inplace=True)) for i, o in pairwise(widths)]
    stages[0].insert(0, nn.Flatten())
    return StagedModel(stages, nn.Linear(widths[-1], classes))


def _are_widths(hidden: object) -> bool:
    return (
        isinstance(hidden, (list, tuple))
        and len(hidden) > 0
        and all(isinstance(width, int) and not isinstance(width, bool) and width > 0 for width in hidden)
    )


def lstm(
    shape: Sequence[int],
    classes: int,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    symbols: int | None = None,
) -> StagedModel:
    """An embedding and LSTM layers, one stage each; the head sees the last step of the last layer.

    `symbols` is the size of the alphabet that is read; without it, there are as many as classes. The defaults are
    LEAF's for Shakespeare. A gate has two biases, as PyTorch's have, of which only the sum matters.
    """
    symbols = classes if symbols is None else symbols
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers, "symbols": symbols}
    for option, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"model.{option} = {value!r}: must be a whole number, 1 or more")
    stages: list[nn.Module] = [
        Layer(hidden if layer else embedding, hidden, last=layer == layers - 1) for layer in range(layers)
    ]
    stages[0] = nn.Sequential(Symbols(symbols, embedding), stages[0])
    return StagedModel(stages, nn.Linear(hidden, classes))


class Symbols(nn.Embedding):
    """Ids (B, T) to vectors (B, T, d); an id outside the alphabet raises a clear error."""

    def forward(self, input: Tensor) -> Tensor:
        if input.is_floating_point():
            raise InputError(f"data: x holds {input.dtype}; lstm takes whole numbers, the ids of symbols (int64)")
        try:
            return super().forward(input.long())
        except IndexError:
            span = f"from {int(input.min())} to {int(input.max())}"
            allowed = f"must be from 0 to {self.num_embeddings - 1} (model.symbols = {self.num_embeddings})"
            raise InputError(f"data: x has ids {span}; {allowed}") from None


class Layer(nn.Module):
    """One LSTM layer over (B, T, inputs). Puts out every step, (B, T, hidden), or only the last, (B, hidden)."""

    def __init__(self, inputs: int, hidden: int, *, last: bool) -> None:
        super().__init__()
        # On one thread it trains in less than two thirds of the time that a loop over the steps takes.
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.lstm(x)[0]
        return output[:, -1] if self.last else output


# Convolutional networks


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
