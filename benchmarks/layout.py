"""The fastest memory layout for training convolutional networks, as multiples of plain PyTorch's speed.

One thread, one run: every variant takes a few SGD steps in turn, over and over, and the median is printed
of its ratio to plain PyTorch in the same turn. `channels_last` of the catalogue's models is set from this table;
the networks written as users write them gave the rule for those that say nothing.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from fedacg.models import build
from speed import LeNet

LR = 0.01
CASES = [  # model, shape, batch, turns, steps per turn
    ("lenet", (3, 32, 32), 10, 40, 5),
    ("lenet", (1, 28, 28), 10, 40, 5),
    ("cnn", (3, 32, 32), 10, 40, 5),
    ("cnn", (1, 28, 28), 10, 40, 5),
    ("resnet18", (3, 32, 32), 10, 10, 1),
    ("resnet18", (3, 32, 32), 50, 5, 1),
    ("femnist-cnn", (1, 28, 28), 10, 15, 2),
    ("femnist-cnn", (1, 28, 28), 20, 15, 2),
    ("celeba-cnn", (3, 84, 84), 10, 15, 2),
    ("celeba-cnn", (3, 84, 84), 20, 15, 2),
    ("own lenet", (3, 32, 32), 10, 20, 3),
    ("own lenet", (3, 32, 32), 50, 8, 1),
    ("own small", (3, 32, 32), 10, 30, 5),
    ("own small", (3, 32, 32), 50, 20, 3),
    ("own vgg", (3, 32, 32), 10, 8, 1),
    ("own vgg", (3, 32, 32), 50, 4, 1),
    ("own resnet20", (3, 32, 32), 10, 8, 1),
    ("own resnet20", (3, 32, 32), 50, 4, 1),
    ("own mobile", (3, 32, 32), 10, 8, 1),
    ("own mobile", (3, 32, 32), 50, 4, 1),
]
VARIANTS = {
    "flat": (False, False),
    "+ inputs": (True, False),
    "+ weights": (False, True),
    "+ both": (True, True),
}


def small() -> nn.Module:
    """PyTorch's tutorial network."""
    features = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, nn.Flatten(), *dense)


def normalised(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution with BatchNorm and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def vgg() -> nn.Module:
    """Six 3×3 convolutions, BatchNorm, dropout."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [normalised(inputs, outputs), normalised(outputs, outputs), nn.MaxPool2d(2)]
    dense = [nn.Linear(2048, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first, self.second = normalised(inputs, outputs, stride=stride), normalised(outputs, outputs)[:2]
        self.shortcut = nn.Identity() if stride == 1 else normalised(inputs, outputs, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet20() -> nn.Module:
    """CIFAR's ResNet-20 with BatchNorm."""
    sides = ((16, 16), (16, 16), (16, 16), (16, 32), (32, 32), (32, 32), (32, 64), (64, 64), (64, 64))
    blocks = [Residual(*side) for side in sides]
    return nn.Sequential(normalised(3, 16), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mobile() -> nn.Module:
    """Convolutions channel by channel and 1×1, as in MobileNet."""
    layers = [normalised(3, 32)]
    for inputs, outputs, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
        layers += [normalised(inputs, inputs, stride=stride, groups=inputs), normalised(inputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


OWN: dict[str, Callable[[], nn.Module]] = {
    "own lenet": LeNet,
    "own small": small,
    "own vgg": vgg,
    "own resnet20": resnet20,
    "own mobile": mobile,
}


def main() -> None:
    torch.set_num_threads(1)
    columns = "".join(f"{name:>12}" for name in VARIANTS)
    print(f"{'model':<14}{'image':>10}{'batch':>7}{'plain, ms':>12}{columns}")
    for name, shape, batch, turns, count in CASES:
        steps = {"plain": plain_step(name, shape, batch)}
        for variant, (inputs, weights) in VARIANTS.items():
            steps[variant] = flat_step(name, shape, batch, inputs, weights)
        seconds = interleaved(steps, turns, count)
        ratios = {v: median(p / s for p, s in zip(seconds["plain"], seconds[v], strict=True)) for v in VARIANTS}
        row = "".join(f"{ratio:>11.2f}×" for ratio in ratios.values())
        image = "×".join(str(side) for side in shape)
        print(f"{name:<14}{image:>10}{batch:>7}{1e3 * median(seconds['plain']):>12.1f}{row}", flush=True)


def interleaved(steps: dict[str, Callable[[], None]], turns: int, count: int) -> dict[str, list[float]]:
    """Seconds per step, one figure per turn; the variants take turns because the machine's speed drifts."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            start = perf_counter()
            for _ in range(count):
                step()
            if turn > 0:  # the first turn warms the caches
                seconds[name].append((perf_counter() - start) / count)
    return seconds


def plain_step(name: str, shape: tuple[int, ...], batch: int) -> Callable[[], None]:
    model, loss, x, y = ingredients(name, shape, batch)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()

    return step


def flat_step(name: str, shape: tuple[int, ...], batch: int, inputs: bool, weights: bool) -> Callable[[], None]:
    model, loss, x, y = ingredients(name, shape, batch)
    w, g = flatten(model, weights)
    if inputs:
        x = x.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        g.zero_()
        loss(model(x), y).backward()
        w.add_(g, alpha=-LR)

    return step


def ingredients(name: str, shape: tuple[int, ...], batch: int) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = OWN[name]() if name in OWN else build(name, classes=10, shape=shape)
    return model, nn.CrossEntropyLoss(), torch.randn(batch, *shape), torch.randint(10, (batch,))


def flatten(model: nn.Module, channels_last: bool) -> tuple[Tensor, Tensor]:
    """The model's parameters and gradients as views into w and g."""
    size = sum(p.numel() for p in model.parameters())
    w, g = torch.empty(size), torch.zeros(size)
    offset = 0
    for p in model.parameters():
        value = p.detach()
        p.data, p.grad = (view(v[offset : offset + p.numel()], p.shape, channels_last) for v in (w, g))
        p.data.copy_(value)
        offset += p.numel()
    return w, g


def view(piece: Tensor, shape: torch.Size, channels_last: bool) -> Tensor:
    if channels_last and len(shape) == 4:
        outputs, inputs, height, width = shape
        return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
    return piece.view(shape)


if __name__ == "__main__":
    main()
