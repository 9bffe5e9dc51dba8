"""The methods by name, and names that are composed: `fedprox+acg` is FedProx with FedACG's server rule.

A new method is one file and one line here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from fedacg.errors import InputError, unknown
from fedacg.methods.fedacg import ACG, FEDACG
from fedacg.methods.fedadam import FEDADAM
from fedacg.methods.fedavg import FEDAVG
from fedacg.methods.fedavgm import FEDAVGM
from fedacg.methods.fedcm import FEDCM
from fedacg.methods.feddc import FEDDC
from fedacg.methods.feddecorr import FEDDECORR
from fedacg.methods.feddyn import FEDDYN
from fedacg.methods.fedlc import FEDLC
from fedacg.methods.fedmlb import FEDMLB
from fedacg.methods.fedntd import FEDNTD
from fedacg.methods.fedpaq import PAQ
from fedacg.methods.fedprox import FEDPROX, PROX
from fedacg.methods.method import Entry, Method, Modifier, Option
from fedacg.methods.moon import MOON

_ENTRIES = (
    FEDAVG,
    FEDPROX,
    FEDAVGM,
    FEDADAM,
    FEDDYN,
    MOON,
    FEDCM,
    FEDMLB,
    FEDLC,
    FEDNTD,
    FEDDC,
    FEDDECORR,
    FEDACG,
)
METHODS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
MODIFIERS: dict[str, Modifier] = {modifier.name: modifier for modifier in (ACG, PROX, PAQ)}


@dataclass(frozen=True)
class Recipe:
    """A method's name taken apart: the base and what is added to it."""

    name: str
    base: Entry
    modifiers: tuple[Modifier, ...]

    @property
    def owners(self) -> tuple[Entry | Modifier, ...]:
        return (self.base, *self.modifiers)

    def option_names(self) -> dict[str, tuple[Entry | Modifier, str]]:
        """Every option a user may set, and whose it is.

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


def parse(name: str) -> Recipe:
    """Take a method's name apart, or say what is wrong with it."""
    base, *parts = name.lower().split("+")
    if base not in METHODS:
        raise unknown("method", base, METHODS)
    for part in parts:
        if part not in MODIFIERS:
            raise unknown("part", f"+{part}", [f"+{known}" for known in MODIFIERS])
        if parts.count(part) > 1:
            raise InputError(f"method {name!r}: +{part} is given more than once")
    return Recipe(name.lower(), METHODS[base], tuple(MODIFIERS[part] for part in parts))


def complete(name: str, options: Mapping[str, float]) -> dict[str, float]:
    """The options of a method with its defaults filled in, each checked against its range."""
    known = parse(name).options()
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of method {name}", option, known)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError(f"method.{option} = {value!r}: must be a number in {known[option]}")
        if not known[option].admits(value):
            raise InputError(f"method.{option} = {value}: must lie in {known[option]}")
    return {option: float(options.get(option, spec.default)) for option, spec in known.items()}


def build(name: str, options: Mapping[str, float] | None = None) -> Method:
    """The method of this name, `fedacg` or `fedprox+acg`, with these options and defaults for the rest."""
    recipe = parse(name)
    values = complete(name, options or {})
    owned: dict[str, dict[str, float]] = {owner.name: {} for owner in recipe.owners}
    for spelled, (owner, option) in recipe.option_names().items():
        owned[owner.name][option] = values[spelled]
    method = recipe.base.build(**owned[recipe.base.name])
    for modifier in recipe.modifiers:
        try:
            method = modifier.apply(method, **owned[modifier.name])
        except InputError as reason:
            raise InputError(f"method {name!r}: +{modifier.name} does not go with it: {reason}") from None
    return method
