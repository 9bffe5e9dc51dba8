"""The methods and parts by name, without torch: what a user can type, and what each of them takes.

Names are composed: `fedprox+acg` is FedProx with FedACG's server rule. How a method is built from its name stands
in methods/: an entry here leads to its function as `package.module:function`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from fedacg.core.plugins import announced, is_plugin, load
from fedacg.errors import InputError, SettingError, unknown


@dataclass(frozen=True)
class Option:
    """A number a method takes, with its default and the range it must lie in."""

    default: float
    low: float
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = True
    only: tuple[float, ...] = ()
    """The values there are, where they are few."""

    def admits(self, value: float) -> bool:
        if self.only:
            return value in self.only
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        if self.only:
            return "{" + ", ".join(f"{value:g}" for value in self.only) + "}"
        high = "∞" if self.high == float("inf") else f"{self.high:g}"
        return f"{'(' if self.low_open else '['}{self.low:g}, {high}{')' if self.high_open else ']'}"


def rate(default: float) -> Option:
    """A coefficient that may be zero."""
    return Option(default, low=0)


def positive(default: float) -> Option:
    """A coefficient that may not."""
    return Option(default, low=0, low_open=True)


def fraction(default: float) -> Option:
    """A decay in [0, 1)."""
    return Option(default, low=0, high=1)


@dataclass(frozen=True)
class Entry:
    """A method of the catalogue: where it comes from, what it takes, and what builds it."""

    name: str
    title: str
    reference: str
    equation: str
    options: Mapping[str, Option]
    build: str | Callable[..., Any]
    """A function from the options to a `Method`, or where it is found: `package.module:function`."""


@dataclass(frozen=True)
class Modifier:
    """A `+part` that turns one method into another, or refuses with the reason."""

    name: str
    title: str
    equation: str
    options: Mapping[str, Option]
    apply: str | Callable[..., Any]
    """A function from a `Method` and the options to a `Method`, or where it is found."""


_ENTRIES = (
    Entry(
        name="fedavg",
        title="FedAvg",
        reference="McMahan et al., AISTATS 2017",
        equation="θ ← θ + Δ",
        options={"server_lr": positive(1.0)},
        build="fedacg.methods.fedavg:fedavg",
    ),
    Entry(
        name="fedprox",
        title="FedProx",
        reference="Li et al., MLSys 2020",
        equation="ℓ + μ/2 ‖w − φ‖²; θ ← θ + Δ",
        options={"mu": rate(0.001), "server_lr": positive(1.0)},
        build="fedacg.methods.fedprox:fedprox",
    ),
    Entry(
        name="fedavgm",
        title="FedAvgM",
        reference="Hsu, Qi, Brown, 2019",
        equation="m ← βm + Δ; θ ← θ + m",
        options={"beta": fraction(0.4), "server_lr": positive(1.0)},
        build="fedacg.methods.fedavgm:fedavgm",
    ),
    Entry(
        name="fedadam",
        title="FedAdam",
        reference="Reddi et al., ICLR 2021",
        equation="m, v ← moments of Δ; θ ← θ + η_g m/(√v + τ)",
        options={
            "beta1": fraction(0.9),
            "beta2": fraction(0.99),
            "tau": positive(0.001),
            "server_lr": positive(0.01),
        },
        build="fedacg.methods.fedadam:fedadam",
    ),
    Entry(
        name="feddyn",
        title="FedDyn",
        reference="Acar et al., ICLR 2021",
        equation="ℓ − ⟨g_i, w⟩ + α/2 ‖w − φ‖²; h ← h − α/N ΣΔ_i; θ ← mean(w_i) − h/α",
        options={"alpha": positive(0.1)},
        build="fedacg.methods.feddyn:feddyn",
    ),
    Entry(
        name="moon",
        title="MOON",
        reference="Li, He, Song, CVPR 2021",
        equation="ℓ + μ log(1 + e^{(s(z,z_p) − s(z,z_g))/T}); θ ← θ + Δ",
        options={"mu": rate(1.0), "temperature": positive(0.5), "server_lr": positive(1.0)},
        build="fedacg.methods.moon:moon",
    ),
    Entry(
        name="fedcm",
        title="FedCM",
        reference="Xu et al., 2021",
        equation="w ← w − η(αg + (1−α)D); D ← −Δ/(ηK); θ ← θ + Δ",
        options={"alpha": Option(0.1, low=0, high=1, low_open=True, high_open=False), "server_lr": positive(1.0)},
        build="fedacg.methods.fedcm:fedcm",
    ),
    Entry(
        name="fedmlb",
        title="FedMLB",
        reference="Kim, Kim, Han, ICML 2022",
        equation="CE(z) + λ₁ mean_l CE(z_l) + λ₂ mean_l KL(z_l ‖ z); θ ← θ + Δ",
        options={
            "lam1": rate(1.0),
            "lam2": rate(1.0),
            "temperature": positive(1.0),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedmlb:fedmlb",
    ),
    Entry(
        name="fedlc",
        title="FedLC",
        reference="Zhang et al., ICML 2022",
        equation="CE on z_c − τ n_{i,c}^{−1/4}; θ ← θ + Δ",
        options={"tau": rate(1.0), "server_lr": positive(1.0)},
        build="fedacg.methods.fedlc:fedlc",
    ),
    Entry(
        name="fedntd",
        title="FedNTD",
        reference="Lee et al., NeurIPS 2022",
        equation="(1−β) CE + β KL(z_g ‖ z) over classes ≠ y; θ ← θ + Δ",
        options={
            "beta": Option(0.3, low=0, high=1, high_open=False),
            "temperature": positive(1.0),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedntd:fedntd",
    ),
    Entry(
        name="feddc",
        title="FedDC",
        reference="Gao et al., CVPR 2022",
        equation="ℓ + α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩; θ ← mean(w_i) + h",
        options={"alpha": rate(0.01)},
        build="fedacg.methods.feddc:feddc",
    ),
    Entry(
        name="feddecorr",
        title="FedDecorr",
        reference="Shi et al., ICLR 2023",
        equation="CE + β/B · mean off-diagonal (XᵀX)²; θ ← θ + Δ",
        options={"beta": rate(0.01), "server_lr": positive(1.0)},
        build="fedacg.methods.feddecorr:feddecorr",
    ),
    Entry(
        name="fedacg",
        title="FedACG",
        reference="Kim, Kim, Han, CVPR 2024",
        equation="φ = θ + λm; ℓ + β/2 ‖w − φ‖²; m ← λm + Δ; θ ← θ + m",
        options={"lam": fraction(0.85), "beta": rate(0.01), "server_lr": positive(1.0)},
        build="fedacg.methods.fedacg:fedacg",
    ),
)
_MODIFIERS = (
    Modifier(
        name="acg",
        title="lookahead server momentum",
        equation="φ = θ + λm; m ← λm + Δ; θ ← θ + m in place of averaging",
        options={"lam": fraction(0.85)},
        apply="fedacg.methods.fedacg:swap_in_lookahead",
    ),
    Modifier(
        name="prox",
        title="proximal pull",
        equation="adds μ/2 ‖w − φ‖² to the objective",
        options={"mu": rate(0.001)},
        apply="fedacg.methods.fedprox:add_proximal",
    ),
    Modifier(
        name="paq",
        title="quantised upload",
        equation="uploads Q(Δ_i), unbiased, at so many bits an entry",
        options={"bits": Option(4, low=1, high=8, high_open=False, only=(1, 2, 4, 8))},
        apply="fedacg.methods.fedpaq:quantise_upload",
    ),
)
METHODS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
MODIFIERS: dict[str, Modifier] = {modifier.name: modifier for modifier in _MODIFIERS}
_KNOWN = METHODS.keys() | MODIFIERS.keys()


@dataclass(frozen=True)
class Composition:
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


def parse(name: str) -> Composition:
    """Take a method's name apart, or say what is wrong with it.

    The base and each part is a name of the catalogue, one that a package announces, or module:attribute.
    """
    base, *parts = (part if is_plugin(part) else part.lower() for part in name.split("+"))
    entry = _find("methods", base, METHODS, Entry)
    for part in parts:
        if parts.count(part) > 1:
            raise InputError(f"method {name!r}: +{part} is given more than once")
    modifiers = tuple(_find("parts", part, MODIFIERS, Modifier) for part in parts)
    return Composition("+".join((base, *parts)), entry, modifiers)


_Kind = TypeVar("_Kind", Entry, Modifier)


def _find(kind: str, name: str, catalogue: Mapping[str, _Kind], wanted: type[_Kind]) -> _Kind:
    """A method or part by its name, wherever it comes from."""
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
    """A method's name without the modules that it comes from, as for the name of a folder."""
    return "+".join(part.rpartition(":")[2] for part in name.split("+"))


def is_known(name: str) -> bool:
    """Whether a name is made of names of the catalogue alone."""
    return all(part in _KNOWN for part in name.lower().split("+"))


def names_code(name: str) -> bool:
    """Whether the base or a part of a method's name is code of a user's own."""
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
