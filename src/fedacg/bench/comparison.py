"""Measured numbers beside the published ones, for one table in one setting.

The paper's numbers and ours are rows of the same kind, so that `report` formats and ranks both alike. How they are
laid out on a terminal and in files is up to `render`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedacg.bench.plan import Block, Line
from fedacg.bench.published import REFERENCE, method_of, paper_targets, recipes_of, shares, small_targets, value_of
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find
from fedacg.report.cells import ABSENT, Cell, Column, columns_of, percent
from fedacg.report.runs import load_run
from fedacg.report.table import Effort, Row, Spread
from fedacg.runs.history import History, Reached

_NOTHING = Reached(0, False)
"""Stands for rounds that the paper does not report."""


@dataclass(frozen=True)
class Comparison:
    """A row of the paper and one of ours for every line; accuracies are moving averages in percent.

    A row's `accuracy` is that at half of the rounds, its `moving_average` that at the end.
    """

    block: Block
    paper_rounds: tuple[int, int]
    """Half of the rounds, and all, as in the paper."""
    rounds: tuple[int, int]
    """The same for our runs."""
    paper_targets: tuple[float, ...]
    targets: tuple[float, ...]
    """Our targets; empty if there is no FedAvg run to derive them from."""
    paper: tuple[Row, ...]
    here: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def method(self) -> Column:
        return Column("method", tuple(Cell(row.label) for row in self.here))

    @property
    def groups(self) -> list[list[Column]]:
        """The columns that belong together: accuracies, rounds to the targets, bytes to the targets."""
        theirs, ours = columns_of(self.paper, self.paper_targets), columns_of(self.here, self.targets)
        accuracies, rounds, sent = [], [], []
        for place in range(2):
            accuracies.append(_headed(theirs[2 + place], f"paper, at {self.paper_rounds[place]}"))
            accuracies.append(_headed(ours[2 + place], f"here, at {self.rounds[place]}"))
        for place, target in enumerate(self.paper_targets):
            column = _headed(theirs[4 + 2 * place], f"paper, to {percent(target)}")
            unknown = [row.rounds_to[place] == Effort((_NOTHING,)) for row in self.paper]
            cells = zip(column.cells, unknown, strict=True)
            rounds.append(replace(column, cells=tuple(Cell(ABSENT) if no else cell for cell, no in cells)))
            if self.targets:
                goal = percent(self.targets[place])
                rounds.append(_headed(ours[4 + 2 * place], f"here, to {goal}"))
                sent.append(_headed(ours[5 + 2 * place], f"bytes, to {goal}"))
        return [group for group in (accuracies, rounds, sent) if group]


def _headed(column: Column, heading: str) -> Column:
    return replace(column, heading=heading, spare=False)


def compare(block: Block) -> Comparison:
    """Read the runs of a block and put them beside the paper's."""
    histories = [[load_run(folder).history for folder in line.runs] for line in block.lines]
    theirs = Experiment.parse(find(block.setting)).rounds
    ours = max(run.rounds for run in block.runs.values())
    goals = paper_targets(block.setting)
    targets, notes = _targets(block, histories, ours)
    pairs = list(zip(block.lines, histories, strict=True))
    return Comparison(
        block=block,
        paper_rounds=_half_and_all(theirs),
        rounds=_half_and_all(ours),
        paper_targets=goals,
        targets=targets,
        paper=tuple(_published(block, line, _half_and_all(theirs), goals) for line in block.lines),
        here=tuple(_measured(line, runs, _half_and_all(ours), targets) for line, runs in pairs),
        notes=(*_notes(block, pairs), *notes),
    )


def _half_and_all(rounds: int) -> tuple[int, int]:
    return max(1, rounds // 2), rounds


def _measured(line: Line, runs: Sequence[History], rounds: tuple[int, int], targets: Sequence[float]) -> Row:
    half, end = (average_at(runs, round) for round in rounds)
    return Row(
        label=line.label,
        method=line.method.name,
        seeds=tuple(run.seed for run in line.runs.values()),
        accuracy=half,
        moving_average=end,
        rounds_to=tuple(Effort(tuple(Reached.of(h.rounds_to(t), h.rounds) for h in runs)) for t in targets),
        bytes_to=tuple(Effort(tuple(Reached.of(h.bytes_to(t), h.total_bytes) for h in runs)) for t in targets),
        seconds=Spread.over([history.seconds["total"] for history in runs]),
    )


def average_at(runs: Sequence[History], round: int) -> Spread | None:
    """Over all seeds or not at all: a run that did not get there must not make the others look better."""
    averages = [history.moving_average_at(round) for history in runs if history.rounds >= round]
    values = [100 * average for average in averages if average is not None]
    return Spread.over(values) if len(values) == len(runs) else None


def _published(block: Block, line: Line, rounds: tuple[int, int], targets: Sequence[float]) -> Row:
    def number(metric: str, at: int) -> str | None:
        return value_of(block.table, block.setting, line.method, metric, at)

    half, end = (number("accuracy", round) for round in rounds)
    efforts = tuple(Effort((_reached(number("rounds_to", round(100 * target))),)) for target in targets)
    return Row(
        label=line.label,
        method=line.method.name,
        seeds=(),
        accuracy=Spread(float(half), None) if half else None,
        moving_average=Spread(float(end), None) if end else None,
        rounds_to=efforts,
        bytes_to=tuple(Effort((_NOTHING,)) for _ in targets),
        seconds=Spread(0.0, None),
    )


def _reached(text: str | None) -> Reached:
    """A published number of rounds; "1000+" is one that was not enough."""
    return _NOTHING if text is None else Reached(int(text.removesuffix("+")), not text.endswith("+"))


def _targets(
    block: Block, histories: Sequence[Sequence[History]], rounds: int
) -> tuple[tuple[float, ...], list[str]]:
    """The targets that our runs are measured by, and how they came about."""
    goals = paper_targets(block.setting)
    if block.scale == "paper":
        return goals, []
    place = [line.method for line in block.lines].index(method_of(REFERENCE))
    reference = average_at(histories[place], rounds)
    if reference is None:
        return (), ["FedAvg did not get to the last round, so there are no targets"]
    targets = small_targets(block.setting, reference.mean / 100)
    parts = [f"{share} %" for share in shares(block.setting)]
    note = (
        f"to reach here: {_and(map(percent, targets))}, that is {_and(parts)} of FedAvg's "
        f"{reference.mean:.2f} % in the last round, like {_and(map(percent, goals))} in the paper"
    )
    return targets, [note]


def _notes(block: Block, pairs: Sequence[tuple[Line, Sequence[History]]]) -> list[str]:
    notes = []
    if block.setting not in recipes_of(block.table):
        notes.append(f"the paper's table has no {block.setting}; the paper's numbers shown are from other tables")
    if block.changed:
        notes.append(f"changed from the recipe: {', '.join(block.changed)}")
    if block.added:
        notes.append("FedAvg was run as well, as the targets derive from it")
    for line, runs in pairs:
        for experiment, history in zip(line.runs.values(), runs, strict=True):
            if history.rounds < experiment.rounds:
                rounds = f"{history.rounds} of {experiment.rounds} rounds"
                notes.append(f"{line.label}, seed {experiment.seed}: ended after {rounds}")
    return notes


def _and(parts: Iterable[str]) -> str:
    return " and ".join(parts)
