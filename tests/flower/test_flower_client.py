"""`add_penalty` against β/2 ‖w − φ‖² in the loss, differentiated by autograd, in float64."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedacg.errors import InputError
from fedacg.flower import add_penalty

BETA = 0.3


class Net(nn.Module):
    """Two layers, one that no example reaches, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 5), nn.Linear(5, 2)
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.head(torch.tanh(self.hidden(x))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def loss(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return nn.functional.cross_entropy(model(x), torch.arange(7) % 2)


def pulled_by_the_loss(model: Net, optimizer: Optimizer, steps: int) -> None:
    phi = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(steps):
        distance = sum((w - start).square().sum() for w, start in zip(model.parameters(), phi, strict=True))
        optimizer.zero_grad()
        (loss(model, step) + BETA / 2 * distance).backward()
        optimizer.step()


def pulled_by_the_helper(model: Net, optimizer: Optimizer, steps: int) -> None:
    add_penalty(optimizer, BETA)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()


OPTIMIZERS: dict[str, Callable[[Net], Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.3),
    "momentum and decay": lambda net: torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.05),
    "groups": lambda net: torch.optim.SGD(
        [{"params": net.hidden.parameters(), "lr": 0.5}, {"params": [*net.head.parameters()]}], lr=0.1
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_penalty_in_the_loss(name: str, net: Net) -> None:
    other, free = copy.deepcopy(net), copy.deepcopy(net)
    pulled_by_the_loss(net, OPTIMIZERS[name](net), steps=12)
    pulled_by_the_helper(other, OPTIMIZERS[name](other), steps=12)
    for ours, autograds in zip(other.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, autograds, rtol=0, atol=1e-12)
    optimizer = OPTIMIZERS[name](free)
    for step in range(12):
        optimizer.zero_grad()
        loss(free, step).backward()
        optimizer.step()
    assert (free.head.weight - net.head.weight).abs().max() > 1e-3


def test_a_second_call_moves_the_start_and_does_not_pull_twice(net: Net) -> None:
    other = copy.deepcopy(net)
    for model, train in ((net, pulled_by_the_loss), (other, pulled_by_the_helper)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        train(model, optimizer, steps=4)
        train(model, optimizer, steps=4)
    torch.testing.assert_close(other.head.weight, net.head.weight, rtol=0, atol=1e-12)


def test_two_steps_are_those_worked_out_by_hand() -> None:
    # One step from w = 1 with loss w: w = 1 − ½ = ½.  The next has gradient 1 + 0.3(½ − 1) = 0.85: w = 0.075.
    w = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=0.5)
    add_penalty(optimizer, BETA)
    for expected in (0.5, 0.075):
        optimizer.zero_grad()
        w.backward()
        optimizer.step(None)
        assert w.item() == pytest.approx(expected, abs=1e-15)


def test_a_closure_is_refused(net: Net) -> None:
    optimizer = torch.optim.LBFGS(net.parameters())
    add_penalty(optimizer, BETA)
    with pytest.raises(InputError, match=r"LBFGS.step\(closure\): add_penalty cannot see the gradients"):
        optimizer.step(lambda: loss(net, 0).item())
    with pytest.raises(InputError, match=r"LBFGS.step\(closure\)"):
        optimizer.step(closure=lambda: loss(net, 0).item())


@pytest.mark.parametrize("beta", [-0.1, float("nan"), float("inf")])
def test_beta_out_of_range_is_refused(beta: float, net: Net) -> None:
    with pytest.raises(InputError, match=r"beta = .*: must lie in \[0, ∞\)"):
        add_penalty(torch.optim.SGD(net.parameters(), lr=0.1), beta)
