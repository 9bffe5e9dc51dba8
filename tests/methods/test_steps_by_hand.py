"""Methods that change where a local step goes, or where it starts: rounds by hand, and known mistakes."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedacg import methods
from fedacg.core.round import Message, Round
from fedacg.core.vector import FlatModel
from fedacg.methods.fedadc import DriftControl, EmbeddedMomentum
from fedacg.methods.fedinit import RelaxedStart
from fedacg.methods.fedlesam import GlobalAscent
from fedacg.methods.ghbm import PastModels
from fedacg.methods.method import Method
from fedacg.methods.mime import GradientMomentum, ServerMomentum
from fedacg.methods.parts import Empirical
from fedacg.methods.rules import Average, State, Totals
from fedacg.methods.sam import AdaptiveAscent, Ascent
from fedacg.methods.visit import Assignment, Departure, keep_point
from support.quadratics import client, kept, states

ONE = [client((32, 0))]
CLIPPED = 10 / (55 + 1e-6)
"""What a clip to 10 leaves of a gradient of length 55, by PyTorch's convention."""
TWO = [client((32, 0)), client((0, 64))]


def near(actual: Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("local", "theta"),
    [({}, (16.5, 22.0)), ({"clip": 10.0}, (16.5 * CLIPPED, 22 * CLIPPED)), ({"steps": 2}, (24.75, 33.0))],
)
def test_fedsam_descends_from_the_top_of_a_ball(local: dict[str, float], theta: tuple[float, float]) -> None:
    # At w = 0 the gradient is (−30, −40), of length 50, so ε = 5·(−0.6, −0.8) and G = ε − (30, 40) = (−33, −44);
    # w = ½(33, 44). Clipped to length 10, G is (−6, −8). In a second step g = (−13.5, −18) points the same way,
    # G = (−16.5, −22) and w = (24.75, 33).
    (state,) = states([client((30, 40))], "fedsam", {"rho": 5}, lr=0.5, **local)
    near(state["theta"], *theta)


def test_weight_decay_takes_no_part_in_the_ascent() -> None:
    # At w = (10, 0), c = (40, 40): ε = 5·(−0.6, −0.8), G = (10, 0) + ε − c = (−33, −44), and with the decay ½w
    # (−28, −44): w = (10, 0) + ½(28, 44). A decay in the ascent would turn ε towards (−25, −40).
    (state,) = states([client((40, 40))], "fedsam", {"rho": 5}, lr=0.5, weight_decay=0.5, start=(10, 0))
    near(state["theta"], 24, 22)


class Quadratic:
    """½‖x‖² as a gradient of a step, at the points that it is asked for."""

    def __init__(self, w: Tensor) -> None:
        self._w = w
        self.asked: list[Tensor] = []

    def __call__(self, at: Tensor | None = None) -> Tensor:
        self.asked.append(self._w if at is None else at)
        return self.asked[-1].clone()

    last = __call__


def test_rows_ascend_by_their_own_norms() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
    step = Ascent(1.0)
    step.begin(SimpleNamespace(scratch=torch.empty_like(rows)))  # type: ignore[arg-type]
    found = step.direction(Quadratic(rows), rows)
    near(found.view(-1), 3.6, 4.8, 0, -3, 0, 0)


def test_a_ball_of_no_size_costs_one_gradient() -> None:
    w = torch.ones(3)
    gradient = Quadratic(w)
    assert torch.equal(Ascent(0.0).direction(gradient, w), w)
    assert len(gradient.asked) == 1


def test_asam_scales_the_ball_by_weights_and_not_by_biases() -> None:
    # A linear map with weights (3, −4) and bias 5, η_a = 1: T = (4, 5, 1). At g = w: Tg = (12, −20, 5),
    # ‖Tg‖² = 569, ε = ρ T²g/‖Tg‖ = ρ(48, −100, 5)/√569.
    w = torch.tensor([3.0, -4.0, 5.0], dtype=torch.float64)
    step = AdaptiveAscent(rho=2.0, eta=1.0)
    linear = FlatModel(nn.Linear(2, 1).double())
    step.begin(SimpleNamespace(flat=linear, scratch=torch.empty_like(w)))  # type: ignore[arg-type]
    expected = w + 2 * torch.tensor([48, -100, 5]).double() / 569**0.5
    torch.testing.assert_close(step.direction(Quadratic(w), w), expected)


def test_fedinit_starts_beyond_the_broadcast_point(tmp_path: Path) -> None:
    # β = ½, η = ½, one step. Round 1: w_0 = (16, 0), w_1 = (0, 32), θ = (8, 16).
    # Round 2, client 0 alone: it starts at (8, 16) + ½((8, 16) − (16, 0)) = (4, 24), where g = (−28, 24), and ends
    # at (18, 12): Δ_0 = (14, −12), θ = (22, 4).
    _, second = states(TWO, "fedinit", {"beta": 0.5}, lr=0.5, rounds=2, cohorts=[[0, 1], [0]], memory=tmp_path)
    near(second["theta"], 22, 4)
    near(kept(tmp_path, 2)[0]["ended"], 18, 12)


class FromPhi(RelaxedStart):
    """Δ_i = w_i − φ"""

    def start(self, point: Tensor) -> Tensor:
        self._phi = point
        return super().start(point)

    def end(self, delta: Tensor, departure: Departure) -> None:
        super().end(delta, departure)
        departure.send("delta", self._ended - self._phi)


def test_an_update_from_the_broadcast_point_takes_the_relaxation_to_the_server() -> None:
    method = Method(Average(), objective=(Empirical(), FromPhi(0.5)))
    _, second = states(TWO, method, lr=0.5, rounds=2, cohorts=[[0, 1], [0]])
    near(second["theta"], 18, 12)  # and not (22, 4)


LESAM = [client((12, 0)), client((0, 16))]
"""Round 1 takes both half-way: θ = (3, 4), of length 5."""


def test_fedlesam_ascends_the_way_the_global_model_came(tmp_path: Path) -> None:
    # Round 2, client 0: φ_old − φ = (−3, −4), ρ = 5: ε = (−3, −4), so g is taken at 0: (−12, 0),
    # w = (3, 4) + (6, 0).
    # Round 3, client 1, whose φ_old is that of round 1, 0 and not (3, 4): back = (−9, −4), length √97.
    rounds = list(
        states(LESAM, "fedlesam", {"rho": 5}, lr=0.5, rounds=3, cohorts=[[0, 1], [0], [1]], memory=tmp_path)
    )
    near(rounds[0]["theta"], 3, 4)
    near(rounds[1]["theta"], 9, 4)
    ascent = -5 / 97**0.5
    near(rounds[2]["theta"], 9 - 0.5 * (9 + 9 * ascent), 4 - 0.5 * (4 + 4 * ascent - 16))
    near(kept(tmp_path, 2)[0]["sent"], 3, 4)


class Downhill(GlobalAscent):
    """ε = ρ(φ − φ_old)/‖·‖, the sign flipped"""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self._ascent = -self._ascent


class EveryRound(GlobalAscent):
    """Takes the last round's model for that of the client's last visit."""

    def keep(self, arrived: Callable[[str], Tensor]) -> Message:
        return keep_point("sent", torch.tensor([3.0, 4.0], dtype=torch.float64))


@pytest.mark.parametrize("step", [Downhill, EveryRound])
def test_a_flipped_or_another_clients_ascent_is_seen(step: type[GlobalAscent]) -> None:
    method = Method(Average(), step=step(5.0))
    rounds = list(states(LESAM, method, lr=0.5, rounds=3, cohorts=[[0, 1], [0], [1]]))
    expected = list(states(LESAM, "fedlesam", {"rho": 5}, lr=0.5, rounds=3, cohorts=[[0, 1], [0], [1]]))
    assert not torch.allclose(rounds[-1]["theta"], expected[-1]["theta"])


def test_fedadc_over_two_rounds() -> None:
    # β_l = β_g = ½, K = 2, η = ½. Round 1, m = 0: w = 16, then 24: m = −24/½ = −48, θ = 24.
    # Round 2, m̄ = ½·(−48)/2 = −12: −8 − 12 = −20, w = 34;  2 − 12 = −10, w = 39;  m = −15/½ + 0 = −30, θ = 39.
    # m = β_g m + Σ g = −24 + (−8 + 2) as well.
    options = {"beta_local": 0.5, "beta_global": 0.5}
    first, second = states(ONE, "fedadc", options, lr=0.5, steps=2, rounds=2)
    near(first["m"], -48, 0)
    near(second["m"], -30, 0)
    near(second["theta"], 39, 0)


UNEVEN = [client((32, 0)), client((0, 64), (0, 64), (0, 64)), client((16, 8))]


def accumulated(part: type[EmbeddedMomentum]) -> bool:
    """Whether m ← β_g m + the gradients' sum at uneven K, by β_l = 0 and β_l = β_g: one step from the same m."""
    run = {}
    for local in (0.0, 0.75):
        method = Method(DriftControl(local, 0.75, 1.0), objective=(Empirical(), part(local)))
        run[local] = list(states(UNEVEN, method, batch=2, lr=2**-20, rounds=2))[1]["m"]
    # At a rate of next to nothing the gradients of both are the same, and so must m be.
    return torch.allclose(run[0.0], run[0.75], rtol=1e-4)


class SameSteps(EmbeddedMomentum):
    """Divides by one K for all, in place of each client's own."""

    def begin(self, assignment: Assignment) -> None:
        super().begin(assignment)
        self.shift = assignment.broadcast["m"] * self.beta


def test_fedadcs_momentum_has_the_global_factor_whatever_clients_take_along() -> None:
    assert accumulated(EmbeddedMomentum)
    assert not accumulated(SameSteps)


def test_ghbm_over_three_rounds() -> None:
    # β = ½, τ = 2, K = 2, η = ½; θ_0 = 0. Round 1: D = 0, θ = 24.
    # Round 2: D = (24 − 0)/2 = 12, ¼·12 = 3 a step: 24 + 4 + 3 = 31, 31 + ½ + 3 = 34.5.
    # Round 3: D = (34.5 − 0)/2 = 17.25, 4.3125 a step: 34.5 − 1.25 + 4.3125 = 37.5625,
    #   37.5625 − 2.78125 + 4.3125 = 39.09375.   Round 4: D = (39.09375 − 24)/2, of the model after round 1.
    rounds = list(states(ONE, "ghbm", {"beta": 0.5, "tau": 2}, lr=0.5, steps=2, rounds=4))
    assert [float(state["theta"][0]) for state in rounds[:3]] == [24, 34.5, 39.09375]
    w = 39.09375
    for _ in range(2):
        w = w - 0.5 * (w - 32) + 0.25 * (39.09375 - 24) / 2
    near(rounds[3]["theta"], w, 0)


class WholeWay(PastModels):
    """D = θ_t − θ_{t−τ}, not divided by τ"""

    def broadcast(self, state: State, round: Round) -> dict[str, Tensor]:
        sent = super().broadcast(state, round)
        return {**sent, "way": sent["way"] * self.tau}


def test_ghbms_way_is_the_mean_of_the_last_rounds_and_not_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    # Round 2 with D = 24 and not 12: 6 a step, 24 + 4 + 6 = 34, 34 − 1 + 6 = 39.
    monkeypatch.setattr("fedacg.methods.ghbm.PastModels", WholeWay)
    *_, second = states(ONE, "ghbm", {"beta": 0.5, "tau": 2}, lr=0.5, steps=2, rounds=2)
    assert float(second["theta"][0]) == 39


@pytest.mark.parametrize("name", ["mime", "mimelite"])
def test_mime_over_two_rounds(name: str) -> None:
    # β = ½, η = ½, K = 2, full batches, gradients w − c_i; their mean at 0 is (−16, −32).
    # Mime, round 1: both clients step by ½(16, 32), then by ½(8, 16): θ = (12, 24);  m = (−16, −32).
    # Round 2: c = (12, 24) − (16, 32) = (−4, −8), ½m = (−8, −16): steps of ½(12, 24) and ½(6, 12): θ = (21, 42);
    #   m = ½(−16, −32) + (−4, −8) = (−12, −24).
    # MimeLite's clients go other ways, but as gradients are linear here the mean of their ways is the same.
    first, second = states(TWO, name, {"beta": 0.5}, lr=0.5, steps=2, rounds=2)
    near(first["theta"], 12, 24)
    near(first["momentum"], -16, -32)
    near(second["theta"], 21, 42)
    near(second["momentum"], -12, -24)


def test_every_client_of_mime_takes_the_same_first_step() -> None:
    # β = 0 and full batches: −ηc for everyone, so of one step θ moves by it whoever is weighed how.
    (state,) = states([*TWO, *TWO[:1]], "mime", {"beta": 0.0}, lr=0.5)
    near(state["theta"], 0.5 * 64 / 3, 0.5 * 64 / 3)


class ByUpdate(GradientMomentum):
    """m ← βm − Δ/η, by the update in place of the full gradient"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        m = self.beta * state["momentum"] - totals["delta"] / round.lr
        return {**super().step(state, totals, round), "momentum": m}


def test_a_momentum_of_updates_is_not_mimes() -> None:
    rule = ByUpdate(0.5, Average(), sends_gradient=False)
    first, _ = states(TWO, Method(rule, objective=(Empirical(), ServerMomentum(0.5))), lr=0.5, steps=2, rounds=2)
    near(first["momentum"], -24, -48)  # and not (−16, −32)


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("fedsam", "fedavg+sam"),
        ("fedasam", "fedavg+asam"),
        ("mofedsam", "fedcm+sam"),
        ("fedspeed", "feddyn+sam"),
        ("fedgamma", "scaffold+sam"),
        ("fednsam", "fedavg+acg+sam"),
        ("fedinit", "fedavg+ri"),
        ("fedcams", "fedams+sign"),
        ("fedcomgate", "fedgate+paq:bits=8"),
    ],
)
def test_names_of_their_own_are_the_combinations_they_stand_for(name: str, spelled: str) -> None:
    spelled, _, bits = spelled.partition(":bits=")
    options = {"bits": float(bits)} if bits else {}
    one, other = methods.build(name), methods.build(spelled, options)
    assert one.summary == other.summary
    ends = []
    for which, given in ((name, {}), (spelled, options)):
        ends.append(list(states(UNEVEN, which, given, rounds=3, batch=2, lr=0.25))[-1]["theta"])
    assert torch.equal(*ends)
