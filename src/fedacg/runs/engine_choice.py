"""The engine of a run whose description says `auto`: it depends on the work, never on the machine."""

import torch

from fedacg.config.experiment import Experiment
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import feed
from fedacg.runs.build import Ingredients
from fedacg.runs.layout_choice import example_cost

_STEP = 3_000_000
"""Overhead of a local step, in multiplications: calls into torch."""
_LITTLE = 100_000_000_000
"""Work, in multiplications, from which starting workers pays."""


def choose_engine(experiment: Experiment, ingredients: Ingredients, runs: int = 1) -> Experiment:
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


def multiplications(experiment: Experiment, ingredients: Ingredients) -> int:
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


def _example_cost(ingredients: Ingredients) -> int:
    """Multiplications of one example's forward pass."""
    data, channels_last = ingredients.data, ingredients.channels_last
    x, _ = data.clients[0].fetch(torch.arange(1))
    flat = FlatModel(clone(ingredients.module), channels_last=channels_last)
    return example_cost(flat.module, feed(flat, data.pipeline, x), channels_last)
