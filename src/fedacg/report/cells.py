"""The one table of a report as text: cells for the page, a rich table for the terminal, Markdown.

Sets the numbers of `table` for people to read and marks the best; computes none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedacg.report.statistics import Sample, differences
from fedacg.report.table import Effort, Row, Spread, goals_of
from fedacg.runs.history import ACCURACY, bytes_unit, human_bytes, three_digits

ABSENT = "–"
_MISSED = 1e15
"""Added to efforts that missed the target, so that they sort after those that reached it."""


@dataclass(frozen=True)
class Cell:
    """A text, whether it is the "best" or the "second" of its column, and the number that it is sorted by.

    Over several seeds, all that do not differ significantly from the best are "best" too, and there is no second.
    """

    text: str
    mark: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """A heading and a cell for each row; a narrow terminal leaves out `spare` columns."""

    heading: str
    cells: tuple[Cell, ...]
    spare: bool = False


def percent(fraction: float) -> str:
    """A target as people say it: "90 %", "97.5 %"."""
    return f"{100 * fraction:.6g} %"


def columns_of(rows: Sequence[Row], targets: Sequence[float], ranked: bool = True) -> list[Column]:
    """The cells of the table; best and second best are marked if there is anything to compare."""
    bounds = not any(row.contends for row in rows)
    """Whether there are only baselines, which are then compared with one another."""
    ranked = ranked and (len(rows) if bounds else sum(row.contends for row in rows)) > 1

    def marks(values: Sequence[float | None], spreads: Sequence[Spread | None]) -> list[str]:
        entered = [row.contends or bounds for row in rows]
        samples = [
            row.sample(spread) if takes else {} for row, spread, takes in zip(rows, spreads, entered, strict=True)
        ]
        ours = [value if takes else None for value, takes in zip(values, entered, strict=True)]
        return _marks(ours, samples) if ranked else [""] * len(rows)

    columns = [
        Column("method", tuple(Cell(row.label) for row in rows)),
        Column("seeds", tuple(Cell(f"{len(row.seeds)}", value=len(row.seeds)) for row in rows)),
        *_headlines(rows, marks),
    ]
    for place, goal in enumerate(goals_of(rows, targets)):
        rounds = [row.rounds_to[place] for row in rows]
        sent = [row.bytes_to[place] for row in rows]
        columns.append(_with_shares(_efforts(f"rounds to {goal.title}", rounds, _rounds, marks), rounds))
        # Bytes follow from rounds; with one target both fit into 80 columns.
        sent_column = _efforts(f"bytes to {goal.title}", sent, _bytes, marks)
        columns.append(replace(sent_column, spare=len(goals_of(rows, targets)) > 1))
    seconds = (Cell(_three_digits(row.seconds), value=row.seconds.mean) for row in rows)
    return [*columns, Column("seconds", tuple(seconds))]


_Marks = Callable[[Sequence[float | None], Sequence[Spread | None]], list[str]]
"""From the values of a column, as printed and smallest first, and what they are means of, to its marks."""


def _headlines(rows: Sequence[Row], marks: _Marks) -> list[Column]:
    """The headline figure, and its moving average."""
    ends, averages = [row.accuracy for row in rows], [row.moving_average for row in rows]
    shown = rows[0].shown if rows else ACCURACY
    if shown.percent:
        name = "accuracy" if shown.name == "test_accuracy" else shown.title
        return [_accuracies(f"{name} %", ends, marks), _accuracies("moving average %", averages, marks)]
    return [
        _figures(shown.title, ends, shown.rises, marks),
        _figures("moving average", averages, shown.rises, marks),
    ]


def _figures(heading: str, spreads: Sequence[Spread | None], rises: bool, marks: _Marks) -> Column:
    """A figure of any size, to four digits."""
    texts = [_four_digits(spread) if spread else ABSENT for spread in spreads]
    sign = -1 if rises else 1
    ranks = marks([sign * float(f"{spread.mean:.4g}") if spread else None for spread in spreads], spreads)
    return Column(heading, tuple(map(Cell, texts, ranks, [spread.mean if spread else None for spread in spreads])))


def _four_digits(spread: Spread) -> str:
    return f"{spread.mean:.4g}" + ("" if spread.std is None else f" ±{spread.std:.2g}")


def _accuracies(heading: str, spreads: Sequence[Spread | None], marks: _Marks) -> Column:
    texts = [_accuracy(spread) if spread else ABSENT for spread in spreads]
    # Ranked as printed, or only one of two equal numbers would be bold.
    ranks = marks([-round(spread.mean, 2) if spread else None for spread in spreads], spreads)
    values = [spread.mean if spread else None for spread in spreads]
    return Column(heading, tuple(map(Cell, texts, ranks, values)))


def _efforts(heading: str, efforts: Sequence[Effort], form: Callable[[Spread], str], marks: _Marks) -> Column:
    spreads = [effort.spread for effort in efforts]
    texts = [
        form(spread) if spread else f"{form(Spread(effort.spent, None))}+"
        for effort, spread in zip(efforts, spreads, strict=True)
    ]
    ranks = marks([float(f"{spread.mean:.3g}") if spread else None for spread in spreads], spreads)
    values = [effort.spread.mean if effort.spread else _MISSED + effort.spent for effort in efforts]
    return Column(heading, tuple(map(Cell, texts, ranks, values)))


def _with_shares(column: Column, efforts: Sequence[Effort]) -> Column:
    # In the rounds' column only: the bytes are spent in the same rounds.
    shares = [
        f" ({effort.reached}/{len(effort.seeds)})" if len(effort.seeds) > 1 and not effort.spread else ""
        for effort in efforts
    ]
    cells = zip(column.cells, shares, strict=True)
    return replace(column, cells=tuple(replace(cell, text=cell.text + share) for cell, share in cells))


def _marks(values: Sequence[float | None], samples: Sequence[Sample]) -> list[str]:
    """Smallest is best; equals share a mark, and what has no value has none.

    If the best shares seeds with others, all that do not differ significantly from it share its mark.
    """
    order = sorted({value for value in values if value is not None})
    if order and any(gaps := differences(samples, best := values.index(order[0]))):
        level = [place == best or (gap is not None and not gap.told) for place, gap in enumerate(gaps)]
        both = zip(level, values, strict=True)
        return ["best" if same or value == order[0] else "" for same, value in both]
    ranks = dict(zip(order, ("best", "second"), strict=False))
    return ["" if value is None else ranks.get(value, "") for value in values]


def _accuracy(spread: Spread) -> str:
    return f"{spread.mean:.2f}" + ("" if spread.std is None else f" ±{spread.std:.2f}")


def _rounds(spread: Spread) -> str:
    return f"{spread.mean:.0f}" if spread.std is None else f"{spread.mean:.1f} ±{spread.std:.1f}"


def _bytes(spread: Spread) -> str:
    if spread.std is None:
        return human_bytes(spread.mean)
    size, unit = bytes_unit(spread.mean)
    return f"{_three_digits(Spread(spread.mean / size, spread.std / size))} {unit}"


def _three_digits(spread: Spread) -> str:
    mean = three_digits(spread.mean)
    decimals = len(mean.partition(".")[2])
    return mean if spread.std is None else f"{mean} ±{spread.std:.{decimals}f}"


@dataclass(frozen=True)
class TerminalTable:
    """The table for a terminal, as wide as that allows: best in bold, second best underlined, as marked."""

    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _rich_table(self.columns)
        # Measured without bounds, as within bounds a table says that it fits and breaks its words.
        unbound = options.update_width(10_000)
        fits = Measurement.get(console, unbound, whole).maximum <= options.max_width
        yield whole if fits else _rich_table([column for column in self.columns if not column.spare])


def _rich_table(columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    styles = {"best": "bold", "second": "underline", "": ""}
    for place, column in enumerate(columns):
        # Headings longer than their numbers go on two lines, or 80 columns would not do.
        heading = column.heading.replace(" ", "\n", 1) if len(column.heading) > 10 else column.heading
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(cell.text, style=styles[cell.mark]) for cell in cells))
    return table


def to_markdown(columns: Sequence[Column]) -> str:
    """The table in Markdown: best in bold, second best underlined."""
    wraps = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    lines = [
        [column.heading for column in columns],
        ["---" if place == 0 else "---:" for place in range(len(columns))],
    ]
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines.append([wraps[cell.mark].format(_escape(cell.text)) for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escape(text: str) -> str:
    for character in "\\|*_`<[":
        text = text.replace(character, f"\\{character}")
    return text


_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # After the end of a line, a bracket would be read as its option.
        "[": "{[}",
        "]": "{]}",
        **{character: f"\\{character}" for character in "{}$&#_%"},
        "±": r"$\pm$",
        "–": "--",
        "…": r"\dots{}",
        "≥": r"$\ge$",
    }
)
_MARKS = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}


def to_latex(columns: Sequence[Column]) -> str:
    r"""The table as a `tabular`, to be put in a paper with \input."""
    rows = zip(*(column.cells for column in columns), strict=True)
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        _line([escape(column.heading) for column in columns]),
        r"\midrule",
        *(_line([_cell(cell) for cell in row]) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """A text that LaTeX prints as it stands."""
    return text.translate(_ESCAPES)


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _cell(cell: Cell) -> str:
    return _MARKS[cell.mark].format(escape(cell.text))
