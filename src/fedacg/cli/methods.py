"""`fedacg methods`: what can be run, and what can be added to it."""

from collections.abc import Mapping
from typing import Annotated

import typer

from fedacg.config.methods import METHODS, MODIFIERS, Entry, Option


def methods(
    details: Annotated[
        bool, typer.Option("--details", help="Show what each is made of, and the vectors it sends and keeps.")
    ] = False,
) -> None:
    """List the methods and the parts that can be added to them."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    more = ("down/up", "kept") if details else ()
    table = Table(box=None, pad_edge=False, title="Methods", title_justify="left")
    for column in ("name", "what it does", "options (default, range)", *more):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "down/up"))
    for entry in METHODS.values():
        made_of, *vectors = _details(entry) if details else [""]
        what = f"{entry.equation}\n[dim]{made_of}{entry.reference}[/dim]"
        table.add_row(entry.name, what, _options(entry.options), *vectors)
    console.print(table)
    console.print()
    extra = Table(box=None, pad_edge=False, title="Parts to add, as in fedprox+acg", title_justify="left")
    for column in ("name", "what it does", "options (default, range)"):
        extra.add_column(column, overflow="fold", no_wrap=column == "name")
    for modifier in MODIFIERS.values():
        extra.add_row(f"+{modifier.name}", modifier.equation, _options(modifier.options))
    console.print(extra)
    if details:
        typer.echo("\ndown/up: model-sized vectors a client receives and sends a round; kept: those\nit stores.")


def _options(options: Mapping[str, Option]) -> str:
    return "\n".join(f"{name} {option.default:g} {option}" for name, option in options.items())


def _details(entry: Entry) -> list[str]:
    """What a method is made of, the vectors that cross the network, and those that a client keeps."""
    from fedacg.methods import build
    from fedacg.runs.traffic import traffic_of

    method, traffic = build(entry.name), traffic_of(entry.name)
    return [f"{method.summary}\n", f"{traffic.down:g}/{traffic.up:g}", f"{traffic.kept:g}"]
