"""`fedacg sweep`: one experiment over a grid of settings."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedacg.bench.grid import Axis, Point, expand, parse_axis
from fedacg.cli.multi_run import DryRun, Resume, announce, play_missing, show
from fedacg.cli.run import Method, Quiet, Recipe, Seeds, Set, parse_seeds, stopped
from fedacg.config.experiment import Experiment, find, override, with_method
from fedacg.runs.session import Session


def sweep(
    recipe: Recipe,
    grid: Annotated[
        list[str],
        typer.Option("--grid", "-g", help="A key and its values, as in method.lam=0.8,0.9; may be given again."),
    ],
    method: Method = None,
    seeds: Seeds = None,
    settings: Set = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for runs and report; runs/NAME-sweep by default."),
    ] = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment with every combination of some settings: one table, one picture, one page."""
    console = Console()
    tree = find(recipe)
    if method:
        tree = with_method(tree, method)
    tree = override(tree, settings or [])
    axes = [parse_axis(text) for text in grid]
    folder = out or Path("runs") / f"{Experiment.parse(tree).name}-sweep"
    points = expand(tree, axes, parse_seeds(seeds) if seeds else [], folder)
    runs = {place: run for point in points for place, run in point.runs.items()}
    with Session(next(iter(runs.values())).engine) as session:
        try:
            announce(console, session, runs, folder / "runs", resume=resume, quiet=quiet)
            if dry_run:
                return
            whole = play_missing(console, session, runs, quiet=quiet)
        except KeyboardInterrupt:
            raise stopped(console, "the same command with --resume") from None
    _show(console, axes, points, folder, quiet)
    if not whole:
        raise typer.Exit(1)


def _show(console: Console, axes: list[Axis], points: list[Point], folder: Path, quiet: bool) -> None:
    # Here and not above: matplotlib takes longer to load than most commands take to run.
    from fedacg.bench.sweep_report import write

    written = write(axes, points, folder)
    if quiet:
        typer.echo(folder / "index.html")
        return
    console.print()
    show(console, written.table, written.notes, written.paths)
