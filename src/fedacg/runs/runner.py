"""From a description and its ingredients to a result: run the rounds, write the folder, call the callbacks.

This module connects the others; each part of the work is in its own module.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedacg import engines
from fedacg.config.experiment import Experiment
from fedacg.core.vector import FlatModel, Layout, clone
from fedacg.engines import Engine, one_thread
from fedacg.errors import InputError, RunError
from fedacg.methods.rules import released
from fedacg.runs.build import Ingredients, plan
from fedacg.runs.callbacks import AtChance, Callback, RunView, named_callbacks
from fedacg.runs.checks import bound_to_its_rounds, check_cohorts, check_start_fit, check_states, warm_start
from fedacg.runs.choices import choose_engine, resumed_layout
from fedacg.runs.client_states import ROOM, ClientStates, scratch_folder
from fedacg.runs.contents import CLIENTS
from fedacg.runs.folder import RunFolder
from fedacg.runs.history import History
from fedacg.runs.model_file import ModelFile
from fedacg.runs.provenance import summarise
from fedacg.runs.recording import Recorder
from fedacg.simulation.clients import ClientFigures, to_csv
from fedacg.simulation.federation import Federation, ServerState
from fedacg.simulation.sampling import Presence, Sampler
from fedacg.simulation.scoring import Metric


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    model: nn.Module
    """The network with the final parameters."""
    history: History
    """The rounds, with accuracy, moving averages, rounds and bytes to a target."""
    vector: Tensor
    """The final parameters as one vector, in the order of `torch.nn.utils.parameters_to_vector`."""
    summary: dict[str, Any]
    """Figures of the whole run, as in summary.json."""
    folder: Path | None
    experiment: Experiment
    """The description of the run."""
    clients: tuple[ClientFigures, ...] = ()
    """The results of single clients in their last evaluation, if any (`evaluate.clients`)."""

    @property
    def stopped_early(self) -> str | None:
        """Why a callback ended the run before its last round; None if none did."""
        reason: str | None = self.summary.get("stopped_early")
        return reason

    def __repr__(self) -> str:
        """A few lines: what was run, how it ended, and its folder."""
        summary = self.summary
        lines = [f"Result of {summary['name']}: {summary['method']}, seed {summary['seed']}"]
        lines += [f"  {self.history!r}"]
        lines += [f"  stopped early: {self.stopped_early}"] if self.stopped_early else []
        lines += [f"  model {type(self.model).__name__}, {summary['parameters']:,} parameters"]
        return "\n".join([*lines, f"  in {self.folder}"] if self.folder else lines)


def play(
    experiment: Experiment,
    ingredients: Ingredients,
    *,
    folder: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    engine: Engine | None = None,
    cohorts: Sequence[Sequence[int]] | None = None,
    sampler: Sampler | None = None,
    presence: Presence | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Metric] | None = None,
) -> Result:
    """Run an experiment to its end, from the start or resumed from its folder.

    An engine may be given for reuse, cohorts instead of drawn ones, and a presence where clients come and go by
    themselves. Callbacks and metrics are in addition to those that the experiment names.
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite: a run is either resumed or replaced")
    if folder and resume and presence is None:
        begun = resumed_layout(experiment, ingredients.module, folder)
        ingredients = ingredients if begun is None else replace(ingredients, channels_last=begun)
    # Refuses invalid settings before anything starts.
    planned = plan(experiment, ingredients, cohorts, presence, metrics, sampler)
    callbacks = [*named_callbacks(experiment.callbacks), *callbacks]
    experiment = choose_engine(experiment, ingredients)
    layout = Layout.of(ingredients.module, ingredients.channels_last)
    warm = warm_start(experiment, planned.job, planned.first(), layout) if experiment.start else None
    store = RunFolder(folder, layout) if folder else None
    own_engine = None
    try:
        if engine is None:
            engine = own_engine = engines.start(experiment.engine)
        moment, history = None, History()
        if store and resume:
            moment, history = store.resume(experiment, bound_to_its_rounds(experiment, ingredients.method))
        elif store:
            store.begin(experiment, overwrite=overwrite)
        if store:
            ModelFile.of(experiment, ingredients).write(store.path)
        place = nullcontext(store.path) if store else scratch_folder()
        with one_thread(), torch.random.fork_rng(devices=[]), place as path:
            memory = ClientStates(path / CLIENTS, layout, sealed=store is None or store.sealed, room=ROOM)
            recorder = Recorder(path, experiment.analysis, layout) if store else None
            done = moment.round if moment else 0
            memory.rewind(done)
            if recorder:
                recorder.rewind(done)
            federation = planned.federation(engine, memory, [recorder] if recorder else [])
            if moment is not None:
                check_start_fit(moment, federation.server)
                check_states(planned.job, history, memory)
                if presence is None and not experiment.asynchronous.buffer:
                    check_cohorts(history, federation.sampling)
                federation.resume(moment, history)
            elif warm is not None:
                federation.resume(warm, [])
            return _Play(experiment, ingredients, federation, memory, store, history, callbacks).result()
    finally:
        if own_engine:
            own_engine.close()
        if store:
            store.close()


class _Play:
    """A federation that runs to its end, or until a callback or the user stops it."""

    def __init__(
        self,
        experiment: Experiment,
        ingredients: Ingredients,
        federation: Federation,
        memory: ClientStates,
        store: RunFolder | None,
        history: History,
        callbacks: Sequence[Callback],
    ) -> None:
        self._experiment, self._ingredients, self._federation = experiment, ingredients, federation
        self._memory, self._store, self._history = memory, store, history
        self._chance = AtChance(experiment, ingredients.data)
        self._callbacks = [*callbacks, self._chance]
        self._written = federation.clients

    def result(self) -> Result:
        """Run the remaining rounds, and return the result."""
        stopping = self._tell("begin", None) or self._spent()
        try:
            if stopping is None:
                stopping = self._rounds()
            if stopping is not None:
                self._conclude()
        finally:
            self._tell("end", stopping)
        flat = self._flat()
        vector = flat.canonical()
        summary = summarise(self._experiment, self._history, vector)
        if note := self._chance.note(self._history):
            summary["notes"].append(note)
        if stopping is not None:
            summary["stopped_early"] = stopping
        if origin := self._ingredients.data.origin:
            summary["data"] = asdict(origin)
        if account := self._federation.account:
            summary["privacy"] = account.summary(self._history)
        if found := self._ingredients.data.checksums:
            summary["checksums"] = dict(found)
        store = self._store
        if store:
            store.finish(summary)
        path, clients = store.path if store else None, self._federation.clients
        return Result(flat.release(), self._history, vector, summary, path, self._experiment, clients)

    def _tell(self, what: Literal["begin", "round", "end"], stopping: str | None) -> str | None:
        """Call all callbacks; return the reason to stop, if one asks for it."""
        store, server = self._store, self._federation.server
        view = RunView(
            self._experiment,
            self._history,
            store.path if store else None,
            model=lambda: self._flat(server).release(),
            save=(lambda: store.save_best(server)) if store else None,
            stopping=stopping,
        )
        for callback in self._callbacks:
            getattr(callback, what)(view)
        return view.stopping

    def _rounds(self) -> str | None:
        """Run and save at intervals; however it ends, the last complete round is saved."""
        federation, store, memory = self._federation, self._store, self._memory
        done = saved = federation.server
        saved_at, stopping = monotonic(), None
        try:
            for metrics in federation.run():
                self._history.append(metrics)
                if store:
                    self._write_clients(store)
                    store.append(metrics)
                done = federation.server
                stopping = self._tell("round", None) or self._spent()
                if store is None:
                    memory.forget(done.round)  # it is not needed any more
                elif monotonic() - saved_at >= self._experiment.save.seconds:
                    _save(store, done, memory)
                    saved, saved_at = done, monotonic()
                if stopping is not None:
                    break
        except RunError as error:
            if store and done.round:
                error.add_note(f"round {done.round} is saved in {store.checkpoint_path}")
            raise
        finally:
            if store and done.round < federation.server.round == store.rounds:
                done = federation.server  # Ctrl-C came between a round's line and here
            if store and done is not saved:
                _save(store, done, memory)
        return stopping if done.round < self._experiment.rounds else None

    def _spent(self) -> str | None:
        """Why the privacy budget allows no further round, if so."""
        account = self._federation.account
        return account.stop(self._history) or None if account else None

    def _conclude(self) -> None:
        """Evaluate the last round in full if a run ends early."""
        concluded = self._federation.conclude()
        if concluded is not None:
            self._history.replace_last(concluded)
            if self._store:
                self._write_clients(self._store)
                self._store.rewrite(self._history)

    def _write_clients(self, store: RunFolder) -> None:
        """Write the results of single clients, if there are new ones."""
        if self._federation.clients is not self._written:
            self._written = self._federation.clients
            store.write_clients(to_csv(self._written))

    def _flat(self, server: ServerState | None = None) -> FlatModel:
        """The model with the server's vectors in it."""
        flat = FlatModel(clone(self._ingredients.module), channels_last=self._ingredients.channels_last)
        vectors = (server or self._federation.server).vectors
        flat.load(released(vectors), vectors["buffers"])
        return flat


def _save(store: RunFolder, moment: ServerState, memory: ClientStates) -> None:
    """Write a checkpoint, after syncing the states it relies on and before removing outdated ones."""
    memory.settle(moment.round)
    store.save(moment)
    memory.forget(moment.round)
