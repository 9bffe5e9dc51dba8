"""`fedacg data`: which data sets there are, where they lie, and fetching those that can be fetched.

Reading and splitting them lives in fedacg.data; here is only what is typed and printed.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedacg.data import catalogue, download, synthetic
from fedacg.data.files import data_root

app = typer.Typer(no_args_is_help=True, help="The data sets: which there are, and fetching them.")


@app.command("list")
def list_() -> None:
    """List the data sets and where they lie."""
    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "train", "test", "classes"):
        table.add_column(column, no_wrap=True, justify="left" if column == "name" else "right")
    table.add_column("shape", no_wrap=True)
    table.add_column("where", overflow="fold")
    for name, facts in catalogue.IMAGES.items():
        train, test = facts.examples
        shape = "×".join(map(str, facts.shape))
        table.add_row(name, str(train), str(test), str(facts.classes), shape, _where(name))
    table.add_row("synthetic", "–", "–", str(synthetic.CLASSES), str(synthetic.FEATURES), _where("synthetic"))
    console.print(table)
    console.print(
        f"\nFiles are looked for in {data_root()} (FEDACG_DATA).\nTo fetch what is missing: fedacg data get NAME",
        soft_wrap=True,
        highlight=False,
    )


@app.command()
def get(name: Annotated[str, typer.Argument(help="A name that `fedacg data list` shows.")]) -> None:
    """Download a data set from its makers' site and check it."""
    console = Console()
    files = download.get(name, console)
    if not files:
        console.print(f"{name} is built in: there is nothing to download.")
    for path in files:
        console.print(f"{path}: whole, checksum right", soft_wrap=True, highlight=False)


@app.command()
def split(
    name: Annotated[str, typer.Argument(help="A name that `fedacg data list` shows.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as split.npz.")],
    clients: Annotated[int, typer.Option(help="How many clients the examples are dealt to.")] = 100,
    split: Annotated[str, typer.Option(help="How they are dealt: iid or dirichlet.")] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="The Dirichlet split's concentration.")] = 0.3,
    seed: Annotated[int, typer.Option(help="Gives the split that a run with this seed draws.")] = 0,
) -> None:
    """Save a split, to be used with --set data.split_file=FILE."""
    dealt = catalogue.deal(catalogue.load(name), clients=clients, split=split, alpha=alpha, seed=seed)
    dealt.save(out)
    typer.echo(f"{out}: {len(dealt.order)} examples of {name} for {clients} clients")


def _where(name: str) -> str:
    place = catalogue.where(name)
    if place is None:
        return "missing"
    if isinstance(place, Path) and place.is_relative_to(data_root()):
        return f"{place.relative_to(data_root())}"
    return str(place)
