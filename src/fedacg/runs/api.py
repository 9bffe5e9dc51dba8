"""`fedacg.run`: an experiment, or a federation of your own model and data, in one call; and `fedacg.load`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console
from torch import nn
from torch.nn.utils import parameters_to_vector

from fedacg import methods
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment, parse
from fedacg.config.parameters import NAMES, RunParameters, to_tree
from fedacg.config.recipe import Tree, read_toml
from fedacg.core import plugins
from fedacg.core.files import is_file, parse_folder, read_text
from fedacg.core.vector import trainable
from fedacg.data.examples import FederatedData
from fedacg.data.own_data import from_pairs
from fedacg.data.own_forms import Client, LazyClients
from fedacg.errors import InputError, SettingError
from fedacg.methods.parts import LossFunction
from fedacg.runs.build import Ingredients, prepare, sampling, set_aside
from fedacg.runs.callbacks import Callback, OnRound, check_callbacks
from fedacg.runs.choices import choose_layout
from fedacg.runs.contents import (
    CLIENT_TABLE,
    EXPERIMENT,
    METRICS,
    check_description,
    is_run,
    load_moment,
    read_marker,
    read_summary,
)
from fedacg.runs.history import read_metrics
from fedacg.runs.model_file import load_model
from fedacg.runs.progress import describe, make_progress
from fedacg.runs.provenance import summarise
from fedacg.runs.runner import Result, play
from fedacg.runs.session import Session
from fedacg.simulation.clients import from_csv
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.sampling import Sampler
from fedacg.simulation.scoring import Metric

Clients = Sequence[Client] | Mapping[Any, Client] | LazyClients


def run(
    experiment: Experiment | None = None,
    *,
    model: nn.Module | None = None,
    clients: Clients | None = None,
    test: Client | Mapping[Any, Client] | None = None,
    classes: int | None = None,
    loss: LossFunction | None = None,
    channels_last: bool | None = None,
    cohorts: Sequence[Sequence[int]] | None = None,
    sampler: Sampler | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Callback | type[Callback] | str | Mapping[str, Any]] | None = None,
    on_round: Callable[[RoundMetrics], None] | None = None,
    progress: bool = False,
    **settings: Unpack[RunParameters],
) -> Result:
    """Train one model on the data of many clients, and return the result.

    Give either an experiment, which names data and model, or your own model and data:

        fedacg.run(fedacg.recipe("quickstart", rounds=20))
        fedacg.run(model=net, clients=[(x0, y0), (x1, y1), …], test=(xt, yt), method="fedprox", lr=0.05)

    Args:
        experiment: A description, as `fedacg.recipe` gives it.
        model: Any module that maps a batch of inputs to outputs. It is copied, not changed; its dtype is that of
            the whole run, so a `.double()` model trains in float64.
        clients: For each client a pair `(x, y)` of tensors or arrays, a torch `Dataset` or `Subset` of such pairs,
            or any object with `__len__` and `fetch(index)`. A dictionary gives clients names. For tables there are
            `fedacg.data.by_client` and `columns`, for clients that are loaded on demand `LazyClients`. An x may be
            a tuple or a dictionary of arrays, for a model that takes several.
        test: The test data, in the same forms; a dictionary has the clients' own test data. Without it there is no
            evaluation.
        classes: The number of classes; counted from all labels by default.
        loss: `loss(outputs, labels)` in place of cross-entropy.
        channels_last: Memory layout of convolutions (the key `model.layout`); by default the model's own
            preference, if it has one, else True for a network with convolutions that supports it.
        cohorts: The clients of every round, for tests and replays, instead of sampling.
        sampler: A function that chooses the clients of a round from a `Draw`, which has the history.
        out: A run folder to write; by default nothing is written.
        resume: Resume the run in `out`; with more `rounds` than before, continue it beyond its end.
        overwrite: Replace the run in `out`.
        metrics: Custom metrics by name, besides loss and accuracy: functions of the outputs and labels of the
            whole test set, or objects with `update(outputs, labels)`, `compute()` and `reset()`. They go into the
            history's scores as `test/NAME`.
        callbacks: Observers that may stop the run: `fedacg.EarlyStopping("validation/loss", patience=5)`,
            `fedacg.TimeLimit(3600)`, `fedacg.BestCheckpoint()`, or your own subclasses of
            `fedacg.Callback`.
        on_round: A function that is called with every round's metrics; the simplest callback.
        progress: Show a live bar, in a terminal or a notebook; elsewhere an occasional line.
        **settings: The keys of an experiment file: `rounds=50`; a table, `local={"lr": 0.05, "epochs": 2}`; or a
            key by its short name, `lr=0.05, local_epochs=2`. They, their defaults and the short names are listed
            in docs/bring-your-own.md. Without `engine`, worker processes do the work if there are `workers`, else
            this process.

    Returns:
        The trained `model`, the `history` of rounds, the final `vector`, and a `summary`.

    Raises:
        InputError: Invalid input.
        RunError: The run diverged, or its workers kept dying.
    """
    check_flags(resume=resume, overwrite=overwrite, progress=progress)
    if resume and out is None:
        raise InputError("resume = True: needs out=, the folder of the run")
    looking = check_callbacks([] if callbacks is None else callbacks)
    if on_round is not None:
        if not callable(on_round):
            raise InputError(f"on_round: is a {type(on_round).__name__}; must be a function of a round's metrics")
        looking = [*looking, OnRound(on_round)]
    subject = Subject.of(experiment, model, clients, test, classes, loss, channels_last, settings)
    experiment = subject.parse(subject.tree)
    ingredients = subject.ingredients(experiment)
    if sampler is not None:
        if not callable(sampler):
            raise InputError(f"sampler = {sampler!r}: must be a function of a Draw, see docs/bring-your-own.md")
        if cohorts is not None:
            raise InputError("sampler: cohorts are also given; leave one of them out")
        cohort = experiment.cohort.model_copy(update={"draw": GIVEN})
        experiment = experiment.model_copy(update={"cohort": cohort})
    if cohorts is not None:
        if "one place" in ingredients.method.needs:
            raise InputError("cohorts: have no effect, as this method trains on all data in one place")
        cohorts = _cohorts(cohorts, experiment.rounds, len(ingredients.data.clients))
    name = describe(experiment)
    with make_progress(Console(), not progress, {name: experiment.rounds}) as display:
        display.turn(name)
        return play(
            experiment,
            ingredients,
            folder=parse_folder(out) if out is not None else None,
            resume=resume,
            overwrite=overwrite,
            cohorts=cohorts,
            sampler=sampler,
            callbacks=[*looking, display],
            metrics=metrics,
        )


def check_flags(**flags: object) -> None:
    """Refuse what is neither True nor False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{name}: is a {type(flag).__name__}; must be True or False")


@dataclass(frozen=True)
class Subject:
    """What is run, with one method or several: an experiment by name, or the user's own model and data."""

    tree: Tree
    spell: Callable[[str], str]
    loss: LossFunction | None
    own: tuple[nn.Module, FederatedData] | None
    """None if the experiment names data and model."""

    @classmethod
    def of(
        cls,
        experiment: Experiment | None,
        model: nn.Module | None,
        clients: Clients | None,
        test: Client | Mapping[Any, Client] | None,
        classes: int | None,
        loss: LossFunction | None,
        channels_last: bool | None,
        settings: Mapping[str, Any],
    ) -> "Subject":
        """From the arguments of `fedacg.run`."""
        if loss is not None and not callable(loss):
            raise InputError(f"loss: is a {type(loss).__name__}; must be a function of outputs and labels")
        if experiment is not None:
            beside = {"test": test, "classes": classes, "channels_last": channels_last}
            own = {"model": model, "clients": clients, **beside, **settings}
            if given := [name for name, value in own.items() if value is not None]:
                raise InputError(
                    f"{given[0]}: an experiment is given; set it there, as in fedacg.recipe(…, rounds=50)"
                )
            return cls(experiment.model_dump(), str, loss, None)
        if model is None or clients is None:
            missing = "model" if model is None else "clients"
            raise InputError(f"{missing}: is missing; give an experiment, or model= and clients=")
        if not isinstance(model, nn.Module):
            raise InputError(f"model: is a {type(model).__name__}; must be a torch.nn.Module")
        tree, spell = to_tree(settings, NAMES)
        federated = from_pairs(clients, test, classes=classes)
        described = tree.setdefault("model", {})
        if channels_last is not None:
            if not isinstance(channels_last, bool):
                raise InputError(f"channels_last: is a {type(channels_last).__name__}; must be True or False")
            if "layout" in described:
                raise InputError("channels_last: is also given as layout; leave one of them out")
            described["layout"] = "channels-last" if channels_last else "default"
        described["name"] = f"{GIVEN}:{type(model).__name__}"
        count = len(federated.clients)
        tree["data"] = {**tree.get("data", {}), "name": GIVEN, "clients": count, "split": "natural"}
        engine = tree.setdefault("engine", {})
        alone = engine.get("workers") is None or (isinstance(engine["workers"], int) and engine["workers"] == 0)
        engine.setdefault("name", "serial" if alone else "processes")
        return cls({"name": GIVEN, **tree}, spell, loss, (model, federated))

    def parse(self, tree: Tree) -> Experiment:
        """The experiment that a tree describes, which may be this one's with other settings."""
        experiment = parse(Experiment, tree, self.spell)
        if self.loss is not None:
            methods.build(experiment.method.name, experiment.method.options).with_loss(self.loss)
        if self.own is None:
            return experiment
        try:
            sampling(experiment, len(self.own[1].clients))
        except SettingError as error:
            raise error.under(self.spell(error.key)) from None
        return experiment

    def ingredients(self, experiment: Experiment, session: Session | None = None) -> Ingredients:
        """The ingredients of an experiment; a session may still have the data of the last one."""
        found = (
            (session.prepare if session else prepare)(experiment) if self.own is None else self._own(experiment)
        )
        return found if self.loss is None else replace(found, method=found.method.with_loss(self.loss))

    def _own(self, experiment: Experiment) -> Ingredients:
        assert self.own is not None
        model, federated = self.own
        if any(p.device.type != "cpu" for p in trainable(model)):
            raise InputError("model: its parameters are not on the CPU; move it there and set device=")
        method = methods.build(experiment.method.name, experiment.method.options)
        try:
            federated = set_aside(experiment, federated)
        except SettingError as error:
            raise error.under(self.spell(error.key)) from None
        return Ingredients(model, choose_layout(experiment, model, federated), federated, method)


def load(folder: Path | str, *, model: nn.Module | None = None, trust: bool = False) -> Result:
    """What a run folder holds, finished or not: `history`, `model`, `experiment`, `summary`, `vector`, `clients`.

    A network that was given from Python must be given again, as `model`; it is copied. User code that the run
    names, `module:function`, is imported only with `trust`.
    """
    folder = Path(folder)
    if not is_run(folder):
        raise InputError(f"{folder}: not a run folder")
    marker = read_marker(folder)
    sealed = marker is not None and not marker.older
    check_description(folder, marker)
    with plugins.reading(folder, trust=trust, allow="call load(..., trust=True)"):
        experiment = Experiment.parse(read_toml(folder / EXPERIMENT))
    network = load_model(folder, model=model, trust=trust)
    vector = parameters_to_vector(trainable(network)).detach()
    moment = load_moment(folder)
    history, _ = read_metrics(folder / METRICS, sealed=sealed, last=moment.round)
    summary = read_summary(folder, sealed=sealed) or summarise(experiment, history, vector)
    table = folder / CLIENT_TABLE
    figures = tuple(from_csv(read_text(table))) if is_file(table) else ()
    return Result(network, history, vector, summary, folder, experiment, figures)


def _cohorts(cohorts: Sequence[Sequence[int]], rounds: int, clients: int) -> list[list[int]]:
    """The clients of every round as plain numbers."""
    if not hasattr(cohorts, "__len__") or not hasattr(cohorts, "__getitem__"):
        raise InputError(f"cohorts: is a {type(cohorts).__name__}; must be a list with the clients of every round")
    if len(cohorts) < rounds:
        raise InputError(f"cohorts: are given for {len(cohorts)} rounds, but rounds = {rounds}")
    return [_cohort(number, cohort, clients) for number, cohort in enumerate(cohorts, start=1)]


def _cohort(round: int, cohort: Sequence[int], clients: int) -> list[int]:
    """A round's clients as plain numbers, each valid and named once."""
    try:
        listed = [index(client) for client in cohort]
    except TypeError:
        raise InputError(f"cohorts: round {round} is {cohort!r}, must be the numbers of clients") from None
    if not listed:
        raise InputError(f"cohorts: round {round} has no clients")
    if len(set(listed)) < len(listed):
        raise InputError(f"cohorts: round {round} names a client twice")
    for client in listed:
        if not 0 <= client < clients:
            raise InputError(f"cohorts: round {round} names client {client}, must be from 0 to {clients - 1}")
    return listed
