"""Methods with a mistake put in, each by a subclass of the part it concerns; mistakes.py measures what they cost.

Every mistake was found in a published implementation or is the obvious way to get a method wrong.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, pad

from fedacg.core.round import Round
from fedacg.core.vector import add_scaled, rows_of
from fedacg.methods.fedcm import DirectionServer
from fedacg.methods.feddane import GradientShift
from fedacg.methods.feddc import DriftServer
from fedacg.methods.feddecorr import Decorrelation
from fedacg.methods.feddyn import DynamicRegulariser, DynamicServer
from fedacg.methods.fedgen import TrainedGenerator
from fedacg.methods.fedglomo import GlobalMomentum
from fedacg.methods.fedgmt import Trajectory
from fedacg.methods.fedinit import RelaxedStart
from fedacg.methods.fedlc import Calibrated
from fedacg.methods.fedmlb import Branches
from fedacg.methods.fedmoswa import NewestVariate
from fedacg.methods.fedntd import NotTrueDistillation
from fedacg.methods.fedpa import PosteriorSamples, posterior_delta
from fedacg.methods.fedproc import Prototypes
from fedacg.methods.fedrcl import RelaxedContrast
from fedacg.methods.fedsmoo import AgreedAscent
from fedacg.methods.ghbm import PastModels
from fedacg.methods.moon import Contrastive
from fedacg.methods.parts import Forward, Gradient, Proximal
from fedacg.methods.quantise import BUCKET, Quantise
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Lookahead, State, Totals
from fedacg.methods.scaffold import Controls, ControlVariate
from fedacg.methods.stem import MomentumStep
from fedacg.methods.storm import Storm
from fedacg.methods.upload import Chain, Memory
from fedacg.methods.visit import Assignment, Departure


class AliasedAnchor(Proximal):
    """The anchor is the live parameters, so the pull is always zero."""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.add_(w - w, alpha=self.mu)


class NeverAccumulates(Lookahead):
    """m = (1 + λ)Δ: what was there before is forgotten."""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        m = totals["delta"] * (1 + self.beta)
        return {"theta": state["theta"] + m, "m": m}


class LateMomentum(Lookahead):
    """The first round only fills m, and θ moves by what m was before."""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        return {"theta": state["theta"] + state["m"], "m": moved["m"]}


class PointsForUpdates(DynamicServer):
    """h ← h − (α/N)(Σ w_i − φ)"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        total = totals["delta"] + (totals.count - 1) * state["theta"]
        h = torch.sub(state["h"], total, alpha=self.alpha / round.clients)
        theta = (totals["delta"] / totals.count).add_(state["theta"]).sub_(h, alpha=1 / self.alpha)
        return {"theta": theta, "h": h}


class OverTheCohort(DynamicServer):
    """h ← h − α mean_S Δ_i"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        h = torch.sub(state["h"], totals["delta"], alpha=self.alpha / totals.count)
        theta = (totals["delta"] / totals.count).add_(state["theta"]).sub_(h, alpha=1 / self.alpha)
        return {"theta": theta, "h": h}


class NoQuadratic(DynamicRegulariser):
    """α/2 ‖w − φ‖² is forgotten."""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.sub_(self._g[: len(w)])


class OfTheWorker(DynamicRegulariser):
    """g belongs to the worker: every client goes on with the last one's."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(replace(assignment, kept={"g": getattr(self, "_last", torch.zeros_like(assignment.phi))}))

    def keep(self, arrived: Callable[[str], Tensor]) -> Mapping[str, Tensor]:
        kept = super().keep(arrived)
        self._last = kept["g"].clone()
        return kept


class FirstRateAndSteps(DirectionServer):
    """D ← −Δ/(ηK) with the η and K of the first reply of the first round"""

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        if not hasattr(self, "_first"):
            self._first = reply.total_lr
        return super().collect(replace(reply, total_lr=self._first))


class DriftsOverTheCohort(DriftServer):
    """h is the mean of the cohort's drifts, and θ jumps by it."""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, replace(round, clients=totals.count))
        return {**moved, "h": moved["h"]}


class Unmasked(Calibrated):
    """A class that the client has no example of counts as if it had one tenth of one, and is not left out."""

    def begin(self, assignment: Assignment) -> None:
        counts = assignment.label_counts().to(assignment.phi.dtype)
        self._shift = -self.tau * counts.clamp(min=0.1).pow(-0.25)


class AllClasses(NotTrueDistillation):
    """The label's own logit enters both softmaxes: plain distillation."""

    def _log_not_true(self, logits: Tensor, y: Tensor) -> Tensor:
        return log_softmax(logits / self.temperature, dim=1)


class NoGradientThrough(Branches):
    """The hybrid paths are computed without gradient, so they teach the local stages nothing."""

    def __call__(self, forward: Forward) -> Tensor:
        local = log_softmax(forward.logits / self.temperature, dim=1)
        apart = []
        for stage, output in enumerate(forward.stage_outputs):
            hybrid = log_softmax(self._frozen.branch(output.detach(), stage + 1) / self.temperature, dim=1)
            apart.append(kl_div(local, hybrid, reduction="batchmean", log_target=True))
        return self.lam2 * torch.stack(apart).mean()


class PapersScale(Decorrelation):
    """The paper's formula with the β that was tuned for the code, which is B times larger."""

    def __call__(self, forward: Forward) -> Tensor:
        return super().__call__(forward) / len(forward.y)


class Forgotten(Contrastive):
    """What a client kept is lost, so z_p = z_g for ever and the term has no gradient."""

    def keep(self, arrived: Callable[[str], Tensor]) -> Mapping[str, Tensor]:
        return {}


class FlippedSign(ControlVariate):
    """g ← g − c + c_i"""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.sub_(rows_of(self.shift, w))


class NeverStored(ControlVariate):
    """c_i stays zero."""

    def keep(self, arrived: Callable[[str], Tensor]) -> Mapping[str, Tensor]:
        return {}


class ByEpochs(ControlVariate):
    """c_i⁺ = c_i − c − Δ_i/(Eη), with epochs in place of steps"""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._total_lr = assignment.round.lr * (assignment.local.epochs or 1)


class WithoutN(Controls):
    """c ← c + Σ_S (c_i⁺ − c_i)/|S|"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return super().step(state, totals, replace(round, clients=totals.count))


class NoCovariance(PosteriorSamples):
    """Σ̂⁻¹ without its factor 1 + (n − 1)ρ"""

    def end(self, delta: Tensor, departure: Departure) -> None:
        if not self._plain:
            self._look(delta)
            samples = [total / self._block for total in self._sums]
            found = posterior_delta(samples, self.rho)
            departure.send("delta", found / (1 + (len(samples) - 1) * self.rho))


class OtherBatch(Storm):
    """The gradient at the last point is that of the last batch."""

    def direction(self, gradient: Callable[..., Tensor], w: Tensor) -> Tensor:
        g = gradient(w).clone()
        last = getattr(self, "_gradient", None)
        v = g if last is None else g + (1 - self._a) * (self.v - last)
        self._gradient, self._v, self._previous = g, v.clone(), w.clone()
        return v.clone()


class StemOtherBatch(MomentumStep):
    """STEM whose two gradients are of two batches."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._storm = OtherBatch(self.a)


class StartsAtZero(GlobalMomentum):
    """u starts at 0 and not at Ā."""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        if bool(state["u"].any()):
            return super().step(state, totals, round)
        u = totals["delta"] * -self.beta
        return {"theta": state["theta"] - u, "previous": state["theta"], "u": u}


class AfterActivation(RelaxedContrast):
    """Features behind the ReLU"""

    def __call__(self, forward: Forward) -> Tensor:
        outputs = forward.stage_outputs
        self._before.clear()
        terms = [self.contrast(output.flatten(start_dim=1), forward.y) for output in outputs]
        return self.mu * torch.stack(terms).mean()


class ForgetsAbsent(Prototypes):
    """A class that nobody of the cohort has loses its prototype."""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        empty = {**state, "prototypes": torch.zeros_like(state["prototypes"])}
        return super().step(empty, totals, round)


class FromTheBroadcast(Trajectory):
    """The teacher is φ and not the average."""

    def begin(self, assignment: Assignment) -> None:
        self._teacher = assignment.copies.load("phi", assignment.phi, assignment.broadcast["buffers"])


class NextRate(ControlVariate):
    """c_i⁺ divides by the rate after the scheduler's step."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._total_lr = self._total_lr * assignment.local.lr_decay


class ScaffoldsDifference(NewestVariate):
    """c ← c + γ mean_S(c_i⁺ − c_i), as if SCAFFOLD's difference were meant"""

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("c", add_scaled(-self._c, delta, -1 / self._total_lr))

    def keep(self, arrived: Callable[[str], Tensor]) -> Mapping[str, Tensor]:
        return {"c": self._own + arrived("c")}


class FlippedShift(GradientShift):
    """g ← g − ḡ + ∇f_i(φ)"""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.sub_(rows_of(self.shift, w))


class WholeWay(PastModels):
    """D = θ_t − θ_{t−τ}, not divided by τ"""

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        sent = super().broadcast(state, round)
        return {**sent, "way": sent["way"] * self.tau}


class FromPhi(RelaxedStart):
    """Δ_i = w_i − φ, so that the relaxation itself reaches the server"""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._from = assignment.phi

    def end(self, delta: Tensor, departure: Departure) -> None:
        super().end(delta, departure)
        departure.send("delta", self._ended - self._from)


class DualWithoutAgreement(AgreedAscent):
    """μ_i ← μ_i + ε, without s"""

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        found = super().direction(gradient, w)
        self._mu[: len(w)].add_(self._s)
        return found


class Nearest(Quantise):
    """Rounds to the nearest level, which is biased."""

    def encode(self, vector: Tensor, rest: Chain, memory: Memory, random: torch.Generator) -> Tensor:
        payload = super().encode(vector, rest, memory, random)
        scales = payload.numel() - -(-vector.numel() // BUCKET) * BUCKET * self.bits // 8
        buckets = pad(vector, (0, -vector.numel() % BUCKET)).view(-1, BUCKET)
        scale = buckets.abs().amax(dim=1, keepdim=True)
        position = (buckets / scale.where(scale > 0, 1) + 1) * (self._last / 2)
        return torch.cat([payload[:scales], self._pack(position.round().to(torch.uint8).view(-1))])


class EqualHeads(TrainedGenerator):
    """All heads teach every class, whether their clients have examples of it or not."""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        alike = copy(totals)
        alike.replies = [
            replace(reply, extras={"labels": torch.ones_like(reply.extras["labels"])}) for reply in totals.replies
        ]
        return super().step(state, alike, round)
