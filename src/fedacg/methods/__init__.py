"""Federated methods: server rule × objective × local step × upload chain, composed by name."""

from fedacg.config.methods import (
    METHODS,
    MODIFIERS,
    Entry,
    Modifier,
    Option,
    complete,
    fraction,
    parse,
    positive,
    rate,
)
from fedacg.methods.catalogue import build
from fedacg.methods.method import Method

__all__ = [
    "METHODS",
    "MODIFIERS",
    "Entry",
    "Method",
    "Modifier",
    "Option",
    "build",
    "complete",
    "fraction",
    "parse",
    "positive",
    "rate",
]
