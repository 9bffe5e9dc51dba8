"""Measured numbers beside the published ones, for one table in one setting.

The paper's numbers and ours are rows of the same kind, so that `report` formats and ranks both alike. Page, curves
and tables of the runs themselves come from `report`.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult

from fedacg import report
from fedacg.bench.grid import spelled
from fedacg.bench.paper import (
    REFERENCE,
    Block,
    Line,
    method_of,
    paper_targets,
    recipes_of,
    shares,
    small_targets,
    value_of,
)
from fedacg.bench.sweep_report import Dot, Effect, average_at
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find
from fedacg.report.cells import ABSENT, Cell, Column, TerminalTable, columns_of, percent, to_latex, to_markdown
from fedacg.report.page import Chapter
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


# On a terminal, as Markdown, CSV and LaTeX, and on the page of its runs


WORDS = (
    'Columns "at" have the moving average of the test accuracy after that many rounds, in percent; columns "to" '
    "the rounds, or the bytes, until that average reached a target. The best of a column is bold, and so is, over "
    "several seeds, all that do not differ from it significantly; with one seed the next is underlined."
)

_NUMBERS = ("paper_at", "paper", "paper_not_reached", "at", "value", "std", "not_reached")
_SWEPT = {"ablation-lambda": "lam", "ablation-beta": "beta"}
"""Tables that are sweeps over an option of FedACG."""


@dataclass(frozen=True)
class Printed:
    """The table for a terminal: in one piece where it fits, else in as few pieces as possible."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pieces: list[list[Column]] = []
        for group in self.comparison.groups:
            longer = [*pieces[-1], *group] if pieces else []
            if pieces and _width([self.comparison.method, *longer]) <= options.max_width:
                pieces[-1] = longer
            else:
                pieces.append(group)
        for place, piece in enumerate(pieces):
            if place:
                yield ""
            yield TerminalTable([self.comparison.method, *piece])


def _width(columns: Sequence[Column]) -> int:
    """The natural width of a table."""
    console = Console(width=1000, file=io.StringIO(), force_terminal=False)
    lines = console.render_lines(TerminalTable(columns), pad=False)
    return max(sum(segment.cell_length for segment in line) for line in lines)


def write(comparison: Comparison, command: str) -> report.Report:
    """Write bench.md, bench.csv and bench.tex, and the report on the runs, into the folder of the block.

    The ablation of an option gets the picture of a sweep over it as well.
    """
    block, effect = comparison.block, _effect(comparison)
    columns = [comparison.method, *(column for group in comparison.groups for column in group)]
    chapter = Chapter(
        "Beside the paper",
        f"{title(comparison)}. {WORDS} {' '.join(map(_sentence, comparison.notes))}",
        columns,
        [effect.picture] if effect else [],
    )
    files = {
        "bench.md": _markdown(comparison, columns, command).encode(),
        "bench.csv": _csv(comparison).encode(),
        "bench.tex": _latex(comparison, columns).encode(),
        **(effect.files if effect else {}),
    }
    return report.write(list(block.runs), block.folder, comparison.targets, chapter, files)


def _effect(comparison: Comparison) -> Effect | None:
    key = _SWEPT.get(comparison.block.table)
    if key is None:
        return None
    pairs = zip(comparison.block.lines, comparison.here, strict=True)
    return Effect(
        f"method.{key}",
        [
            Dot(f"{line.method.options[key]:g}", comparison.block.recipe, row.moving_average)
            for line, row in pairs
            if key in line.method.options
        ],
    )


def title(comparison: Comparison) -> str:
    """The title of the table."""
    block = comparison.block
    seeds = ", ".join(map(str, comparison.here[0].seeds))
    return f"{block.table} at {block.scale} scale, {block.recipe}, seed{'s' * (',' in seeds)} {seeds}"


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _markdown(comparison: Comparison, columns: Sequence[Column], command: str) -> str:
    notes = "\n".join(f"- {_sentence(note)}" for note in comparison.notes)
    parts = [f"# {title(comparison)}", f"```bash\n{command}\n```", to_markdown(columns).strip(), WORDS, notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def _latex(comparison: Comparison, columns: Sequence[Column]) -> str:
    lines = [title(comparison), *map(_sentence, comparison.notes)]
    return "".join(f"% {line}\n" for line in lines) + to_latex(columns)


def _csv(comparison: Comparison) -> str:
    """A row for each number, as the published ones, in full precision.

    Where `not_reached` seeds missed a target, the value is the least that one of them spent without reaching it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*("table", "scale", "recipe", "method", "run", "seeds", "metric"), *_NUMBERS])
    block = comparison.block
    for line, paper, here in zip(block.lines, comparison.paper, comparison.here, strict=True):
        start = [block.table, block.scale, block.recipe, line.label, spelled(line.method), len(here.seeds)]
        both = zip(comparison.paper_rounds, comparison.rounds, strict=True)
        spreads = [(paper.accuracy, here.accuracy), (paper.moving_average, here.moving_average)]
        for (their_round, our_round), (theirs, ours) in zip(both, spreads, strict=True):
            published = [their_round, _spread(theirs)[0], ""]
            writer.writerow([*start, "accuracy", *published, our_round, *_spread(ours), ""])
        for place, target in enumerate(comparison.targets):
            goal = f"{100 * comparison.paper_targets[place]:g}"
            ours_at = f"{100 * target:g}"
            number, _, missed = _effort(paper.rounds_to[place])
            published = [goal, number, missed]
            writer.writerow([*start, "rounds_to", *published, ours_at, *_effort(here.rounds_to[place])])
            writer.writerow([*start, "bytes_to", "", "", "", ours_at, *_effort(here.bytes_to[place])])
    return out.getvalue()


def _spread(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "", ""
    return f"{spread.mean:.10g}", "" if spread.std is None else f"{spread.std:.10g}"


def _effort(effort: Effort) -> tuple[str, str, str]:
    """Mean, deviation, and how many seeds missed the target; nothing where the paper has no number."""
    if effort.spread:
        return *_spread(effort.spread), "0"
    return ("", "", "") if not effort.spent else (f"{effort.spent}", "", f"{effort.missed}")
