"""What known mistakes cost: each is put in and run beside the right one on the digits.

    python benchmarks/mistakes.py [--rounds 30] [--seeds 3] [--out docs/results/mistakes.csv] [NAME …]

Every mistake was found in a published implementation or is the obvious way to get a method wrong. It is put in by
a subclass of the part it concerns; nothing else differs between the two runs. 20 clients with Dirichlet(0.1)
labels and unequal numbers of examples, 3 per round, 2 local epochs, a learning rate that decays by 0.98 per round
and gradients clipped to norm 10. Printed are mean test accuracies over the seeds after the last round, in percent.
"""

import argparse
import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, with_method
from fedacg.core.round import Round
from fedacg.data.examples import FederatedData
from fedacg.engines import one_thread
from fedacg.engines.serial import SerialEngine
from fedacg.errors import RunError
from fedacg.methods.fedcm import DirectionServer
from fedacg.methods.feddc import DriftServer
from fedacg.methods.feddecorr import Decorrelation
from fedacg.methods.feddyn import DynamicRegulariser, DynamicServer
from fedacg.methods.fedglomo import GlobalMomentum
from fedacg.methods.fedgmt import Trajectory
from fedacg.methods.fedlc import Calibrated
from fedacg.methods.fedmlb import Branches
from fedacg.methods.fedntd import NotTrueDistillation
from fedacg.methods.fedpa import PosteriorSamples, posterior_delta
from fedacg.methods.fedproc import Prototypes
from fedacg.methods.fedrcl import RelaxedContrast
from fedacg.methods.method import Method
from fedacg.methods.moon import Contrastive
from fedacg.methods.parts import Forward, Part, Proximal
from fedacg.methods.rules import Lookahead, Reply, ServerRule, State, Term, Totals
from fedacg.methods.scaffold import Controls, ControlVariate
from fedacg.methods.stem import MomentumStep
from fedacg.methods.storm import Storm
from fedacg.methods.visit import Assignment, Departure
from fedacg.runs.build import load_data, prepare
from fedacg.runs.runner import play

SETTINGS = (
    "data.clients=20",
    "cohort.size=3",
    "local.epochs=2",
    "local.lr_decay=0.98",
    "local.clip=10.0",
    "engine.name=serial",
    "evaluate.every=1000",
)


@dataclass(frozen=True)
class Mistake:
    """A wrong version of a method."""

    name: str
    method: str
    what: str
    put_in: Callable[[Method], Method]


def rule(change: Callable[[ServerRule], ServerRule]) -> Callable[[Method], Method]:
    """The method with another server rule."""
    return lambda method: replace(method, rule=change(method.rule))


def part(old: type[Part], change: Callable[..., Part]) -> Callable[[Method], Method]:
    """The method with another part in place of one of its own."""

    def put_in(method: Method) -> Method:
        swap = tuple(change(each) if isinstance(each, old) else each for each in method.objective)
        return replace(method, objective=swap)

    return put_in


def turned(kind: type) -> Callable[..., object]:
    """An object as one of a subclass, with all it holds."""

    def change(thing: object) -> object:
        other = object.__new__(kind)
        other.__dict__.update(thing.__dict__)
        return other

    return change


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
        super().begin(assignment)
        self._g = getattr(self, "_last", torch.zeros_like(assignment.phi))

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
        g.sub_(self._shift[: len(w)])


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
        self._look(delta)
        if not self._plain:
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


def scaffold_part(kind: type) -> Callable[[Method], Method]:
    return part(ControlVariate, turned(kind))


STRONG = "fedprox:mu=1.0"
MISTAKES = (
    Mistake("no-half", STRONG, "pull of 2μ(w − φ)", part(Proximal, lambda p: Proximal(2 * p.mu))),
    Mistake("aliased-anchor", STRONG, "anchor aliases w: no pull", part(Proximal, turned(AliasedAnchor))),
    Mistake("acg-no-accumulation", "fedacg", "m = (1 + λ)Δ", rule(turned(NeverAccumulates))),
    Mistake(
        "acg-no-penalty", "fedacg:beta=0.1", "penalty without gradient", part(Proximal, turned(AliasedAnchor))
    ),
    Mistake("late-momentum", "fedacg", "θ moves by the m of the round before", rule(turned(LateMomentum))),
    Mistake("dyn-points", "feddyn", "Σ w_i − φ for Σ(w_i − φ)", rule(turned(PointsForUpdates))),
    Mistake("dyn-cohort", "feddyn", "h averaged over S", rule(turned(OverTheCohort))),
    Mistake("dyn-worker", "feddyn", "g_i kept per worker", part(DynamicRegulariser, turned(OfTheWorker))),
    Mistake("dyn-no-quadratic", "feddyn", "α/2‖w − φ‖² forgotten", part(DynamicRegulariser, turned(NoQuadratic))),
    Mistake("cm-first-rate", "fedcm", "divides by the first η and K", rule(turned(FirstRateAndSteps))),
    Mistake("dc-cohort", "feddc", "drifts averaged over S", rule(turned(DriftsOverTheCohort))),
    Mistake("lc-unmasked", "fedlc", "absent classes not masked", part(Calibrated, turned(Unmasked))),
    Mistake("ntd-all", "fedntd", "true class distilled too", part(NotTrueDistillation, turned(AllClasses))),
    Mistake("mlb-detached", "fedmlb", "no gradient through φ's stages", part(Branches, turned(NoGradientThrough))),
    Mistake(
        "decorr-scale", "feddecorr:beta=0.1", "paper's scale, code's β", part(Decorrelation, turned(PapersScale))
    ),
    Mistake("moon-forgets", "moon", "w_i is not kept", part(Contrastive, turned(Forgotten))),
    Mistake("scaffold-sign", "scaffold", "sign of c − c_i flipped", scaffold_part(FlippedSign)),
    Mistake("scaffold-not-stored", "scaffold", "c_i never stored", scaffold_part(NeverStored)),
    Mistake("scaffold-epochs", "scaffold", "divides by epochs, not steps", scaffold_part(ByEpochs)),
    Mistake("scaffold-no-n", "scaffold", "c by 1/|S| and not 1/N", rule(turned(WithoutN))),
    Mistake(
        "pa-factor", "fedpa:warmup=5:rho=0.1", "1 + (n−1)ρ forgotten", part(PosteriorSamples, turned(NoCovariance))
    ),
    Mistake(
        "stem-batches",
        "stem",
        "two gradients on two batches",
        lambda method: replace(method, step=StemOtherBatch(method.step.a)),  # type: ignore[attr-defined]
    ),
    Mistake("glomo-zero", "fedglomo", "u starts at 0", rule(turned(StartsAtZero))),
    Mistake(
        "rcl-activation", "fedrcl", "features behind the ReLU", part(RelaxedContrast, turned(AfterActivation))
    ),
    Mistake("proc-forgets", "fedproc:rounds=30", "absent classes lose prototypes", rule(turned(ForgetsAbsent))),
    Mistake("gmt-teacher", "fedgmt", "distils from φ, not from e", part(Trajectory, turned(FromTheBroadcast))),
)


@cache
def dealt(seed: int) -> FederatedData:
    return load_data(described("fedavg", seed, 1))


def accuracy(experiment: Experiment, put_in: Callable[[Method], Method] | None) -> float | None:
    """Test accuracy after the last round in percent; None where the run diverged."""
    ingredients = prepare(experiment, dealt(experiment.seed))
    if put_in is not None:
        ingredients = replace(ingredients, method=put_in(ingredients.method))
    try:
        return 100 * float(play(experiment, ingredients, engine=SerialEngine()).summary["accuracy"])
    except RunError:
        return None


def described(method: str, seed: int, rounds: int) -> Experiment:
    tree = override(with_method(find("quickstart"), method), [*SETTINGS, f"seed={seed}", f"rounds={rounds}"])
    return Experiment.parse(tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    right: dict[str, list[float | None]] = {}
    rows = []
    with one_thread():
        for mistake in MISTAKES:
            if arguments.names and mistake.name not in arguments.names:
                continue
            runs = [described(mistake.method, seed, arguments.rounds) for seed in range(arguments.seeds)]
            if mistake.method not in right:
                right[mistake.method] = [accuracy(run, None) for run in runs]
            wrong = [accuracy(run, mistake.put_in) for run in runs]
            rows.append(
                [mistake.name, mistake.method, mistake.what, *map(written, (right[mistake.method], wrong))]
            )
            print(
                "  ".join(f"{cell:<{width}}" for cell, width in zip(rows[-1], (20, 24, 36, 6, 6), strict=True)),
                flush=True,
            )
    if arguments.out:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["mistake", "method", "what", "right", "wrong"])
            writer.writerows(rows)


def written(found: list[float | None]) -> str:
    if any(each is None for each in found):
        return "diverges"
    return f"{mean(each for each in found if each is not None):.1f}"


if __name__ == "__main__":
    main()
