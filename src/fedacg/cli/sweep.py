"""`fedacg sweep`: one experiment over a grid of settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedacg.cli.run import (
    AGAIN,
    DryRun,
    Method,
    Quiet,
    Recipe,
    ResumeMany,
    Seeds,
    Set,
    parse_out,
    parse_seeds,
    stopped,
)
from fedacg.cli.stopping import interruptible
from fedacg.config.recipe import find, override, with_method
from fedacg.core.files import safe_name

if TYPE_CHECKING:
    from rich.console import Console

    from fedacg.bench.grid import Axis, Point


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
        typer.Option(
            "--out",
            "-o",
            help="The folder for runs and report; runs/NAME-sweep by default.",
            parser=parse_out,
            metavar="PATH",
        ),
    ] = None,
    resume: ResumeMany = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment with every combination of some settings: one table, one picture, one page."""
    tree = find(recipe)
    if method:
        tree = with_method(tree, method)
    tree = override(tree, settings or [])
    from fedacg.bench.grid import expand, parse_axis
    from fedacg.config.experiment import Experiment

    axes = [parse_axis(text) for text in grid]
    folder = out or Path("runs") / safe_name(f"{Experiment.parse(tree).name}-sweep")
    points = expand(tree, axes, parse_seeds(seeds) if seeds else [], folder)
    runs = {place: run for point in points for place, run in point.runs.items()}
    from rich.console import Console

    from fedacg.cli.multi_run import announce, play_missing
    from fedacg.runs.session import Session

    console = Console()
    with Session(next(iter(runs.values())).engine) as session:
        try:
            with interruptible():
                announce(console, session, runs, folder / "runs", resume=resume, quiet=quiet)
                if dry_run:
                    return
                whole = play_missing(console, session, runs, quiet=quiet)
        except KeyboardInterrupt:
            raise stopped(console, AGAIN, runs) from None
    _show(console, axes, points, folder, quiet)
    if not whole:
        raise typer.Exit(1)


def _show(console: "Console", axes: "list[Axis]", points: "list[Point]", folder: Path, quiet: bool) -> None:
    from fedacg.bench.sweep_report import write
    from fedacg.cli.multi_run import show

    written = write(axes, points, folder)
    if quiet:
        typer.echo(folder / "index.html")
        return
    console.print()
    show(console, written.table, written.notes, written.paths)
