"""Names that come from files, made safe to show: at a terminal, and in a table that a spreadsheet opens."""

from collections.abc import Mapping
from typing import Any


def printable(text: str) -> str:
    """Text without characters that a terminal would obey or hide: those are spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_tree(value: Any) -> Any:
    """The same for all names and strings of nested tables and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_tree(key): printable_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_tree(item) for item in value]
    return value


def csv_text(text: str) -> str:
    """A text cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
