"""Checks before anything starts: numbers, models, data, requirements of methods, and starting points.

Whatever cannot be run or resumed is refused here, with the reason.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.core.plugins import is_plugin, reading
from fedacg.core.tensors import call, described
from fedacg.core.vector import FlatModel, Layout, clone, trainable
from fedacg.data.examples import FederatedData, feed
from fedacg.errors import InputError, SettingError
from fedacg.methods.dp import promise_of
from fedacg.methods.method import NEEDS, Method
from fedacg.methods.rules import State, released
from fedacg.runs.client_states import ClientStates
from fedacg.runs.contents import CHECKPOINT, EXPERIMENT, load_moment
from fedacg.runs.history import History, human_bytes
from fedacg.simulation.asynchronous import VERSION
from fedacg.simulation.engine import Job
from fedacg.simulation.federation import ServerState
from fedacg.simulation.sampling import Sampling

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


# Starting points of a run other than round 0: a checkpoint, its own end, or another run's vectors


def bound_to_its_rounds(experiment: Experiment, method: Method) -> str | None:
    """Why the rounds so far are not those of a longer run; None if they are."""
    schedule = experiment.local.schedule
    if schedule == "cosine" or is_plugin(schedule):
        return (
            f"local.schedule = {schedule!r} depends on the number of rounds, so the rounds so far had other rates"
        )
    if method.rule.counts_rounds:
        return f"method.name = {experiment.method.name!r} depends on the number of rounds"
    return None


def warm_start(experiment: Experiment, job: Job, begin: ServerState, layout: Layout) -> ServerState:
    """The server before the first round with the vectors of the run in `experiment.start`."""
    folder = Path(experiment.start)
    if not os.path.lexists(folder / CHECKPOINT):
        raise SettingError("start", repr(experiment.start), f"no run with a {CHECKPOINT} there")
    vectors = _fitting(experiment, load_moment(folder).vectors, begin.vectors)
    found = layout.from_canonical({name: vectors[name] for name in vectors if not name.startswith(VERSION)})
    if experiment.start_vectors == "model":
        theta = released(found)
        return ServerState(0, {**job.first_state(theta.clone()), "buffers": found["buffers"]})
    _check_server(experiment, job, folder, found, begin.vectors)
    return ServerState(0, found)


def _fitting(experiment: Experiment, found: State, ours: State) -> State:
    """The vectors of another run, whose model must match ours."""
    for name in ("theta", "buffers"):
        theirs = found.get(name)
        if theirs is None or theirs.shape != ours[name].shape or theirs.dtype != ours[name].dtype:
            there = "missing" if theirs is None else f"{theirs.numel()} numbers of {theirs.dtype}"
            here = f"{ours[name].numel()} of {ours[name].dtype}"
            raise SettingError(
                "start", repr(experiment.start), f"another model: {name} is {there} there, {here} here"
            )
    return found


def _check_server(experiment: Experiment, job: Job, folder: Path, found: State, ours: State) -> None:
    """Refuse server vectors that this run's server cannot use."""

    def refused(why: str) -> SettingError:
        return SettingError("start_vectors", "'server'", f"{why}; 'model' takes the model alone")

    with reading(folder, trust=False, allow="start_vectors = 'model'"):
        theirs = Experiment.parse(read_toml(folder / EXPERIMENT)).method.name
    if theirs != experiment.method.name:
        raise refused(f"that run is of {theirs}, this one of {experiment.method.name}")
    if job.traffic.kept:
        raise refused(f"clients of {theirs} keep vectors of their own, which a new run does not have")
    if job.method.rule.counts_rounds:
        raise refused(f"the vectors of {theirs} depend on the rounds of their own run")
    for name in sorted(found.keys() | ours.keys()):
        if name not in found or name not in ours or found[name].shape != ours[name].shape:
            raise refused(f"the vector {name} is not the same there and here")


def check_states(job: Job, history: History, memory: ClientStates) -> None:
    """Refuse a folder in which client states are missing."""
    seen = {client for metrics in history for client in metrics.arrived}
    if job.traffic.kept and seen - memory.clients:
        missing = ", ".join(map(str, sorted(seen - memory.clients)[:5]))
        raise InputError(f"clients/: the states of clients that took part are missing, such as {missing}")


def check_cohorts(history: History, sampling: Sampling) -> None:
    """Refuse to resume with other cohorts than those the run began with."""
    for metrics in history:
        asked = sampling.attendance(metrics.round, history[: metrics.round - 1]).asked
        if asked != metrics.cohort:
            raise InputError(
                f"cohorts: round {metrics.round} asked clients {list(metrics.cohort)}, "
                f"but with these settings it would have asked {list(asked)}"
            )


def check_start_fit(found: ServerState, expected: ServerState) -> None:
    """Refuse a checkpoint of another model or method."""
    names = {name for name in found.vectors.keys() | expected.vectors.keys() if not name.startswith(VERSION)}
    for name in sorted(names):
        ours, theirs = expected.vectors.get(name), found.vectors.get(name)
        if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            shapes = [None if v is None else (tuple(v.shape), str(v.dtype)) for v in (theirs, ours)]
            raise InputError(f"the checkpoint does not match: {name} is {shapes[0]} there and {shapes[1]} here")
