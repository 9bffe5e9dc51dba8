"""Methods by name, without torch: the whole catalogue, names parsed, options completed and checked.

Names are composed: `fedprox+acg` is FedProx with FedACG's server rule. catalogue/ has the entries;
methods/ builds a method from its name: an entry names its function as `package.module:function`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TypeVar

from fedacg.config.catalogue import PARTS, Entry, Modifier, Option, clients, fraction, positive, rate, servers
from fedacg.core.plugins import announced, is_plugin, load
from fedacg.errors import InputError, SettingError, unknown

__all__ = [
    "BASELINES",
    "GROUPS",
    "METHODS",
    "MODIFIERS",
    "Composition",
    "Entry",
    "Modifier",
    "Option",
    "complete",
    "fraction",
    "is_known",
    "method_label",
    "method_title",
    "names_code",
    "parse",
    "positive",
    "rate",
]

GROUPS: dict[str, tuple[Entry, ...]] = {
    "The server's step": servers.SERVER_STEPS,
    "What clients minimise": clients.OBJECTIVES,
    "The local step": clients.LOCAL_STEPS,
    "Control variates and duals": servers.VARIATES,
    "The upload": servers.UPLOADS,
}
"""The methods, grouped by what they change."""
METHODS: dict[str, Entry] = {
    entry.name: replace(entry, group=group) for group, entries in GROUPS.items() for entry in entries
}
BASELINES: dict[str, Entry] = {entry.name: replace(entry, group="Baselines") for entry in servers.BASELINES}
"""Baselines: run like methods, but not federated methods themselves."""
MODIFIERS: dict[str, Modifier] = {modifier.name: modifier for modifier in PARTS}


@dataclass(frozen=True)
class Composition:
    """A parsed method name: the base and the parts added to it."""

    name: str
    base: Entry
    modifiers: tuple[Modifier, ...]

    @property
    def owners(self) -> tuple[Entry | Modifier, ...]:
        return (self.base, *self.modifiers)

    def option_names(self) -> dict[str, tuple[Entry | Modifier, str]]:
        """Every option a user may set, and its owner.

        A modifier's option keeps its own name unless the base or an earlier modifier has one like it; then it
        is spelled with the modifier's name in front, as in `prox_mu`.
        """
        names: dict[str, tuple[Entry | Modifier, str]] = {}
        for owner in self.owners:
            for option in owner.options:
                names[f"{owner.name}_{option}" if option in names else option] = (owner, option)
        return names

    def options(self) -> dict[str, Option]:
        """Those options with their defaults and ranges."""
        return {name: owner.options[option] for name, (owner, option) in self.option_names().items()}


def parse(name: str) -> Composition:
    """Parse a method's name; raise an error that says what is wrong with it.

    The base and each part is a name of the catalogue or of an installed package, or module:attribute.
    """
    base, *parts = (part if is_plugin(part) else part.lower() for part in name.split("+"))
    entry = _find("methods", base, {**METHODS, **BASELINES}, Entry)
    if parts and base in BASELINES:
        raise InputError(f"method {name!r}: {base} is a baseline and takes no +{parts[0]}")
    for part in parts:
        if parts.count(part) > 1:
            raise InputError(f"method {name!r}: +{part} is given more than once")
    modifiers = tuple(_find("parts", part, MODIFIERS, Modifier) for part in parts)
    return Composition("+".join((base, *parts)), entry, modifiers)


_Kind = TypeVar("_Kind", Entry, Modifier)


def _find(kind: str, name: str, catalogue: Mapping[str, _Kind], wanted: type[_Kind]) -> _Kind:
    """A method or part by name: of the catalogue, of a package or of a user's module."""
    if name in catalogue:
        return catalogue[name]
    reference = name if is_plugin(name) else announced(kind).get(name)
    if reference is None:
        prefix = "+" if kind == "parts" else ""
        known = [f"{prefix}{each}" for each in (*catalogue, *announced(kind))]
        raise unknown(kind.removesuffix("s"), f"{prefix}{name}", known)
    found = load("method.name", reference)
    if not isinstance(found, wanted):
        raise InputError(
            f"method.name: {reference} is a {type(found).__name__}; must be a fedacg.methods.{wanted.__name__}"
        )
    return found


def method_label(name: str) -> str:
    """A method's name without module names, as for the name of a folder."""
    return "+".join(part.rpartition(":")[2] for part in name.split("+"))


def method_title(name: str) -> str:
    """A method's name as papers print it: FedACG, FedProx+acg; a user's own is left as it is."""
    base, *parts = name.split("+")
    return "+".join((METHODS[base].title if base in METHODS else base, *parts))


def is_known(name: str) -> bool:
    """Whether a name consists of catalogue names only."""
    base, *parts = name.lower().split("+")
    return (base in METHODS or base in BASELINES) and all(part in MODIFIERS for part in parts)


def names_code(name: str) -> bool:
    """Whether the base or a part of a method's name is user code."""
    known = announced("methods").keys() | announced("parts").keys()
    return any(is_plugin(part) or part in known for part in name.split("+"))


def complete(name: str, options: Mapping[str, float]) -> dict[str, float]:
    """The options of a method with its defaults filled in, each checked against its range."""
    known = parse(name).options()
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of method {name}", option, known)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise SettingError(f"method.{option}", repr(value), f"must be a number in {known[option]}")
        if not known[option].admits(value):
            raise SettingError(f"method.{option}", str(value), f"must lie in {known[option]}")
    return {option: float(options.get(option, spec.default)) for option, spec in known.items()}
