"""Local optimisers against PyTorch's own, on one vector and on the rows of many."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedacg.config.sections import LocalSettings
from fedacg.simulation.local import make_optimiser

SIZE, STEPS, LR = 13, 20, 0.05
Make = Callable[[list[Tensor]], torch.optim.Optimizer]
CASES: dict[str, tuple[dict[str, Any], Make]] = {
    "plain": ({}, lambda w: torch.optim.SGD(w, lr=LR)),
    "decay": ({"weight_decay": 0.1}, lambda w: torch.optim.SGD(w, lr=LR, weight_decay=0.1)),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.1},
        lambda w: torch.optim.SGD(w, lr=LR, momentum=0.9, weight_decay=0.1),
    ),
    "Nesterov": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        lambda w: torch.optim.SGD(w, lr=LR, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    "Adam": ({"optimiser": "adam"}, lambda w: torch.optim.Adam(w, lr=LR)),
    "Adam with decay and other rates": (
        {"optimiser": "adam", "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.1},
        lambda w: torch.optim.Adam(w, lr=LR, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    "AdamW": (
        {"optimiser": "adamw", "weight_decay": 0.1},
        lambda w: torch.optim.AdamW(w, lr=LR, weight_decay=0.1),
    ),
    "AdamW without decay": ({"optimiser": "adamw"}, lambda w: torch.optim.AdamW(w, lr=LR, weight_decay=0.0)),
}


def start(row: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(row), dtype=torch.float64)


def gradient(w: Tensor) -> Tensor:
    """Of a loss with a curvature of its own in every coordinate; a new tensor, as it may be overwritten."""
    return torch.linspace(0.1, 3, SIZE, dtype=torch.float64) * w.sin()


def reference(row: int, make: Make, steps: int) -> Tensor:
    """Where PyTorch's optimiser takes a vector."""
    w = start(row).requires_grad_()
    optimiser = make([w])
    for _ in range(steps):
        w.grad = gradient(w.detach())
        optimiser.step()
    return w.detach()


@pytest.mark.parametrize(("settings", "make"), CASES.values(), ids=CASES)
def test_a_vector_goes_where_torch_takes_it(settings: dict[str, Any], make: Make) -> None:
    w = start(0)
    optimiser = make_optimiser(LocalSettings(**settings), w)
    for _ in range(STEPS):
        w.sub_(optimiser.direction(gradient(w), w), alpha=LR)
    torch.testing.assert_close(w, reference(0, make, STEPS), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("settings", "make"), CASES.values(), ids=CASES)
def test_rows_go_where_each_alone_would_as_the_last_ones_stop_earlier(
    settings: dict[str, Any], make: Make
) -> None:
    counts = (STEPS, 12, 12, 5)
    w = torch.stack([start(row) for row in range(len(counts))])
    optimiser = make_optimiser(LocalSettings(**settings), w)
    for step in range(STEPS):
        rows = w[: sum(step < count for count in counts)]
        rows.sub_(optimiser.direction(gradient(rows), rows), alpha=LR)
    for row, count in enumerate(counts):
        torch.testing.assert_close(w[row], reference(row, make, count), rtol=0, atol=1e-13)


@pytest.mark.parametrize("settings", [settings for settings, _ in CASES.values()], ids=CASES)
def test_w_is_left_as_it_was(settings: dict[str, Any]) -> None:
    w, optimiser = start(1), make_optimiser(LocalSettings(**settings), start(1))
    for _ in range(2):
        optimiser.direction(gradient(w), w)
    assert torch.equal(w, start(1))


def test_every_visit_starts_with_nothing_behind_it() -> None:
    settings = LocalSettings(momentum=0.9)
    used, new = (make_optimiser(settings, start(0)) for _ in range(2))
    used.direction(gradient(start(0)), start(0))
    assert torch.equal(new.direction(gradient(start(0)), start(0)), gradient(start(0)))
