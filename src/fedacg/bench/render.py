"""A comparison on a terminal, as Markdown, CSV and LaTeX, and on the page of its runs.

The numbers come from `comparison`; page, curves and tables of the runs themselves from `report`.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult

from fedacg import report
from fedacg.bench.comparison import Comparison
from fedacg.bench.folders import spelled
from fedacg.bench.sweep_report import Dot, Effect
from fedacg.report.cells import Column, TerminalTable, to_latex, to_markdown
from fedacg.report.page import Chapter
from fedacg.report.table import Effort, Spread

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
