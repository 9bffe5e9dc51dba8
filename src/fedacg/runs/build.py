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
from fedacg.config.sections import CohortSettings, FailureSettings, LocalSettings, PopulationSettings
from fedacg.core.inputs import call, described
from fedacg.core.messages import kind_bytes
from fedacg.core.plugins import is_plugin, load
from fedacg.core.randomness import numpy_generator, stream_seed
from fedacg.core.vector import FlatModel, clone, trainable
from fedacg.data.catalogue import federate
from fedacg.data.examples import FederatedData, feed
from fedacg.data.held_out import draw, hold_out
from fedacg.data.own import from_pairs
from fedacg.data.rearranged import hold_out_tests, pool
from fedacg.engines import Engine
from fedacg.errors import InputError, SettingError
from fedacg.methods.dp import promise_of
from fedacg.methods.method import NEEDS, Method
from fedacg.models import parameters
from fedacg.runs.history import human_bytes
from fedacg.runs.provenance import checksums
from fedacg.simulation import fused
from fedacg.simulation.account import Account
from fedacg.simulation.asynchronous import AsynchronousFederation
from fedacg.simulation.clock import Clock
from fedacg.simulation.engine import Job, Measured
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
            raise InputError(
                f"model: puts out a {type(outputs).__name__}; must be a tensor, or say what to do with loss="
            )
        if plain and data.classes and outputs.dim() == 2 and outputs.shape[1] < data.classes:
            raise InputError(
                f"data: has labels up to {data.classes - 1}, and the model puts out {outputs.shape[1]} numbers "
                f"an example; must be {data.classes} or more"
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
    promise = promise_of(method)
    met = {
        "full participation": everybody and not experiment.population.present and not experiment.failures.drop,
        "uniform weights": experiment.cohort.weights == "uniform",
        "spaced cohorts": cohorts is None and experiment.cohort.gap >= len(promise.bands if promise else ()),
    }
    if promise and experiment.clock.drops:
        what = "whose update is dropped follows from who was asked, and its privacy is not counted that way"
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
    """Refuse what has no meaning where rounds wait for nobody."""
    buffer, there = experiment.asynchronous.buffer, experiment.population.present or clients
    if buffer > there:
        raise SettingError("asynchronous.buffer", str(buffer), f"there are only {there} clients")
    if method.rule.first_exchange:
        what = "its rounds have two exchanges, and asynchronous ones have none to wait for"
        raise InputError(f"method.name = {experiment.method.name!r}: {what}")
    rule, covered = method.rule, any(link.covers for link in method.upload)
    if covered or rule.silent or rule.always or rule.moves_buffers or not rule.common:
        what = "asynchronous rounds have no cohort, and it goes by one"
        raise InputError(f"method.name = {experiment.method.name!r}: {what}")
    if experiment.evaluate.clients != "none":
        value = repr(experiment.evaluate.clients)
        raise SettingError("evaluate.clients", value, "is measured in synchronous rounds only")
    if experiment.failures.bad:
        raise SettingError("failures.bad", f"{experiment.failures.bad:g}", "is for synchronous rounds only")
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
    """The data with what is held out to validate and to test clients on, and no more to evaluate than asked."""
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
    """Put a description and its ingredients together, or refuse what does not fit."""
    check_numbers(experiment, ingredients.module)
    check_fit(ingredients.module, ingredients.channels_last, ingredients.data, ingredients.method)
    measured = _measured(experiment, ingredients.data)
    if presence is not None and (measured or ingredients.method.rule.silent):
        wrong = f"evaluate.clients = {experiment.evaluate.clients!r}" if measured else "method.name"
        raise InputError(f"{wrong}: is for simulations; the clients of a deployment are not asked for it")
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
    """What single clients are measured on, if they are."""
    match experiment.evaluate.clients:
        case "none":
            return None
        case "train":
            return Measured(data.clients, data.clients)
    if data.own_tests is None:
        reason = "the data do not say whose the test examples are; choose 'held-out' or 'train'"
        raise InputError(f"evaluate.clients = 'own': {reason}")
    return Measured(data.own_tests, data.clients)


def _in_one_place(experiment: Experiment, ingredients: Ingredients) -> tuple[Experiment, Ingredients]:
    """The same with the data of all clients in one place, which takes the steps that a cohort takes on average."""
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
    """Where a method's privacy is counted; what its noise or seal cannot cover is refused in a rehearsal."""
    if any(link.covers for link in job.method.upload) and (
        job.traffic.up["buffers"].bytes and "no buffers" in job.method.needs
    ):
        raise InputError(f"model: has buffers, and this method needs {NEEDS['no buffers']}")
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


@torch.no_grad()
def _example_cost(ingredients: Ingredients) -> int:
    """Multiplications of one example's way through the network: weights, each as often as it is applied."""
    module, data = clone(ingredients.module).eval(), ingredients.data
    cost = [0]

    def add(layer: nn.Module, _: object, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        width = next((w for key in _WIDTHS if isinstance(w := getattr(layer, key, None), int)), 0)
        if width and isinstance(first, torch.Tensor):
            cost[0] += first.numel() // width * sum(p.numel() for p in layer.parameters())

    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(add)
    with torch.random.fork_rng(devices=[]):
        x, _ = data.clients[0].fetch(torch.arange(1))
        flat = FlatModel(module, channels_last=ingredients.channels_last)
        call(flat.module, feed(flat, data.pipeline, x))
    return max(cost[0], sum(p.numel() for p in trainable(ingredients.module)))


_WIDTHS = ("out_channels", "out_features", "hidden_size")
"""What linear, convolutional and recurrent layers call the numbers they put out at each place."""


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
        failures=experiment.failures,
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
