"""FedSMOO, FedSOL and FedGMT: against plain formulas in float64, what they are equal to, and their mistakes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedacg.methods import fedgmt
from fedacg.methods.fedgmt import Trajectory
from fedacg.methods.parts import Forward
from fedacg.models import StagedModel
from support.quadratics import client, kept, states
from support.staged import dealt, job, rounds, tanh_net
from support.visits import visit

TWO = [client((8, 0)), client((0, 16))]
CLIENTS = dealt([0, 0, 1, 1, 2], [1, 2, 2, 0], [0, 1, 3, 2, 2, 2])


def exact(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == list(expected)


def test_fedsmoo_over_two_rounds(tmp_path: Path) -> None:
    # α = η = ρ = ½, one step. Round 1, all states zero: ε = ½ g/‖g‖.
    #   client 0: g = (−8, 0), ε = (−½, 0) = μ_0, G = (−8.5, 0), Δ_0 = (4.25, 0)
    #   client 1: μ_1 = (0, −½), Δ_1 = (0, 8.25)
    #   h = −¼(4.25, 8.25), θ = ½(4.25, 8.25) − 2h = (4.25, 8.25);   s = ½ (−1, −1)/√2
    first, _ = states(TWO, "fedsmoo", {"alpha": 0.5, "rho": 0.5}, rounds=2, lr=0.5, memory=tmp_path)
    exact(first["theta"], 4.25, 8.25)
    exact(first["h"], -1.0625, -2.0625)
    s = -0.5 / math.sqrt(2)
    assert first["s"].tolist() == pytest.approx([s, s], abs=1e-15)
    # Round 2, client 0 at φ = (4.25, 8.25) with g_0 = −½Δ_0 = (−2.125, 0) and μ_0 = (−½, 0):
    u = (4.25 - 8 + 0.5 - s, 8.25 - 0 - s)
    epsilon = [0.5 * each / math.hypot(*u) for each in u]
    big = (4.25 + epsilon[0] - 8 + 2.125, 8.25 + epsilon[1])
    mine, _ = kept(tmp_path, 2)
    assert mine["mu"].tolist() == pytest.approx([-0.5 + epsilon[0] - s, epsilon[1] - s], abs=1e-14)
    delta = [-0.5 * each for each in big]
    assert mine["g"].tolist() == pytest.approx([-2.125 - 0.5 * delta[0], -0.5 * delta[1]], abs=1e-14)
    # The mistake of adding ε alone to the dual would leave the second coordinate without −s.
    assert abs(s) > 0.3


def test_fedsmoos_agreed_perturbation_has_length_rho_at_any_participation() -> None:
    cohorts = [[0, 1], [2], [0, 2], [1]]
    for state in rounds(job(tanh_net(), CLIENTS, "fedsmoo", {"rho": 0.3}, batch=2), cohorts):
        assert float(state["s"].norm()) == pytest.approx(0.3, abs=1e-12)


@pytest.mark.parametrize(
    ("method", "options", "base"),
    [
        ("fedsmoo", {"rho": 0}, "feddyn"),
        ("fedgmt", {"gamma": 0}, "feddyn"),
        ("fedsol", {"rho": 0}, "fedavg"),
        ("fedsol+acg", {"rho": 0}, "fedavg+acg"),
    ],
)
def test_neutral_settings_are_their_base_to_the_bit(method: str, options: dict[str, float], base: str) -> None:
    run, plain = (
        list(rounds(job(tanh_net(), CLIENTS, name, given, batch=2, epochs=2), [[0, 1], [1, 2], [0, 2]]))[-1]
        for name, given in ((method, options), (base, {}))
    )
    assert torch.equal(run["theta"], plain["theta"])


def test_fedsol_perturbs_what_has_moved_along_the_gradient_of_the_divergence() -> None:
    model, (x, y) = tanh_net(), CLIENTS[0]
    flat = [p.detach().clone() for p in model.parameters()]

    def at(parameters: list[Tensor], logits_of: StagedModel = model) -> Tensor:
        names = [name for name, _ in logits_of.named_parameters()]
        found: Tensor = torch.func.functional_call(logits_of, dict(zip(names, parameters, strict=True)), (x,))
        return found

    def gradient(loss: Tensor, parameters: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(loss, parameters))

    teacher = torch.softmax(at(flat), dim=1).detach()
    w = [p.clone() for p in flat]
    for _ in range(3):
        live = [p.clone().requires_grad_() for p in w]
        student = torch.softmax(at(live), dim=1)
        p = gradient((teacher * (teacher / student).log()).sum(dim=1).mean(), live)
        norm = torch.cat([each.reshape(-1) for each in p]).norm() + 1e-16
        moved = [0.7 * (a - b).abs() * each / norm for a, b, each in zip(w, flat, p, strict=True)]
        shifted = [(a + e).requires_grad_() for a, e in zip(w, moved, strict=True)]
        g = gradient(cross_entropy(at(shifted), y), shifted)
        w = [a - 0.5 * each for a, each in zip(w, g, strict=True)]
    (found,) = rounds(job(model, CLIENTS[:1], "fedsol", {"rho": 0.7}, steps=3), [[0]])
    expected = torch.cat([each.detach().reshape(-1) for each in w])
    torch.testing.assert_close(found["theta"], expected, rtol=1e-10, atol=1e-12)
    (plain,) = rounds(job(model, CLIENTS[:1], "fedavg", {}, steps=3), [[0]])
    assert not torch.allclose(found["theta"], plain["theta"], atol=1e-6)


def test_fedsol_with_one_step_is_fedavg_to_the_bit() -> None:
    (run,), (plain,) = (
        rounds(job(tanh_net(), CLIENTS, name, {}, steps=1), [[0, 1, 2]]) for name in ("fedsol", "fedavg")
    )
    assert torch.equal(run["theta"], plain["theta"])


def test_fedgmt_averages_the_models_of_the_rounds() -> None:
    model = tanh_net()
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    states_ = list(rounds(job(model, CLIENTS, "fedgmt", {"decay": 0.75}), [[0, 1], [2], [1]]))
    average = start
    for state in states_:
        average = 0.75 * average + 0.25 * state["theta"]
        torch.testing.assert_close(state["average"], average, rtol=1e-13, atol=1e-14)


def test_fedgmt_distils_from_the_average_and_not_from_the_broadcast_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = tanh_net(), tanh_net()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    x, y = CLIENTS[0]
    average = torch.cat([p.detach().reshape(-1) for p in other.parameters()])
    part, assignment = Trajectory(0.5, 3.0), visit(model, {"average": average})
    part.begin(assignment)
    found = float(part(Forward(assignment.flat.module, x, y)).detach())
    with torch.no_grad():
        p, q = (torch.softmax(each(x) / 3, dim=1) for each in (other, model))
    assert found == pytest.approx(0.5 * float((p * (p / q).log()).sum(dim=1).mean()), abs=1e-12)

    def from_the_broadcast(self: Trajectory, assignment: object) -> None:
        self._teacher = assignment.copies.load("x", assignment.phi, assignment.broadcast["buffers"])  # type: ignore

    monkeypatch.setattr(fedgmt.Trajectory, "begin", from_the_broadcast)
    part.begin(assignment)
    assert float(part(Forward(assignment.flat.module, x, y)).detach()) == pytest.approx(0, abs=1e-12)
