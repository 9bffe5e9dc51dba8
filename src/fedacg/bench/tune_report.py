"""What tuning found: the chosen trials, what they cost, and how much tuning matters for each method."""

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from fedacg import report
from fedacg.bench.grid import parse_range
from fedacg.bench.tuning import Study, Tuned, expected_best
from fedacg.core.files import safe_name
from fedacg.core.output import csv_text
from fedacg.report.cells import ABSENT, Cell, Column, TerminalTable, to_markdown
from fedacg.report.page import Chapter, Picture
from fedacg.report.pictures import render
from fedacg.report.runs import load_run
from fedacg.report.style import styles_of
from fedacg.runs.history import human_bytes, three_digits

WORDS = (
    "Every method had the same number of trials, or all points of its space where there are fewer. The best "
    "is chosen by the final moving average of the validation accuracy; the test accuracy is that of the trial "
    "that was chosen, and chose nothing. Best of n is the mean of the best validation accuracy of n trials: "
    "what a smaller budget would have found; it and the median are, with halving, after the first stage. "
    "Rounds, bytes and seconds are those of all trials together."
)
_SPARE = ("trials", "median %", "diverged", "rounds", "bytes")
"""Columns that a narrow terminal does without."""


@dataclass(frozen=True)
class Cost:
    """What trials took."""

    rounds: int
    bytes: int
    seconds: float


def write(study: Study, found: Sequence[Tuned]) -> report.Report:
    """Write tune.md, tune.csv, a picture, the tuned experiments, and the report on what was chosen.

    That is on its runs with several seeds where there are such, else on the chosen trials.
    """
    columns = _columns(found)
    figure = _figure(found)
    notes = [
        f"{each.method}: its space has {each.points} points, fewer than {study.budget} trials, and all were tried"
        for each in found
        if each.points < study.budget
    ]
    picture = Picture(
        name="tuning",
        title="What a budget buys",
        caption="The mean of the best validation accuracy of n trials; with halving, after the first stage.",
        alt="; ".join(f"{each.method}: best {100 * each.best.scores[-1]:.2f} %" for each in found),
        png=render(figure, "png"),
    )
    said = " ".join([WORDS, *(f"{note[0].upper()}{note[1:]}." for note in notes)])
    spaces = "\n".join(f"- {each.method}: {_space(each)}" for each in found)
    files = {
        "tune.md": f"{to_markdown(columns)}\n{said}\n\nSearched ({study.strategy}):\n\n{spaces}\n".encode(),
        "tune.csv": _csv(study, found).encode(),
        **{f"tune.{kind}": render(figure, kind) for kind in ("png", "pdf")},
        **{f"tuned-{safe_name(each.method)}.toml": each.experiment.to_toml().encode() for each in found},
    }
    chapter = Chapter("Tuning", said, columns, [picture])
    trials = [folder for each in found for trial in each.trials for folder in trial.runs]
    finals = [folder for each in found for folder in each.finals]
    shown = finals or [each.best.runs[-1] for each in found]
    return report.write(shown, study.out, None, chapter, files, spent=[*trials, *finals])


def table(found: Sequence[Tuned]) -> TerminalTable:
    """The table for a terminal."""
    return TerminalTable([replace(column, spare=column.heading in _SPARE) for column in _columns(found)])


def cost(tuned: Tuned) -> Cost:
    """What all trials of a method took."""
    histories = [load_run(folder).history for trial in tuned.trials for folder in trial.runs]
    return Cost(
        sum(history.rounds for history in histories),
        sum(history.total_bytes for history in histories),
        math.fsum(history.seconds["total"] for history in histories),
    )


def _columns(found: Sequence[Tuned]) -> list[Column]:
    costs = [cost(each) for each in found]
    tests = [load_run(each.best.runs[-1]).history.accuracy[-1:] for each in found]
    few = sorted({1, 5} & set(range(1, min(len(each.judged) for each in found))))
    return [
        Column("method", tuple(Cell(each.method) for each in found)),
        Column("trials", tuple(Cell(f"{len(each.trials)}") for each in found)),
        Column("chosen", tuple(Cell(_settings(each.best.settings)) for each in found)),
        Column("validation %", tuple(Cell(_score(each.best.scores[-1])) for each in found)),
        Column("test %", tuple(Cell(_score(test[0]) if test else ABSENT) for test in tests)),
        *(
            Column(f"best of {n} %", tuple(Cell(_score(expected_best(_finite(each.judged), n))) for each in found))
            for n in few
        ),
        Column("median %", tuple(Cell(_score(statistics.median(each.judged))) for each in found)),
        Column("diverged", tuple(Cell(f"{_diverged(each)}") for each in found)),
        Column("rounds", tuple(Cell(f"{each.rounds}") for each in costs)),
        Column("bytes", tuple(Cell(human_bytes(each.bytes)) for each in costs)),
        Column("seconds", tuple(Cell(three_digits(each.seconds)) for each in costs)),
    ]


def _diverged(tuned: Tuned) -> int:
    return sum(trial.scores[-1] == -math.inf for trial in tuned.trials)


def _finite(scores: Sequence[float]) -> list[float]:
    """What diverged is as good as nothing: an accuracy of zero."""
    return [max(score, 0.0) if score == -math.inf else score for score in scores]


def _score(score: float) -> str:
    return "diverged" if score == -math.inf else f"{100 * score:.2f}"


def _settings(settings: dict[str, str]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())


def _space(tuned: Tuned) -> str:
    sets = []
    for key, values in tuned.space.items():
        ends = parse_range(key, values)
        sets.append(f"`{key}` from {ends[0]:g} to {ends[1]:g}" if ends else f"`{key}` in {{{', '.join(values)}}}")
    return "; ".join(sets) + (f": {tuned.points} points" if tuned.points < math.inf else "")


def _csv(study: Study, found: Sequence[Tuned]) -> str:
    """A row for each run of each trial."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ["method", "trial", "settings", "rounds", "validation", "chosen", "test_accuracy", "bytes", "seconds"]
    writer.writerow(heads)
    for tuned in found:
        for trial in tuned.trials:
            for rung, (folder, score) in enumerate(zip(trial.runs, trial.scores, strict=True)):
                history, last = load_run(folder).history, len(study.rungs) - 1
                chosen = trial is tuned.best and rung == last
                test = history.accuracy[-1] if chosen and history.accuracy else ""
                figures = [history.rounds, "" if score == -math.inf else score, int(chosen), test]
                spent = [history.total_bytes, history.seconds["total"]]
                settings = _settings(trial.settings)
                writer.writerow([csv_text(tuned.method), trial.number, csv_text(settings), *figures, *spent])
    return out.getvalue()


def _figure(found: Sequence[Tuned]) -> Figure:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for style, tuned in zip(styles_of([tuned.method for tuned in found]), found, strict=True):
        budgets = range(1, len(tuned.judged) + 1)
        axes.plot(
            list(budgets),
            [100 * expected_best(_finite(tuned.judged), n) for n in budgets],
            label=tuned.method,
            color=style.paper,
            linestyle=(0, style.dashes),
            marker="o",
            markersize=3,
        )
    axes.set_xlabel("trials")
    axes.set_ylabel("best validation accuracy expected, %")
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    legend = figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure
