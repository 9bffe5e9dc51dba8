"""SCAFFOLD, FedMoSWA, FedDANE and FedGATE against numbers worked out by hand, invariants, and known mistakes.

The clients are those of test_corrections_by_hand.py: examples at (32, 0), (0, 64), (16, 8) and (−9, 7); K = 2 for
client 1 and K = 1 for the others; η = ½ in round 1 and ¼ in round 2. Binary fractions make comparisons exact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

from fedacg import methods
from fedacg.core.round import Message, Round
from fedacg.core.vector import add_scaled, rows_of
from fedacg.methods.feddane import GradientShift
from fedacg.methods.fedgate import GradientTracking, MeanDirection
from fedacg.methods.fedmoswa import NewestVariate
from fedacg.methods.method import Method
from fedacg.methods.parts import Correction, Empirical
from fedacg.methods.reply import Reply, Term
from fedacg.methods.rules import Average, State, Totals
from fedacg.methods.scaffold import Controls, ControlVariate
from fedacg.methods.visit import Assignment, Departure
from support.quadratics import Bowl, client, kept, states

FOUR = [client((32, 0)), client((0, 64), (0, 64), (0, 64)), client((16, 8)), client((-9, 7))]
TWO = [client((32, 0)), client((0, 64))]
COHORTS = [[0, 1], [1, 2]]
LOCAL = {"batch": 2, "lr": 0.5, "lr_decay": 0.5}


def exact(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == list(expected)


def test_scaffold_over_two_rounds(tmp_path: Path) -> None:
    # A step is w ← w − η((w − c_i) + c − c_i's variate).
    # Round 1, η = ½, all variates zero:
    #   client 0, K = 1: w = (16, 0) = Δ_0;   c_0 = −Δ_0/(½·1) = (−32, 0), its one gradient
    #   client 1, K = 2: w = (0, 32), then (0, 48) = Δ_1;   c_1 = −Δ_1/(½·2) = (0, −48), the mean of −64 and −32
    #   θ = ½(Δ_0 + Δ_1) = (8, 24);   c = ¼(c_0 + c_1) = (−8, −12)
    # Round 2, η = ¼:
    #   client 1: c − c_1 = (−8, 36);  (8, −40) + (−8, 36) = (0, −4), w = (8, 25);  (8, −39) + (−8, 36) = (0, −3),
    #     w = (8, 25.75);  Δ_1 = (0, 1.75);  c_1⁺ = (0, −48) − (−8, −12) − Δ_1/(¼·2) = (8, −39.5)
    #   client 2: (−8, 16) + (−8, −12) = (−16, 4), Δ_2 = (4, −1);  c_2⁺ = (8, 12) − (16, −4) = (−8, 16)
    #   θ = (8, 24) + ½(4, 0.75);   c = (−8, −12) + ¼((8, 8.5) + (−8, 16)) = (−8, −5.875)
    first, second = states(FOUR, "scaffold", cohorts=COHORTS, rounds=2, memory=tmp_path, **LOCAL)
    exact(first["theta"], 8, 24)
    exact(first["c"], -8, -12)
    exact(second["theta"], 10, 24.375)
    exact(second["c"], -8, -5.875)
    zero, one, two, three = kept(tmp_path, 4)
    exact(zero["c"], -32, 0)
    exact(one["c"], 8, -39.5)
    exact(two["c"], -8, 16)
    assert three == {}


def test_scaffolds_first_option_keeps_the_full_gradient_at_the_broadcast_point(tmp_path: Path) -> None:
    # Round 1 moves θ as above, but c_1⁺ = ∇f_1(0) = (0, −64): c = ¼(−32, −64). Round 2, at θ = (8, 24):
    # c_1⁺ = (8, −40) and c_2⁺ = (−8, 16), so c = (−8, −16) + ¼((8, 24) + (−8, 16)) = (−8, −6).
    first, second = states(FOUR, "scaffold", {"option": 1}, cohorts=COHORTS, rounds=2, memory=tmp_path, **LOCAL)
    exact(first["theta"], 8, 24)
    exact(first["c"], -8, -16)
    exact(second["c"], -8, -6)
    exact(kept(tmp_path, 4)[1]["c"], 8, -40)


class Watch(Correction):
    """Keeps the mean of the gradients that a client's steps began with."""

    def begin(self, assignment: Assignment) -> None:
        self._seen: list[Tensor] = []

    def correct(self, g: Tensor, w: Tensor) -> None:
        self._seen.append(g.clone())

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"gradients": torch.stack(self._seen).mean(dim=0)}


BOWLS = [
    client((1, 2, 1, 0.5), (3, -1, 2, 1), (0, 0, 1, 1)),
    client((-4, 0, 0.5, 2)),
    client((2, 2, 1, 1), (5, 1, 1.5, 0.3), (1, 1, 1, 1), (0, 3, 1, 2), (2, 0, 0.7, 0.7)),
    client((7, -7, 1, 1), (0, 1, 0.2, 1.1)),
]
RETURNING = [[0, 2], [1], [0, 1, 2, 3], [3, 2], [0], [2, 1, 3]]


def closed_in_time(run: Iterator[State]) -> Iterator[State]:
    """The same states; what they are made from is closed even where a check fails in between."""
    with closing(run):  # type: ignore[type-var]
        yield from run


def check_scaffold(rule: Controls, part: ControlVariate) -> None:
    """The two invariants of SCAFFOLD, with clients that come and go, straggle and are dropped."""
    method = Method(rule, objective=(Empirical(), Watch(), part))
    with TemporaryDirectory() as folder:
        run = states(
            BOWLS,
            method,
            rounds=len(RETURNING),
            cohorts=RETURNING,
            memory=Path(folder),
            failures={"straggle": 0.4, "work": 0.5, "drop": 0.2},
            model=Bowl,
            epochs=4,
            batch=2,
            lr=0.1,
            lr_decay=0.8,
        )
        for state in closed_in_time(run):
            everybody = kept(Path(folder), len(BOWLS))
            variates = [own.get("c", torch.zeros(2, dtype=torch.float64)) for own in everybody]
            torch.testing.assert_close(state["c"], sum(variates) / len(BOWLS), rtol=0, atol=1e-13)
            for own in everybody:
                if own:
                    torch.testing.assert_close(own["c"], own["gradients"], rtol=0, atol=1e-12)


def test_scaffolds_variates_are_the_mean_gradients_and_their_mean_at_any_participation() -> None:
    check_scaffold(Controls(Average()), ControlVariate(2))


class Flipped(ControlVariate):
    """g ← g − c + c_i"""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.sub_(rows_of(self.shift, w))


class Forgetful(ControlVariate):
    """Never stores c_i."""

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"c": torch.zeros_like(self._own)}


class FirstRate(ControlVariate):
    """Divides by the rate of the first round."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(replace(assignment, total_lr=assignment.local.lr * assignment.steps))


class ByEpochs(ControlVariate):
    """Divides by epochs in place of steps."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(replace(assignment, total_lr=assignment.round.lr * assignment.local.epochs))


class NextRate(ControlVariate):
    """Divides by a rate that was read after the scheduler's step."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(replace(assignment, total_lr=assignment.total_lr * assignment.local.lr_decay))


class OverCohort(Controls):
    """c ← c + mean_S (c_i⁺ − c_i), without 1/N"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        return {**super().step(state, totals, round), "c": state["c"] + totals["c"] / totals.count}


@pytest.mark.parametrize("part", [Flipped, Forgetful, FirstRate, ByEpochs, NextRate])
def test_a_mistake_in_a_clients_variate_breaks_an_invariant(part: type[ControlVariate]) -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        check_scaffold(Controls(Average()), part(2))


def test_a_mean_over_the_cohort_breaks_an_invariant() -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        check_scaffold(OverCohort(Average()), ControlVariate(2))


def test_scaffold_with_acg_moves_the_mean_update_by_momentum_from_the_lookahead_point() -> None:
    # Round 1 is plain SCAFFOLD's: m = θ = (8, 24). In round 2 all start from φ = θ + ½m = (12, 36), η = ¼:
    #   client 1: (12, −28) + (−8, 36) = (4, 8), w = (11, 34);  (11, −30) + (−8, 36) = (3, 6), w = (10.25, 32.5)
    #   client 2: (−4, 28) + (−8, −12) = (−12, 16), Δ_2 = (3, −4)
    #   m = ½(8, 24) + ½((−1.75, −3.5) + (3, −4)) = (4.625, 8.25);  θ = (8, 24) + m
    _, second = states(FOUR, "scaffold+acg", {"lam": 0.5}, cohorts=COHORTS, rounds=2, **LOCAL)
    exact(second["m"], 4.625, 8.25)
    exact(second["theta"], 12.625, 32.25)


def test_fedmoswa_over_two_rounds(tmp_path: Path) -> None:
    # γ = ½. Round 1 is SCAFFOLD's, and c = ½·mean(c_0, c_1) = (−8, −12) by chance the same; so are the
    # steps of round 2, c_1⁺ = (8, −39.5) and c_2⁺ = (−8, 16).
    # c = (−8, −12) + ½·½((16, −27.5) + (0, 28)) = (−4, −11.875).
    first, second = states(FOUR, "fedmoswa", {"gamma": 0.5}, cohorts=COHORTS, rounds=2, memory=tmp_path, **LOCAL)
    exact(first["c"], -8, -12)
    exact(second["theta"], 10, 24.375)
    exact(second["c"], -4, -11.875)
    exact(kept(tmp_path, 4)[1]["c"], 8, -39.5)


class ScaffoldsDifference(NewestVariate):
    """Sends c_i⁺ − c_i, as SCAFFOLD does."""

    def end(self, delta: Tensor, departure: Departure) -> None:
        departure.send("c", add_scaled(-self._c, delta, -1 / self._total_lr))

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return {"c": self._own + arrived("c")}


def test_scaffolds_difference_is_not_fedmoswas(monkeypatch: pytest.MonkeyPatch) -> None:
    # c_1⁺ − c_1 = (8, 24.5) in place of c_1⁺ − c: client 1 came before, so the second round tells them apart.
    def server(part: type[NewestVariate]) -> Tensor:
        monkeypatch.setattr("fedacg.methods.fedmoswa.NewestVariate", part)
        return list(states(FOUR, "fedmoswa", {"gamma": 0.5}, cohorts=COHORTS, rounds=2, **LOCAL))[-1]["c"]

    exact(server(NewestVariate), -4, -11.875)
    assert not torch.allclose(server(ScaffoldsDifference), server(NewestVariate), rtol=1e-2)


def test_fedmoswa_takes_rates_that_fall_within_a_round(tmp_path: Path) -> None:
    # Two steps of ½ and ¼ at c = (32, 0): w = 16, then 20; c_i⁺ = −20/(½ + ¼), the mean of −32 and −16 by rates.
    (state,) = states([client((32, 0))], "fedmoswa", steps=2, lr=0.5, within="linear", memory=tmp_path)  # type: ignore[arg-type]
    exact(state["theta"], 20, 0)
    torch.testing.assert_close(kept(tmp_path, 1)[0]["c"], torch.tensor([-80 / 3, 0]).double())


@pytest.mark.parametrize(("mu", "theta"), [(0.0, (12, 24)), (1.0, (8, 16))])
def test_feddane_steps_with_the_gradient_of_all(mu: float, theta: tuple[float, float]) -> None:
    # ∇f_0(0) = (−32, 0), ∇f_1(0) = (0, −64), ḡ = (−16, −32). Both clients step to (8, 16) by ½ḡ. There
    #   client 0: (−24, 16) + ḡ − (−32, 0) = (−8, −16);   client 1: (8, −48) + ḡ − (0, −64) = (−8, −16)
    # so that both end at (12, 24); with μ = 1 the pull (8, 16) cancels the second step.
    (state,) = states(TWO, "feddane", {"mu": mu}, lr=0.5, steps=2)
    exact(state["theta"], *theta)


class FlippedShift(GradientShift):
    """g ← g − ḡ + ∇f_i(φ)"""

    def correct(self, g: Tensor, w: Tensor) -> None:
        g.sub_(rows_of(self.shift, w))


def test_feddane_on_uneven_steps_sees_a_flipped_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    # ω = ¼, ¾ and ḡ = ¼(−32, 0) + ¾(0, −64) = (−8, −48). Client 0 steps once, to −½ḡ = (4, 24). Client 1 steps
    # there and on, by (4, −40) + ḡ − (0, −64) = (−4, −24), to (6, 36). θ = ¼(4, 24) + ¾(6, 36). Where all take as
    # many steps on bowls of one curvature, the shifts cancel in the mean, and the sign does not show.
    (state,) = states(FOUR, "feddane", {"mu": 0.0}, cohorts=COHORTS[:1], rounds=1, **LOCAL)
    exact(state["theta"], 5.5, 33)
    monkeypatch.setattr("fedacg.methods.feddane.GradientShift", FlippedShift)
    (flipped,) = states(FOUR, "feddane", {"mu": 0.0}, cohorts=COHORTS[:1], rounds=1, **LOCAL)
    assert not torch.allclose(flipped["theta"], state["theta"], rtol=1e-2)


def test_feddane_of_one_client_is_fedavg_to_the_bit() -> None:
    local = {"cohorts": [[0], [2]], "rounds": 2, "model": Bowl, "lr": 0.3, "epochs": 3}
    one, other = (list(states(BOWLS, name, **local))[-1]["theta"] for name in ("feddane", "fedavg"))  # type: ignore[arg-type]
    assert torch.equal(one, other)


def test_fedgate_over_two_rounds(tmp_path: Path) -> None:
    # Round 1: Δ_0 = (16, 0), Δ_1 = (0, 32), θ = (8, 16);  −Δ_i/(½·1) = (−32, 0) and (0, −64), whose mean is
    # (−16, −32), so δ_0 = (−16, 32) and δ_1 = (16, −32).
    # Round 2: (−24, 16) − δ_0 = (−8, −16) = (8, −48) − δ_1: both move by (4, 8), as the gradient of all would.
    first, second = states(TWO, "fedgate", rounds=2, lr=0.5, memory=tmp_path)
    exact(first["theta"], 8, 16)
    exact(first["mean"], -16, -32)
    exact(second["theta"], 12, 24)
    exact(second["mean"], -8, -16)
    exact(kept(tmp_path, 2)[0]["tracked"], -24, 16)


def check_gate(method: Method, clients: Sequence[tuple[Tensor, Tensor]] = BOWLS) -> None:
    """Σ_i δ_i = 0 after every round in which everybody took part, whatever their sizes and steps."""
    with TemporaryDirectory() as folder:
        run = states(
            clients, method, rounds=5, memory=Path(folder), model=Bowl, epochs=3, batch=2, lr=0.1, lr_decay=0.7
        )
        for state in closed_in_time(run):
            tracked = sum(own["tracked"] for own in kept(Path(folder), len(clients)))
            torch.testing.assert_close(tracked, state["mean"] * len(clients), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fedgate", "fedcomgate", "fedgate+acg", "fedgate+topk", "fedgate+sign"])
def test_what_fedgate_tracks_sums_to_zero(name: str) -> None:
    check_gate(methods.build(name))


class Weighted(MeanDirection):
    """A mean by examples in place of the plain one."""

    def collect(self, reply: Reply) -> Mapping[str, Term]:
        return {**super().collect(reply), "mean": (reply.delta, -reply.weight / reply.total_lr)}


class Unsent(GradientTracking):
    """Tracks Δ_i as it was, not as it arrived."""

    def end(self, delta: Tensor, departure: object) -> None:
        self._sent = delta.clone()

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return super().keep(lambda name: self._sent)


def test_a_mean_by_examples_or_of_what_was_not_sent_does_not_sum_to_zero() -> None:
    coarse = methods.build("fedgate+sign").upload
    for rule, part in ((Weighted(Average()), GradientTracking()), (MeanDirection(Average()), Unsent())):
        with pytest.raises(AssertionError, match="Tensor-likes are not close"):
            check_gate(Method(rule, objective=(Empirical(), part), upload=coarse))
