"""From a description and its ingredients to a result: play the rounds, keep the folder, tell the observers.

This is where the rooms meet; each part of the work lives in its own.
"""

import math
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedacg import engines
from fedacg.config.experiment import Experiment
from fedacg.config.sections import STREAMS
from fedacg.core.vector import FlatModel, Layout, clone, sha256
from fedacg.engines import Engine, one_thread
from fedacg.errors import InputError, RunError
from fedacg.methods.rules import released
from fedacg.runs import provenance
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.client_states import ClientStates, scratch_folder
from fedacg.runs.folder import CLIENTS, RunFolder
from fedacg.runs.history import History, Reached
from fedacg.runs.model_file import ModelFile
from fedacg.runs.recording import Recorder
from fedacg.simulation.engine import Job
from fedacg.simulation.federation import Federation, ServerState
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.sampling import Presence, Sampling
from fedacg.version import __version__


class Observer(Protocol):
    """Someone who looks on: a progress display, a logger. An observer cannot change a run."""

    def begin(self, experiment: Experiment, done: int) -> None:
        """A run starts, or goes on after `done` rounds."""
        ...

    def round(self, metrics: RoundMetrics, history: History) -> None:
        """A round has ended; `history` includes it."""
        ...

    def end(self) -> None:
        """The run has ended, or was stopped."""
        ...


@dataclass(frozen=True)
class Result:
    """What a run leaves behind."""

    model: nn.Module
    """The network with the final parameters."""
    history: History
    """The rounds, with accuracy, moving averages, rounds and bytes to a target."""
    vector: Tensor
    """The final parameters as one vector, in the order of `torch.nn.utils.parameters_to_vector`."""
    summary: dict[str, Any]
    """Figures of the whole run, as in summary.json."""
    folder: Path | None


def play(
    experiment: Experiment,
    ingredients: Ingredients,
    *,
    folder: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    engine: Engine | None = None,
    cohorts: Sequence[Sequence[int]] | None = None,
    presence: Presence | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Play an experiment to its end, from the start or from where its folder stands.

    An engine may be given to be used again afterwards, cohorts to be asked in place of drawn ones, and where
    clients come and go of themselves, who is there.
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite: a run is either gone on with or replaced")
    planned = plan(
        experiment, ingredients, cohorts, presence
    )  # refuses what does not fit before anything is begun
    layout = Layout.of(ingredients.module, ingredients.channels_last)
    store = RunFolder(folder, layout) if folder else None
    own_engine = None
    try:
        if engine is None:
            engine = own_engine = engines.start(experiment.engine)
        moment, history = None, History()
        if store and resume:
            moment, history = store.resume(experiment)
        elif store:
            store.begin(experiment, overwrite=overwrite)
        if store:
            ModelFile.of(experiment, ingredients).write(store.path)
        place = nullcontext(store.path) if store else scratch_folder()
        with one_thread(), torch.random.fork_rng(devices=[]), place as path:
            memory = ClientStates(path / CLIENTS, layout, sealed=store is None or store.sealed)
            recorder = Recorder(path, experiment.analysis, layout) if store else None
            done = moment.round if moment else 0
            memory.rewind(done)
            if recorder:
                recorder.rewind(done)
            federation = planned.federation(engine, memory, [recorder] if recorder else [])
            if moment is not None:
                _check_fit(moment, federation.server)
                _check_states(planned.job, history, memory)
                if presence is None:
                    _check_cohorts(history, federation.sampling)
                federation.resume(moment, history)
            return _play(experiment, ingredients, federation, memory, store, history, observers)
    finally:
        if own_engine:
            own_engine.close()
        if store:
            store.close()


def _play(
    experiment: Experiment,
    ingredients: Ingredients,
    federation: Federation,
    memory: ClientStates,
    store: RunFolder | None,
    history: History,
    observers: Sequence[Observer],
) -> Result:
    for observer in observers:
        observer.begin(experiment, federation.server.round)
    try:
        _play_rounds(federation, memory, store, history, experiment.save.seconds, observers)
    finally:
        for observer in observers:
            observer.end()
    flat = _flat(ingredients, federation.server)
    vector = flat.canonical()
    summary = summarise(experiment, history, vector)
    if origin := ingredients.data.origin:
        summary["data"] = asdict(origin)
    if found := ingredients.data.checksums:
        summary["checksums"] = dict(found)
    if store:
        store.finish(summary)
    return Result(flat.release(), history, vector, summary, store.path if store else None)


def _play_rounds(
    federation: Federation,
    memory: ClientStates,
    store: RunFolder | None,
    history: History,
    save_seconds: float,
    observers: Sequence[Observer],
) -> None:
    """Play what is left and save now and then; however it ends, the last whole round is saved."""
    done = saved = federation.server
    saved_at = monotonic()
    try:
        for metrics in federation.run():
            history.append(metrics)
            if store:
                store.append(metrics)
            done = federation.server
            for observer in observers:
                observer.round(metrics, history)
            if store is None:
                memory.forget(done.round)  # nobody can go back
            elif monotonic() - saved_at >= save_seconds:
                _save(store, done, memory)
                saved, saved_at = done, monotonic()
    except RunError as error:
        if store and done.round:
            error.add_note(f"round {done.round} is kept in {store.checkpoint_path}")
        raise
    finally:
        if store and done.round < federation.server.round == store.rounds:
            done = federation.server  # Ctrl-C came between a round's line and here
        if store and done is not saved:
            _save(store, done, memory)


def _save(store: RunFolder, moment: ServerState, memory: ClientStates) -> None:
    """Write a checkpoint, between making sure of the states it counts on and dropping those it outdates."""
    memory.settle(moment.round)
    store.save(moment)
    memory.forget(moment.round)


def summarise(experiment: Experiment, history: History, vector: Tensor) -> dict[str, Any]:
    """The figures of a whole run, with what is needed to compare and to reproduce them."""
    targets = experiment.evaluate.targets
    averages = history.moving_average()
    return {
        "name": experiment.name,
        "method": experiment.method.name,
        "seed": experiment.seed,
        "rounds": history.rounds,
        "accuracy": history.accuracy[-1] if averages else None,
        "moving_average": averages[-1] if averages else None,
        "targets": list(targets),
        "rounds_to": {f"{t:g}": str(Reached.of(history.rounds_to(t), history.rounds)) for t in targets},
        "bytes_to": {f"{t:g}": str(Reached.of(history.bytes_to(t), history.total_bytes)) for t in targets},
        "bytes_down": history.bytes_down,
        "bytes_up": history.bytes_up,
        "seconds": history.seconds,
        "notes": _notes(history),
        "parameters": vector.numel(),
        "versions": {
            "fedacg": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "seeds": {stream: experiment.seed_of(stream) for stream in STREAMS},
        "commit": provenance.commit(),
        "machine": provenance.machine(),
        "vector_sha256": sha256(vector),
    }


def _notes(history: History) -> list[str]:
    """What somebody who reads the figures must know."""
    evaluated = [metrics for metrics in history if metrics.test_loss is not None]
    unsound = [metrics.round for metrics in evaluated if not math.isfinite(metrics.test_loss or 0)]
    if not unsound:
        return []
    number = f"{len(unsound)} of {len(evaluated)} evaluated rounds, first in round {unsound[0]}"
    return [f"the test loss is not a finite number in {number}: outputs that are not numbers count as wrong"]


def _flat(ingredients: Ingredients, moment: ServerState) -> FlatModel:
    """The model with the server's vectors in it."""
    flat = FlatModel(clone(ingredients.module), channels_last=ingredients.channels_last)
    flat.load(released(moment.vectors), moment.vectors["buffers"])
    return flat


def _check_states(job: Job, history: History, memory: ClientStates) -> None:
    """Refuse a folder from which states of clients have gone."""
    seen = {client for metrics in history for client in metrics.arrived}
    if job.traffic.kept and seen - memory.clients:
        missing = ", ".join(map(str, sorted(seen - memory.clients)[:5]))
        raise InputError(f"clients/: the states of clients that took part are missing, such as {missing}")


def _check_cohorts(history: History, sampling: Sampling) -> None:
    """Refuse to go on with other cohorts than those the run began with."""
    for metrics in history:
        asked = sampling.attendance(metrics.round, history[: metrics.round - 1]).asked
        if asked != metrics.cohort:
            raise InputError(
                f"cohorts: round {metrics.round} asked clients {list(metrics.cohort)}, "
                f"but with these settings it would have asked {list(asked)}"
            )


def _check_fit(found: ServerState, expected: ServerState) -> None:
    """Refuse a checkpoint of another model or method."""
    for name in sorted(found.vectors.keys() | expected.vectors.keys()):
        ours, theirs = expected.vectors.get(name), found.vectors.get(name)
        if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            shapes = [None if v is None else (tuple(v.shape), str(v.dtype)) for v in (theirs, ours)]
            raise InputError(f"the checkpoint does not fit: {name} is {shapes[0]} there and {shapes[1]} here")
