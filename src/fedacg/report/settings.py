"""What experiments share and where they differ: dotted settings, and names that tell runs apart.

Works on the plain tables of `experiment.toml`; what makes an experiment valid is `experiment`'s business.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fedacg.config.experiment import decisive, show

Settings = dict[str, Any]
"""An experiment with dotted keys: {"seed": 0, "data.name": "digits", …}."""


def essential(settings: Settings) -> Settings:
    """The settings that make two runs the same experiment but for the seed."""
    return {key: value for key, value in decisive(settings).items() if key != "seed"}


def identity(settings: Settings, keys: Iterable[str]) -> tuple[str, ...]:
    """The values of some settings in a form that can be compared and hashed, lists among them."""
    return tuple(json.dumps(settings.get(key), sort_keys=True, default=str) for key in keys)


def common(several: Sequence[Settings]) -> Settings:
    """The settings that all have, with the same value."""
    differ = set(differing(several))
    return {key: value for key, value in several[0].items() if key not in differ}


def differing(several: Sequence[Settings]) -> list[str]:
    """The keys whose values are not the same in all, in the order they first occur."""
    keys = dict.fromkeys(key for settings in several for key in settings)
    return [key for key in keys if len({identity(settings, [key]) for settings in several}) > 1]


def labels(several: Sequence[Settings]) -> list[str]:
    """A short name for each: its method, and what is needed to tell it from the others.

    Of the method's options all that differ between runs of that method; the data set if there are
    several; then, of the other settings, only those without which two names would be the same.
    """
    methods = [method_name(settings) for settings in several]
    data_sets = "data.name" in differing(several)
    names: list[str] = [""] * len(several)
    for method in dict.fromkeys(methods):
        places = [place for place, other in enumerate(methods) if other == method]
        members = [several[place] for place in places]
        shown = _telling([essential(member) for member in members], data_sets)
        for place, member in zip(places, members, strict=True):
            parts = [_part(key, member[key]) for key in shown if key in member]
            names[place] = f"{method} {', '.join(parts)}" if parts else method
    return names


def method_name(settings: Settings) -> str:
    """What `[method] name` says."""
    return str(settings["method.name"])


def _telling(members: Sequence[Settings], data_sets: bool) -> list[str]:
    differ = differing(members)
    shown = [key for key in differ if key.startswith("method.")]
    if data_sets:
        shown.append("data.name")
    for key in differ:
        apart = {identity(member, shown) for member in members}
        if key not in shown and len({identity(member, [*shown, key]) for member in members}) > len(apart):
            shown.append(key)
    return shown


def _part(key: str, value: object) -> str:
    if key == "data.name":
        return show(value)
    return f"{key.removeprefix('method.')}={show(value)}"
