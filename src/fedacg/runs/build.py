"""From a description to a federation: the data, model and method it names are made and put together.

What is given from Python as objects enters here too. Playing the rounds is runner.py's.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedacg import methods, models
from fedacg.config.experiment import Experiment
from fedacg.config.names import GIVEN
from fedacg.config.sections import LocalSettings
from fedacg.core.messages import kind_bytes
from fedacg.core.plugins import is_plugin, load
from fedacg.core.randomness import numpy_generator, stream_seed
from fedacg.core.vector import FlatModel, clone, trainable
from fedacg.data.catalogue import federate
from fedacg.data.examples import FederatedData
from fedacg.data.held_out import draw, hold_out
from fedacg.data.own import from_pairs
from fedacg.engines import Engine
from fedacg.errors import InputError, SettingError
from fedacg.methods.method import NEEDS, Method
from fedacg.models import parameters
from fedacg.runs.history import human_bytes
from fedacg.runs.provenance import checksums
from fedacg.simulation import fused
from fedacg.simulation.asynchronous import AsynchronousFederation
from fedacg.simulation.clock import Clock
from fedacg.simulation.engine import Job
from fedacg.simulation.federation import Federation, Memory, ServerState, first_server
from fedacg.simulation.replies import Probe
from fedacg.simulation.sampling import Presence, Sampler, Sampling
from fedacg.simulation.scoring import Metric, check_metrics

_VECTORS = 4
"""Model-sized vectors that a run holds at least: θ, and a worker's w, g and Δ."""


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
def check_labels(module: nn.Module, channels_last: bool, data: FederatedData, method: Method) -> None:
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


def check_memory(name: str, parameters: int) -> None:
    """Refuse a network that this machine cannot hold."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * _VECTORS * parameters > there:
        raise InputError(
            f"model.name = {name!r}: has {parameters} parameters, {human_bytes(4 * parameters)} for each of the "
            f"{_VECTORS} vectors that a run holds at least; this machine has {human_bytes(there)}"
        )


def check_needs(
    experiment: Experiment, method: Method, cohorts: Sequence[Sequence[int]] | None, clients: int
) -> None:
    """Refuse a method whose needs this federation does not meet."""
    everybody = experiment.cohort.count(clients) == clients and experiment.cohort.draw == "exact"
    everybody = everybody and not experiment.clock.drops
    if cohorts is not None:
        everybody = all(len(cohort) == clients for cohort in cohorts)
    met = {
        "full participation": everybody and not experiment.population.present and not experiment.failures.drop,
        "uniform weights": experiment.cohort.weights == "uniform",
    }
    if experiment.asynchronous.buffer:
        check_asynchronous(experiment, method, cohorts, clients)
        met["full participation"] = False
    for need in sorted(method.needs):
        if not met.get(need, True):
            raise InputError(f"method.name = {experiment.method.name!r}: needs {NEEDS[need]}")


def check_asynchronous(
    experiment: Experiment, method: Method, cohorts: Sequence[Sequence[int]] | None, clients: int
) -> None:
    """Refuse what has no meaning where rounds wait for nobody."""
    buffer, there = experiment.asynchronous.buffer, experiment.population.present or clients
    if buffer > there:
        raise SettingError("asynchronous.buffer", str(buffer), f"there are only {there} clients")
    if method.rule.first_exchange:
        what = "its rounds have two exchanges, and asynchronous ones have none to wait for"
        raise InputError(f"method.name = {experiment.method.name!r}: {what}")
    if cohorts is not None:
        raise InputError("cohorts: asynchronous rounds ask one client after the other; leave them out")


@dataclass(frozen=True)
class Ingredients:
    """What a description names, made: everything a federation needs that is not a number."""

    module: nn.Module
    channels_last: bool
    data: FederatedData
    method: Method

    def __post_init__(self) -> None:
        if "stages" not in self.method.needs:
            return
        if not isinstance(self.module, models.StagedModel):
            raise InputError(
                f"model: is a {type(self.module).__name__}, and this method looks at features, so it must be a "
                "fedacg.models.StagedModel, made of stages and a head"
            )
        if len(self.module.stages) == 0:
            raise InputError("model: has no stages, and this method looks at features, which a stage puts out")


def load_data(experiment: Experiment) -> FederatedData:
    """The data a description names, dealt to its clients."""
    if experiment.data.name == GIVEN:
        raise InputError("data.name = 'python': these data were given from Python; run that program again")
    federated = set_aside(experiment, federate(experiment.data, experiment.seed_of("split")))
    return replace(federated, checksums=checksums(federated))


def set_aside(experiment: Experiment, federated: FederatedData) -> FederatedData:
    """The data with what a description holds out for validation, and no more to evaluate than it says."""
    seed, most = experiment.seed_of("split"), experiment.evaluate.examples
    held = hold_out(federated, experiment.data, seed)
    test = draw(held.test, most, numpy_generator(seed, "test examples"))
    if held.validation is None:
        return replace(held, test=test)
    validation = draw(held.validation, most, numpy_generator(seed, "validation examples"))
    return replace(held, test=test, validation=validation)


def check_methods(experiments: Iterable[Experiment]) -> None:
    """Refuse methods whose parts do not go together, before anything is begun."""
    for experiment in experiments:
        methods.build(experiment.method.name, experiment.method.options)


def prepare(experiment: Experiment, federated: FederatedData | None = None) -> Ingredients:
    """Make what a description names; data that were loaded before can be passed on."""
    method = methods.build(experiment.method.name, experiment.method.options)
    federated = federated or load_data(experiment)
    experiment.check_cohorts(len(federated.clients))
    settings = experiment.model
    for key in ("classes", "shape"):
        if key in settings.options:
            raise InputError(f"model.{key} = {settings.options[key]!r}: follows from the data; leave it out")
    named: dict[str, Any] = {
        "classes": federated.classes,
        "shape": federated.shape,
        "factorise": settings.factorise,
        **settings.options,
    }
    if not is_plugin(settings.name):
        check_memory(settings.name, parameters(settings.name, **named))
    weights = experiment.seed_of("weights")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream_seed(weights, "model"))
        module = models.build(settings.name, **named)
    wish = bool(getattr(module, "channels_last", False))
    channels_last = wish if settings.layout == "auto" else settings.layout == "channels-last"
    return Ingredients(module, channels_last, federated, method)


def sampling(
    experiment: Experiment,
    clients: int,
    cohorts: Sequence[Sequence[int]] | None = None,
    presence: Presence | None = None,
    sampler: Sampler | None = None,
    clock: Clock | None = None,
) -> Sampling:
    """Who takes part in the rounds of a federation of so many clients."""
    experiment.check_cohorts(clients)
    return Sampling(
        experiment.cohort,
        clients=clients,
        seed=experiment.seed_of("cohorts"),
        population=experiment.population,
        failures=experiment.failures,
        cohorts=cohorts,
        presence=presence,
        sampler=sampler,
        clock=clock,
    )


def make_clock(experiment: Experiment, job: Job) -> Clock:
    """The clock of a federation; without a profile nothing takes any time."""
    return Clock(experiment.clock, job, experiment.seed_of("cohorts"))


@dataclass(frozen=True)
class Plan:
    """What is to be played, checked: nothing has been begun yet."""

    experiment: Experiment
    job: Job
    sampling: Sampling
    metrics: Mapping[str, Metric]

    def first(self) -> ServerState:
        """The server before the first round."""
        return first_server(self.job)

    def federation(self, engine: Engine, memory: Memory, probes: Sequence[Probe]) -> Federation:
        """The federation before its first round."""
        experiment, job = self.experiment, self.job
        shared: dict[str, Any] = {
            "rounds": experiment.rounds,
            "sampling": self.sampling,
            "evaluate": experiment.evaluate,
            "memory": memory,
            "probes": probes,
            "metrics": self.metrics,
        }
        if not experiment.asynchronous.buffer:
            return Federation(job, engine, **shared)
        clock = make_clock(experiment, job)
        return AsynchronousFederation(job, engine, settings=experiment.asynchronous, clock=clock, **shared)


def plan(
    experiment: Experiment,
    ingredients: Ingredients,
    cohorts: Sequence[Sequence[int]] | None = None,
    presence: Presence | None = None,
    metrics: Mapping[str, Metric] | None = None,
    sampler: Sampler | None = None,
) -> Plan:
    """Put a description and its ingredients together, or refuse what does not fit."""
    check_numbers(experiment, ingredients.module)
    check_labels(ingredients.module, ingredients.channels_last, ingredients.data, ingredients.method)
    draws = sampling(experiment, len(ingredients.data.clients), cohorts, presence, sampler)
    check_needs(experiment, ingredients.method, cohorts, len(ingredients.data.clients))
    job = make_job(experiment, ingredients, _group(experiment, ingredients, draws.size))
    if experiment.clock.profile and not experiment.asynchronous.buffer:
        clock = make_clock(experiment, job)
        draws = sampling(experiment, len(ingredients.data.clients), cohorts, presence, sampler, clock)
    return Plan(
        experiment, job, draws, {**named_metrics(experiment.evaluate.metrics), **check_metrics(metrics or {})}
    )


def named_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The metrics that a description names, each by the attribute of its module."""
    found: dict[str, Metric] = {}
    for name in names:
        attribute = name.partition(":")[2]
        if attribute in found:
            raise SettingError("evaluate.metrics", repr(name), f"a metric called {attribute} is there already")
        found[attribute] = load("evaluate.metrics", name)
    return check_metrics(found)


def _group(experiment: Experiment, ingredients: Ingredients, cohort: int) -> int:
    """How many clients are trained at once, at most: 1 where fusing is not wanted, does not pay or cannot be."""
    wish = experiment.engine.fuse
    if wish == "off":
        return 1
    parameters = sum(p.numel() for p in trainable(ingredients.module))
    if wish == "auto" and not fused.worthwhile(parameters, cohort):
        return 1
    obstacle = fused.obstacle(
        ingredients.module, ingredients.channels_last, ingredients.data, ingredients.method, experiment.local.batch
    )
    if obstacle is None:
        return fused.group_size(parameters)
    if wish == "on":
        raise InputError(f"engine.fuse = 'on': {obstacle}; set it to 'auto' or 'off'")
    return 1


def make_job(experiment: Experiment, ingredients: Ingredients, group: int = 1) -> Job:
    """What a worker needs to serve the clients of a description, so many of them at once."""
    return Job(
        module=ingredients.module,
        channels_last=ingredients.channels_last,
        data=ingredients.data,
        method=ingredients.method,
        local=experiment.local,
        seed=experiment.seed_of("batches"),
        evaluate_batch=experiment.evaluate.batch,
        group=group,
        device=experiment.engine.device,
    )


@dataclass(frozen=True)
class Vectors:
    """Messages counted in model-sized vectors; a quantised one counts for the part that it takes."""

    down: float
    up: float
    kept: float


def traffic_of(name: str) -> Vectors:
    """The traffic of a method with its default options, a round and a client."""
    with torch.random.fork_rng(devices=[]):
        module = models.build("mlp", classes=4, shape=(32,), hidden=[28])
    pair = torch.zeros(4, 32), torch.arange(4)
    job = Job(module, False, from_pairs([pair], pair), methods.build(name), LocalSettings(batch=4), 0, 4)
    traffic = job.traffic
    size = traffic.down["phi"].bytes
    return Vectors(traffic.bytes_down / size, traffic.bytes_up / size, kind_bytes(traffic.kept) / size)
