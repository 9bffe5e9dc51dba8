"""`fedacg report`: tables, curves and a page from run folders.

Only arguments and terminal output; `fedacg.report` does the work.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedacg.cli.run import out_option, parse_names
from fedacg.core.output import printable

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
