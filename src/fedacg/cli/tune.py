"""`fedacg tune`: the same number of trials for every method, chosen by validation."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedacg.cli.run import (
    AGAIN,
    Log,
    Quiet,
    Recipe,
    ResumeMany,
    Set,
    out_option,
    parse_names,
    parse_seeds,
    refuse_options,
    stopped,
)
from fedacg.cli.stopping import interruptible
from fedacg.config.recipe import find, override
from fedacg.core.files import safe_name

if TYPE_CHECKING:
    from fedacg.config.experiment import Experiment


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
