"""Starting points of a run other than round 0: a checkpoint, its own end, or another run's vectors.

Whatever cannot be resumed is refused here, with the reason.
"""

import os
from pathlib import Path

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.core.plugins import is_plugin, reading
from fedacg.core.vector import Layout
from fedacg.errors import InputError, SettingError
from fedacg.methods.method import Method
from fedacg.methods.rules import State, released
from fedacg.runs.client_states import ClientStates
from fedacg.runs.folder import CHECKPOINT, EXPERIMENT, load_moment
from fedacg.runs.history import History
from fedacg.simulation.asynchronous import VERSION
from fedacg.simulation.engine import Job
from fedacg.simulation.federation import ServerState
from fedacg.simulation.sampling import Sampling


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


def check_fit(found: ServerState, expected: ServerState) -> None:
    """Refuse a checkpoint of another model or method."""
    names = {name for name in found.vectors.keys() | expected.vectors.keys() if not name.startswith(VERSION)}
    for name in sorted(names):
        ours, theirs = expected.vectors.get(name), found.vectors.get(name)
        if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            shapes = [None if v is None else (tuple(v.shape), str(v.dtype)) for v in (theirs, ours)]
            raise InputError(f"the checkpoint does not match: {name} is {shapes[0]} there and {shapes[1]} here")
