"""`fedacg.run`: an experiment, or a federation of your own model and data, in one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from fedacg import methods
from fedacg.config.experiment import Experiment, parse
from fedacg.config.names import GIVEN
from fedacg.config.parameters import NAMES, Parameters, to_tree
from fedacg.core.files import parse_folder
from fedacg.core.vector import trainable
from fedacg.data.examples import Examples
from fedacg.data.own import Pair, from_pairs
from fedacg.errors import InputError, SettingError
from fedacg.methods.parts import LossFunction
from fedacg.runs.build import Ingredients, prepare, sampling, set_aside
from fedacg.runs.callbacks import Callback, OnRound, check_callbacks
from fedacg.runs.runner import Result, play
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.sampling import Sampler
from fedacg.simulation.scoring import Metric


def run(
    experiment: Experiment | None = None,
    *,
    model: nn.Module | None = None,
    clients: Sequence[Pair | Examples] | None = None,
    test: Pair | Examples | None = None,
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
    **settings: Unpack[Parameters],
) -> Result:
    """Train a model over clients whose data stay apart, and return what came of it.

    Either an experiment is given, whose data and model have names, or a model and data of one's own:

        fedacg.run(fedacg.recipe("quickstart", rounds=20))
        fedacg.run(model=net, clients=[(x0, y0), (x1, y1), …], test=(xt, yt), method="fedprox", lr=0.05)

    Args:
        experiment: A description, as `fedacg.recipe` gives it.
        model: Any module that maps a batch of inputs to outputs. It is copied, not changed; its dtype is the
            dtype of the whole run, so a `.double()` model trains in float64.
        clients: For each client a pair `(x, y)` of tensors or arrays, or any object with `__len__` and
            `fetch(index)`, such as `fedacg.data.MappedExamples(dataset, indices)`.
        test: What the model is evaluated on, likewise.
        loss: `loss(outputs, labels)` in place of cross-entropy.
        channels_last: Memory layout of convolutions, which is the key `model.layout`; by default the model's own
            wish, if it has one.
        cohorts: The clients of every round, for tests and replays, in place of sampling.
        sampler: A function that chooses the clients of a round; it is given a `Draw`, which has the history.
        out: A run folder to write; by default nothing is written.
        resume: Go on with the run in `out`; with more `rounds` than it was begun with, beyond its end.
        overwrite: Replace the run in `out`.
        metrics: Metrics of one's own by name, beside loss and accuracy: functions of the outputs and labels of the
            whole test set, or objects with `update(outputs, labels)`, `compute()` and `reset()`. They go into the
            history's scores as `test/NAME`.
        callbacks: What looks on and may stop the run: `fedacg.EarlyStopping("validation/loss", patience=5)`,
            `fedacg.TimeLimit(3600)`, `fedacg.BestCheckpoint()`, or classes of one's own that derive from
            `fedacg.Callback`.
        on_round: A function that is called with every round's metrics; the shortest of callbacks.
        **settings: The keys of an experiment file: `rounds=50`; a table, `local={"lr": 0.05, "epochs": 2}`; or a
            key by its short name, `lr=0.05, local_epochs=2`. They, their defaults and the short names are listed
            in docs/bring-your-own.md. Without `engine`, processes do the work if there are `workers`, else this
            one.

    Returns:
        The trained `model`, the `history` of rounds, the final `vector`, and a `summary`.

    Raises:
        InputError: Something that was given does not fit.
        RunError: The run diverged, or its workers kept dying.
    """
    for name, flag in (("resume", resume), ("overwrite", overwrite)):
        if not isinstance(flag, bool):
            raise InputError(f"{name}: is a {type(flag).__name__}; must be True or False")
    if resume and out is None:
        raise InputError("resume = True: say which run with out=")
    looking = check_callbacks(callbacks or [])
    if experiment is None:
        experiment, ingredients = _own(model, clients, test, channels_last, settings)
    else:
        own = {"model": model, "clients": clients, "test": test, "channels_last": channels_last, **settings}
        if given := [name for name, value in own.items() if value is not None]:
            raise InputError(
                f"{given[0]}: an experiment is given; say it there, as in fedacg.recipe(…, rounds=50)"
            )
        ingredients = prepare(experiment)
    if sampler is not None:
        if not callable(sampler):
            raise InputError(f"sampler = {sampler!r}: must be a function of a Draw, see docs/bring-your-own.md")
        if cohorts is not None:
            raise InputError("sampler: cohorts are given as well; leave one of them out")
        cohort = experiment.cohort.model_copy(update={"draw": GIVEN})
        experiment = experiment.model_copy(update={"cohort": cohort})
    if loss is not None:
        if not callable(loss):
            raise InputError(f"loss: is a {type(loss).__name__}; must be a function of outputs and labels")
        ingredients = replace(ingredients, method=ingredients.method.with_loss(loss))
    if cohorts is not None:
        cohorts = _cohorts(cohorts, experiment.rounds, len(ingredients.data.clients))
    return play(
        experiment,
        ingredients,
        folder=parse_folder(out) if out is not None else None,
        resume=resume,
        overwrite=overwrite,
        cohorts=cohorts,
        sampler=sampler,
        callbacks=[*looking, *([OnRound(on_round)] if on_round else [])],
        metrics=metrics,
    )


def _own(
    model: nn.Module | None,
    clients: Sequence[Pair | Examples] | None,
    test: Pair | Examples | None,
    channels_last: bool | None,
    settings: Mapping[str, Any],
) -> tuple[Experiment, Ingredients]:
    """The description of a user's own model and data with these settings, and what it is of."""
    if model is None or clients is None or test is None:
        missing = next(n for n, v in (("model", model), ("clients", clients), ("test", test)) if v is None)
        raise InputError(f"{missing}: is needed, with model=, clients= and test=, where no experiment is given")
    if not isinstance(model, nn.Module):
        raise InputError(f"model: is a {type(model).__name__}; must be a torch.nn.Module")
    tree, spell = to_tree(settings, NAMES)
    federated = from_pairs(clients, test)
    given = len(federated.clients)
    described = tree.setdefault("model", {})
    if channels_last is not None:
        if not isinstance(channels_last, bool):
            raise InputError(f"channels_last: is a {type(channels_last).__name__}; must be True or False")
        if "layout" in described:
            raise InputError("channels_last: is given as layout as well; leave one of them out")
        described["layout"] = "channels-last" if channels_last else "default"
    described["name"] = f"{GIVEN}:{type(model).__name__}"
    tree["data"] = {**tree.get("data", {}), "name": GIVEN, "clients": given, "split": "natural"}
    engine = tree.setdefault("engine", {})
    alone = engine.get("workers") is None or (isinstance(engine["workers"], int) and engine["workers"] == 0)
    engine.setdefault("name", "serial" if alone else "processes")
    experiment = parse(Experiment, {"name": GIVEN, **tree}, spell)
    try:
        federated = set_aside(experiment, federated)
        sampling(experiment, len(federated.clients))
    except SettingError as error:
        raise error.under(spell(error.key)) from None
    if any(p.device.type != "cpu" for p in trainable(model)):
        raise InputError("model: its parameters are not on the CPU; hand it over there and say device=")
    method = methods.build(experiment.method.name, experiment.method.options)
    layout = experiment.model.layout
    wish = bool(getattr(model, "channels_last", False)) if layout == "auto" else layout == "channels-last"
    return experiment, Ingredients(model, wish, federated, method)


def _cohorts(cohorts: Sequence[Sequence[int]], rounds: int, clients: int) -> list[list[int]]:
    """The clients of every round as plain numbers."""
    if not hasattr(cohorts, "__len__") or not hasattr(cohorts, "__getitem__"):
        raise InputError(f"cohorts: is a {type(cohorts).__name__}; must be a list with the clients of every round")
    if len(cohorts) < rounds:
        raise InputError(f"cohorts: are given for {len(cohorts)} rounds, rounds = {rounds}")
    return [_cohort(number, cohort, clients) for number, cohort in enumerate(cohorts, start=1)]


def _cohort(round: int, cohort: Sequence[int], clients: int) -> list[int]:
    """A round's clients as plain numbers, each of them there and named once."""
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
