"""The fastest memory layout for training convolutional networks, as multiples of plain PyTorch's speed.

One thread, one run: every variant takes a few SGD steps in turn, over and over, and the median is printed
of its ratio to plain PyTorch in the same turn. `channels_last` of the models is set from this table.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from fedacg.models import build

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
]
VARIANTS = {
    "flat": (False, False),
    "+ inputs": (True, False),
    "+ weights": (False, True),
    "+ both": (True, True),
}


def main() -> None:
    torch.set_num_threads(1)
    columns = "".join(f"{name:>12}" for name in VARIANTS)
    print(f"{'model':<12}{'image':>10}{'batch':>7}{'plain, ms':>12}{columns}")
    for name, shape, batch, turns, count in CASES:
        steps = {"plain": plain_step(name, shape, batch)}
        for variant, (inputs, weights) in VARIANTS.items():
            steps[variant] = flat_step(name, shape, batch, inputs, weights)
        seconds = interleaved(steps, turns, count)
        ratios = {v: median(p / s for p, s in zip(seconds["plain"], seconds[v], strict=True)) for v in VARIANTS}
        row = "".join(f"{ratio:>11.2f}×" for ratio in ratios.values())
        image = "×".join(str(side) for side in shape)
        print(f"{name:<12}{image:>10}{batch:>7}{1e3 * median(seconds['plain']):>12.1f}{row}", flush=True)


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
    model = build(name, classes=10, shape=shape)
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
