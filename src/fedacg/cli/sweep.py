"""`fedacg sweep` and `fedacg tune`: a grid of settings, or settings tuned by validation for every method."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedacg.cli import completion, interruptible
from fedacg.cli.run import (
    AGAIN,
    DryRun,
    Log,
    Method,
    Quiet,
    Recipe,
    ResumeMany,
    Seeds,
    Set,
    out_option,
    parse_names,
    parse_seeds,
    refuse_options,
    stopped,
)
from fedacg.config.recipe import Tree, find, override, with_method
from fedacg.core.files import safe_name

if TYPE_CHECKING:
    from rich.console import Console

    from fedacg.bench.grid import Axis, Point
    from fedacg.config.experiment import Experiment


def sweep(
    recipe: Recipe,
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            "-g",
            help="A key and its values, as in method.lam=0.8,0.9; may be repeated.",
            autocompletion=completion.keys,
        ),
    ],
    method: Method = None,
    seeds: Seeds = None,
    settings: Set = None,
    out: Annotated[Path | None, out_option("The folder for runs and report; runs/NAME-sweep by default.")] = None,
    resume: ResumeMany = False,
    dry_run: DryRun = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Run one experiment with every combination of some settings: one table, one picture, one page."""
    tree = find(recipe)
    if method:
        tree = with_method(tree, method)
    tree = override(tree, settings or [])
    from fedacg.bench.grid import expand, parse_axis

    axes = [parse_axis(text) for text in grid]
    seed_numbers = parse_seeds(seeds) if seeds else []
    folder = out or _default_folder(tree, axes, seed_numbers, resume)
    points = expand(tree, axes, seed_numbers, folder)
    runs = {place: run for point in points for place, run in point.runs.items()}
    from rich.console import Console

    from fedacg.cli.multi_run import announce, display, names_of, play_missing
    from fedacg.runs.session import Session, announce_runs

    console = Console()
    with Session(next(iter(runs.values())).engine, len(runs)) as session:
        try:
            with interruptible():
                announce(console, session, runs, folder / "runs", resume=resume, quiet=quiet)
                if dry_run:
                    return
                rounds = {place: run.rounds for place, run in runs.items()}
                with announce_runs(folder, rounds), display(console, quiet, runs) as progress:
                    whole = play_missing(session, runs, names_of(runs), progress, log or [])
        except KeyboardInterrupt:
            raise stopped(console, AGAIN, runs) from None
    _show(console, axes, points, folder, quiet)
    if not whole:
        raise typer.Exit(1)


def _default_folder(tree: Tree, axes: "list[Axis]", seeds: list[int], resume: bool) -> Path:
    """runs/NAME-sweep, or another where that holds a sweep of other settings."""
    from fedacg.bench.grid import expand, place_several
    from fedacg.config.experiment import Experiment

    root = Path("runs") / safe_name(f"{Experiment.parse(tree).name}-sweep")
    points = expand(tree, axes, seeds, root)
    runs = {place.name: run for point in points for place, run in point.runs.items()}
    return place_several(root, runs, [axis.key for axis in axes], reuse=resume, below="runs")


def _show(console: "Console", axes: "list[Axis]", points: "list[Point]", folder: Path, quiet: bool) -> None:
    from fedacg.bench.sweep_report import write
    from fedacg.cli.multi_run import show

    written = write(axes, points, folder)
    if quiet:
        typer.echo(folder / "index.html")
        return
    console.print()
    show(console, written.table, written.notes, written.paths)


def tune(
    recipe: Recipe,
    methods: Annotated[str, typer.Option("--methods", "-m", help="Comma-separated names.")],
    trials: Annotated[int, typer.Option("--trials", "-n", help="Trials per method.")] = 15,
    strategy: Annotated[
        str, typer.Option("--strategy", help="random, or halving: only the best third of each stage continues.")
    ] = "random",
    lr: Annotated[
        str | None,
        typer.Option("--lr", help="Learning rates to try, a list or a range; 0.003..0.3 by default, - for none."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", "-g", help="A further key and its values, as in local.clip=0,10."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Run what was chosen with these seeds, and compare by that.")
    ] = None,
    settings: Set = None,
    out: Annotated[Path | None, out_option("The folder for trials and report; runs/NAME-tune by default.")] = None,
    resume: ResumeMany = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Tune methods with the same budget: trials in a declared space, chosen by validation."""
    refuse_options(settings or [])
    tree = override(find(recipe), settings or [])
    from fedacg.config.experiment import Experiment

    first = Experiment.parse(tree)
    root = out or Path("runs") / safe_name(f"{first.name}-tune")
    from fedacg.bench.grid import parse_axis
    from fedacg.bench.tuning import RATES, Study

    more = {axis.key: axis.values for axis in map(parse_axis, grid or [])}
    rates = RATES if lr is None else [] if lr == "-" else parse_names(lr)
    names = parse_names(methods)
    study = Study(
        tree,
        names,
        root,
        trials=trials,
        strategy=strategy,
        rates=rates,
        more=more,
        seeds=parse_seeds(seeds) if seeds else (),
    )
    if out is None:
        study.make_room(reuse=resume)
    folder = study.out
    from rich.console import Console

    from fedacg.bench.tune_report import table, write
    from fedacg.cli.multi_run import announce, display, names_of, play_missing, show
    from fedacg.runs.session import Session

    console = Console()
    begun: list[Path] = []

    def play(runs: Mapping[Path, "Experiment"]) -> None:
        begun.extend(runs)
        announce(console, session, runs, folder, resume=resume, quiet=quiet)
        with display(console, quiet, runs) as progress:
            play_missing(session, runs, names_of(runs), progress, log or [])  # one that diverged scores nothing

    with Session(first.engine, trials * len(names)) as session:
        try:
            with interruptible():
                found = study.play(play)
        except KeyboardInterrupt:
            raise stopped(console, AGAIN, begun) from None
    written = write(study, found)
    if quiet:
        typer.echo(folder / "index.html")
        return
    console.print()
    console.print(table(found))
    console.print()
    show(console, written.table, written.notes, written.paths)
