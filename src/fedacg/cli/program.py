"""Commands: `fedacg run|compare|bench|sweep|tune|report|watch|analyze|methods|privacy|recipes|data|deploy`."""

import errno
from typing import Annotated, Any

import click
import typer
import typer.core
from typer.core import TyperGroup

from fedacg.cli import data, deploy
from fedacg.cli.analyze import analyze
from fedacg.cli.bench import bench
from fedacg.cli.methods import methods
from fedacg.cli.privacy import privacy
from fedacg.cli.report import report
from fedacg.cli.run import compare, run
from fedacg.cli.stopping import STOPPED
from fedacg.cli.sweep import sweep
from fedacg.cli.tune import tune
from fedacg.cli.watch import watch
from fedacg.config.recipe import find, recipe_names
from fedacg.version import __version__

# Help is plain text. typer would escape its brackets for rich all the same, as in \[required].
typer.core.HAS_RICH = False


class Commands(TyperGroup):
    """All commands, without typer's own handling of exceptions."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\nStopped.", err=True)
            raise typer.Exit(STOPPED) from None
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # Output never fails (core/output.py), but typer would take this for a closed pipe and end silently.
            raise RuntimeError(f"a connection was broken: {error}") from error


app = typer.Typer(
    name="fedacg",
    cls=Commands,
    help="Federated learning with accelerated client gradients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's boxes take longer to load than everything else here
)
app.command()(run)
app.command()(compare)
app.command()(bench)
app.command()(sweep)
app.command()(tune)
app.command()(report)
app.command()(watch)
app.command()(analyze)
app.command()(methods)
app.command()(privacy)
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
