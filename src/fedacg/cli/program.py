"""Commands: `fedacg run|compare|bench|sweep|tune|report|watch|analyze|methods|privacy|recipes|data|deploy`."""

import errno
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.core
from typer.core import TyperGroup

from fedacg import __version__
from fedacg.cli import STOPPED, data
from fedacg.cli.bench import bench
from fedacg.cli.lookup import methods, privacy, recipes
from fedacg.cli.report import analyze, report, watch
from fedacg.cli.run import Set, compare, run
from fedacg.cli.sweep import sweep, tune
from fedacg.config.recipe import find, with_method
from fedacg.errors import InputError

deploy_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Run an experiment on a federation of real nodes, with Flower.",
)


@deploy_app.callback()
def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise InputError("fedacg deploy: needs Flower; install it with pip install 'fedacg[flower]'")


@deploy_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.", show_default=False)],
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a TOML file.")] = "quickstart",
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="Replaces the recipe's; fedacg:lam=0.9 sets options."),
    ] = None,
    settings: Set = None,
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", min=1, help="Nodes that must connect before the first round.")
    ] = 3,
    own_data: Annotated[
        bool, typer.Option("--own-data", help="Nodes train on their own folders, not on a split.")
    ] = False,
) -> None:
    """Write a Flower app that runs an experiment with real nodes."""
    from fedacg.flower import deployment

    tree = find(recipe)
    if method:
        tree = with_method(tree, method)
    experiment = deployment.describe_app(tree, settings or [], nodes, own_data)
    for path in deployment.write_app(folder, experiment, nodes):
        typer.echo(path)
    typer.echo(f"how to start it: {folder / 'README.md'}")


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
app.command()(recipes)
app.add_typer(data.app, name="data")
app.add_typer(deploy_app, name="deploy")


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
