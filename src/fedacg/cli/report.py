"""`fedacg report`, `fedacg watch` and `fedacg analyze`: what is made of run folders, finished or in progress.

Only arguments and terminal output; `fedacg.report` and `fedacg.analysis` do the work.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from fedacg.cli import STOPPED, interruptible
from fedacg.cli.run import out_option, parse_names
from fedacg.core.output import printable
from fedacg.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from fedacg.analysis.subjects import Watcher

Target = Annotated[
    list[float] | None,
    typer.Option(
        "--target",
        "-t",
        help="A target accuracy, as a fraction; may be repeated. By default, the experiments' own.",
        show_default=False,
    ),
]


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders with run folders below.", show_default=False)
    ],
    out: Annotated[Path, out_option("The folder to write the report to.")] = Path("report"),
    target: Target = None,
    each_seed: Annotated[
        bool, typer.Option("--each-seed", help="Draw single seeds instead of their deviation.")
    ] = False,
    clock: Annotated[
        str | None,
        typer.Option(
            "--clock",
            help="Time to targets on phones, hospitals, datacentre or a file.csv; comma-separated.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the page's path.")] = False,
) -> None:
    """Compare runs: one table, curves as PNG and PDF, and one page that needs no network."""
    from rich.console import Console

    from fedacg.report import write

    written = write(folders, out, target or None, each_seed=each_seed, clocks=parse_names(clock))
    page = next(path for path in written.paths if path.suffix == ".html")
    if quiet:
        typer.echo(page)
        return
    console = Console()
    console.print(written.table)
    console.print()
    if written.headline:
        console.print(f"{written.headline}\n", highlight=False, markup=False)
    for note in written.notes:
        typer.echo(f"note: {printable(note)}")
    typer.echo(f"report: {page}")
    others = ", ".join(path.name for path in written.paths if path != page)
    console.print(f"beside it: {others}", highlight=False, markup=False)


_POLITE = 5
"""Niceness, so that runs come first when cores are scarce."""


def watch(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders that hold or will hold run folders.", show_default=False),
    ],
    port: Annotated[int, typer.Option("--port", "-p", help="The port to serve at; 0 takes a free one.")] = 0,
    target: Target = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the address.")] = False,
) -> None:
    """Watch runs in progress: the report's page, kept up to date, on this machine."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: must be a number from 0 to 65535")
    from fedacg.report.live import LiveReport, Server

    os.nice(_POLITE)
    with Server(LiveReport(folders, target or None), port) as server:
        typer.echo(server.address if quiet else f"live at {server.address}, until Ctrl-C")
        try:
            with interruptible():
                server.serve_forever()
        except KeyboardInterrupt:
            if not quiet:
                typer.echo("\nStopped watching; the runs continue.")
            raise typer.Exit(STOPPED) from None


_LINE_SECONDS = 30


def analyze(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders with run folders below.", show_default=False)
    ],
    what: Annotated[
        str, typer.Option(help="Pictures, comma-separated.")
    ] = "surface,divergence,cka,stability,drift",
    round: Annotated[
        int | None,
        typer.Option("--round", "-r", help="The recorded round.", show_default="the last that all runs have"),
    ] = None,
    out: Annotated[Path, out_option("The folder to write to.")] = Path("analysis"),
    resolution: Annotated[int, typer.Option(help="Points of the surface along each side.")] = 21,
    examples: Annotated[
        int, typer.Option(help="Training examples for the surface, test examples for CKA.")
    ] = 1000,
    margin: Annotated[
        float, typer.Option(help="Margin around the models of the surface, as a fraction of their extent.")
    ] = 0.4,
    error: Annotated[bool, typer.Option("--error", help="Draw the surface of the test error as well.")] = False,
    clients: Annotated[
        str | None,
        typer.Option(
            help="The three clients whose models span the surface, comma-separated.",
            show_default="the first of the cohort",
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="CKA of all test examples at once, not of batches.")
    ] = False,
    window: Annotated[float, typer.Option(help="Rounds that the moving average of the accuracy spans.")] = 10,
    workers: Annotated[int, typer.Option(help="Worker processes; 0 starts one for every core.")] = 0,
    trust: Annotated[bool, typer.Option("--trust", help="Allow importing user code that the runs name.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the page's path.")] = False,
) -> None:
    """Show why methods differ: loss surface, weight divergence, CKA, stability, drift.

    Pictures as PNG and PDF, their numbers as CSV, and one page. The surface and
    CKA need a recorded round: run with --set 'analysis.rounds=[50]'.
    """
    from rich.console import Console

    from fedacg.analysis import Options, analyse

    options = Options(
        what=tuple(name.strip() for name in what.split(",") if name.strip()),
        round=round,
        resolution=resolution,
        examples=examples,
        margin=margin,
        error=error,
        clients=None if clients is None else _numbers(clients),
        exact=exact,
        window=window,
        workers=workers,
        trust=trust,
    )
    console = Console()
    try:
        with interruptible():
            found = analyse(folders, out, options, _watcher(console, quiet))
    except KeyboardInterrupt:
        typer.echo("\nStopped; no picture was written.")
        raise typer.Exit(STOPPED) from None
    if quiet:
        typer.echo(found.page)
        return
    console.print()
    console.print(found.table)
    console.print()
    for note in found.notes:
        typer.echo(f"note: {printable(note)}")
    typer.echo(f"page: {found.page}")
    names = ", ".join(path.name for path in found.paths)
    console.print(f"beside it: {names}", highlight=False, markup=False)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--clients {text!r}: must be three comma-separated whole numbers") from None


class Silent:
    """Shows nothing."""

    def estimate(self, work: str, seconds: float) -> None: ...

    @contextmanager
    def work(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        yield lambda: None


class Lines:
    """Plain lines: one when some work starts, and one every half minute."""

    def estimate(self, work: str, seconds: float) -> None:
        typer.echo(f"{work}: about {_duration(seconds)}")

    @contextmanager
    def work(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        done, last = 0, monotonic()
        typer.echo(f"{name}: {steps} steps")

        def step() -> None:
            nonlocal done, last
            done += 1
            if monotonic() - last >= _LINE_SECONDS:
                last = monotonic()
                typer.echo(f"{name}: step {done} of {steps}")

        yield step


class Bars(Lines):
    """A bar for each piece of work, left in place when it is done."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    @contextmanager
    def work(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        with Progress(*columns, console=self._console, expand=True) as progress:
            task = progress.add_task(name, total=steps)
            yield lambda: progress.advance(task)


def _watcher(console: "Console", quiet: bool) -> "Watcher":
    """The display that suits the output: a terminal or a file."""
    if quiet:
        return Silent()
    return Bars(console) if console.is_terminal else Lines()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
