"""`fedacg bench`: run a table of the paper and show it beside the published numbers."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedacg.cli import completion, interruptible
from fedacg.cli.run import (
    AGAIN,
    DryRun,
    Log,
    Quiet,
    ResumeMany,
    Set,
    out_option,
    parse_names,
    parse_seeds,
    refuse_options,
    stopped,
)
from fedacg.core.files import safe_name
from fedacg.errors import DataMissing

if TYPE_CHECKING:
    from rich.console import Console

    from fedacg.bench.paper import Block
    from fedacg.runs.session import Session


def bench(
    table: Annotated[str, typer.Argument(help="A table or an ablation of the paper.", show_default=False)],
    scale: Annotated[
        str, typer.Option("--scale", help="small: small networks, fewer rounds; paper: as published.")
    ] = "small",
    on: Annotated[
        str | None,
        typer.Option("--on", help="Recipes at paper scale, such as cifar10-large; the table's own by default."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "-m",
            help="Comma-separated names; the table's by default.",
            autocompletion=completion.methods,
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Comma-separated numbers; the recipes' by default.")
    ] = None,
    settings: Set = None,
    out: Annotated[
        Path | None,
        out_option("The folder for runs and tables; runs/bench plus what --set changes by default."),
    ] = None,
    resume: ResumeMany = False,
    dry_run: DryRun = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Run a table of the paper, and print it beside the published numbers."""
    refuse_options(settings or [])
    from fedacg.bench.paper import make_plan

    out = out or Path("runs") / safe_name("-".join(["bench", *(settings or [])]).replace("/", "_"))

    blocks = make_plan(
        table,
        scale,
        out,
        on=parse_names(on),
        methods=parse_names(methods),
        seeds=parse_seeds(seeds) if seeds else [],
        settings=settings or [],
    )
    from rich.console import Console

    from fedacg.cli.multi_run import announce, display, names_of, play_missing
    from fedacg.runs.session import Session, announce_runs

    console = Console()
    whole = True
    every = [run for block in blocks for run in block.runs.values()]
    with Session(every[0].engine, len(every)) as session:
        try:
            with interruptible():
                if not on:
                    blocks = _with_data(session, blocks)
                runs = {folder: run for block in blocks for folder, run in block.runs.items()}
                announce(console, session, runs, out / "runs", resume=resume, quiet=quiet)
                if dry_run:
                    return
                rounds = {place: run.rounds for place, run in runs.items()}
                with announce_runs(out, rounds), display(console, quiet, runs) as progress:
                    for block in blocks:
                        whole &= play_missing(session, block.runs, names_of(runs), progress, log or [])
                        progress.rest()
                        _show(console, block, _command(block, methods, seeds, settings or []), quiet)
        except KeyboardInterrupt:
            raise stopped(console, AGAIN, [folder for block in blocks for folder in block.runs]) from None
    if not whole:
        raise typer.Exit(1)


def _with_data(session: "Session", blocks: "list[Block]") -> "list[Block]":
    """The settings whose data are available; others are skipped with a message; none at all is an error."""
    found, missing = [], []
    for block in blocks:
        try:
            session.prepare(next(iter(block.runs.values())))
            found.append(block)
        except DataMissing as error:
            missing.append(error)
            name = next(iter(block.runs.values())).data.name
            typer.echo(
                f"skipped {block.setting}: its data are missing; to get them: fedacg data get {name}", err=True
            )
    if not found:
        raise missing[0]
    return found


def _command(block: "Block", methods: str | None, seeds: str | None, settings: list[str]) -> str:
    """The command that makes this block's table again."""
    words = ["fedacg", "bench", block.table, "--scale", block.scale, "--on", block.setting]
    for option, value in (("--methods", methods), ("--seeds", seeds)):
        words += [option, value] if value else []
    return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])


def _show(console: "Console", block: "Block", command: str, quiet: bool) -> None:
    from fedacg.bench.comparison import Printed, compare, title, write
    from fedacg.cli.multi_run import show

    comparison = compare(block)
    written = write(comparison, command)
    if quiet:
        typer.echo(block.folder / "bench.md")
        return
    console.print(f"\n{title(comparison)}\n", highlight=False, markup=False)
    show(console, Printed(comparison), comparison.notes, written.paths)
