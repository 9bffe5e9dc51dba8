"""Tuning with a budget: every method gets the same number of trials in a space that is declared beforehand.

A method's space is the product of the search sets of its options, which stand in the catalogue, of the learning
rates, and of what the user adds. A set is a list of values, or a range `0.003..0.3`. A range is cut into as many
parts as there are trials, alike in the logarithm, and each part gives one value: the same ones to every method, in
an order of its own. So a method without options has as many trials as one with many. Of lists, points are drawn
without replacement, from a stream of the method's own. Trials are ranked by the validation accuracy alone; the
test accuracy plays no part, and is reported for the chosen trial.

    random     every trial is run to the end
    halving    all are run for a ninth of the rounds, the best third for a third, the best ninth to the end
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedacg.bench.grid import Space, check_begun, draw, parse_range, place, place_several, space_of
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import Tree, find, override, with_method
from fedacg.core.files import parse_folder, safe_name
from fedacg.errors import InputError, RunError
from fedacg.report.runs import load_run
from fedacg.runs.history import History

STRATEGIES = ("random", "halving")
RATES = ("0.003..0.3",)
"""The learning rates that are tried unless others are given."""
HELD_OUT = 0.1
"""What is held out to choose by, where the recipe holds out nothing."""
_KEEP = 3
"""Halving keeps one in this many."""

Play = Callable[[Mapping[Path, Experiment]], None]
"""Plays experiments into their folders; one that cannot be finished is left."""


@dataclass
class Trial:
    """A point of a method's space, with the runs that it took."""

    number: int
    """Counted from 1, in the order in which they were drawn."""
    settings: dict[str, str]
    runs: list[Path] = field(default_factory=list)
    """One for each rung that it reached, the longest last."""
    scores: list[float] = field(default_factory=list)
    """What each came to by validation; −∞ for one that diverged."""


@dataclass(frozen=True)
class Tuned:
    """What came of tuning one method."""

    method: str
    """As it was typed."""
    space: Space
    trials: tuple[Trial, ...]
    experiment: Experiment
    """The recipe with the settings that were chosen."""
    best: Trial
    finals: Mapping[Path, Experiment]
    """The runs of the chosen settings with several seeds; none where no seeds were asked for."""

    @property
    def judged(self) -> list[float]:
        """What all trials came to, in their order: at the end, or with halving after its first stage."""
        return [trial.scores[0] for trial in self.trials]

    @property
    def points(self) -> float:
        """How many points the space has; infinitely many if there is a range in it."""
        ranges = any(parse_range(key, values) for key, values in self.space.items())
        return math.inf if ranges else math.prod(map(len, self.space.values()))


def rungs(strategy: str, rounds: int) -> list[int]:
    """For how many rounds trials are run, one stage after the other."""
    if strategy not in STRATEGIES:
        raise InputError(f"strategy {strategy!r}: must be {' or '.join(STRATEGIES)}")
    parts = (_KEEP**2, _KEEP, 1) if strategy == "halving" else (1,)
    return sorted({max(1, rounds // part) for part in parts})


class Study:
    """The trials of several methods on one recipe; all of them are checked before the first is run."""

    def __init__(
        self,
        tree: Tree,
        methods: Sequence[str],
        out: Path,
        *,
        trials: int = 15,
        strategy: str = "random",
        rates: Sequence[str] = RATES,
        more: Space | None = None,
        seeds: Sequence[int] = (),
    ) -> None:
        if not methods:
            raise InputError("--methods: needs at least one name")
        if trials < 1:
            raise InputError(f"--trials {trials}: must be at least 1")
        for method in methods:
            if methods.count(method) > 1:
                raise InputError(f"--methods: {method!r} is given twice")
        self.out, self.strategy, self.budget, self.seeds = out, strategy, trials, tuple(seeds)
        self._plain = tree
        held_out = tree.get("data", {}).get("validation") or HELD_OUT
        self._tree = override(tree, [f"data.validation={held_out}", "evaluate.test=end"])
        self.rungs = rungs(strategy, Experiment.parse(tree).rounds)
        seed = tree.get("seed", 0)
        self.spaces = {method: space_of(method, tree, rates, more or {}) for method in methods}
        self.trials = {
            method: [
                Trial(number, point) for number, point in enumerate(draw(method, space, trials, seed), start=1)
            ]
            for method, space in self.spaces.items()
        }
        for method in methods:
            for trial in self.trials[method]:
                self._experiment(self._tree, method, trial, self.rungs[-1])

    def make_room(self, *, reuse: bool) -> None:
        """Move to another folder, numbered, where this one holds the trials of another study."""
        searched = {key for space in self.spaces.values() for key in space}
        free = [*searched, "method.name", *(["rounds"] if len(self.rungs) > 1 else [])]
        first = {folder.name: experiment for folder, experiment in self.planned(0).items()}
        self.out = place_several(self.out, first, free, reuse=reuse, below="runs")

    def planned(self, rung: int) -> dict[Path, Experiment]:
        """The runs of a rung, those of all methods; after the first rung, of the best of the rung before."""
        rounds, runs = self.rungs[rung], {}
        for method, trials in self.trials.items():
            there = [trial for trial in trials if len(trial.scores) >= rung]
            count = len(trials) if rung == 0 else max(1, round(len(trials) / _KEEP**rung))
            if rung:
                there = sorted(there, key=lambda trial: -trial.scores[rung - 1])[:count]
            for trial in there:
                experiment = self._experiment(self._tree, method, trial, rounds)
                folder = place(self.out / "runs", _name(method, trial, rounds), experiment)
                del trial.runs[rung:], trial.scores[rung:]
                trial.runs.append(folder)
                runs[folder] = experiment
        return runs

    def judge(self, rung: int) -> None:
        """Score the runs of a rung."""
        for trials in self.trials.values():
            for trial in trials:
                if len(trial.runs) > rung:
                    trial.scores.append(score(load_run(trial.runs[rung]).history, self.rungs[rung]))

    def play(self, play: Play) -> list[Tuned]:
        """Play all rungs, and choose; then play what was chosen with every seed, on all training data."""
        for rung in range(len(self.rungs)):
            play(self.planned(rung))
            self.judge(rung)
        found = [self._chosen(method) for method in self.trials]
        if self.seeds:
            play({folder: run for each in found for folder, run in each.finals.items()})
        return found

    def _chosen(self, method: str) -> Tuned:
        trials = self.trials[method]
        best = max((t for t in trials if len(t.scores) == len(self.rungs)), key=lambda trial: trial.scores[-1])
        if best.scores[-1] == -math.inf:
            raise RunError(f"tune: no trial of {method} got to its last round")
        experiment = self._experiment(self._plain, method, best, self.rungs[-1])
        finals = {}
        for seed in self.seeds:
            run = experiment.model_copy(update={"seed": seed})
            finals[place(self.out / "final", safe_name(f"{method.replace(':', '-')}-s{seed}"), run)] = run
        return Tuned(method, self.spaces[method], tuple(trials), experiment, best, finals)

    def _experiment(self, tree: Tree, method: str, trial: Trial, rounds: int) -> Experiment:
        settings = [f"{key}={value}" for key, value in trial.settings.items()]
        return Experiment.parse(override(with_method(tree, method), [*settings, f"rounds={rounds}"]))


def _name(method: str, trial: Trial, rounds: int) -> str:
    return safe_name(f"{method.replace(':', '-')}-t{trial.number:02}-r{rounds}")


def score(history: History, rounds: int) -> float:
    """What a run came to: the final moving average of its validation accuracy, or less its validation loss.

    −∞ for a run that did not get to its last round. A run without either figure is refused.
    """
    if history.rounds < rounds:
        return -math.inf
    for figure, sign in (("validation/accuracy", 1.0), ("validation/loss", -1.0)):
        if averages := history.moving_average(figure=figure):
            return sign * averages[-1]
    raise InputError("tune: the runs have no validation figures; data.validation must be more than 0")


def expected_best(scores: Sequence[float], trials: int) -> float:
    """The mean of the best of this many trials, drawn with replacement from these (Dodge et al., EMNLP 2019)."""
    count = len(scores)
    parts = ((place / count) ** trials for place in range(count + 1))
    chances = zip(sorted(scores), pairwise(parts), strict=True)
    return math.fsum(value * (above - below) for value, (below, above) in chances)


def tune(
    recipe: str | Experiment,
    methods: Sequence[str],
    *,
    trials: int = 15,
    strategy: str = "random",
    lr: Sequence[float] | None = None,
    space: Mapping[str, Sequence[Any]] | None = None,
    seeds: Sequence[int] = (),
    out: Path | str = "runs/tune",
    resume: bool = False,
) -> list[Tuned]:
    """Tune methods on a recipe with the same number of trials each, and report on them into `out`.

        best, *_ = fedacg.tune("cifar10-moderate-small", ["fedacg", "fedavg"], trials=15)
        fedacg.run(best.experiment)

    Args:
        recipe: A recipe's name, a TOML file, or an experiment.
        methods: Names, with options that are not to be searched: "fedacg:beta=0.01".
        trials: For each method.
        strategy: `random`, or `halving`, which runs all trials for a few rounds and only the best to the end.
        lr: The learning rates to try; by default the range from 0.003 to 0.3.
        space: Further keys and the values to try, as in `{"local.weight_decay": [0, 0.001]}`, or a range, as in
            `{"method.lam": ["0.5..0.95"]}`.
        seeds: Run what was chosen with each of these, on all training data, and compare the methods by that.
        out: The folder for runs, tables and the tuned experiments.
        resume: Resume trials that were stopped; finished ones are kept anyway.

    Returns:
        For each method its trials, the best of them, and the recipe with its settings.
    """
    from fedacg.bench.tune_report import write
    from fedacg.runs.contents import is_finished
    from fedacg.runs.session import Session

    tree = find(recipe) if isinstance(recipe, str) else recipe.model_dump()
    study = Study(
        tree,
        list(methods),
        parse_folder(out),
        trials=trials,
        strategy=strategy,
        rates=RATES if lr is None else [f"{rate:g}" for rate in lr],
        more={key: tuple(map(str, values)) for key, values in (space or {}).items()},
        seeds=seeds,
    )

    def play(runs: Mapping[Path, Experiment]) -> None:
        for folder, experiment in runs.items():
            check_begun(folder, experiment, resume)
        for folder, experiment in runs.items():
            if not is_finished(folder, experiment):
                try:
                    session.play(experiment, folder=folder, resume=True)
                except RunError:  # a trial that diverged is one that scores nothing
                    continue

    with Session(Experiment.parse(tree).engine) as session:
        found = study.play(play)
    write(study, found)
    return found
