"""`fedacg.run`: a federation of your own model and data in one call."""

from collections.abc import Callable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

from torch import nn

from fedacg import methods
from fedacg.config.experiment import Experiment
from fedacg.config.names import GIVEN
from fedacg.core.vector import trainable
from fedacg.data.examples import Examples
from fedacg.data.own import Pair, from_pairs
from fedacg.errors import InputError
from fedacg.methods.parts import LossFunction
from fedacg.runs.build import Ingredients, sampling
from fedacg.runs.history import History
from fedacg.runs.runner import Result, play
from fedacg.simulation.metrics import RoundMetrics


def run(
    *,
    model: nn.Module,
    clients: Sequence[Pair | Examples],
    test: Pair | Examples,
    method: str = "fedacg",
    options: Mapping[str, float] | None = None,
    rounds: int = 100,
    participation: float = 0.1,
    cohort_size: int = 0,
    draw: str = "exact",
    cohorts: Sequence[Sequence[int]] | None = None,
    weights: str = "examples",
    population: Mapping[str, float] | None = None,
    failures: Mapping[str, float] | None = None,
    local_epochs: int = 5,
    local_steps: int = 0,
    batch_size: int = 50,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    precision: str = "full",
    loss: LossFunction | None = None,
    channels_last: bool | None = None,
    evaluate_every: int = 1,
    targets: Sequence[float] = (),
    seed: int = 0,
    workers: int = 0,
    fuse: str = "auto",
    device: str = "cpu",
    engine: str | None = None,
    address: str = "",
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: Callable[[RoundMetrics], None] | None = None,
) -> Result:
    """Train a model over clients whose data stay apart, and return what came of it.

    Args:
        model: Any module that maps a batch of inputs to outputs. It is copied, not changed; its dtype is the
            dtype of the whole run, so a `.double()` model trains in float64.
        clients: For each client a pair `(x, y)` of tensors or arrays, or any object with `__len__` and
            `fetch(index)`, such as `fedacg.data.MappedExamples(dataset, indices)`.
        test: What the model is evaluated on, likewise.
        method: A name of `fedacg methods`, or a combination such as `fedprox+acg`.
        options: The method's options, such as `{"lam": 0.85, "beta": 0.01}`.
        rounds: Rounds to play.
        participation: Part of the clients that is sampled a round.
        cohort_size: A fixed number of clients a round in place of `participation`.
        draw: `exact` asks that many, `coin` flips one for every client.
        cohorts: The clients of every round, for tests and replays, in place of sampling.
        weights: `examples` weighs an update by its client's examples, `uniform` weighs all the same.
        population: A set of clients that changes, such as `{"present": 250, "stage": 100, "replace": 0.5}`.
        failures: What goes wrong, such as `{"drop": 0.3, "straggle": 0.3, "work": 0.5}`.
        local_epochs: Passes over a client's examples a round.
        local_steps: A fixed number of steps in place of epochs.
        batch_size: Examples a step; the last, smaller batch of an epoch is kept.
        lr: Local learning rate of the first round.
        lr_decay: Factor on it from round to round.
        weight_decay: As SGD's, applied after clipping.
        momentum: Of the local SGD; starts anew every round.
        clip: Largest norm of the gradient, correction terms included.
        precision: `mixed` computes networks and losses in bfloat16 where that is safe.
        loss: `loss(outputs, labels)` in place of cross-entropy.
        channels_last: Memory layout of convolutions; by default the model's own wish, if it has one.
        evaluate_every: Rounds from one evaluation to the next.
        targets: Accuracies whose rounds and bytes the summary reports.
        seed: Of everything random but the model's initial parameters, which come with it.
        workers: Worker processes; 0 does all the work in this one. The result is the same to the bit.
        fuse: Whether many clients are trained in one computation: `auto` where it pays, `on`, or `off`. It
            changes the rounding.
        device: Where clients are trained, `cpu`, `cuda` or `mps`; the model itself is handed over on the CPU.
        engine: `serial`, `processes` or `ray`; by default processes if there are `workers`, else serial. With
            `ray`, 0 workers are one for every CPU of the cluster.
        address: Of a Ray cluster: `host:port`, `auto`, or `local` to start one; RAY_ADDRESS or local without it.
        out: A run folder to write; by default nothing is written.
        resume: Go on with the run in `out`.
        overwrite: Replace the run in `out`.
        on_round: Called with every round's metrics.

    Returns:
        The trained `model`, the `history` of rounds, the final `vector`, and a `summary`.

    Raises:
        InputError: Something that was given does not fit.
        RunError: The run diverged, or its workers kept dying.
    """
    federated = from_pairs(clients, test)
    if resume and out is None:
        raise InputError("resume = True: say which run with out=")
    experiment = _parse(
        {
            "name": GIVEN,
            "seed": seed,
            "rounds": rounds,
            "data": {"name": GIVEN, "clients": len(federated.clients), "split": "natural"},
            "model": {"name": f"{GIVEN}:{type(model).__name__}"},
            "method": {"name": method, **(options or {})},
            "cohort": {"fraction": participation, "size": cohort_size, "draw": draw, "weights": weights},
            "population": dict(population or {}),
            "failures": dict(failures or {}),
            "local": {
                "epochs": local_epochs,
                "steps": local_steps,
                "batch": batch_size,
                "lr": lr,
                "lr_decay": lr_decay,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "clip": clip or 0.0,
                "precision": precision,
            },
            "evaluate": {"every": evaluate_every, "targets": tuple(targets)},
            "engine": {
                "name": engine or ("processes" if workers else "serial"),
                "workers": workers,
                "fuse": fuse,
                "device": device,
                "address": address,
            },
        }
    )
    if cohorts is not None:
        if len(cohorts) < rounds:
            raise InputError(f"cohorts: are given for {len(cohorts)} rounds, rounds = {rounds}")
        cohorts = [_cohort(r, cohort, len(federated.clients)) for r, cohort in enumerate(cohorts, start=1)]
    if any(p.device.type != "cpu" for p in trainable(model)):
        raise InputError("model: its parameters are not on the CPU; hand it over there and say device=")
    built = methods.build(method, options)
    layout = getattr(model, "channels_last", False) if channels_last is None else channels_last
    ingredients = Ingredients(model, bool(layout), federated, built.with_loss(loss) if loss else built)
    return play(
        experiment,
        ingredients,
        folder=Path(out) if out is not None else None,
        resume=resume,
        overwrite=overwrite,
        cohorts=cohorts,
        observers=[_Callback(on_round)] if on_round else [],
    )


class _Callback:
    """A user's function as an observer."""

    def __init__(self, function: Callable[[RoundMetrics], None]) -> None:
        self._function = function

    def begin(self, experiment: Experiment, done: int) -> None: ...

    def round(self, metrics: RoundMetrics, history: History) -> None:
        self._function(metrics)

    def end(self) -> None: ...


_SPELLED = {
    "cohort.fraction": "participation",
    "cohort.size": "cohort_size",
    "local.epochs": "local_epochs",
    "local.steps": "local_steps",
    "local.batch": "batch_size",
    "evaluate.every": "evaluate_every",
    "engine.name": "engine",
    **{f"local.{key}": key for key in ("lr", "lr_decay", "weight_decay", "momentum", "clip", "precision")},
    **{
        key: key.partition(".")[2]
        for key in (
            "cohort.weights",
            "cohort.draw",
            "evaluate.targets",
            "engine.workers",
            "engine.fuse",
            "engine.device",
            "engine.address",
        )
    },
}
"""The parameters of `run` behind the keys of a description."""


def _parse(tree: Mapping[str, Any]) -> Experiment:
    """The description; what is wrong with it is told in the names that were given."""
    try:
        experiment = Experiment.parse(tree)
        sampling(experiment, experiment.data.clients)
    except InputError as error:
        message = str(error)
        for key, parameter in _SPELLED.items():
            message = message.replace(key, parameter)
        raise InputError(message) from None
    return experiment


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
