"""Chapters of the page beside the table, each with its files: the result card, and significant differences.

The card has commit, experiments, checksums of data and split, seeds by stream, the budget that was spent, machine,
versions. All of it is read from the run folders; what runs of older versions did not write is left out. The
numbers of differences come from `statistics`.
"""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedacg import __version__
from fedacg.config.experiment import show
from fedacg.config.fields import STREAMS
from fedacg.core.output import csv_text
from fedacg.report import statistics
from fedacg.report.cells import ABSENT, Cell, Column, to_markdown
from fedacg.report.page import Chapter, Picture
from fedacg.report.pictures import render
from fedacg.report.runs import Run, Settings, comparable, essential, identity, labels
from fedacg.report.series import Material
from fedacg.report.statistics import Difference
from fedacg.report.style import styles_of
from fedacg.report.table import Row
from fedacg.runs.history import human_bytes, three_digits

# The card that goes with every table: what a reader needs to trust its numbers, or to reproduce them


CARD_WORDS = "What it takes to trust or reproduce these numbers. A plus after a commit: files differed from it."


def card(runs: Sequence[Run]) -> dict[str, Any]:
    """The facts behind a table, for programs."""
    summaries = [run.summary or {} for run in runs]
    return {
        "program": f"fedacg {__version__}",
        "commits": _distinct(summary.get("commit") for summary in summaries),
        "experiments": _distinct(run.experiment.get("name") for run in runs),
        "data": _distinct(run.settings.get("data.name") for run in runs),
        "checksums": {
            part: _distinct(_table(summary, "checksums").get(part) for summary in summaries)
            for part in ("test", "split")
        },
        "seeds": {stream: sorted({run.seed_of(stream) for run in runs}) for stream in STREAMS},
        "budget": {
            "runs": len(runs),
            "unfinished": sum(run.summary is None for run in runs),
            "rounds": sum(len(run.history) for run in runs),
            "visits": sum(len(metrics.arrived) for run in runs for metrics in run.history),
            "bytes": sum(run.history.total_bytes for run in runs),
            "seconds": sum(run.history.seconds["total"] for run in runs),
        },
        "machines": _distinct(summary.get("machine") for summary in summaries),
        "versions": _distinct(summary.get("versions") for summary in summaries),
        "runs": [
            {
                "folder": run.folder.name,
                "method": run.method,
                "seeds": {stream: run.seed_of(stream) for stream in STREAMS},
                "rounds": run.history.rounds,
                "bytes": run.history.total_bytes,
                "seconds": run.history.seconds["total"],
                "vector_sha256": (run.summary or {}).get("vector_sha256"),
            }
            for run in runs
        ],
    }


def card_parts(runs: Sequence[Run]) -> tuple[Chapter, dict[str, bytes]]:
    """The card as a chapter of the page, and as card.json and card.md."""
    facts = card(runs)
    said = list(_sentences(facts))
    columns = [
        Column("fact", tuple(Cell(name) for name, _ in said)),
        Column("value", tuple(Cell(value) for _, value in said)),
    ]
    files = {
        "card.json": f"{json.dumps(facts, indent=2, ensure_ascii=False, default=str)}\n".encode(),
        "card.md": f"# Result card\n\n{to_markdown(columns)}\n{CARD_WORDS}\n".encode(),
    }
    return Chapter("Result card", CARD_WORDS, columns, []), files


def _sentences(facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    yield "program", facts["program"]
    yield from _listed("commit", facts["commits"])
    yield from _listed("experiment", facts["experiments"])
    yield from _listed("data", facts["data"])
    for part, found in facts["checksums"].items():
        yield from _listed(f"SHA-256 of the {part}", [str(each)[:16] for each in found])
    for stream, seeds in facts["seeds"].items():
        yield f"seeds: {stream}", ", ".join(map(str, seeds))
    budget = facts["budget"]
    ongoing = f", {budget['unfinished']} of them unfinished" if budget["unfinished"] else ""
    yield "budget: runs", f"{budget['runs']}{ongoing}"
    yield "budget: rounds", f"{budget['rounds']}, {budget['visits']} visits of clients"
    yield "budget: bytes", human_bytes(budget["bytes"])
    yield "budget: seconds", three_digits(budget["seconds"])
    for machine in facts["machines"]:
        if isinstance(machine, dict):
            yield "machine", ", ".join(f"{name} {_quantity(name, value)}" for name, value in machine.items())
    for versions in facts["versions"]:
        if isinstance(versions, dict):
            yield "versions", ", ".join(f"{name} {show(value)}" for name, value in versions.items())


def _quantity(name: str, value: object) -> str:
    """What is known of a machine; its memory is a number of bytes."""
    if name == "memory" and isinstance(value, int) and not isinstance(value, bool):
        return human_bytes(value)
    return show(value)


def _listed(name: str, values: Sequence[Any]) -> Iterable[tuple[str, str]]:
    if values:
        yield name, ", ".join(map(show, values))


def _table(summary: dict[str, Any], name: str) -> dict[str, Any]:
    found = summary.get(name)
    return found if isinstance(found, dict) else {}


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of their first appearance; those that are missing are left out."""
    found: dict[str, Any] = {}
    for value in values:
        if value is not None:
            found.setdefault(json.dumps(value, sort_keys=True, default=str), value)
    return list(found.values())


# Significant differences: methods in pairs over their seeds, and over many settings at once


Parts = tuple[list[Chapter], dict[str, bytes]]
"""Chapters of a page, and files beside it."""


def differences_parts(material: Material) -> Parts:
    """The comparison; empty if no two methods share two seeds."""
    pairs, pair_files = _paired(material.rows)
    overall, overall_files = _overall(material)
    return [*pairs, *overall], {**pair_files, **overall_files}


def _paired(rows: Sequence[Row]) -> Parts:
    samples = [row.sample(row.moving_average) for row in rows]
    if not any(samples):
        return [], {}
    known = [place for place, sample in enumerate(samples) if sample]
    best = max(
        [place for place in known if rows[place].contends] or known,
        key=lambda place: float(np.mean(list(samples[place].values()))),
    )
    found = statistics.differences(samples, best)
    if not any(found):
        return [], {}
    forms: dict[str, Callable[[Difference], str]] = {
        "pairs": lambda each: f"{each.pairs}",
        "difference, points": lambda each: f"{each.mean:+.2f}",
        "95 % interval": lambda each: f"{each.low:+.2f} to {each.high:+.2f}",
        "p (Holm)": lambda each: f"{each.p:.3f}" if each.p >= 0.001 else "<0.001",
        "better with probability": lambda each: f"{each.improvement:.2f}",
        "significant": lambda each: "yes" if each.told else "no",
    }
    columns = [Column("method", tuple(Cell(row.label) for row in rows))]
    for heading, form in forms.items():
        columns.append(Column(heading, tuple(Cell(ABSENT if each is None else form(each)) for each in found)))
    words = (
        f"Each method less {rows[best].label}, which has the highest mean{_aside(rows)}: the final moving average "
        "of the test accuracy, in pairs of runs with the same seed. The interval is a bootstrap of the mean "
        "difference and is narrow with few seeds; significance is that of a paired t-test at 5 %, corrected by "
        "Holm for the number of comparisons."
    )
    files = {
        "differences.csv": _paired_csv(rows, best, found).encode(),
        "differences.md": f"{to_markdown(columns)}\n{words}\n".encode(),
    }
    return [Chapter("Differences", words, columns, [])], files


def _aside(rows: Sequence[Row]) -> str:
    """Who was not asked, if anybody."""
    return "" if all(row.contends for row in rows) else ", baselines aside"


def _paired_csv(rows: Sequence[Row], best: int, found: Sequence[Difference | None]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("pairs", "mean", "low", "high", "p", "improvement", "told")
    writer.writerow(["label", "less", *names])
    for row, each in zip(rows, found, strict=True):
        if each is not None:
            figures = [getattr(each, name) for name in names]
            writer.writerow([csv_text(row.label), csv_text(rows[best].label), *figures])
    return out.getvalue()


def _overall(material: Material) -> Parts:
    """Methods that were all run in the same settings, two or more, over all of them."""
    scores = _by_setting(material)
    if len(scores) < 2 or len(next(iter(scores.values()))) < 2:
        return [], {}
    names = list(scores)
    runs = {name: list(each.values()) for name, each in scores.items()}
    first, tables = names[0], []
    for name in names:
        middle = statistics.interquartile_mean(np.concatenate([np.asarray(each) for each in runs[name]]))
        low, high = statistics.interquartile_interval(runs[name])
        tables.append((name, middle, low, high, statistics.probability_of_improvement(runs[name], runs[first])))
    columns = [
        Column("method", tuple(Cell(name) for name in names)),
        Column("interquartile mean %", tuple(Cell(f"{middle:.2f}", value=middle) for _, middle, *_ in tables)),
        Column("95 % interval", tuple(Cell(f"{low:.2f} to {high:.2f}") for _, _, low, high, _ in tables)),
        Column(
            f"better than {first} with probability",
            tuple(Cell(ABSENT if name == first else f"{better:.2f}") for name, *_, better in tables),
        ),
    ]
    settings = len(runs[first])
    words = (
        f"The final moving averages of {settings} settings together, unscaled: the mean of the middle half of "
        "all runs with a bootstrap over seeds within each setting, and the probability that a run is better than "
        f"one of {first} in the same setting, the mean over settings."
    )
    figure = _profiles(runs)
    picture = Picture(
        name="profiles",
        title="Performance profiles",
        caption="The part of a method's runs that end above an accuracy, the mean over settings.",
        alt="; ".join(f"{name}: interquartile mean {middle:.2f} %" for name, middle, *_ in tables),
        png=render(figure, "png"),
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["label", "settings", "interquartile_mean_percent", "low", "high", f"better_than_{first}"])
    writer.writerows([csv_text(name), settings, *figures] for name, *figures in tables)
    files = {"overall.csv": out.getvalue().encode()}
    files |= {f"profiles.{kind}": render(figure, kind) for kind in ("png", "pdf")}
    return [Chapter("Over all settings", words, columns, [picture])], files


def _by_setting(material: Material) -> dict[str, dict[tuple[str, ...], tuple[float, ...]]]:
    """The final averages of every method in every setting; nothing unless all methods have all settings."""
    rows = [row for row in material.rows if row.sample(row.moving_average)]
    groups = [group for group, row in zip(material.groups, material.rows, strict=True) if row in rows]
    several = [essential(each) for each in comparable([group.runs[0] for group in groups])]
    keys = sorted({key for each in several for key in each})
    own = [key for key in keys if key.startswith("method.")]
    rest = [key for key in keys if not key.startswith("method.")]
    firsts: dict[tuple[str, ...], Settings] = {}
    found: dict[tuple[str, ...], dict[tuple[str, ...], tuple[float, ...]]] = defaultdict(dict)
    for row, each in zip(rows, several, strict=True):
        method = identity(each, own)
        firsts.setdefault(method, {key: each[key] for key in own if key in each})
        found[method][identity(each, rest)] = tuple(row.sample(row.moving_average).values())
    if len({frozenset(each) for each in found.values()}) != 1:
        return {}
    order = list(next(iter(found.values())))
    named = zip(labels(list(firsts.values())), found.values(), strict=True)
    return {name: {setting: each[setting] for setting in order} for name, each in named}


def _profiles(runs: dict[str, list[tuple[float, ...]]]) -> Figure:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    every = [value for each in runs.values() for part in each for value in part]
    steps = np.linspace(min(every) - 1, max(every) + 1, 400)
    styles = styles_of([name.lower() for name in runs])
    for style, (name, scores) in zip(styles, runs.items(), strict=True):
        axes.plot(
            steps,
            statistics.performance_profile(scores, steps),
            label=name,
            color=style.paper,
            linestyle=(0, style.dashes),
        )
    axes.set_xlabel("test accuracy at the end, %")
    axes.set_ylabel("part of runs above it")
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    legend = figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure
