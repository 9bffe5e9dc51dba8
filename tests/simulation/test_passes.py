"""How many examples go through a network at once, and that nothing but rounding depends on it."""

import pytest
import torch
from torch import Tensor, nn

from fedacg import methods
from fedacg.config.sections import LocalSettings
from fedacg.core.vector import FlatModel
from fedacg.data.own_data import from_pairs
from fedacg.engines.serial import SerialEngine
from fedacg.simulation.engine import Job
from fedacg.simulation.scoring import Evaluation, examples_per_pass


def test_the_largest_output_of_a_layer_counts() -> None:
    network = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))
    assert examples_per_pass(network, torch.zeros(1, 3, 8, 8)) == 2**21 // (32 * 8 * 8)
    assert not any(layer._forward_hooks for layer in network.modules())


def test_a_network_that_is_too_large_takes_one_example_at_a_time() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.expand(1, 2**22)

    assert examples_per_pass(Large(), torch.zeros(1, 1)) == 1


def evaluated() -> tuple[Evaluation, list[Tensor]]:
    source = torch.Generator().manual_seed(0)
    pair = torch.randn(50, 6, generator=source).double(), torch.randint(4, (50,), generator=source)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(6, 4).double()
    method, local = methods.build("fedavg"), LocalSettings(batch=4)
    engine = SerialEngine()
    seen: list[Tensor] = []
    engine.setup(Job(module, False, from_pairs([pair], pair), method, local, seed=0, evaluate_batch=20))
    flat = FlatModel(module)
    model = {"theta": flat.w, "buffers": flat.read_buffers()}
    return engine.evaluate(model, see=lambda outputs, y: seen.extend((outputs, y))), seen


def test_sums_and_what_metrics_see_do_not_depend_on_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, outputs = evaluated()
    monkeypatch.setattr("fedacg.simulation.scoring._ENTRIES", 4 * 7)
    parts, again = evaluated()
    assert (parts.examples, parts.correct, parts.counted) == (whole.examples, whole.correct, whole.counted)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    assert [len(each) for each in again] == [20, 20, 20, 20, 10, 10], "outputs and labels of each part, once"
    assert all(torch.allclose(one, other) for one, other in zip(outputs, again, strict=True))
