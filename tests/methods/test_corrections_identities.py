"""Identities of FedDyn and FedDC in float64: two forms of one rule, states that add up, and the exact optimum."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.quadratics import Bowl, client, kept, states

CLIENTS = [
    client((1, 0), (3, 1)),
    client((0, 2)),
    client((-1, 4), (2, 2), (0, 0)),
    client((5, -3)),
    client((2, 2), (1, -1)),
]
COHORTS = [[0, 1], [2, 3], [1, 2, 3], [0], [1, 3], [0, 2], [2, 1, 0]]
"""Client 4 never takes part, and counts in N all the same."""
LOCAL = {"batch": 1, "epochs": 2, "lr": 0.2, "lr_decay": 0.9, "start": (3.0, -2.0)}


def mean_over_everybody(folder: Path, name: str) -> Tensor:
    """(1/N) Σ over all N clients of what they kept; zero for who never took part."""
    zero = torch.zeros(2, dtype=torch.float64)
    return torch.stack([state.get(name, zero) for state in kept(folder, len(CLIENTS))]).mean(dim=0)


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_feddyns_h_is_the_mean_of_all_clients_states(tmp_path: Path) -> None:
    for state in states(CLIENTS, "feddyn", {"alpha": 0.3}, cohorts=COHORTS, rounds=7, memory=tmp_path, **LOCAL):
        same(state["h"], mean_over_everybody(tmp_path, "g"))


def test_feddyns_two_forms_are_one(tmp_path: Path) -> None:
    # θ = mean_S(w_i) − h/α is mean_S(w_i) + mean_N(−g_i/α). The points w_i of a round follow from what clients
    # kept: Δ_i = (g_i − g_i⁺)/α, w_i = φ + Δ_i, φ = θ of the round before.
    alpha, zero = 0.3, torch.zeros(2, dtype=torch.float64)
    phi = torch.tensor(LOCAL["start"], dtype=torch.float64)
    before = [zero] * len(CLIENTS)
    played = states(CLIENTS, "feddyn", {"alpha": alpha}, cohorts=COHORTS, rounds=7, memory=tmp_path, **LOCAL)
    for cohort, state in zip(COHORTS, played, strict=True):
        after = [found.get("g", zero) for found in kept(tmp_path, len(CLIENTS))]
        points = [phi + (before[i] - after[i]) / alpha for i in cohort]
        same(state["theta"], torch.stack(points).mean(dim=0) - torch.stack(after).mean(dim=0) / alpha)
        phi, before = state["theta"], after


def test_feddcs_g_and_h_are_the_means_of_all_clients_states(tmp_path: Path) -> None:
    for state in states(CLIENTS, "feddc", {"alpha": 0.3}, cohorts=COHORTS, rounds=7, memory=tmp_path, **LOCAL):
        for name in ("g", "h"):
            same(state[name], mean_over_everybody(tmp_path, name))


def bowl(centre: tuple[float, float], curvature: tuple[float, float], examples: int) -> tuple[Tensor, Tensor]:
    row = torch.cat([torch.tensor(centre), torch.tensor(curvature).sqrt()]).double()
    return row.repeat(examples, 1), torch.zeros(examples, dtype=torch.float64)


CENTRES = [(1.0, 0.0), (0.0, 2.0), (-2.0, 5.0), (4.0, -3.0)]
CURVATURES = [(1.0, 4.0), (4.0, 1.0), (0.25, 2.25), (2.25, 0.25)]
BOWLS = [bowl(c, a, n) for c, a, n in zip(CENTRES, CURVATURES, (1, 2, 1, 3), strict=True)]


def distance(method: str, options: dict[str, float], rounds: int, cohorts: list[list[int]] | None = None) -> float:
    """How far from the optimum of Σ_i F_i, which is Σ a_i c_i / Σ a_i: every client counts the same."""
    a, c = (torch.tensor(values, dtype=torch.float64) for values in (CURVATURES, CENTRES))
    optimum = (a * c).sum(dim=0) / a.sum(dim=0)
    played = states(
        BOWLS,
        method,
        options,
        rounds=rounds,
        cohorts=cohorts,
        model=Bowl,
        lr=0.1,
        epochs=4,
        batch=1,
        weights="uniform",
    )
    *_, last = played
    return float(torch.linalg.vector_norm(last["theta"] - optimum))


@pytest.mark.parametrize(("method", "alpha"), [("feddyn", 1.0), ("feddc", 1.0)])
def test_corrected_clients_meet_at_the_exact_optimum(method: str, alpha: float) -> None:
    # Four to twelve local steps on bowls of unlike curvature: where FedAvg stops, clients still pull apart.
    assert distance(method, {"alpha": alpha}, rounds=100) < 1e-9


@pytest.mark.parametrize("method", ["feddyn", "feddc"])
def test_half_of_the_clients_a_round_are_enough(method: str) -> None:
    # FedDC with drifts averaged over the cohort, as in the text of its paper, wanders off here.
    pairs = random.Random(1)
    cohorts = [pairs.sample(range(4), 2) for _ in range(220)]
    assert distance(method, {"alpha": 1.0}, rounds=220, cohorts=cohorts) < 1e-9


def test_fedavg_with_the_same_local_steps_does_not() -> None:
    settled = [distance("fedavg", {}, rounds) for rounds in (40, 50)]
    assert settled[0] == pytest.approx(settled[1], abs=1e-12), "it has come to rest"
    assert settled[1] > 0.1
