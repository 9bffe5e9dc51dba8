"""The local trainer against PyTorch's own optimiser, and what it must not depend on."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from fedacg.config.sections import LocalSettings
from fedacg.core.randomness import generator
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Part, Proximal
from fedacg.methods.rules import Average
from fedacg.methods.visit import Assignment
from fedacg.simulation.engine import Task
from fedacg.simulation.local import train
from fedacg.simulation.worker import FrozenCopies
from support.tasks import round_of, task


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()


def _assignment(flat: FlatModel, phi: torch.Tensor) -> Assignment:
    worker = FrozenCopies(flat.module, channels_last=False)
    return Assignment(
        flat,
        {"phi": phi},
        kept={},
        round=round_of(3),
        local=LocalSettings(),
        steps=15,
        total_lr=3.0,
        label_counts=lambda: phi,
        full_gradient=lambda: phi,
        copies=worker,
        scratch=torch.empty_like(phi),
    )


EXAMPLES = TensorExamples(
    torch.randn(23, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64), torch.arange(23) % 4
)
VISIT = task(3, 7, 15, seed=1)


def trained(
    flat: FlatModel,
    examples: TensorExamples,
    parts: tuple[Part, ...],
    settings: LocalSettings,
    visit: Task,
    lr: float,
) -> float:
    """The loss of a client's visit at a constant rate; `flat` ends where it ends."""
    method = Method(Average(), objective=parts)
    return train(flat, examples, PlainPipeline(), method, settings, [lr] * visit.steps, visit.random)


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_equal_torch_sgd_with_the_penalty_through_autograd(momentum: float, mu: float) -> None:
    settings = LocalSettings(epochs=3, batch=5, weight_decay=0.01, momentum=momentum, clip=0.7)
    flat = FlatModel(net())
    phi = flat.w.clone()
    proximal = Proximal(mu)
    proximal.begin(_assignment(flat, phi))
    loss = trained(flat, EXAMPLES, (Empirical(), proximal), settings, VISIT, lr=0.2 * 0.9**2)

    reference = net()
    sgd = torch.optim.SGD(reference.parameters(), lr=0.2 * 0.9**2, weight_decay=0.01, momentum=momentum)
    shuffle = generator(1, "shuffle", 3, 7)
    losses = []
    for _ in range(3):
        for index in torch.split(torch.randperm(23, generator=shuffle), 5):
            sgd.zero_grad()
            plain = cross_entropy(reference(EXAMPLES.x[index]), EXAMPLES.y[index])
            (plain + mu / 2 * (parameters_to_vector(reference.parameters()) - phi).square().sum()).backward()
            clip_grad_norm_(reference.parameters(), 0.7)
            sgd.step()
            losses.append((float(plain.detach()), len(index)))
    torch.testing.assert_close(flat.w, parameters_to_vector(reference.parameters()), rtol=0, atol=1e-12)
    assert loss == pytest.approx(sum(value * count for value, count in losses) / sum(c for _, c in losses))
    assert [count for _, count in losses][4] == 3, "the last partial batch is kept"


def test_every_epoch_sees_every_example_once() -> None:
    seen: list[float] = []

    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.extend(x[:, 0].tolist())
            return self.w * torch.ones(len(x), 2)

    examples = TensorExamples(torch.arange(11.0).unsqueeze(1), torch.zeros(11, dtype=torch.int64))
    settings = LocalSettings(epochs=2, batch=4)
    visit = VISIT._replace(steps=settings.steps_for(11))
    trained(FlatModel(Recorder()), examples, (Empirical(),), settings, visit, lr=0.1)
    assert sorted(seen[:11]) == sorted(seen[11:]) == list(range(11))
    assert seen[:11] != seen[11:], "each epoch has an order of its own"


@pytest.mark.parametrize(("steps", "epochs", "expected"), [(0, 3, 9), (7, 3, 7), (2, 1, 2)])
def test_steps_take_the_place_of_epochs(steps: int, epochs: int, expected: int) -> None:
    settings = LocalSettings(steps=steps, epochs=epochs, batch=4)
    assert settings.steps_for(11) == expected
    count = 0

    class Counter(Empirical):
        def __call__(self, forward):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            return super().__call__(forward)

    examples = TensorExamples(EXAMPLES.x[:11], EXAMPLES.y[:11])
    visit = VISIT._replace(steps=expected)
    trained(FlatModel(net()), examples, (Counter(),), settings, visit, lr=0.1)
    assert count == expected


def test_randomness_belongs_to_seed_round_and_client() -> None:
    settings = LocalSettings(epochs=1, batch=5)

    def end(visit: Task) -> torch.Tensor:
        flat = FlatModel(clone(net()))
        trained(flat, EXAMPLES, (Empirical(),), settings, visit, lr=0.1)
        return flat.w

    assert torch.equal(end(VISIT._replace(steps=5)), end(VISIT._replace(steps=5)))
    for other in (task(3, 7, 5, seed=2), task(4, 7, 5, seed=1), task(3, 8, 5, seed=1)):
        assert not torch.equal(end(VISIT._replace(steps=5)), end(other))
