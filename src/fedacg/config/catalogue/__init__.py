"""What a description can name: data sets, splits, networks, callbacks, and methods and parts, all without torch.

Here is what an entry is, and the parts that are added to a method in its name, as in `fedprox+acg`. clients.py has
the methods that change what clients do, servers.py all others. config/methods.py puts them together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DATA_SETS = (
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "tiny-imagenet",
    "femnist",
    "celeba",
    "shakespeare",
    "synthetic",
    "folder",
)
SPLITS = ("iid", "dirichlet", "dirichlet-unequal", "shards", "quantity", "natural")
MODELS = ("logistic", "mlp", "cnn", "lenet", "resnet18", "femnist-cnn", "celeba-cnn", "lstm")
CALLBACKS = ("early-stopping", "time-limit", "best-checkpoint")
PROFILES = ("phones", "hospitals", "datacentre")
GIVEN = "python"
"""Placeholder in a description for data or a model given as Python objects."""


@dataclass(frozen=True)
class Option:
    """A numeric option of a method, with its default and range."""

    default: float
    low: float
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = True
    only: tuple[float, ...] = ()
    """The allowed values, if there are few."""
    whole: bool = False
    """Whether it is a whole number."""
    search: tuple[float, ...] = ()
    """The values that tuning tries: those its paper searched, or else values around the default."""

    def admits(self, value: float) -> bool:
        if self.only:
            return value in self.only
        if self.whole and value != value // 1:
            return False
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        if self.only:
            return "{" + ", ".join(f"{value:g}" for value in self.only) + "}"
        high = "∞" if self.high == float("inf") else f"{self.high:g}"
        kind = "whole numbers of " if self.whole else ""
        return kind + f"{'(' if self.low_open else '['}{self.low:g}, {high}{')' if self.high_open else ']'}"


def rate(default: float, *search: float) -> Option:
    """A coefficient that may be zero."""
    return Option(default, low=0, search=search)


def positive(default: float, *search: float) -> Option:
    """A coefficient above zero."""
    return Option(default, low=0, low_open=True, search=search)


def count(default: int) -> Option:
    """A count of at least one."""
    return Option(default, low=1, whole=True)


def fraction(default: float, *search: float) -> Option:
    """A decay in [0, 1)."""
    return Option(default, low=0, high=1, search=search)


@dataclass(frozen=True)
class Entry:
    """A method of the catalogue: its source, its options, and the function that builds it."""

    name: str
    title: str
    reference: str
    equation: str
    options: Mapping[str, Option]
    build: str | Callable[..., Any]
    """A function from the options to a `Method`, or its name as `package.module:function`.

    The full equations are at the top of its module.
    """
    link: str = ""
    """Link to the paper."""
    group: str = ""
    """What it changes; follows from its file of the catalogue."""


@dataclass(frozen=True)
class Modifier:
    """A `+part` that turns one method into another, or refuses with the reason."""

    name: str
    title: str
    equation: str
    options: Mapping[str, Option]
    apply: str | Callable[..., Any]
    """A function from a `Method` and the options to a `Method`, or its name."""
    reference: str = ""
    link: str = ""
    """Link to the paper."""


_BAD = Option(0.2, low=0, high=0.5)
"""The fraction of updates assumed to be bad: less than half."""
_PRIVATE: Mapping[str, Option] = {
    "clip": positive(1.0),
    "noise": rate(1.0),
    "delta": Option(1e-5, low=0, high=1, low_open=True),
    "budget": rate(0),
}
"""C, z and δ, and the ε at which a run stops; 0 never stops it."""
_COHORT = Option(0, low=0, whole=True)
"""The cohort whose noise is simulated; 0 simulates none."""

PARTS: tuple[Modifier, ...] = (
    Modifier(
        name="acg",
        title="lookahead server momentum",
        reference="Kim, Kim, Han, CVPR 2024",
        link="https://arxiv.org/abs/2201.03172",
        equation="φ = θ + λm; m ← λm + Δ; θ ← θ + m in place of averaging",
        options={"lam": fraction(0.85, 0.8, 0.85, 0.9)},
        apply="fedacg.methods.fedacg:swap_in_lookahead",
    ),
    Modifier(
        name="prox",
        title="proximal pull",
        reference="Li et al., MLSys 2020",
        link="https://arxiv.org/abs/1812.06127",
        equation="adds μ/2 ‖w − φ‖² to the objective",
        options={"mu": rate(0.001, 0.1, 0.01, 0.001)},
        apply="fedacg.methods.fedprox:add_proximal",
    ),
    Modifier(
        name="paq",
        title="quantised upload",
        reference="Reisizadeh et al., AISTATS 2020",
        link="https://arxiv.org/abs/1909.13014",
        equation="uploads Q(Δ_i), unbiased, at b bits per entry, with a scale per bucket",
        options={
            "bits": Option(4, low=1, high=8, high_open=False, only=(1, 2, 4, 8)),
            "bucket": Option(512, low=0, whole=True),
            "norm": Option(0, low=0, high=2, high_open=False, only=(0, 2)),
        },
        apply="fedacg.methods.fedpaq:quantise_upload",
    ),
    Modifier(
        name="swa",
        title="averaged weights",
        reference="Caldarola, Caputo, Ciccone, ECCV 2022",
        link="https://arxiv.org/abs/2203.11834",
        equation="evaluates the mean of θ over the last rounds",
        options={"start": fraction(0.75)},
        apply="fedacg.methods.averaging:add_swa",
    ),
    Modifier(
        name="ema",
        title="moving average of weights",
        reference="Polyak, Juditsky, SIAM J. Control Optim. 1992; Izmailov et al., UAI 2018",
        link="https://arxiv.org/abs/1803.05407",
        equation="evaluates θ̄ ← θ̄ + a(θ − θ̄), in which round t − j weighs κ^j",
        options={"decay": fraction(0.9, 0.8, 0.9, 0.95)},
        apply="fedacg.methods.averaging:add_ema",
    ),
    Modifier(
        name="sam",
        title="sharpness-aware local steps",
        reference="Foret et al., ICLR 2021; Qu et al., ICML 2022",
        link="https://arxiv.org/abs/2206.02618",
        equation="w ← w − η g(w + ρ g/‖g‖; B)",
        options={"rho": rate(0.1, 0.01, 0.05, 0.1)},
        apply="fedacg.methods.sam:add_sam",
    ),
    Modifier(
        name="asam",
        title="adaptive sharpness-aware local steps",
        reference="Kwon et al., ICML 2021; Caldarola, Caputo, Ciccone, ECCV 2022",
        link="https://arxiv.org/abs/2203.11834",
        equation="w ← w − η g(w + ρ T²g/‖Tg‖; B), T = |w| + η_a",
        options={"rho": rate(0.7), "eta": rate(0.2)},
        apply="fedacg.methods.sam:add_asam",
    ),
    Modifier(
        name="ri",
        title="relaxed start",
        reference="Sun, Shen, Tao, NeurIPS 2023",
        link="https://arxiv.org/abs/2306.05706",
        equation="w starts at φ + β(φ − w_i of its last visit)",
        options={"beta": rate(0.1)},
        apply="fedacg.methods.fedinit:add_relaxed_start",
    ),
    Modifier(
        name="topk",
        title="sparse upload with error feedback",
        reference="Stich, Cordonnier, Jaggi, NeurIPS 2018",
        link="https://arxiv.org/abs/1809.07599",
        equation="uploads the largest entries of Δ_i + e_i, keeps the rest as e_i",
        options={"part": Option(0.1, low=0, high=1, low_open=True, high_open=False)},
        apply="fedacg.methods.compress:add_topk",
    ),
    Modifier(
        name="sign",
        title="signs uploaded with error feedback",
        reference="Karimireddy et al., ICML 2019",
        link="https://arxiv.org/abs/1901.09847",
        equation="uploads (‖x‖₁/d) sign(x), x = Δ_i + e_i; keeps the error e_i",
        options={},
        apply="fedacg.methods.compress:add_sign",
    ),
    Modifier(
        name="dp",
        title="differential privacy of clients",
        reference="McMahan et al., ICLR 2018; Andrew et al., NeurIPS 2021",
        link="https://arxiv.org/abs/1710.06963",
        equation="Δ = (Σ u_i min(1, C/‖u_i‖) + N(0, z²C²))/M; ε(δ) is counted",
        options={
            **_PRIVATE,
            "quantile": fraction(0),
            "clip_lr": positive(0.2),
            "bit_noise": rate(0),
            "cohort": _COHORT,
        },
        apply="fedacg.methods.dp:add_dp",
    ),
    Modifier(
        name="dpftrl",
        title="differential privacy by correlated noise",
        reference="Kairouz et al., ICML 2021; Choquette-Choo et al., NeurIPS 2023",
        link="https://arxiv.org/abs/2103.00039",
        equation="Δ = (Σ u_i min(1, C/‖u_i‖) + x_t)/M, x_t = N(0, z²C²) − Σ c_j x_{t−j}",
        options={**_PRIVATE, "bands": count(8), "cohort": _COHORT},
        apply="fedacg.methods.dp_ftrl:add_dp_ftrl",
    ),
    Modifier(
        name="local-dp",
        title="differential privacy at the client",
        reference="Kasiviswanathan et al., SIAM J. Comput. 2011",
        link="https://arxiv.org/abs/0803.0924",
        equation="uploads u_i min(1, C/‖u_i‖) + N(0, z²C²)",
        options=_PRIVATE,
        apply="fedacg.methods.local_dp:add_local_dp",
    ),
    Modifier(
        name="secure",
        title="sealed sums",
        reference="Bonawitz et al., CCS 2017; Bell et al., CCS 2020",
        link="https://arxiv.org/abs/1611.04482",
        equation="the server sees Σ trunc(u_i/s) mod 2^b alone",
        options={"clip": positive(10.0), "bits": Option(32, low=16, high=48, only=(16, 24, 32, 40, 48))},
        apply="fedacg.methods.secure:add_secure",
    ),
    Modifier(
        name="median",
        title="median of the updates",
        reference="Yin et al., ICML 2018",
        link="https://arxiv.org/abs/1803.01498",
        equation="Δ = median of Δ_i, entry by entry",
        options={},
        apply="fedacg.methods.robust:add_median",
    ),
    Modifier(
        name="trim",
        title="trimmed mean of the updates",
        reference="Yin et al., ICML 2018",
        link="https://arxiv.org/abs/1803.01498",
        equation="Δ = mean of each entry without its ⌊s·n⌋ smallest and largest",
        options={"share": _BAD},
        apply="fedacg.methods.robust:add_trim",
    ),
    Modifier(
        name="krum",
        title="updates with the closest neighbours",
        reference="Blanchard et al., NeurIPS 2017",
        link="https://arxiv.org/abs/1703.02757",
        equation="Δ = mean of the m updates closest to their n − ⌊s·n⌋ − 2 nearest",
        options={"share": _BAD, "keep": Option(0, low=0, whole=True)},
        apply="fedacg.methods.robust:add_krum",
    ),
    Modifier(
        name="bound",
        title="updates of bounded norm",
        reference="Sun et al., 2019",
        link="https://arxiv.org/abs/1911.07963",
        equation="Δ = Σ ω_i u_i min(1, C/‖u_i‖)",
        options={"norm": positive(1.0)},
        apply="fedacg.methods.robust:add_bound",
    ),
)
