"""Federated methods: server rule × local objective × link, composed by name."""

from fedacg.methods.catalogue import METHODS, MODIFIERS, build, complete, parse
from fedacg.methods.method import Entry, Method, Modifier, Option

__all__ = ["METHODS", "MODIFIERS", "Entry", "Method", "Modifier", "Option", "build", "complete", "parse"]
