"""What a run gets where its description leaves it open: the memory layout and the engine, never by the machine.

The layout changes the rounding, so the choice follows from the network, the shape of an input, batch and cohort.
It is written into the run folder, and a run that is resumed keeps it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedacg.config.experiment import Experiment
from fedacg.core.tensors import Inputs, call, tensors
from fedacg.core.vector import FlatModel, clone, trainable
from fedacg.data.examples import FederatedData, feed
from fedacg.runs.contents import is_run, read_marker
from fedacg.simulation import fused

if TYPE_CHECKING:
    from fedacg.runs.build import Ingredients

# The memory layout: by the network


_FUSED_STEP = 1_500_000
"""Multiplications of a step up to which many clients at once beat one after the other channels-last."""


def choose_layout(experiment: Experiment, module: nn.Module, data: FederatedData) -> bool:
    """Whether a run computes with convolutions channels-last.

    What the description says counts first, then what the network says of itself. One that says nothing gets it if
    it has convolutions and can take it, unless it is so small that its clients are better trained many at a time.
    """
    if experiment.model.layout != "auto":
        return experiment.model.layout == "channels-last"
    if (preference := preference_of(module)) is not None:
        return preference
    if len(data.shape) != 3 or not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    return not _fused_instead(experiment, module, data) and takes_channels_last(module, data.shape)


def resumed_layout(experiment: Experiment, module: nn.Module, folder: Path) -> bool | None:
    """That of the run in a folder, where neither description nor network say which; None where they do.

    Folders that do not say it are of versions in which such a network had the ordinary one.
    """
    if experiment.model.layout != "auto" or preference_of(module) is not None or not is_run(folder):
        return None
    marker = read_marker(folder)
    return marker is not None and marker.layout == "channels-last"


def preference_of(module: nn.Module) -> bool | None:
    """The layout that a network asks for by its attribute `channels_last`; None where it says nothing."""
    preference = getattr(module, "channels_last", None)
    return None if preference is None else bool(preference)


def _fused_instead(experiment: Experiment, module: nn.Module, data: FederatedData) -> bool:
    """Whether many clients at a time are wanted, or faster; that needs the ordinary layout."""
    if experiment.engine.fuse != "auto":
        return experiment.engine.fuse == "on"
    cohort = experiment.cohort.count(experiment.population.present or len(data.clients))
    if not fused.worthwhile(sum(p.numel() for p in trainable(module)), cohort):
        return False
    try:
        cost = example_cost(module, _made_up(module, data.shape)[:1])
    except Exception:  # the checks of every run report what it cannot take
        return False
    return experiment.local.batch * cost <= _FUSED_STEP


def takes_channels_last(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a network computes the same channels-last, tried on two made-up examples, forwards and backwards.

    A `view` of features fails in that layout, where `flatten` and `reshape` do not.
    """
    x = _made_up(module, shape)
    with torch.random.fork_rng(devices=[]):
        try:
            outputs = [_outputs(clone(module), x, channels_last) for channels_last in (False, True)]
        except Exception:  # a network may raise anything
            return False
    scale = 1e-3 * max(float(part.abs().max()) for part in outputs[0])
    return all(torch.allclose(a, b, rtol=1e-3, atol=scale) for a, b in zip(*outputs, strict=True))


def _outputs(module: nn.Module, x: Tensor, channels_last: bool) -> list[Tensor]:
    """What a network puts out when it does not train, after it has taken a training step's gradients."""
    flat = FlatModel(module, channels_last=channels_last)
    x = flat.prepare(x)
    trained = [part for part in tensors(call(flat.module.train(), x)) if part.is_floating_point()]
    torch.autograd.backward([part.sum() for part in trained])
    with torch.no_grad():
        return [part for part in tensors(call(flat.module.eval(), x)) if part.is_floating_point()]


def _made_up(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two inputs of noise, the same wherever they are asked for."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(2, *shape, generator=source).to(trainable(module)[0].dtype)


@torch.no_grad()
def example_cost(module: nn.Module, x: Inputs, channels_last: bool = False) -> int:
    """Multiplications of one example's way through a network: weights, each as often as it is applied."""
    flat = FlatModel(clone(module).eval(), channels_last=channels_last)
    cost = [0]

    def add(layer: nn.Module, _: object, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        width = next((w for key in _WIDTHS if isinstance(w := getattr(layer, key, None), int)), 0)
        if width and isinstance(first, torch.Tensor):
            cost[0] += first.numel() // width * sum(p.numel() for p in layer.parameters())

    for layer in flat.module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(add)
    with torch.random.fork_rng(devices=[]):
        call(flat.module, x)
    return max(cost[0], sum(p.numel() for p in trainable(module)))


_WIDTHS = ("out_channels", "out_features", "hidden_size")
"""What linear, convolutional and recurrent layers call the numbers they put out at each place."""


# The engine: by the work


_STEP = 3_000_000
"""Overhead of a local step, in multiplications: calls into torch."""
_LITTLE = 100_000_000_000
"""Work, in multiplications, from which starting workers pays."""


def choose_engine(experiment: Experiment, ingredients: "Ingredients", runs: int = 1) -> Experiment:
    """The description with `auto` replaced by an engine, chosen by the work of `runs` such runs.

    The rule uses counts and not the machine, so that a description means the same everywhere. It affects only
    time.
    """
    if experiment.engine.name != "auto":
        return experiment
    settings = experiment.engine
    alone = settings.device == "cpu" and not settings.workers
    little = alone and runs * multiplications(experiment, ingredients) <= _LITTLE
    engine = settings.model_copy(update={"name": "serial" if little else "processes"})
    return experiment.model_copy(update={"engine": engine})


def multiplications(experiment: Experiment, ingredients: "Ingredients") -> int:
    """A rough estimate of a run's work: three passes per training example, one per test example."""
    clients, local = ingredients.data.clients, experiment.local
    some = range(0, len(clients), max(1, len(clients) // 100))
    sizes = [clients.size(client) for client in some]
    steps = sum(map(local.steps_for, sizes)) / len(sizes)
    examples = steps * local.batch if local.steps else local.epochs * sum(sizes) / len(sizes)
    one = _example_cost(ingredients)
    visits = experiment.rounds * experiment.cohort.count(experiment.population.present or len(clients))
    tests = experiment.rounds // experiment.evaluate.every * len(ingredients.data.test)
    return int(visits * (steps * _STEP + 3 * examples * one) + tests * one)


def _example_cost(ingredients: "Ingredients") -> int:
    """Multiplications of one example's forward pass."""
    data, channels_last = ingredients.data, ingredients.channels_last
    x, _ = data.clients[0].fetch(torch.arange(1))
    flat = FlatModel(clone(ingredients.module), channels_last=channels_last)
    return example_cost(flat.module, feed(flat, data.pipeline, x), channels_last)
