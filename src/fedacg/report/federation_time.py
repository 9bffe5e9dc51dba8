"""Time to a target in a federation of real devices: the same finished runs under several profiles.

When clients answer follows from their devices, links and work, which are known after the run as well as before it.
So a run that waited for everybody gives its seconds under any profile without being trained again; one with a
deadline, and an asynchronous one, have only those of their own clock.
"""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedacg.config.experiment import Experiment, parse
from fedacg.config.participation import ClockSettings, split_trace
from fedacg.core import plugins
from fedacg.core.output import csv_text
from fedacg.errors import InputError
from fedacg.report import pictures
from fedacg.report.cells import Cell, Column, percent, to_markdown
from fedacg.report.page import Chapter, Picture
from fedacg.report.runs import Group, Run
from fedacg.report.series import Axis, Material, curves_of
from fedacg.runs.build import make_job, sampling
from fedacg.runs.history import History, human_seconds, three_digits
from fedacg.runs.session import Session
from fedacg.simulation.clock import CLOCK, Clock

OWN = "own"
"""The clock of the runs themselves."""
WORDS = (
    "Seconds that a federation of such devices and links would take, until the moving average reached a target "
    "and in all. Profiles are round figures to compare methods by, not measurements."
)


@dataclass(frozen=True)
class Times:
    """One row of the table under one profile: a number for each seed, None where the target was missed."""

    to_targets: tuple[tuple[float | None, ...], ...]
    totals: tuple[float, ...]


def parts(material: Material, profiles: Sequence[str]) -> tuple[list[Chapter], dict[str, bytes]]:
    """The chapter and the files on these profiles, and on the runs' own clock if all of them had one."""
    names = [parse(ClockSettings, {"profile": name}).profile for name in dict.fromkeys(profiles)]
    if material.runs and all(run.history.series(CLOCK) for run in material.runs):
        names.insert(0, OWN)
    if not names:
        return [], {}
    found: dict[str, list[Times]] = {}
    drawn: list[Picture] = []
    files: dict[str, bytes] = {}
    for name in names:
        groups = _timed(material.groups, name)
        found[name] = [_times(group, material.targets) for group in groups]
        figure = pictures.draw_curves(curves_of(groups), Axis.SECONDS, material.targets)
        short = _short(name).removesuffix(".csv")
        files |= {f"curves-{short}.{kind}": pictures.render(figure, kind) for kind in ("png", "pdf")}
        drawn.append(
            Picture(
                name=f"clock-{short}",
                title=f"Accuracy over time: {short}",
                caption="The same runs along the clock of the federation.",
                alt="; ".join(
                    f"{group.label}: {_shown(statistics.fmean(times.totals))} in all"
                    for group, times in zip(groups, found[name], strict=True)
                ),
                png=pictures.render(figure, "png"),
            )
        )
    columns = _columns(material, found)
    files["clock.md"] = f"{to_markdown(columns)}\n{WORDS}\n".encode()
    files["clock.csv"] = _csv(material, found).encode()
    return [Chapter("Seconds of a federation", WORDS, columns, drawn)], files


def _short(profile: str) -> str:
    """A profile's name; of a trace, that of its file."""
    trace = split_trace(profile)
    return Path(trace[0]).name if trace else profile


def _timed(groups: Sequence[Group], profile: str) -> list[Group]:
    """The groups with the seconds of this profile in place of those of the machine."""
    timed: dict[int, Run] = {}
    with Session(Experiment().engine) as session:
        # In the order of splits, so that data are read once each.
        for run in sorted((run for group in groups for run in group.runs), key=lambda run: run.seed_of("split")):
            seconds = _own(run) if profile == OWN else _seconds(run, profile, session)
            rounds = zip(run.history, seconds, strict=True)
            played = [
                replace(metrics, seconds_train=each, seconds_aggregate=0.0, seconds_evaluate=0.0)
                for metrics, each in rounds
            ]
            timed[id(run)] = replace(run, history=History(played))
    return [replace(group, runs=tuple(timed[id(run)] for run in group.runs)) for group in groups]


def _own(run: Run) -> list[float]:
    """The duration of each round by the run's own clock."""
    ends = [metrics.score(CLOCK) or 0.0 for metrics in run.history]
    return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]


def _seconds(run: Run, profile: str, session: Session) -> list[float]:
    """The duration of each round: that of its slowest answer."""
    with plugins.reading(run.folder, trust=False, allow="run it with clock.profile in place of --clock"):
        experiment = Experiment.parse(run.experiment)
        if experiment.clock.drops or experiment.asynchronous.buffer:
            raise InputError(f"--clock {profile}: {run.folder} ran with its own clock, and no other applies")
        ingredients = session.prepare(experiment)
        clock = Clock(
            ClockSettings(profile=profile), make_job(experiment, ingredients), experiment.seed_of("cohorts")
        )
    draws = sampling(experiment, len(ingredients.data.clients))
    return [
        max(
            (
                clock.seconds(client, draws.steps(clock.planned(client), client in (metrics.stragglers or ())))
                for client in metrics.arrived
            ),
            default=0.0,
        )
        for metrics in run.history
    ]


def _times(group: Group, targets: Sequence[float]) -> Times:
    histories = [run.history for run in group.runs]
    return Times(
        tuple(tuple(_until(history, history.rounds_to(target)) for history in histories) for target in targets),
        tuple(history.seconds["total"] for history in histories),
    )


def _until(history: History, last: int | None) -> float | None:
    if last is None:
        return None
    return sum(metrics.seconds_train for metrics in history if metrics.round <= last)


def _columns(material: Material, found: Mapping[str, Sequence[Times]]) -> list[Column]:
    columns = [Column("method", tuple(Cell(row.label) for row in material.rows))]
    for name, rows in found.items():
        short = _short(name)
        for place, target in enumerate(material.targets):
            cells = tuple(_cell(times.to_targets[place], times.totals) for times in rows)
            columns.append(Column(f"{short}, to {percent(target)}", cells))
        totals = [statistics.fmean(times.totals) for times in rows]
        columns.append(Column(f"{short}, in all", tuple(Cell(_shown(each), value=each) for each in totals)))
    return columns


def _cell(reached: Sequence[float | None], totals: Sequence[float]) -> Cell:
    """The mean over seeds if all reached the target, else the least that one spent without reaching it."""
    known = [each for each in reached if each is not None]
    if len(known) == len(reached):
        mean = statistics.fmean(known)
        return Cell(_shown(mean), value=mean)
    spent = min(total for each, total in zip(reached, totals, strict=True) if each is None)
    share = f" ({len(known)}/{len(reached)})" if len(reached) > 1 else ""
    return Cell(f"{_shown(spent)}+{share}")


def _shown(seconds: float) -> str:
    return f"{three_digits(seconds)} s" if seconds < 10 else human_seconds(seconds)


def _csv(material: Material, found: Mapping[str, Sequence[Times]]) -> str:
    """A row for each method, seed, profile and target; the last of each is the whole run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["label", "seed", "profile", "target", "seconds", "reached"])
    for name, rows in found.items():
        for row, times in zip(material.rows, rows, strict=True):
            for place, seed in enumerate(row.seeds):
                start = [csv_text(row.label), seed, csv_text(name)]
                for target, each in zip(material.targets, times.to_targets, strict=True):
                    until = each[place]
                    spent = times.totals[place] if until is None else until
                    writer.writerow([*start, f"{target:g}", spent, int(until is not None)])
                writer.writerow([*start, "", times.totals[place], ""])
    return out.getvalue()
