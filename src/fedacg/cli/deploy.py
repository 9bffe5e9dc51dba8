"""`fedacg deploy`: from a simulation to a federation of real nodes, on Flower."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedacg.cli.run import Set
from fedacg.config.recipe import find, with_method
from fedacg.errors import InputError

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Run an experiment on a federation of real nodes, with Flower.",
)


@app.callback()
def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise InputError("fedacg deploy: needs Flower; install it with pip install 'fedacg[flower]'")


@app.command()
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
