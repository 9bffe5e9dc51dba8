"""What `fedacg bench` and `fedacg sweep` share: listing runs with their cost, and running what is missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fedacg.bench.estimate import Estimate, estimate
from fedacg.bench.grid import check_begun
from fedacg.config.experiment import Experiment
from fedacg.errors import RunError
from fedacg.runs.build import check_methods
from fedacg.runs.contents import is_finished
from fedacg.runs.history import human_bytes, human_seconds
from fedacg.runs.loggers import make_loggers
from fedacg.runs.progress import Display, make_progress
from fedacg.runs.session import Session

Runs = Mapping[Path, Experiment]
OURS = ("bench", "sweep", "effect", "heatmap", "tune")
"""Files beside a page that not every report has."""


def announce(console: Console, session: Session, runs: Runs, root: Path, *, resume: bool, quiet: bool) -> None:
    """Check every run, and list them with an estimate of time and bytes."""
    check_methods(runs.values())
    for folder, experiment in runs.items():
        check_begun(folder, experiment, resume)
    finished = [folder for folder, experiment in runs.items() if is_finished(folder, experiment)]
    if quiet:
        for experiment in (runs[folder] for folder in runs if folder not in finished):
            session.prepare(experiment)
        return
    number = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    console.print(f"{number} below {root}, {len(finished)} of them finished", highlight=False)
    with console.status("measuring how long a round takes"):
        costs = estimate(session, runs)
    console.print(_listing(runs, costs, finished, root))
    console.print()


def _listing(runs: Runs, costs: Mapping[Path, Estimate], finished: Sequence[Path], root: Path) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, show_footer=True)
    seconds = [cost.seconds for cost in costs.values()]
    total = human_seconds(sum(each or 0 for each in seconds))
    table.add_column("run", "together", overflow="fold")
    table.add_column("rounds", justify="right")
    table.add_column("sends", human_bytes(sum(cost.bytes for cost in costs.values())), justify="right")
    table.add_column("time left", f"> {total}" if None in seconds else total, justify="right")
    for folder, experiment in runs.items():
        cost = costs[folder]
        rounds = f"{cost.done} of {experiment.rounds}" if cost.done else f"{experiment.rounds}"
        time = "?" if cost.seconds is None else human_seconds(cost.seconds)
        left = "finished" if folder in finished else time
        table.add_row(Text(str(folder.relative_to(root))), rounds, human_bytes(cost.bytes), left)
    return table


def names_of(runs: Runs) -> dict[Path, str]:
    """Names of runs in progress displays: their folders, with the parent folder where two would be the same."""
    often = Counter(folder.name for folder in runs)
    return {
        folder: folder.name if often[folder.name] == 1 else f"{folder.parent.name}/{folder.name}"
        for folder in runs
    }


def display(console: Console, quiet: bool, runs: Runs) -> Display:
    """The progress of the runs that are not finished."""
    missing = {folder: run.rounds for folder, run in runs.items() if not is_finished(folder, run)}
    names = names_of(runs)
    return make_progress(console, quiet, {names[folder]: rounds for folder, rounds in missing.items()})


def play_missing(
    session: Session, runs: Runs, names: Mapping[Path, str], progress: Display, log: Sequence[str]
) -> bool:
    """Run what is not finished, each from where it stopped; return whether all finished.

    A run that cannot continue is reported and skipped: the others can still run, and the table can be made.
    """
    whole = True
    for folder, experiment in runs.items():
        if is_finished(folder, experiment):
            continue
        progress.turn(names[folder])
        try:
            callbacks = [progress, *make_loggers(log, folder)]
            session.play(experiment, folder=folder, resume=True, callbacks=callbacks)
        except RunError as error:
            whole = False
            progress.rest()
            for line in (str(error), *getattr(error, "__notes__", [])):
                typer.echo(f"error: {folder}: {line}", err=True)
    return whole


def show(console: Console, table: RenderableType, notes: Sequence[str], written: Sequence[Path]) -> None:
    """Print the table, the notes on it, and where the rest is."""
    console.print(table)
    console.print()
    for note in notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    page = next(path for path in written if path.suffix == ".html")
    typer.echo(f"report: {page}")
    typer.echo(f"beside it: {', '.join(path.name for path in written if path.stem in OURS)}")
