"""Which engine a run gets where its description leaves that open: by the work, never by the machine."""

import torch

from fedacg.config.experiment import Experiment
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import feed
from fedacg.runs.build import Ingredients
from fedacg.runs.layout_choice import example_cost

_STEP = 3_000_000
"""What a local step costs beside its arithmetic, in multiplications: calls into torch."""
_LITTLE = 100_000_000_000
"""Multiplications that one process has done before workers have started and made up for it."""


def choose_engine(experiment: Experiment, ingredients: Ingredients, runs: int = 1) -> Experiment:
    """The description with the engine named where it says `auto`: by the work of so many runs like it.

    The rule knows counts and no machine, so that a description means the same everywhere. It decides on time only.
    """
    if experiment.engine.name != "auto":
        return experiment
    settings = experiment.engine
    alone = settings.device == "cpu" and not settings.workers
    little = alone and runs * multiplications(experiment, ingredients) <= _LITTLE
    engine = settings.model_copy(update={"name": "serial" if little else "processes"})
    return experiment.model_copy(update={"engine": engine})


def multiplications(experiment: Experiment, ingredients: Ingredients) -> int:
    """What a run has to compute, roughly: three passes per training example, one per test example."""
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
    """Multiplications of one example's way through the network."""
    data, channels_last = ingredients.data, ingredients.channels_last
    x, _ = data.clients[0].fetch(torch.arange(1))
    flat = FlatModel(clone(ingredients.module), channels_last=channels_last)
    return example_cost(flat.module, feed(flat, data.pipeline, x), channels_last)
