"""The cost of known mistakes: each is put in and run beside the correct version, on the digits.

    python benchmarks/mistakes.py [--rounds 30] [--seeds 3] [--out docs/results/mistakes.csv] [NAME …]

Each is put in by a subclass of the part it concerns (wrong.py); nothing else differs between the two runs: 20
clients with Dirichlet(0.1) labels and equally many examples, 3 per round, 2 local epochs, a learning rate
that decays by 0.98 per round and gradients clipped to norm 10. Printed are mean test accuracies over the seeds
after the last round, in percent.

With --out every row is written as soon as it is known; the same command continues after the last one.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

import rows as table
import wrong
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, with_method
from fedacg.data.examples import FederatedData
from fedacg.engines import one_thread
from fedacg.engines.serial import SerialEngine
from fedacg.errors import RunError
from fedacg.methods.method import Method
from fedacg.methods.parts import LocalStep, Part, Proximal
from fedacg.methods.rules import ServerRule
from fedacg.methods.upload import Link
from fedacg.runs.build import load_data, prepare
from fedacg.runs.runner import play

COLUMNS = ("mistake", "method", "what", "right", "wrong")
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


def turned(kind: type) -> Callable[..., object]:
    """An object as one of a subclass, with all it holds."""

    def change(thing: object) -> object:
        other = object.__new__(kind)
        other.__dict__.update(thing.__dict__)
        return other

    return change


def rule(kind: type[ServerRule]) -> Callable[[Method], Method]:
    """The method with a wrong server rule."""
    return lambda method: replace(method, rule=turned(kind)(method.rule))


def step(kind: type[LocalStep]) -> Callable[[Method], Method]:
    """The method with a wrong local step."""
    return lambda method: replace(method, step=turned(kind)(method.step))


def link(kind: type[Link]) -> Callable[[Method], Method]:
    """The method with a wrong last link of its upload chain."""
    return lambda method: replace(method, upload=(*method.upload[:-1], turned(kind)(method.upload[-1])))


def part(old: type[Part], change: Callable[..., object]) -> Callable[[Method], Method]:
    """The method with another part in place of one of its own."""

    def put_in(method: Method) -> Method:
        swap = tuple(change(each) if isinstance(each, old) else each for each in method.objective)
        assert swap != method.objective
        return replace(method, objective=swap)

    return put_in


def parts(kind: type[Part]) -> Callable[[Method], Method]:
    """The method with a wrong version of the part that this is a subclass of."""
    return part(kind.__bases__[0], turned(kind))


STRONG = "fedprox:mu=1.0"
MISTAKES = (
    Mistake("no-half", STRONG, "pull of 2μ(w − φ)", part(Proximal, lambda p: Proximal(2 * p.mu))),
    Mistake("aliased-anchor", STRONG, "anchor aliases w: no pull", parts(wrong.AliasedAnchor)),
    Mistake("acg-no-accumulation", "fedacg", "m = (1 + λ)Δ", rule(wrong.NeverAccumulates)),
    Mistake("acg-no-penalty", "fedacg:beta=0.1", "penalty without gradient", parts(wrong.AliasedAnchor)),
    Mistake("late-momentum", "fedacg", "θ moves by the m of the round before", rule(wrong.LateMomentum)),
    Mistake("dyn-points", "feddyn", "Σ w_i − φ for Σ(w_i − φ)", rule(wrong.PointsForUpdates)),
    Mistake("dyn-cohort", "feddyn", "h averaged over S", rule(wrong.OverTheCohort)),
    Mistake("dyn-worker", "feddyn", "g_i kept per worker", parts(wrong.OfTheWorker)),
    Mistake("dyn-no-quadratic", "feddyn", "α/2‖w − φ‖² forgotten", parts(wrong.NoQuadratic)),
    Mistake("cm-first-rate", "fedcm", "divides by the first η and K", rule(wrong.FirstRateAndSteps)),
    Mistake("dc-cohort", "feddc", "drifts averaged over S", rule(wrong.DriftsOverTheCohort)),
    Mistake("lc-unmasked", "fedlc", "absent classes not masked", parts(wrong.Unmasked)),
    Mistake("ntd-all", "fedntd", "true class distilled too", parts(wrong.AllClasses)),
    Mistake("mlb-detached", "fedmlb", "no gradient through φ's stages", parts(wrong.NoGradientThrough)),
    Mistake("decorr-scale", "feddecorr:beta=0.1", "paper's scale, code's β", parts(wrong.PapersScale)),
    Mistake("moon-forgets", "moon", "w_i is not kept", parts(wrong.Forgotten)),
    Mistake("scaffold-sign", "scaffold", "sign of c − c_i flipped", parts(wrong.FlippedSign)),
    Mistake("scaffold-not-stored", "scaffold", "c_i never stored", parts(wrong.NeverStored)),
    Mistake("scaffold-epochs", "scaffold", "divides by epochs, not steps", parts(wrong.ByEpochs)),
    Mistake("scaffold-next-rate", "scaffold", "divides by the next round's η", parts(wrong.NextRate)),
    Mistake("scaffold-no-n", "scaffold", "c by 1/|S| and not 1/N", rule(wrong.WithoutN)),
    Mistake("moswa-difference", "fedmoswa", "c_i⁺ − c_i for c_i⁺ − c", parts(wrong.ScaffoldsDifference)),
    Mistake("dane-sign", "feddane", "sign of ḡ − ∇f_i flipped", parts(wrong.FlippedShift)),
    Mistake("ghbm-no-tau", "ghbm:tau=5", "D not divided by τ", rule(wrong.WholeWay)),
    Mistake("init-from-phi", "fedinit", "Δ_i from φ, not from the start", parts(wrong.FromPhi)),
    Mistake("pa-factor", "fedpa:warmup=5:rho=0.1", "1 + (n−1)ρ forgotten", parts(wrong.NoCovariance)),
    Mistake(
        "stem-batches",
        "stem",
        "two gradients on two batches",
        lambda method: replace(method, step=wrong.StemOtherBatch(method.step.a)),  # type: ignore[attr-defined]
    ),
    Mistake("glomo-zero", "fedglomo", "u starts at 0", rule(wrong.StartsAtZero)),
    Mistake("smoo-dual", "fedsmoo", "μ_i moves by ε, not ε − s", step(wrong.DualWithoutAgreement)),
    Mistake("rcl-activation", "fedrcl", "features behind the ReLU", parts(wrong.AfterActivation)),
    Mistake("proc-forgets", "fedproc:rounds=30", "absent classes lose prototypes", rule(wrong.ForgetsAbsent)),
    Mistake("gen-equal", "fedgen:alpha=1:beta=1", "heads weighed alike", rule(wrong.EqualHeads)),
    Mistake("gmt-teacher", "fedgmt", "distils from φ, not from e", parts(wrong.FromTheBroadcast)),
    Mistake("paq-nearest", "fedavg+paq:bits=2", "rounds to the nearest level", link(wrong.Nearest)),
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
    wanted = [mistake for mistake in MISTAKES if not arguments.names or mistake.name in arguments.names]
    rows = table.read(arguments.out)
    right = {row["method"]: row["right"] for row in rows.values()}
    with one_thread():
        for mistake in wanted:
            if mistake.name not in rows:
                runs = [described(mistake.method, seed, arguments.rounds) for seed in range(arguments.seeds)]
                if mistake.method not in right:
                    right[mistake.method] = written([accuracy(run, None) for run in runs])
                found = written([accuracy(run, mistake.put_in) for run in runs])
                cells = (mistake.name, mistake.method, mistake.what, right[mistake.method], found)
                rows[mistake.name] = dict(zip(COLUMNS, cells, strict=True))
                done = [rows[each.name] for each in MISTAKES if each.name in rows]
                table.save(arguments.out, COLUMNS, done)
            shown = zip(rows[mistake.name].values(), (20, 24, 36, 6, 6), strict=True)
            print("  ".join(f"{cell:<{width}}" for cell, width in shown), flush=True)


def written(found: list[float | None]) -> str:
    if any(each is None for each in found):
        return "diverges"
    return f"{mean(each for each in found if each is not None):.1f}"


if __name__ == "__main__":
    main()
