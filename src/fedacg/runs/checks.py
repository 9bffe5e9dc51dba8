"""What a description and its ingredients must fulfil together; it is checked before anything is begun."""

import os
from collections.abc import Sequence

import torch
from torch import nn

from fedacg.config.experiment import Experiment
from fedacg.core.vector import FlatModel, clone, trainable
from fedacg.data.examples import FederatedData
from fedacg.errors import InputError, SettingError
from fedacg.methods.method import NEEDS, Method
from fedacg.runs.history import human_bytes

_VECTORS = 4
"""Model-sized vectors that a run holds at least: θ, and a worker's w, g and Δ."""


def numbers(experiment: Experiment, module: nn.Module) -> None:
    """Refuse factors on vectors that the type of the model's parameters cannot hold."""
    dtype = trainable(module)[0].dtype
    most = torch.finfo(dtype).max
    factors = {
        "local": {key: getattr(experiment.local, key) for key in ("lr", "weight_decay", "clip")},
        "method": experiment.method.options,
    }
    for table, values in factors.items():
        for key, value in values.items():
            if isinstance(value, float) and abs(value) > most:
                reason = f"is beyond the range of the model's {dtype}, which ends at {most:.3g}"
                raise SettingError(f"{table}.{key}", f"{value:g}", reason)


@torch.no_grad()
def labels(module: nn.Module, channels_last: bool, data: FederatedData, method: Method) -> None:
    """Refuse labels that the model has no output for, where its loss is cross-entropy."""
    if not data.classes or method.empirical.function is not nn.functional.cross_entropy:
        return
    flat = FlatModel(clone(module), channels_last=channels_last)
    with torch.random.fork_rng(devices=[]):
        x, _ = data.clients[0].fetch(torch.arange(min(2, data.clients.size(0))))
        outputs = flat.module.eval()(flat.prepare(data.pipeline(x)))
    if isinstance(outputs, torch.Tensor) and outputs.dim() == 2 and outputs.shape[1] < data.classes:
        raise InputError(
            f"data: has labels up to {data.classes - 1}, and the model puts out {outputs.shape[1]} numbers "
            f"an example; must be {data.classes} or more"
        )


def memory(name: str, parameters: int) -> None:
    """Refuse a network that this machine cannot hold."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * _VECTORS * parameters > there:
        raise InputError(
            f"model.name = {name!r}: has {parameters} parameters, {human_bytes(4 * parameters)} for each of the "
            f"{_VECTORS} vectors that a run holds at least; this machine has {human_bytes(there)}"
        )


def needs(experiment: Experiment, method: Method, cohorts: Sequence[Sequence[int]] | None, clients: int) -> None:
    """Refuse a method whose needs this federation does not meet."""
    everybody = experiment.cohort.count(clients) == clients and experiment.cohort.draw == "exact"
    if cohorts is not None:
        everybody = all(len(cohort) == clients for cohort in cohorts)
    met = {
        "full participation": everybody and not experiment.population.present and not experiment.failures.drop,
        "uniform weights": experiment.cohort.weights == "uniform",
    }
    for need in sorted(method.needs):
        if not met.get(need, True):
            raise InputError(f"method.name = {experiment.method.name!r}: needs {NEEDS[need]}")
