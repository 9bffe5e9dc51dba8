"""Callbacks: observers of a run, which may stop it or keep a model.

Progress displays and loggers are callbacks like a user's own. The package's own keep no state besides the history,
which a resumed run restores.
"""

import inspect
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from fedacg.config.experiment import Experiment, parse
from fedacg.config.fields import rises
from fedacg.config.sections import CallbackSettings
from fedacg.core.plugins import is_plugin, load_function
from fedacg.core.tensors import IGNORED
from fedacg.data.examples import FederatedData, labels
from fedacg.errors import InputError
from fedacg.runs.history import History
from fedacg.simulation.metrics import RoundMetrics

_KEY = "callbacks"
_log = logging.getLogger("fedacg")
_LEAST_PATIENCE, _LEAST_EVALUATIONS, _LEAST_EXAMPLES = 10, 3, 100
"""Rounds, evaluations and examples below which nothing is said of a run at chance."""
_MOST_LABELS = 4096
"""Labels that are looked at to know the most frequent one."""
_MOMENTUM = "; the second is server momentum λ, which late answers make unstable: try server_lr = 1 − λ"


class RunView:
    """A run as callbacks see it, after a round or before the first. Nothing done to it changes the run."""

    def __init__(
        self,
        experiment: Experiment,
        history: History,
        folder: Path | None = None,
        model: Callable[[], nn.Module] | None = None,
        save: Callable[[], None] | None = None,
        *,
        stopping: str | None = None,
    ) -> None:
        self.experiment, self.history, self.folder = experiment, history, folder
        self._make, self._save = model, save
        self.stopping = stopping
        """The reason to stop, if a callback asked for it."""

    @property
    def done(self) -> int:
        """The number of completed rounds."""
        return self.history.rounds

    @property
    def metrics(self) -> RoundMetrics:
        """The metrics of the last round."""
        return self.history[-1]

    @cached_property
    def model(self) -> nn.Module:
        """A copy of the server's current model, made on first use."""
        if self._make is None:
            raise InputError(f"{_KEY}: there is no model here")
        return self._make()

    def save(self) -> None:
        """Save the server's current model in the run folder as `best.safetensors`, replacing an older one."""
        if self._save is None:
            raise InputError(f"{_KEY}: a model is kept in a run folder; set out=")
        self._save()

    def stop(self, reason: str) -> None:
        """Make this round the last; the run then finishes, and its summary says why."""
        self.stopping = self.stopping or reason or "stopped by a callback"


class Callback(Protocol):
    """Base class of callbacks. A subclass overrides only the methods it needs."""

    def begin(self, run: RunView) -> None:
        """A run starts, or resumes after `run.done` rounds; restore any state from its history."""
        return

    def round(self, run: RunView) -> None:
        """A round has ended and is in the history."""
        return

    def end(self, run: RunView) -> None:
        """The run has ended, or was interrupted."""
        return


class OnRound(Callback):
    """A function that is called with every round's metrics."""

    def __init__(self, function: Callable[[RoundMetrics], Any]) -> None:
        self._function = function

    def round(self, run: RunView) -> None:
        self._function(run.metrics)


class _Follows(Callback):
    """Follows one figure: a name, or by default the first available of validation accuracy, validation loss and
    the run's headline."""

    def __init__(self, metric: str = "", mode: Literal["auto", "max", "min"] = "auto") -> None:
        if mode not in ("auto", "max", "min"):
            raise InputError(f"{_KEY}: mode = {mode!r}: must be 'max', 'min' or 'auto', which judges by the name")
        if not isinstance(metric, str):
            raise InputError(f"{_KEY}: metric = {metric!r}: must be the name of a figure, such as test_accuracy")
        self._metric, self._mode = metric, mode

    def _figure(self, history: History) -> str:
        if self._metric:
            return self._metric
        chosen = ("validation/accuracy", "validation/loss")
        return next((name for name in chosen if history.series(name)), history.headline)

    def _best(self, history: History, least: float = 0.0) -> tuple[int, float] | None:
        """The round in which the figure was best, the first of equals, and its value there.

        Gains of no more than `least` over the best so far do not count.
        """
        figure = self._figure(history)
        sign = 1 if self._mode == "max" or (self._mode == "auto" and rises(figure)) else -1
        best: tuple[int, float] | None = None
        for number, value in history.series(figure).items():
            if best is None or sign * (value - best[1]) > least:
                best = number, value
        return best

    def _check(self, run: RunView) -> None:
        """Refuse a figure that no round has."""
        if not self._metric or not run.metrics.evaluated:
            return
        if all(metrics.score(self._metric) is None for metrics in run.history):
            known = ", ".join(run.history.figure_names)
            raise InputError(f"{_KEY}: metric = {self._metric!r}: no round has it; there are {known}")


class EarlyStopping(_Follows):
    """Stops when a figure has not improved for `patience` rounds."""

    def __init__(
        self,
        metric: str = "",
        patience: int = 10,
        mode: Literal["auto", "max", "min"] = "auto",
        least: float = 0.0,
    ) -> None:
        super().__init__(metric, mode)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InputError(f"{_KEY}: patience = {patience!r}: must be a number of rounds, 1 or more")
        if not isinstance(least, int | float) or not 0 <= least < math.inf:
            raise InputError(f"{_KEY}: least = {least!r}: must be a number of at least 0")
        self._patience, self._least = patience, least

    def begin(self, run: RunView) -> None:
        if run.done:
            self.round(run)

    def round(self, run: RunView) -> None:
        self._check(run)
        best = self._best(run.history, self._least)
        if best is not None and run.done - best[0] >= self._patience:
            figure = self._figure(run.history)
            waited = f"in the {run.done - best[0]} rounds since round {best[0]}"
            run.stop(f"{figure} has not improved on {best[1]:.4g} {waited}")


class TimeLimit(Callback):
    """Stops after the round in which the total time reaches `seconds`, including rounds before a resume."""

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise InputError(f"{_KEY}: seconds = {seconds!r}: must be a number greater than 0")
        self._seconds = seconds

    def begin(self, run: RunView) -> None:
        if run.done:
            self.round(run)

    def round(self, run: RunView) -> None:
        spent = run.history.seconds["total"]
        if spent >= self._seconds:
            run.stop(f"the rounds took {spent:.4g} s, and the limit is {self._seconds:g} s")


class BestCheckpoint(_Follows):
    """Keeps the model of the round in which a figure was best, for `load_model(folder, which="best")`."""

    def begin(self, run: RunView) -> None:
        if run.folder is None:
            raise InputError(f"{_KEY}: BestCheckpoint keeps a model in the run folder; set out=")

    def round(self, run: RunView) -> None:
        self._check(run)
        best = self._best(run.history)
        if best is not None and best[0] == run.done:
            run.save()


class AtChance(Callback):
    """Notices a run that learns nothing: for long it is right no more often than one label for all would be.

    It needs an accuracy of labels that are whole numbers, on a hundred examples or more, and only looks on. Where
    clients attack on purpose it says nothing.
    """

    def __init__(self, experiment: Experiment, data: FederatedData) -> None:
        self._rate, self._patience = experiment.local.lr, max(_LEAST_PATIENCE, experiment.rounds // 4)
        self._stale = experiment.asynchronous.buffer > 0
        during = experiment.evaluate.test == "every"
        self._figure = "test_accuracy" if during else "validation/accuracy"
        self._examples = None if experiment.failures.bad else data.test if during else data.validation
        self._told = False

    @cached_property
    def chance(self) -> tuple[float, float] | None:
        """The share of the most frequent label, and what chance may reach: three standard errors more."""
        count = len(self._examples) if self._examples is not None else 0
        if self._examples is None or count < _LEAST_EXAMPLES:
            return None
        step = -(-count // _MOST_LABELS)
        found = labels(self._examples, torch.arange(0, count, step))
        often = Counter() if found.is_floating_point() else Counter(found[found != IGNORED].tolist())
        if not often:
            return None
        share = max(often.values()) / often.total()
        return share, share + 3 * math.sqrt(share * (1 - share) / count)

    def note(self, history: History) -> str | None:
        """What is to be said of a run that stands where this history ends; None if it is above chance."""
        series = list(history.series(self._figure).items())
        if not series or series[-1][0] < self._patience or self.chance is None:
            return None
        above = max((number for number, value in series if value > self.chance[1]), default=0)
        since = [value for number, value in series if number > above]
        if len(since) < _LEAST_EVALUATIONS or series[-1][0] - above < self._patience:
            return None
        figure, when = re.sub("[/_]", " ", self._figure), f"round {above}" if above else "the start"
        always = f"naming the most frequent label always gets {100 * self.chance[0]:.1f} %"
        return (
            f"the {figure} has been at chance since {when}, {100 * since[-1]:.1f} % in round {series[-1][0]}: "
            f"{always}. The first suspect is the learning rate, local.lr = {self._rate:g}: try a third and a "
            "tenth of it"
        ) + _MOMENTUM * self._stale

    def round(self, run: RunView) -> None:
        if not self._told and run.metrics.evaluated and (note := self.note(run.history)):
            self._told = True
            _log.warning("%s, round %d: %s", run.experiment.method.name, run.done, note)


OURS: dict[str, type[Callback]] = {
    "early-stopping": EarlyStopping,
    "time-limit": TimeLimit,
    "best-checkpoint": BestCheckpoint,
}


def check_callbacks(callbacks: object) -> list[Callback]:
    """Callbacks as given by a user and checked. A class is called to make an instance."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise InputError(f"{_KEY} = {callbacks!r}: must be a list of callbacks")
    found: list[Callback] = []
    for each in callbacks:
        if isinstance(each, str | Mapping):
            settings = parse(CallbackSettings, {"name": each} if isinstance(each, str) else each)
            found += named_callbacks([settings])
            continue
        made = each() if isinstance(each, type) else each
        for name in ("begin", "round", "end"):
            if not callable(getattr(made, name, None)):
                raise InputError(
                    f"{_KEY}: {type(made).__name__} has no method {name}; derive it from fedacg.Callback"
                )
        found.append(made)
    return found


def named_callbacks(settings: Sequence[CallbackSettings]) -> list[Callback]:
    """The callbacks that a description names, made with their options."""
    found = []
    for each in settings:
        make = load_function(_KEY, each.name) if is_plugin(each.name) else OURS[each.name]
        try:
            inspect.signature(make).bind(**each.options)
        except TypeError as error:
            raise InputError(f"{_KEY}: {each.name}: {error}") from None
        found.append(make(**each.options))
    return check_callbacks(found)
