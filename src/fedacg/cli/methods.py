"""`fedacg methods`: what can be run, and what can be added to it."""

from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Table

from fedacg.methods import METHODS, MODIFIERS, Option


def methods() -> None:
    """List the methods and the parts that can be added to them."""
    console = Console()
    table = Table(box=None, pad_edge=False, title="Methods", title_justify="left")
    for column in ("name", "what it does", "options (default, range)", "down/up", "kept"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "down/up"))
    for entry in METHODS.values():
        method = entry.build(**{name: option.default for name, option in entry.options.items()})
        what = f"{entry.equation}\n[dim]{method.parts}\n{entry.reference}[/dim]"
        table.add_row(entry.name, what, _options(entry.options), f"{method.down}/{method.up}", str(method.state))
    console.print(table)
    console.print()
    parts = Table(box=None, pad_edge=False, title="Parts to add, as in fedprox+acg", title_justify="left")
    for column in ("name", "what it does", "options (default, range)"):
        parts.add_column(column, overflow="fold", no_wrap=column == "name")
    for modifier in MODIFIERS.values():
        parts.add_row(f"+{modifier.name}", modifier.equation, _options(modifier.options))
    console.print(parts)
    typer.echo("\ndown/up: model-sized vectors a client receives and sends a round; kept: those\nit stores.")


def _options(options: Mapping[str, Option]) -> str:
    return "\n".join(f"{name} {option.default:g} {option}" for name, option in options.items())
