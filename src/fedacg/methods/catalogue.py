"""From a method's name to a method: the functions that the catalogue (config/catalogue/) names, combined."""

from collections.abc import Callable, Mapping
from typing import Any

from fedacg.config.methods import complete, parse
from fedacg.core.plugins import load
from fedacg.errors import InputError
from fedacg.methods.method import Method


def build(name: str, options: Mapping[str, float] | None = None) -> Method:
    """The method of this name, `fedacg` or `fedprox+acg`, with these options and defaults for the rest."""
    composition = parse(name)
    values = complete(name, options or {})
    owned: dict[str, dict[str, float]] = {owner.name: {} for owner in composition.owners}
    for spelled, (owner, option) in composition.option_names().items():
        owned[owner.name][option] = values[spelled]
    method = function_of(composition.base.build)(**owned[composition.base.name])
    for modifier in composition.modifiers:
        try:
            method = function_of(modifier.apply)(method, **owned[modifier.name])
        except InputError as reason:
            raise InputError(f"method {name!r}: +{modifier.name} cannot be added: {reason}") from None
    return method


def function_of(function: str | Callable[..., Any]) -> Callable[..., Method]:
    """The function of an entry that builds a method or adds a part."""
    return load("method.name", function) if isinstance(function, str) else function
