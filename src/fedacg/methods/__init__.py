"""Federated methods: server rule × local objective × link, composed by name."""

from fedacg.config.methods import METHODS, MODIFIERS, Entry, Modifier, Option, complete, parse
from fedacg.methods.catalogue import build
from fedacg.methods.method import Method

__all__ = ["METHODS", "MODIFIERS", "Entry", "Method", "Modifier", "Option", "build", "complete", "parse"]
