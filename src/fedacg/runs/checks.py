"""Checks before anything starts: numbers, models, data, and requirements of methods."""

import os
from collections.abc import Sequence

import torch
from torch import nn

from fedacg.config.experiment import Experiment
from fedacg.core.tensors import call, described
from fedacg.core.vector import FlatModel, clone, trainable
from fedacg.data.examples import FederatedData, feed
from fedacg.errors import InputError, SettingError
from fedacg.methods.dp import promise_of
from fedacg.methods.method import NEEDS, Method
from fedacg.runs.history import human_bytes

_VECTORS = 4
"""Least number of model-sized vectors in a run: θ, and a worker's w, g and Δ."""


def check_numbers(experiment: Experiment, module: nn.Module) -> None:
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
def check_fit(module: nn.Module, channels_last: bool, data: FederatedData, method: Method) -> None:
    """Refuse inputs that the model cannot take, and labels that its outputs cannot be compared with."""
    flat = FlatModel(clone(module), channels_last=channels_last)
    x, y = data.clients[0].fetch(torch.arange(min(2, data.clients.size(0))))
    inputs = feed(flat, data.pipeline, x)
    with torch.random.fork_rng(devices=[]):
        try:
            outputs = call(flat.module.eval(), inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(
                f"model: {type(module).__name__} cannot take the inputs, {described(inputs)}: {_first_line(error)}"
            ) from error
        plain = method.empirical.function is nn.functional.cross_entropy
        if plain and not isinstance(outputs, torch.Tensor):
            raise InputError(f"model: returns a {type(outputs).__name__}; must be a tensor, or give loss=")
        if plain and data.classes and outputs.dim() == 2 and outputs.shape[1] < data.classes:
            raise InputError(
                f"data: has labels up to {data.classes - 1}, but the model has {outputs.shape[1]} outputs "
                f"per example; must have {data.classes} or more"
            )
        try:
            method.empirical.function(outputs, y)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            found = described(outputs) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            both = f"{found}, with labels, {described(y)}"
            raise InputError(f"loss: cannot compare the model's outputs, {both}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def check_memory(name: str, parameters: int) -> None:
    """Refuse a network that this machine cannot hold."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * _VECTORS * parameters > there:
        raise InputError(
            f"model.name = {name!r}: has {parameters} parameters, {human_bytes(4 * parameters)} for each of the "
            f"{_VECTORS} vectors that a run needs at least; this machine has {human_bytes(there)}"
        )


def check_needs(
    experiment: Experiment, method: Method, cohorts: Sequence[Sequence[int]] | None, clients: int
) -> None:
    """Refuse a method whose requirements this federation does not meet."""
    everybody = experiment.cohort.count(clients) == clients and experiment.cohort.draw == "exact"
    everybody = everybody and not experiment.clock.drops
    if cohorts is not None:
        everybody = all(len(cohort) == clients for cohort in cohorts)
    promise = promise_of(method)
    met = {
        "full participation": everybody and not experiment.population.present and not experiment.failures.drop,
        "uniform weights": experiment.cohort.weights == "uniform",
        "spaced cohorts": cohorts is None and experiment.cohort.gap >= len(promise.bands if promise else ()),
    }
    if promise and experiment.clock.drops:
        what = "which updates are dropped depends on who was asked, which its privacy accounting does not cover"
        raise InputError(f"method.name = {experiment.method.name!r}: with a clock that drops updates, {what}")
    if experiment.asynchronous.buffer:
        check_asynchronous(experiment, method, cohorts, clients)
        met["full participation"] = False
    for need in sorted(method.needs):
        if not met.get(need, True):
            raise InputError(f"method.name = {experiment.method.name!r}: needs {NEEDS[need]}")


def check_asynchronous(
    experiment: Experiment, method: Method, cohorts: Sequence[Sequence[int]] | None, clients: int
) -> None:
    """Refuse what has no meaning in asynchronous rounds."""
    buffer, there = experiment.asynchronous.buffer, experiment.population.present or clients
    if buffer > there:
        raise SettingError("asynchronous.buffer", str(buffer), f"there are only {there} clients")
    if method.rule.first_exchange:
        what = "its rounds have two exchanges, but asynchronous rounds do not wait"
        raise InputError(f"method.name = {experiment.method.name!r}: {what}")
    rule, covered = method.rule, any(link.covers for link in method.upload)
    if covered or rule.silent or rule.always or rule.moves_buffers or not rule.common:
        what = "it depends on the cohort, but asynchronous rounds have none"
        raise InputError(f"method.name = {experiment.method.name!r}: {what}")
    if experiment.evaluate.clients != "none":
        value = repr(experiment.evaluate.clients)
        raise SettingError("evaluate.clients", value, "is for synchronous rounds only")
    if experiment.failures.bad:
        raise SettingError("failures.bad", f"{experiment.failures.bad:g}", "is for synchronous rounds only")
    if cohorts is not None:
        raise InputError("cohorts: asynchronous rounds ask one client after the other; leave them out")
