"""Losses of methods against independent ones: term by term, over whole runs, and FedAvg where they are neutral."""

import pytest
import torch
from torch import Tensor

import fedacg
from fedacg import methods
from fedacg.methods.parts import Forward, Loss
from fedacg.methods.visit import Assignment
from fedacg.simulation.local import sum_losses
from support import naive
from support.staged import Pair, asked, dealt, job, rounds, tanh_net

COUNTS = (5, 0, 16, 1)

CASES = [
    ("moon", {"mu": 1.0, "temperature": 0.5}, naive.moon(1.0, 0.5)),
    ("moon", {"mu": 5.0, "temperature": 2.0}, naive.moon(5.0, 2.0)),
    ("fedmlb", {"lam1": 1.0, "lam2": 1.0, "temperature": 1.0}, naive.fedmlb(1.0, 1.0, 1.0)),
    ("fedmlb", {"lam1": 0.3, "lam2": 4.0, "temperature": 2.5}, naive.fedmlb(0.3, 4.0, 2.5)),
    ("fedlc", {"tau": 1.0}, naive.fedlc(1.0, COUNTS)),
    ("fedlc", {"tau": 0.0}, naive.fedlc(0.0, COUNTS)),
    ("fedntd", {"beta": 0.3, "temperature": 1.0}, naive.fedntd(0.3, 1.0)),
    ("fedntd", {"beta": 1.0, "temperature": 3.0}, naive.fedntd(1.0, 3.0)),
    ("feddecorr", {"beta": 0.01}, naive.feddecorr(0.01)),
    ("feddecorr", {"beta": 2.0}, naive.feddecorr(2.0)),
]


class Whole(Loss):
    """All losses of a method as one."""

    def __init__(self, method: str, options: dict[str, float]) -> None:
        self.losses = methods.build(method, options).losses

    def begin(self, assignment: Assignment) -> None:
        for loss in self.losses:
            loss.begin(assignment)

    def __call__(self, forward: Forward) -> Tensor:
        return sum_losses(self.losses, forward)


def near(vector: Tensor, source: torch.Generator, by: float) -> Tensor:
    return vector + by * torch.randn(len(vector), generator=source, dtype=vector.dtype)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(("method", "options", "reference"), CASES)
def test_a_loss_and_its_gradient_are_those_of_the_plain_formula(
    method: str, options: dict[str, float], reference: naive.Client, size: int
) -> None:
    source = torch.Generator().manual_seed(size)
    model = tanh_net()
    w = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    phi, kept = near(w, source, 0.5), near(w, source, 0.8)
    x = torch.randn(size, 3, generator=source, dtype=torch.float64)
    y = torch.tensor([0, 2, 3])[torch.randint(3, (size,), generator=source)]
    state = {"w": kept, "buffers": torch.empty(0)}
    value, found = asked(Whole(method, options), model, (x, y), phi=phi, kept=state, counts=COUNTS)
    expected, gradient = naive.gradient(reference, w, phi, kept, x, y)
    assert value == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)


CLIENTS = dealt([0, 1, 2, 3, 0], [2, 2, 3], [1], [0, 0, 1, 3], [3, 1])
COHORTS = [[0, 1], [2, 4], [1], [0, 2, 3]]
RUNS = [
    ("moon", {"mu": 2.0, "temperature": 0.5}, naive.moon(2.0, 0.5)),
    ("fedmlb", {"lam1": 0.5, "lam2": 2.0, "temperature": 2.0}, naive.fedmlb(0.5, 2.0, 2.0)),
    ("fedlc", {"tau": 0.7}, naive.fedlc(0.7)),
    ("fedntd", {"beta": 0.4, "temperature": 2.0}, naive.fedntd(0.4, 2.0)),
    ("feddecorr", {"beta": 0.5}, naive.feddecorr(0.5)),
]


@pytest.mark.parametrize(("method", "options", "reference"), RUNS)
def test_rounds_with_the_lookahead_are_those_of_an_independent_federation(
    method: str, options: dict[str, float], reference: naive.Client
) -> None:
    lam = 0.6
    model = tanh_net()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    work = job(model, CLIENTS, f"{method}+acg", {**options, "lam": lam}, steps=2, lr=0.3)
    found = rounds(work, COHORTS)
    expected = naive.federation(reference, start, CLIENTS, COHORTS, lr=0.3, steps=2, lam=lam)
    for state, theta in zip(found, expected, strict=True):
        torch.testing.assert_close(state["theta"], theta, rtol=0, atol=1e-12)
    assert (expected[-1] - start).norm() > 0.1, "it has gone somewhere"


EVERY_CLASS = ([0, 1, 2, 3, 3, 2, 1], [3, 0, 1, 2, 2], [0, 1, 2, 3], [0, 3, 2, 1, 1, 1])


def final(
    method: str,
    options: dict[str, float],
    dtype: torch.dtype,
    clients: list[Pair] | None = None,
    cohorts: list[list[int]] | None = None,
) -> Tensor:
    clients = clients or dealt(
        [0, 1, 2, 3, 3, 2, 1], [3, 0, 1, 2, 2], [0, 1, 2, 3], [0, 3, 2, 1, 1, 1], dtype=dtype
    )
    return fedacg.run(
        model=tanh_net(dtype),
        clients=clients,
        test=clients[0],
        method=method,
        options=options,
        rounds=len(cohorts) if cohorts else 5,
        participation=0.5,
        cohorts=cohorts,
        local_epochs=2,
        batch_size=3,
        lr=0.2,
        lr_decay=0.9,
        weight_decay=1e-3,
        clip=2.0,
        seed=5,
    ).vector


NEUTRAL = [
    ("moon", {"mu": 0.0}),
    ("fedmlb", {"lam1": 0.0, "lam2": 0.0}),
    ("fedlc", {"tau": 0.0}),
    ("fedntd", {"beta": 0.0}),
    ("feddecorr", {"beta": 0.0}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("method", "options"), NEUTRAL)
def test_neutral_losses_are_fedavg_to_the_bit(method: str, options: dict[str, float], dtype: torch.dtype) -> None:
    # Every client has every class, as FedLC needs; batches of one are among them.
    assert torch.equal(final(method, options, dtype), final("fedavg", {}, dtype))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("moon", {"mu": 0.01}),
        ("fedmlb", {"lam1": 0.01, "lam2": 0.0}),
        ("fedmlb", {"lam1": 0.0, "lam2": 0.01}),
        ("fedlc", {"tau": 0.01}),
        ("fedntd", {"beta": 0.01}),
        ("feddecorr", {"beta": 0.01}),
    ],
)
def test_losses_are_felt_as_soon_as_they_are_not_neutral(method: str, options: dict[str, float]) -> None:
    apart = final(method, options, torch.float64) - final("fedavg", {}, torch.float64)
    assert 1e-7 < apart.norm() < 0.1


def test_fedlc_without_a_shift_is_not_fedavg_where_a_class_is_missing() -> None:
    clients = dealt(*EVERY_CLASS[:3], [0, 2, 2, 1, 1, 1])
    calibrated = final("fedlc", {"tau": 0.0}, torch.float64, clients)
    plain = final("fedavg", {}, torch.float64, clients)
    assert (calibrated - plain).norm() > 1e-3


def test_moon_is_fedavg_but_for_rounding_as_long_as_nobody_comes_back() -> None:
    new, back = [[0, 1], [2], [3]], [[0, 1], [2], [3], [1]]
    moon, plain = (final(method, {}, torch.float64, cohorts=new) for method in ("moon", "fedavg"))
    torch.testing.assert_close(moon, plain, rtol=0, atol=1e-12)
    moon, plain = (final(method, {}, torch.float64, cohorts=back) for method in ("moon", "fedavg"))
    assert (moon - plain).norm() > 1e-4
