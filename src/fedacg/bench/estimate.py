"""The cost of runs before they start: bytes exactly, and time from existing runs or from a few steps.

Bytes follow from who takes part in each round and from the sizes of the messages. Time is taken from what the run
has done so far, else from a finished run that differs only in the seed, else from a trial: a round of a few
steps with clients of the first round.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedacg.config.experiment import Experiment
from fedacg.data.examples import ViewExamples
from fedacg.errors import RunError
from fedacg.runs.build import Ingredients, make_clock, make_job, sampling
from fedacg.runs.contents import is_finished
from fedacg.runs.history import History, read_metrics
from fedacg.runs.session import Session
from fedacg.simulation.asynchronous import Timetable
from fedacg.simulation.metrics import RoundMetrics

_ENOUGH = 0.25
"""Seconds of training that make a trial reliable."""
_FEW = 32
"""Test examples per batch in the shortest trial."""
_CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Estimate:
    """The bytes of all rounds of a run, and the seconds of those that are left, if they can be estimated."""

    bytes: int
    done: int
    seconds: float | None


@dataclass(frozen=True)
class Work:
    """Totals over the rounds of a run."""

    bytes: int
    updates: int
    """Clients' answers, over all rounds."""
    steps: int
    """Their local steps."""
    tests: int
    """Test examples, over all evaluations."""


def estimate(session: Session, runs: Mapping[Path, Experiment]) -> dict[Path, Estimate]:
    """The cost of each run. Whatever would make one fail shows here, before the first starts."""
    histories = {folder: _history(folder) for folder in runs}
    finished = [folder for folder, experiment in runs.items() if is_finished(folder, experiment)]
    examples = {_but_the_seed(runs[folder]): histories[folder] for folder in finished}
    trials: dict[str, float | None] = {}
    estimates = {}
    for folder, experiment in runs.items():
        history, alike = histories[folder], _but_the_seed(experiment)
        if folder in finished:
            estimates[folder] = Estimate(history.total_bytes, history.rounds, 0.0)
            continue
        ingredients = session.prepare(experiment)
        experiment = session.settle(experiment, ingredients)  # by the whole run, not by the trial
        work, known = count(experiment, ingredients), history or examples.get(alike)
        if known:
            seconds: float | None = known.seconds["total"] / len(known) * (experiment.rounds - history.rounds)
        else:
            if alike not in trials:
                trials[alike] = _try(session, experiment, ingredients, work)
            seconds = trials[alike]
        estimates[folder] = Estimate(work.bytes, history.rounds, seconds)
    return estimates


def count(experiment: Experiment, ingredients: Ingredients) -> Work:
    """Totals over the rounds without running them: who takes part is known beforehand."""
    clients, local = ingredients.data.clients, experiment.local
    job = make_job(experiment, ingredients)
    down, up = job.traffic.bytes_down, job.traffic.bytes_up
    asked = answered = steps = 0
    if buffer := experiment.asynchronous.buffer:
        timetable = Timetable(sampling(experiment, len(clients)), make_clock(experiment, job), buffer)
        for version in range(experiment.rounds):
            taken, begun = timetable.step(version, ())
            asked, answered = asked + begun, answered + len(taken)
            steps += sum(visit.steps for visit in taken)
    else:
        clock = make_clock(experiment, job) if experiment.clock.profile else None
        draws = sampling(experiment, len(clients), clock=clock)
        for round in range(1, experiment.rounds + 1):
            attendance = draws.attendance(round)
            late = set(attendance.stragglers)
            asked += len(attendance.asked)
            answered += len(attendance.answered)
            steps += sum(draws.steps(local.steps_for(clients.size(c)), c in late) for c in attendance.answered)
    evaluations = math.ceil(experiment.rounds / experiment.evaluate.every)
    return Work(asked * down + answered * up, answered, steps, evaluations * len(ingredients.data.test))


def _try(session: Session, experiment: Experiment, ingredients: Ingredients, work: Work) -> float | None:
    """Seconds for all rounds, from a trial of one step, or from a longer one where that is too short to time."""
    steps, batch = 1, _FEW
    try:
        last = _trial(session, experiment, ingredients, steps, batch)
        if last.seconds_train < _ENOUGH:
            most = max(1, work.steps // max(1, work.updates))
            steps, batch = min(most, math.ceil(2 * _ENOUGH / last.seconds_train)), experiment.evaluate.batch
            last = _trial(session, experiment, ingredients, steps, batch)
    except RunError:  # diverges at once, which the run itself will report
        return None
    clients, tests = len(last.cohort), len(_tests(ingredients, batch))
    return (
        last.seconds_train * work.steps / (clients * steps)
        + last.seconds_aggregate * work.updates / clients
        + last.seconds_evaluate * work.tests / tests
    )


def _trial(
    session: Session, experiment: Experiment, ingredients: Ingredients, steps: int, batch: int
) -> RoundMetrics:
    """A short round with the first round's clients, at most twice the cores, and a part of the test examples.

    It is the second of two: by then caches are warm, and clients find what they kept.
    """
    data = ingredients.data
    cohort = sampling(experiment, len(data.clients)).attendance(1).asked[: 2 * _CORES] or (0,)
    tree = experiment.model_dump(exclude={"population", "failures", "clock", "asynchronous", "analysis"})
    tree["rounds"] = 2
    tree["local"]["steps"] = steps
    tree["evaluate"] |= {"every": 1, "batch": batch}
    part = replace(ingredients, data=replace(data, test=ViewExamples(data.test, _tests(ingredients, batch))))
    return session.play(Experiment.parse(tree), ingredients=part, cohorts=[cohort] * 2).history[-1]


def _tests(ingredients: Ingredients, batch: int) -> torch.Tensor:
    return torch.arange(min(_CORES * batch, len(ingredients.data.test)))


def _but_the_seed(experiment: Experiment) -> str:
    return experiment.model_copy(update={"seed": 0}).to_toml()


def _history(folder: Path) -> History:
    path = folder / "metrics.jsonl"
    return read_metrics(path)[0] if path.exists() else History()
