"""Client-level differential privacy, `+dp`: up to ε and δ the model does not reveal who took part.

    client   all that it sends, buffers too, is one vector u_i:  u_i ← u_i · min(1, C/‖u_i‖)
    server   Δ = (Σ_S u_i + N(0, z²C²))/M,  M = qN, not the number that answered;  all weights the same
    adaptive, with a quantile γ > 0:  b_i = 1 if ‖u_i‖ ≤ C;  b̄ = (Σ_S (b_i − ½) + N(0, s²))/M + ½
             C ← C·exp(−η_C (b̄ − γ));  z becomes (z⁻² − (2s)⁻²)^−½ for Δ, so that both together cost what z costs

Momentum, lookahead and Adam come after the noise and cost nothing. A cohort drawn by coins (cohort.draw = "coin")
costs less, as nobody knows who took part; no amplification is claimed for other cohorts. A round without answers
is noise alone. With `cohort` = M' the noise is that of a cohort of M' out of N·M'/M clients: simulated, not
promised.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedacg.core.accounting import Banded, Gaussian, Mechanism
from fedacg.core.round import Message, Round
from fedacg.errors import InputError, SettingError
from fedacg.methods.method import Method
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import ServerRule, State, Totals
from fedacg.methods.sums import StandIn
from fedacg.methods.upload import Link

_FIT = "within"
"""What a client sends beside its vectors: 1 if its upload was not clipped."""


@dataclass(frozen=True)
class Promise:
    """A method's privacy promise, and how it is counted."""

    kind: str
    """Who adds the noise: `central` the server; `banded` the server, from round to round; `local` each client."""
    noise: float
    delta: float
    budget: float
    """The largest ε; 0 is no bound."""
    simulated: float = 0.0
    """The size of the cohort that is simulated; 0 simulates none."""
    bands: tuple[float, ...] = ()
    """The coefficients that correlate the noise of a round with that of earlier rounds."""

    @property
    def amplified(self) -> bool:
        """Whether drawing cohorts by coins amplifies it."""
        return self.kind == "central"

    def mechanism(self, rate: float) -> Mechanism:
        """The mechanism, for clients that take part with this probability."""
        if self.kind == "banded":
            return Banded(self.noise, self.bands)
        # Locally, any upload may replace any other: two of norm C are up to 2C apart.
        return Gaussian(self.noise / 2) if self.kind == "local" else Gaussian(self.noise, rate)


class ClipTogether(Link):
    """Scales all vectors of an upload so that their common norm is at most C."""

    joint = covers = bounds = True
    needs = frozenset({"uniform weights"})

    def __init__(self, clip: float) -> None:
        self.clip = self._bound = clip

    def hear(self, broadcast: Message) -> None:
        self._bound = float(broadcast["clip"]) if "clip" in broadcast else self.clip

    def prepare(self, upload: Mapping[str, Tensor], random: torch.Generator) -> Mapping[str, Tensor]:
        bound = self._bound
        norm = math.sqrt(sum(float(vector.double().square().sum()) for vector in upload.values()))
        if norm <= bound:
            return self.leave(upload, True, random)
        return self.leave({name: vector * (bound / norm) for name, vector in upload.items()}, False, random)

    def leave(self, upload: Mapping[str, Tensor], fits: bool, random: torch.Generator) -> Mapping[str, Tensor]:
        """What is sent of a clipped upload: it, and whether it was clipped."""
        return {**upload, _FIT: upload["delta"].new_tensor([float(fits)])}


class ClipAndNoise(ClipTogether):
    """The same, plus noise of z·C on every entry, at the client; everything after it may be public."""

    bounds = False

    def __init__(self, clip: float, promise: "Promise") -> None:
        super().__init__(clip)
        self.promise = promise

    def leave(self, upload: Mapping[str, Tensor], fits: bool, random: torch.Generator) -> Mapping[str, Tensor]:
        return {name: noised(vector, self.promise.noise * self.clip, random) for name, vector in upload.items()}


def noised(vector: Tensor, scale: float, random: torch.Generator) -> Tensor:
    """A vector with Gaussian noise of this standard deviation on every entry."""
    return vector + torch.randn(vector.shape, generator=random, dtype=vector.dtype) * scale


class Noised(StandIn):
    """Gives the rule inside (Σ_S u_i + noise)/M in place of the replies."""

    always = True

    def __init__(
        self,
        inner: ServerRule,
        promise: Promise,
        *,
        clip: float,
        quantile: float,
        clip_lr: float,
        bit_noise: float,
    ) -> None:
        super().__init__(inner)
        self.promise, self.clip = promise, clip
        self.quantile, self.clip_lr, self.bit_noise = quantile, clip_lr, bit_noise

    def init(self, theta: Tensor) -> State:
        start = super().init(theta)
        return {**start, "clip": theta.new_tensor([self.clip])} if self.quantile else start

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        sent = super().broadcast(state, round)
        return {**sent, "clip": state["clip"]} if self.quantile else sent

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(reply), _FIT: (reply.extras[_FIT], 1)}

    def step(self, state: State, totals: Totals, round: Round) -> State:
        clip = float(state["clip"]) if self.quantile else self.clip
        smaller = round.expected / self.promise.simulated if self.promise.simulated else 1.0
        scale = self._update_noise(round) * clip * smaller
        sums = {name: self._sum(name, state, totals) for name in (*self.vectors, "buffers")}
        random = round.random("privacy noise")
        released, kept = self.release(sums, scale, state, random)
        means = {name: vector / round.expected for name, vector in released.items()}
        fits = float(totals.get(_FIT, torch.zeros(1)))
        self._measure(totals, sums, scale, fits)
        moved = {**self.hand_on(state, totals, round, means, round.expected), **kept}
        if self.quantile:
            centred = fits - totals.count / 2
            bits = noised(torch.tensor([centred], dtype=torch.float64), self._bit_noise(round) * smaller, random)
            reached = float(bits) / round.expected + 0.5
            moved["clip"] = state["clip"] * math.exp(-self.clip_lr * (reached - self.quantile))
            totals.figures["privacy/clip"] = clip
        return moved

    def release(
        self, sums: Mapping[str, Tensor], scale: float, state: State, random: torch.Generator
    ) -> tuple[dict[str, Tensor], State]:
        """The sums with noise of this scale, and what the server keeps of the noise."""
        return {name: noised(vector, scale, random) for name, vector in sums.items()}, {}

    def _sum(self, name: str, state: State, totals: Totals) -> Tensor:
        return totals.get(name, torch.zeros_like(state["buffers" if name == "buffers" else "theta"]))

    def _measure(self, totals: Totals, sums: Mapping[str, Tensor], scale: float, fits: float) -> None:
        """Figures for whoever runs the simulation: they use private data, and no ε covers them."""
        if totals.count:
            totals.figures["privacy/clipped"] = 1 - fits / totals.count
        if scale:
            entries = sum(vector.numel() for vector in sums.values())
            norm = math.sqrt(sum(float(vector.double().square().sum()) for vector in sums.values()))
            totals.figures["privacy/signal_to_noise"] = norm / (scale * math.sqrt(entries))

    def _bit_noise(self, round: Round) -> float:
        """s: by default a twentieth of the cohort, as its authors have it, and no less than z."""
        if self.bit_noise or not self.promise.noise:
            return self.bit_noise
        return max((self.promise.simulated or round.expected) / 20, self.promise.noise)

    def _update_noise(self, round: Round) -> float:
        """The part of z that is left for Δ where the clip adapts: the two releases together cost what z costs."""
        noise = self.promise.noise
        if not self.quantile or not noise:
            return noise
        return float((noise**-2 - (2 * self._bit_noise(round)) ** -2) ** -0.5)


def add_dp(
    method: Method,
    clip: float,
    noise: float,
    delta: float,
    budget: float,
    quantile: float,
    clip_lr: float,
    bit_noise: float,
    cohort: float,
) -> Method:
    if 0 < bit_noise <= noise / 2:
        raise SettingError("method.bit_noise", f"{bit_noise:g}", f"must be above half of noise = {noise:g}, or 0")
    promise = Promise("central", noise, delta, budget, cohort)
    refuse_second(method)
    rule = Noised(method.rule, promise, clip=clip, quantile=quantile, clip_lr=clip_lr, bit_noise=bit_noise)
    return replace(method, rule=rule, upload=(ClipTogether(clip), *method.upload))


def refuse_second(method: Method) -> None:
    """Refuse a second promise, and noise on sums that were sealed before they were clipped."""
    if promise_of(method) is not None:
        raise InputError("it is private already, and two kinds of noise cannot be counted together")
    if any(link.last and link.shrinks for link in method.upload):
        raise InputError("a sealed update can no longer be clipped; put +secure last")


def promise_of(method: Method) -> Promise | None:
    """The privacy promise of a method, wherever its noise is added."""
    for link in method.upload:
        if isinstance(link, ClipAndNoise):
            return link.promise
    rule: ServerRule | None = method.rule
    while rule is not None:
        if isinstance(rule, Noised):
            return rule.promise
        rule = getattr(rule, "inner", None)
    return None
