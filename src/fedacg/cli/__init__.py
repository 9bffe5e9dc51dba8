"""The command line: `fedacg run | compare | bench | sweep | report | watch | analyze | methods | recipes | data`,
and `deploy`.

Bad input ends with one message and exit code 2, a run that cannot go on with 1; a bug shows its traceback.
"""

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from fedacg.cli import data, deploy
from fedacg.cli.analyze import analyze
from fedacg.cli.bench import bench
from fedacg.cli.methods import methods
from fedacg.cli.report import report
from fedacg.cli.run import compare, run
from fedacg.cli.sweep import sweep
from fedacg.cli.watch import watch
from fedacg.config.recipe import find, recipe_names
from fedacg.core.text import printable
from fedacg.errors import InputError, RunError
from fedacg.version import __version__

app = typer.Typer(
    name="fedacg",
    help="Federated learning with accelerated client gradients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # what draws the boxes takes longer to load than everything else here
)
app.command()(run)
app.command()(compare)
app.command()(bench)
app.command()(sweep)
app.command()(report)
app.command()(watch)
app.command()(analyze)
app.command()(methods)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


@app.command()
def recipes() -> None:
    """List the experiments that come with the package."""
    for name in recipe_names():
        tree = find(name)
        typer.echo(f"{name:36}{tree.get('rounds')} rounds of {tree['model']['name']} on {tree['data']['name']}")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedacg {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None: ...


def main() -> None:
    """The program `fedacg`."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except InputError as error:
        _fail(error, 2)
    except RunError as error:
        _fail(error, 1)


def _fail(error: Exception, code: int) -> NoReturn:
    for text in (str(error), *getattr(error, "__notes__", [])):
        # What a message quotes may come from a file, and a terminal would obey it.
        lines = "\n".join(map(printable, text.split("\n")))
        typer.echo(f"error: {lines}", err=True)
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A polite request to end is treated like Ctrl-C: the run is saved first."""
    raise KeyboardInterrupt
