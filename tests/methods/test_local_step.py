"""Local steps that ask for the gradient again: the same draws, statistics that move once, rows like singles."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedacg.config.sections import LocalSettings
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import TensorExamples
from fedacg.data.own_data import from_pairs
from fedacg.data.pipelines import PlainPipeline
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Gradient, LocalStep, Proximal
from fedacg.methods.rules import Average
from fedacg.simulation import fused
from fedacg.simulation.engine import Answers, Job
from fedacg.simulation.local import train
from fedacg.simulation.worker import Worker
from support.tasks import task

RHO, LR = 0.3, 0.2
SIZES = (9, 4, 13)
EXAMPLES = TensorExamples(
    torch.randn(12, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64), torch.arange(12) % 4
)


class Ascent(LocalStep):
    """g(w + ρ g/‖g‖; B)"""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        g = gradient()
        return gradient(w + RHO * g / torch.linalg.vector_norm(g, dim=-1, keepdim=True))


class Over(LocalStep):
    """The same, with every point written over the gradient that it was made from; three gradients."""

    def __init__(self, over: bool = True) -> None:
        self.over = over

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        g = gradient()
        for _ in range(2):
            scale = RHO / torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            point = torch.addcmul(w, g, scale, out=g) if self.over else torch.addcmul(w, g, scale)
            g = gradient(point)
        return gradient.last(torch.add(w, g, out=g) if self.over else w + g)


class Twice(LocalStep):
    """Looks at the gradient at w again and again, and must see the same."""

    def __init__(self, times: int) -> None:
        self.times = times

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        first = gradient().clone()
        for _ in range(self.times - 1):
            assert torch.equal(gradient(), first)
        return gradient() if self.times == 1 else first


class Apart(LocalStep):
    """½w + g(w; B) − ⅓g(0; B), added up here"""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        return w / 2 + gradient().clone() - gradient(torch.zeros_like(w)) / 3


class Onto(LocalStep):
    """The same, added up by the gradients"""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        half = gradient.onto(lambda g: torch.mul(w, 1 / 2, out=g))
        return gradient.onto(half, torch.zeros_like(w), times=-1 / 3)


class Beside(LocalStep):
    """w + g(w; B), onto a vector that stays as it is"""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        kept = w.clone()
        g = gradient.onto(kept)
        assert torch.equal(kept, w)
        return g


class Difference(LocalStep):
    """g(w; B) − ½g(0; B), the second added to the first where that lies"""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        return gradient.onto(gradient(), torch.zeros_like(w), times=-1 / 2)


def net(*layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Tanh(), nn.Linear(8, 4)).double()


def method(step: LocalStep) -> Method:
    return Method(Average(), step=step)


def visit(step: LocalStep, module: nn.Module, steps: int = 5) -> tuple[FlatModel, float]:
    """The model after a client's steps, and the loss that is told."""
    flat = FlatModel(clone(module))
    flat.module.train()
    work, settings = task(1, 0, steps), LocalSettings(batch=5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        loss = train(flat, EXAMPLES, PlainPipeline(), method(step), settings, [LR] * steps, work.random)
    return flat, loss


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": net,
    "dropout": lambda: net(nn.Dropout(0.5)),
    "normalised": lambda: net(nn.BatchNorm1d(8)),
    "both": lambda: net(nn.BatchNorm1d(8), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("times", [2, 4])
def test_asking_again_draws_the_same_masks_and_moves_statistics_once(
    make: Callable[[], nn.Module], times: int
) -> None:
    (plain, loss), (often, same) = visit(LocalStep(), make()), visit(Twice(times), make())
    assert torch.equal(often.w, plain.w)
    assert torch.equal(often.read_buffers(), plain.read_buffers())
    assert loss == same


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_gradients_add_up_as_if_they_were_added_afterwards(make: Callable[[], nn.Module]) -> None:
    (apart, loss), (onto, same) = visit(Apart(), make()), visit(Onto(), make())
    torch.testing.assert_close(onto.w, apart.w, rtol=0, atol=1e-12)
    torch.testing.assert_close(onto.read_buffers(), apart.read_buffers(), rtol=0, atol=1e-12)
    assert loss == pytest.approx(same, rel=1e-12)


def test_a_dropout_mask_changes_from_step_to_step() -> None:
    masks = []

    class Noted(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            masks.append(super().forward(torch.ones(1, 64)) == 0)
            return input

    visit(Twice(2), net(Noted(0.5)), steps=3)
    assert all(torch.equal(masks[first], masks[first + 1]) for first in (0, 2, 4))
    assert not torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[2], masks[4])


def sharp(module: nn.Module, steps: int) -> nn.Module:
    """The same ascent and descent, written out with PyTorch's own means."""
    order = task(1, 0, steps).random("shuffle")
    batches: list[Tensor] = []
    while len(batches) < steps:
        batches += torch.randperm(len(EXAMPLES), generator=order).split(5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for index in batches[:steps]:
            draws, w = torch.get_rng_state(), parameters_to_vector(module.parameters()).detach()
            g = differentiated(module, index)
            buffers = [buffer.clone() for buffer in module.buffers()]
            vector_to_parameters(w + RHO * g / g.norm(), module.parameters())
            torch.set_rng_state(draws)
            g = differentiated(module, index)
            vector_to_parameters(w - LR * g, module.parameters())
            for buffer, before in zip(module.buffers(), buffers, strict=True):
                buffer.copy_(before)
    return module


def differentiated(module: nn.Module, index: Tensor) -> Tensor:
    loss = cross_entropy(module(EXAMPLES.x[index]), EXAMPLES.y[index])
    return parameters_to_vector(torch.autograd.grad(loss, list(module.parameters())))


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_an_ascent_before_every_step_is_that_written_out_in_torch(make: Callable[[], nn.Module]) -> None:
    flat, _ = visit(Ascent(), make())
    expected = sharp(make().train(), 5)
    torch.testing.assert_close(flat.w, parameters_to_vector(expected.parameters()), rtol=0, atol=1e-12)
    statistics = [buffer for buffer in expected.buffers() if buffer.is_floating_point()]
    found = [buffer for buffer in flat.module.buffers() if buffer.is_floating_point()]
    for one, other in zip(found, statistics, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_loss_that_is_told_is_that_at_w() -> None:
    assert visit(Ascent(), net(), steps=1)[1] == visit(LocalStep(), net(), steps=1)[1]


def chain() -> nn.Module:
    """A network whose gradients at many points are taken without autograd."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).double()


def served(step: LocalStep, group: int, settings: LocalSettings, make: Callable[[], nn.Module]) -> list[Answers]:
    source = torch.Generator().manual_seed(1)
    clients = [
        (torch.randn(n, 6, generator=source, dtype=torch.float64), torch.randint(4, (n,), generator=source))
        for n in SIZES
    ]
    made_of = Method(Average(), objective=(Empirical(), Proximal(0.2)), step=step)
    worker = Worker(Job(make(), False, from_pairs(clients, clients[0]), made_of, settings, 0, 100, group=group))
    phi = {"phi": FlatModel(make()).w, "buffers": torch.empty(0, dtype=torch.float64)}
    tasks = [task(1, client, settings.steps_for(n), lr=LR) for client, n in enumerate(SIZES)]
    if group > 1:
        return [worker.serve(tasks, phi, {})]
    return [
        Answers(a.tasks, a.examples, a.losses, {name: rows.clone() for name, rows in a.upload.items()}, {})
        for a in (worker.serve([one], phi, {}) for one in tasks)
    ]


@pytest.mark.parametrize("make", [net, chain])
@pytest.mark.parametrize(
    "step", [LocalStep(), Ascent(), Onto(), Beside(), Difference()], ids=lambda step: type(step).__name__
)
@pytest.mark.parametrize(
    "local", [{}, {"clip": 0.4, "momentum": 0.5, "weight_decay": 0.1}, {"within": "linear", "optimiser": "adam"}]
)
def test_rows_end_where_each_client_alone_does(
    step: LocalStep, local: dict[str, object], make: Callable[[], nn.Module]
) -> None:
    settings = LocalSettings.model_validate({"epochs": 3, "batch": 4, **local})
    (together,), alone = served(step, len(SIZES), settings, make), served(step, 1, settings, make)
    deltas = together.upload["delta"].view(torch.float64)
    for row, answers in enumerate(alone):
        torch.testing.assert_close(deltas[row], answers.upload["delta"][0].view(torch.float64), rtol=0, atol=1e-12)
        assert together.losses[row] == pytest.approx(answers.losses[0], rel=1e-12)
    assert not torch.equal(deltas[0], deltas[1])


@pytest.mark.parametrize("group", [1, len(SIZES)])
@pytest.mark.parametrize("make", [net, chain])
def test_a_point_may_be_written_over_the_last_gradient(make: Callable[[], nn.Module], group: int) -> None:
    over, apart = (served(Over(it), group, LocalSettings(epochs=3, batch=4), make) for it in (True, False))
    for one, other in zip(over, apart, strict=True):
        assert torch.equal(one.upload["delta"], other.upload["delta"])
        assert one.losses == other.losses


def test_rows_that_ask_again_see_the_same_and_may_ask_elsewhere() -> None:
    flat = FlatModel(net())
    w = flat.w.expand(2, -1).clone()
    seen: list[Tensor] = []

    class Elsewhere(LocalStep):
        def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
            here = gradient()
            seen.extend([here.clone(), gradient(torch.zeros(w.shape[1], dtype=w.dtype)).clone(), gradient(w)])
            return here

    seeds = [task(1, client, 1).seed_of for client in range(2)]
    settings = LocalSettings(batch=12)
    fused.train(flat, w, [EXAMPLES] * 2, PlainPipeline(), method(Elsewhere()), settings, [[LR]] * 2, seeds)
    here, origin, again = seen
    assert torch.equal(here, again)
    torch.testing.assert_close(origin[0], origin[1], rtol=0, atol=1e-14)
    assert not torch.allclose(origin, here)
