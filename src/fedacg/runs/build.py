"""From a description to a federation: the data, model and method it names are built and combined.

Objects given from Python enter here too. runner.py runs the rounds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedacg import methods, models
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment
from fedacg.config.participation import CohortSettings, FailureSettings, PopulationSettings
from fedacg.config.sections import LocalSettings
from fedacg.core.plugins import is_plugin, load
from fedacg.core.randomness import numpy_generator, stream_seed
from fedacg.core.round import kind_bytes
from fedacg.core.vector import trainable
from fedacg.data.catalogue import federate
from fedacg.data.examples import FederatedData
from fedacg.data.held_out import draw, hold_out, hold_out_tests, pool
from fedacg.data.own_data import from_pairs
from fedacg.engines import Engine
from fedacg.errors import InputError, SettingError
from fedacg.methods.dp import promise_of
from fedacg.methods.method import NEEDS, Method
from fedacg.models import parameters
from fedacg.runs.checks import check_fit, check_memory, check_needs, check_numbers
from fedacg.runs.choices import choose_layout, preference_of
from fedacg.runs.provenance import checksums
from fedacg.simulation import fused
from fedacg.simulation.asynchronous import AsynchronousFederation
from fedacg.simulation.clock import Clock
from fedacg.simulation.engine import Job, Measured
from fedacg.simulation.federation import Federation, Memory, ServerState, first_server
from fedacg.simulation.probes import Account
from fedacg.simulation.replies import Probe
from fedacg.simulation.sampling import Presence, Sampler, Sampling
from fedacg.simulation.scoring import Metric, check_metrics


@dataclass(frozen=True)
class Ingredients:
    """The objects that a description names: everything a federation needs besides numbers."""

    module: nn.Module
    channels_last: bool
    data: FederatedData
    method: Method

    def __post_init__(self) -> None:
        if "stages" not in self.method.needs:
            return
        if not isinstance(self.module, models.StagedModel):
            raise InputError(
                f"model: is a {type(self.module).__name__}, but this method uses features, so it must be a "
                "fedacg.models.StagedModel, made of stages and a head"
            )
        if len(self.module.stages) == 0:
            raise InputError("model: has no stages, but this method uses the features that stages compute")


def load_data(experiment: Experiment) -> FederatedData:
    """The data a description names, split among its clients."""
    if experiment.data.name == GIVEN:
        raise InputError("data.name = 'python': these data were given from Python; run that program again")
    federated = set_aside(experiment, federate(experiment.data, experiment.seed_of("split")))
    return replace(federated, checksums=checksums(federated))


def set_aside(experiment: Experiment, federated: FederatedData) -> FederatedData:
    """The data with validation data and clients' test data held out, and evaluation sets cut to the limit."""
    seed, most = experiment.seed_of("split"), experiment.evaluate.examples
    held = hold_out(federated, experiment.data, seed)
    if experiment.evaluate.clients == "held-out":
        held = hold_out_tests(held, experiment.evaluate.held_out, seed)
    test = draw(held.test, most, numpy_generator(seed, "test examples"))
    if held.validation is None:
        return replace(held, test=test)
    validation = draw(held.validation, most, numpy_generator(seed, "validation examples"))
    return replace(held, test=test, validation=validation)


def check_methods(experiments: Iterable[Experiment]) -> None:
    """Refuse methods whose parts cannot be combined, before anything starts."""
    for experiment in experiments:
        methods.build(experiment.method.name, experiment.method.options)


def prepare(
    experiment: Experiment, federated: FederatedData | None = None, *, deployed: bool = False
) -> Ingredients:
    """Build what a description names; data loaded before can be passed in.

    A deployed network without a preference gets the ordinary layout: server and nodes must have the same one,
    whatever their versions.
    """
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
    ordinary = deployed and settings.layout == "auto" and preference_of(module) is None
    channels_last = not ordinary and choose_layout(experiment, module, federated)
    return Ingredients(module, channels_last, federated, method)


def sampling(
    experiment: Experiment,
    clients: int,
    cohorts: Sequence[Sequence[int]] | None = None,
    presence: Presence | None = None,
    sampler: Sampler | None = None,
    clock: Clock | None = None,
) -> Sampling:
    """The sampling of a federation with this many clients."""
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
    """The clock of a federation; without a profile, everything is instantaneous."""
    return Clock(experiment.clock, job, experiment.seed_of("cohorts"))


@dataclass(frozen=True)
class Plan:
    """A checked plan of a run; nothing has started yet."""

    experiment: Experiment
    job: Job
    sampling: Sampling
    metrics: Mapping[str, Metric]
    account: Account | None = None

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
            "account": self.account,
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
    """Combine a description and its ingredients, or refuse what does not match."""
    check_numbers(experiment, ingredients.module)
    check_fit(ingredients.module, ingredients.channels_last, ingredients.data, ingredients.method)
    measured = _measured(experiment, ingredients.data)
    if presence is not None and (measured or ingredients.method.rule.silent):
        wrong = f"evaluate.clients = {experiment.evaluate.clients!r}" if measured else "method.name"
        raise InputError(f"{wrong}: is for simulations only; it is not available in a deployment")
    if "one place" in ingredients.method.needs:
        experiment, ingredients, cohorts = *_in_one_place(experiment, ingredients), None
    draws = sampling(experiment, len(ingredients.data.clients), cohorts, presence, sampler)
    check_needs(experiment, ingredients.method, cohorts, len(ingredients.data.clients))
    job = make_job(experiment, ingredients, _group(experiment, ingredients, draws.size))
    if experiment.failures.attack == "label-flip" and not job.data.classes:
        raise SettingError("failures.attack", "'label-flip'", "needs labels that are classes")
    if experiment.clock.profile and not experiment.asynchronous.buffer:
        clock = make_clock(experiment, job)
        draws = sampling(experiment, len(ingredients.data.clients), cohorts, presence, sampler, clock)
    own = {**named_metrics(experiment.evaluate.metrics), **check_metrics(metrics or {})}
    return Plan(experiment, replace(job, measured=measured), draws, own, _account(experiment, job, draws))


def _measured(experiment: Experiment, data: FederatedData) -> Measured | None:
    """The examples for evaluating single clients, if requested."""
    match experiment.evaluate.clients:
        case "none":
            return None
        case "train":
            return Measured(data.clients, data.clients)
    if data.own_tests is None:
        reason = "the test examples have no owners in these data; choose 'held-out' or 'train'"
        raise InputError(f"evaluate.clients = 'own': {reason}")
    return Measured(data.own_tests, data.clients)


def _in_one_place(experiment: Experiment, ingredients: Ingredients) -> tuple[Experiment, Ingredients]:
    """The same with all data in one place, which takes as many steps as a cohort does on average."""
    clients, local = ingredients.data.clients, experiment.local
    steps = [local.steps_for(clients.size(client)) for client in range(len(clients))]
    cohort = experiment.cohort.count(experiment.population.present or len(clients))
    changed = {
        "local": local.model_copy(update={"steps": max(1, round(cohort * sum(steps) / len(steps)))}),
        "cohort": CohortSettings(size=1),
        "population": PopulationSettings(),
        "failures": FailureSettings(),
    }
    return experiment.model_copy(update=changed), replace(ingredients, data=pool(ingredients.data))


def _account(experiment: Experiment, job: Job, draws: Sampling) -> Account | None:
    """The privacy account of a method; what its noise or seal cannot cover is refused."""
    if any(link.covers for link in job.method.upload) and (
        job.traffic.up["buffers"].bytes and "no buffers" in job.method.needs
    ):
        raise InputError(f"model: has buffers, but this method needs {NEEDS['no buffers']}")
    promise = promise_of(job.method)
    if promise is None:
        return None
    clients, rounds = len(job.data.clients), experiment.rounds
    return Account(promise, rate=draws.coin, clients=clients, expected=draws.size, rounds=rounds)


def named_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The metrics that a description names, each by the attribute of its module."""
    found: dict[str, Metric] = {}
    for name in names:
        attribute = name.partition(":")[2]
        if attribute in found:
            raise SettingError("evaluate.metrics", repr(name), f"there is already a metric called {attribute}")
        found[attribute] = load("evaluate.metrics", name)
    return check_metrics(found)


def _group(experiment: Experiment, ingredients: Ingredients, cohort: int) -> int:
    """Most clients trained at once: 1 if fusing is off, does not pay or is impossible."""
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
    """What a worker needs to serve the clients of a description, `group` of them at once."""
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
        failures=experiment.failures,
    )


@dataclass(frozen=True)
class Vectors:
    """Messages counted in model-sized vectors; a quantised one counts for its fraction."""

    down: float
    up: float
    kept: float


def traffic_of(name: str) -> Vectors:
    """The traffic of a method with its default options, per round and client."""
    with torch.random.fork_rng(devices=[]):
        module = models.build("mlp", classes=4, shape=(32,), hidden=[28])
    pair = torch.zeros(4, 32), torch.arange(4)
    job = Job(module, False, from_pairs([pair], pair), methods.build(name), LocalSettings(batch=4), 0, 4)
    traffic = job.traffic
    size = traffic.down["phi"].bytes
    return Vectors(traffic.bytes_down / size, traffic.bytes_up / size, kind_bytes(traffic.kept) / size)
