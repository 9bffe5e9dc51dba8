"""One or two rounds of each method with a loss of its own against numbers worked out by hand, in float64.

The network has two parameters, a and b: its stage shears (x₁, x₂) to the features h = (x₁, x₂ + a·x₁), and its
head makes three logits of them, z = (u, 0, −u) with u = b·h₂. For x = (1, 0) the features are (1, a) and u = ab.

With e^u = 2 the softmax of z is (2, 1, ½)/3.5 = (4, 2, 1)/7, so for the label 0

    ∂CE/∂z = (4/7 − 1, 2/7, 1/7)   and   ∂CE/∂u = −3/7 − 1/7 = −4/7,   as ∂z/∂u = (1, 0, −1)

Everything starts at a = 1, b = ln 2, and η = ½.
"""

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor, nn

from fedacg.models import StagedModel
from support.staged import Pair, job, rounds

LN2 = log(2)


class Shear(nn.Module):
    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([a], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack((x[:, 0], x[:, 1] + self.a * x[:, 0]), dim=1)


class Head(nn.Module):
    def __init__(self, b: float) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.tensor([b], dtype=torch.float64))

    def forward(self, h: Tensor) -> Tensor:
        u = self.b * h[:, 1]
        return torch.stack((u, torch.zeros_like(u), -u), dim=1)


def client(*examples: tuple[float, float, int]) -> Pair:
    """(x₁, x₂, label) of each example."""
    x = torch.tensor([example[:2] for example in examples], dtype=torch.float64)
    return x, torch.tensor([example[2] for example in examples])


ONE = client((1, 0, 0), (1, 0, 0))
"""A client with nothing but (1, 0) of class 0."""
OTHER = client((1, 0, 2))
"""Another, of class 2, to be tested on: so three classes are known of."""


def after(
    method: str, options: dict[str, float], data: Pair = ONE, *, a: float = 1.0, b: float = LN2, **local: float
) -> list[tuple[float, float]]:
    """(a, b) of the server after each round; there are as many as `count` says."""
    count = int(local.pop("count", 1))
    work = job(StagedModel([Shear(a)], Head(b)), [data, OTHER], method, options, **local)
    return [tuple(state["theta"].tolist()) for state in rounds(work, [[0]] * count)]


def softmax(u: float) -> tuple[float, float, float]:
    """Of the logits (u, 0, −u)."""
    total = exp(u) + 1 + exp(-u)
    return exp(u) / total, 1 / total, exp(-u) / total


def slope(u: float) -> float:
    """∂CE/∂u for the label 0."""
    p = softmax(u)
    return (p[0] - 1) - p[2]


def test_the_network_has_the_gradient_that_the_numbers_below_rest_on() -> None:
    # ∂CE/∂a = b·∂CE/∂u = −(4/7) ln 2, ∂CE/∂b = a·∂CE/∂u = −4/7; η = ½ moves by half of it.
    assert slope(LN2) == pytest.approx(-4 / 7, abs=1e-15)
    (found,) = after("fedavg", {})
    assert found == pytest.approx((1 + 2 / 7 * LN2, LN2 + 2 / 7), abs=1e-14)


def test_moon_turns_features_away_from_the_clients_last_ones() -> None:
    # μ = 3, T = ½, η_g = ½, one step per round.
    # Round 1: z_p = z_g, so the step is FedAvg's: w = (1 + 2/7 ln 2, ln 2 + 2/7), which the client keeps, and
    #   θ = φ + ½Δ = (1 + 1/7 ln 2, ln 2 + 1/7).
    # Round 2 starts at φ = θ, features (1, a) with a = 1 + 1/7 ln 2; the kept ones are (1, p), p = 1 + 2/7 ln 2.
    #   s_g = 1 is at its largest, so ∂s_g/∂a = 0.
    #   s_p = (1 + ap)/(√(1 + a²)·√(1 + p²)), ∂s_p/∂a = (p − a)/((1 + a²)^{3/2}·√(1 + p²))
    #   ∂/∂a of μ log(1 + e^{(s_p − s_g)/T}) = μ/T · σ((s_p − s_g)/T) · ∂s_p/∂a,  σ(t) = 1/(1 + e^{−t})
    #   b is not in the features and gets CE's gradient alone.
    mu, temperature = 3.0, 0.5
    a, b, p = 1 + LN2 / 7, LN2 + 1 / 7, 1 + 2 * LN2 / 7
    s_p = (1 + a * p) / (sqrt(1 + a**2) * sqrt(1 + p**2))
    slope_p = (p - a) / ((1 + a**2) ** 1.5 * sqrt(1 + p**2))
    term = mu / temperature / (1 + exp((1 - s_p) / temperature)) * slope_p
    da, db = b * slope(a * b) + term, a * slope(a * b)
    first, second = after("moon", {"mu": mu, "temperature": temperature, "server_lr": 0.5}, count=2)
    assert first == pytest.approx((a, b), abs=1e-14)
    assert second == pytest.approx((a - 0.5 * 0.5 * da, b - 0.5 * 0.5 * db), abs=1e-14)
    assert abs(term) > 0.01, "the term is not too small to be seen"


def test_moon_draws_features_towards_the_broadcast_ones() -> None:
    # As above, with two steps in round 2. Before the second step the features (1, a′) have left (1, a), so s_g
    # has a slope as well: ∂/∂a′ = μ/T · σ((s_p − s_g)/T) · (∂s_p/∂a′ − ∂s_g/∂a′).
    mu, temperature, lr = 3.0, 0.5, 0.5

    def cosine(a: float, other: float) -> tuple[float, float]:
        norms = sqrt(1 + a**2) * sqrt(1 + other**2)
        return (1 + a * other) / norms, (other - a) / (norms * (1 + a**2))

    def steps(phi: tuple[float, float], kept: float | None) -> tuple[float, float]:
        a, b = phi
        for _ in range(2):
            (s_g, slope_g), (s_p, slope_p) = cosine(a, phi[0]), cosine(a, phi[0] if kept is None else kept)
            term = mu / temperature / (1 + exp((s_g - s_p) / temperature)) * (slope_p - slope_g)
            a, b = a - lr * (b * slope(a * b) + term), b - lr * a * slope(a * b)
        return a, b

    kept = steps((1.0, LN2), None)
    phi = ((1 + kept[0]) / 2, (LN2 + kept[1]) / 2)
    end = steps(phi, kept[0])
    options = {"mu": mu, "temperature": temperature, "server_lr": 0.5}
    first, second = after("moon", options, count=2, steps=2)
    assert first == pytest.approx(phi, abs=1e-14)
    assert second == pytest.approx(((phi[0] + end[0]) / 2, (phi[1] + end[1]) / 2), abs=1e-14)


def test_fedmlb_teaches_the_stage_through_the_frozen_head() -> None:
    # λ₁ = 2, one step. There is one branch: the local stage, then φ's head, v = a·b_φ. At w = φ it equals the
    # network, so KL = 0 without gradient, and CE(z_0) = CE(z) has ∂/∂a = b_φ·(−4/7) but nothing for the local b:
    #   ∂/∂a = (1 + 2)·ln 2·(−4/7), ∂/∂b = −4/7
    (found,) = after("fedmlb", {"lam1": 2.0, "lam2": 5.0})
    assert found == pytest.approx((1 + 3 * 2 / 7 * LN2, LN2 + 2 / 7), abs=1e-14)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_fedmlb_compares_the_branch_with_the_whole_network(temperature: float) -> None:
    # The second step, at (a, b) ≠ φ: u = ab, v = a·b_φ, P = softmax((u, 0, −u)/T), Q = softmax((v, 0, −v)/T).
    #   KL(Q ‖ P) = Σ Q_k (log Q_k − log P_k), and with t = (1, 0, −1) = ∂z/∂u:
    #   ∂KL/∂u = Σ t_k (P_k − Q_k)/T,   ∂KL/∂v = Σ Q_k (t_k − t̄)(log Q_k − log P_k)/T,  t̄ = Σ Q_k t_k
    #   ∂/∂a = b·∂/∂u + b_φ·∂/∂v,  ∂/∂b = a·∂/∂u;  CE of the branch is not divided by T.
    lam1, lam2 = 2.0, 5.0
    a, b = 1 + 3 * 2 / 7 * LN2, LN2 + 2 / 7
    u, v, t = a * b, a * LN2, (1, 0, -1)
    p, q = softmax(u / temperature), softmax(v / temperature)
    centre = q[0] - q[2]
    du = sum(t[k] * (p[k] - q[k]) for k in range(3)) / temperature
    dv = sum(q[k] * (t[k] - centre) * log(q[k] / p[k]) for k in range(3)) / temperature
    da = b * (slope(u) + lam2 * du) + LN2 * (lam1 * slope(v) + lam2 * dv)
    db = a * (slope(u) + lam2 * du)
    (found,) = after("fedmlb", {"lam1": lam1, "lam2": lam2, "temperature": temperature}, steps=2)
    assert found == pytest.approx((a - 0.5 * da, b - 0.5 * db), abs=1e-14)


def test_fedlc_shifts_logits_by_the_fourth_root_of_the_counts_and_leaves_absent_classes_out() -> None:
    # Sixteen examples of class 0 and one of class 1: n^{−1/4} = (½, 1), class 2 is left out. With τ = 2 ln 2 the
    # logits (ln 2, 0) become (ln 2 − ln 2, −2 ln 2), softmax (1, ¼)/1.25 = (4/5, 1/5).
    #   ∂/∂z_0 = 16/17·(4/5 − 1) + 1/17·4/5 = −12/85, and z_2 = −u gets nothing: ∂/∂u = −12/85
    data = client(*[(1, 0, 0)] * 16, (1, 0, 1))
    (found,) = after("fedlc", {"tau": 2 * LN2}, data)
    assert found == pytest.approx((1 + 6 / 85 * LN2, LN2 + 6 / 85), abs=1e-14)


def test_fedntd_keeps_what_the_broadcast_model_says_of_the_other_classes() -> None:
    # β = ¾, T = 2, two steps. The first has KL = 0 without gradient, so ∂/∂u = (1 − β)·(−4/7) = −1/7:
    #   a = 1 + ½·1/7·ln 2, b = ln 2 + ½·1/7.
    # The second: without the label 0 the logits are (0, −u), so the share of class 2 is s(u) = 1/(1 + e^{u/T}),
    #   KL over two classes has ∂KL/∂(−u/T) = s(u) − s(u_φ), so ∂KL/∂u = −(s(u) − s(u_φ))/T, with u_φ = ln 2.
    beta, temperature = 0.75, 2.0
    a, b = 1 + LN2 / 14, LN2 + 1 / 14
    share, kept = (1 / (1 + exp(u / temperature)) for u in (a * b, LN2))
    du = (1 - beta) * slope(a * b) - beta * (share - kept) / temperature
    (found,) = after("fedntd", {"beta": beta, "temperature": temperature}, steps=2)
    assert found == pytest.approx((a - 0.5 * b * du, b - 0.5 * a * du), abs=1e-14)


def test_feddecorr_takes_the_correlation_out_of_the_features() -> None:
    # Four examples (±1, ±1), so B = 4; at b = 0 the logits are 0 and CE's gradient at a is 0. The features
    # (x₁, x₂ + a·x₁) have mean 0, Σh₁² = 4, Σh₂² = 4(1 + a²), Σh₁h₂ = 4a; divided by B − 1 = 3 the first two are
    # the variances, to which ε = 10⁻⁸ is added. With D = 4(1 + a²)/3 + ε:
    #   (XᵀX)₁₂ = 4a/√((4/3 + ε)·D), the only pair off the diagonal (it stands there twice: the mean is its square)
    #   term = β/4·16a²/((4/3 + ε)·D), ∂/∂a = β·8a/D², and with a = 1, D = 8/3 + ε: β·9/8 but for ε.
    # For b: the softmax is ⅓ throughout, ∂CE/∂u = −1 for label 0, 0 for label 1 and +1 for label 2, and
    # h₂ = (2, 0, 0, −2): ∂CE/∂b = (2·(−1) + 0 + 0 + (−2)·1)/4 = −1.
    beta = 0.8
    data = client((1, 1, 0), (1, -1, 1), (-1, 1, 1), (-1, -1, 2))
    (found,) = after("feddecorr", {"beta": beta}, data, a=1.0, b=0.0)
    assert found == pytest.approx((1 - 0.5 * beta * 8 / (8 / 3 + 1e-8) ** 2, 0.5), abs=1e-14)
    assert found[0] == pytest.approx(1 - 0.5 * beta * 9 / 8, abs=1e-7)
