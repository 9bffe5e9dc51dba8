"""Identities of METHODS: what must be the same is the same, to the bit or to 1e-12 in float64."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import fedacg
from support.quadratics import client, states

NEW = [
    "fedyogi",
    "fedadagrad",
    "fedams",
    "slowmo",
    "fednova",
    "fedexp",
    "fedsam",
    "fedasam",
    "mofedsam",
    "fednsam",
    "fedlesam",
    "fedinit",
    "fedadc",
    "ghbm",
    "mime",
    "mimelite",
    "fedspeed",
    "fedgloss",
    "scaffold",
    "fedgamma",
    "fedmoswa",
    "feddane",
    "fedcams",
    "fedavg+topk",
    "fedavg+sign",
]
CLIENTS = [client((1, 0), (3, 1)), client((0, 2)), client((-1, 4), (2, 2), (0, 0)), client((5, -3))]
COHORTS = [[0, 1], [2, 3], [1, 2, 3], [0], [1, 3], [0, 2]]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def problem(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    sizes = (7, 12, 3, 20, 9)
    return [
        (torch.randn(n, 5, generator=source, dtype=dtype), torch.randint(3, (n,), generator=source)) for n in sizes
    ]


def final(method: str, options: dict[str, float], dtype: torch.dtype = torch.float64) -> Tensor:
    clients = problem(dtype)
    result = fedacg.run(
        model=network().to(dtype),
        clients=clients,
        test=clients[0],
        method=method,
        options=options,
        rounds=4,
        participation=0.6,
        local_epochs=2,
        batch_size=4,
        lr=0.1,
        lr_decay=0.9,
        weight_decay=1e-3,
        clip=2.0,
        seed=5,
    )
    return result.vector


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedacg", {"lam": 0.0, "beta": 0.0}),
        ("fedprox", {"mu": 0.0}),
        ("fedavgm", {"beta": 0.0}),
        ("fedcm", {"alpha": 1.0}),
        ("fedsam", {"rho": 0.0}),
        ("fedasam", {"rho": 0.0}),
        ("fedlesam", {"rho": 0.0}),
        ("fedinit", {"beta": 0.0}),
        ("mimelite", {"beta": 0.0}),
        ("ghbm", {"beta": 0.0}),
        ("fedavg+swa", {"start": 0.9}),
        ("fedavg+ema", {"decay": 0.0}),
        ("fedavg+topk", {"part": 1.0}),
        ("fedavg+acg", {"lam": 0.0}),
        ("fedavg+prox", {"mu": 0.0}),
        ("fedavg+acg+prox", {"lam": 0.0, "mu": 0.0}),
    ],
)
def test_neutral_settings_are_fedavg_to_the_bit(
    method: str, options: dict[str, float], dtype: torch.dtype
) -> None:
    assert torch.equal(final(method, options, dtype), final("fedavg", {}, dtype))


@pytest.mark.parametrize(
    ("method", "neutral", "base"),
    [
        ("mofedsam", {"rho": 0.0}, "fedcm"),
        ("fedspeed", {"rho": 0.0}, "feddyn"),
        ("fedgamma", {"rho": 0.0}, "scaffold"),
        ("fednsam", {"rho": 0.0}, "fedavg+acg"),
        ("fedanta", {"gamma": 0.0, "decay": 0.0}, "fedacg"),
        ("fedgloss", {"rho": 0.0}, "feddyn"),
        ("scaffold+acg", {"lam": 0.0}, "scaffold"),
        ("fednova+acg", {"lam": 0.0}, "fednova"),
        ("mime+acg", {"lam": 0.0}, "mime"),
    ],
)
def test_neutral_settings_are_the_base_to_the_bit(method: str, neutral: dict[str, float], base: str) -> None:
    assert torch.equal(final(method, neutral), final(base, {}))


def test_fedadc_and_slowmo_without_momentum_are_fedavg_to_the_bit() -> None:
    # At a rate that is a power of two, by which division rounds nothing.
    neutral = {"slowmo": {"beta": 0.0}, "fedadc": {"beta_local": 0.0, "beta_global": 0.0}, "fedavg": {}}
    ends = [list(states(CLIENTS, name, given, rounds=3, lr=0.25, steps=3))[-1] for name, given in neutral.items()]
    assert all(torch.equal(end["theta"], ends[-1]["theta"]) for end in ends)


def test_methods_differ_when_they_should() -> None:
    vectors = [
        final("fedavg", {}),
        final("fedprox", {"mu": 0.1}),
        final("fedavgm", {"beta": 0.4}),
        final("fedadam", {}),
        final("fedacg", {}),
        final("fedavg+acg", {}),
        final("feddyn", {}),
        final("fedcm", {}),
        final("feddc", {}),
        final("fedavg+paq", {}),
        *(final(name, {}) for name in NEW),
    ]
    for i, one in enumerate(vectors):
        for other in vectors[:i]:
            assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    ("combination", "whole"),
    [
        (("fedavg+acg+prox", {"lam": 0.7, "mu": 0.05}), ("fedacg", {"lam": 0.7, "beta": 0.05})),
        (("fedprox+acg", {"lam": 0.7, "mu": 0.05}), ("fedacg", {"lam": 0.7, "beta": 0.05})),
        (
            ("fedntd+acg+prox+ema", {"lam": 0.7, "mu": 0.05, "beta": 0.2, "temperature": 2.0, "decay": 0.6}),
            ("fedanta", {"lam": 0.7, "beta": 0.05, "gamma": 0.2, "temperature": 2.0, "decay": 0.6}),
        ),
        (("fedavg+prox", {"mu": 0.05}), ("fedprox", {"mu": 0.05})),
    ],
)
def test_combinations_are_the_methods_they_spell(
    combination: tuple[str, dict[str, float]], whole: tuple[str, dict[str, float]]
) -> None:
    assert torch.equal(final(*combination), final(*whole))


def test_fedacg_lands_at_the_lookahead_point_plus_the_mean_update() -> None:
    # θ_new = θ + m_new = φ + Δ, so Δ = θ_new − (θ + λm) must be m_new − λm.
    lam = 0.85
    run = list(states(CLIENTS, "fedacg", {"lam": lam, "beta": 0.01}, cohorts=COHORTS, rounds=6, lr=0.3, steps=3))
    for before, after in pairwise(run):
        phi = before["theta"] + lam * before["m"]
        delta = after["m"] - lam * before["m"]
        torch.testing.assert_close(after["theta"], phi + delta, rtol=0, atol=1e-12)


def test_fedacg_telescopes() -> None:
    # z_t = θ_t + λ/(1−λ) m_t moves by Δ_t/(1−λ).
    lam = 0.6
    run = list(states(CLIENTS, "fedacg", {"lam": lam, "beta": 0.1}, cohorts=COHORTS, rounds=6, lr=0.3, steps=2))
    for before, after in pairwise(run):
        z_before, z_after = (s["theta"] + lam / (1 - lam) * s["m"] for s in (before, after))
        delta = after["m"] - lam * before["m"]
        torch.testing.assert_close(z_after - z_before, delta / (1 - lam), rtol=0, atol=1e-12)


def test_fedacg_with_one_step_and_everybody_is_nesterovs_method() -> None:
    # F(w) = Σ ω_i ½‖w − c_i‖² has gradient w − c̄. Nesterov: y = θ + λ(θ − θ_before), θ_new = y − η∇F(y).
    lam, lr, rounds = 0.9, 0.2, 25
    sizes = torch.tensor([len(x) for x, _ in CLIENTS], dtype=torch.float64)
    centre = torch.stack([x.mean(dim=0) for x, _ in CLIENTS]).T @ (sizes / sizes.sum())
    before = theta = torch.tensor([4.0, -2.0], dtype=torch.float64)
    start = tuple(theta.tolist())
    run = states(CLIENTS, "fedacg", {"lam": lam, "beta": 0.3}, rounds=rounds, lr=lr, start=start)
    for state in run:
        y = theta + lam * (theta - before)
        before, theta = theta, y - lr * (y - centre)
        torch.testing.assert_close(state["theta"], theta, rtol=0, atol=1e-12)


def test_fedavgm_with_one_step_and_everybody_is_heavy_ball() -> None:
    beta, lr = 0.7, 0.1
    sizes = torch.tensor([len(x) for x, _ in CLIENTS], dtype=torch.float64)
    centre = torch.stack([x.mean(dim=0) for x, _ in CLIENTS]).T @ (sizes / sizes.sum())
    theta = m = torch.zeros(2, dtype=torch.float64)
    for state in states(CLIENTS, "fedavgm", {"beta": beta}, rounds=20, lr=lr):
        m = beta * m - lr * (theta - centre)
        theta = theta + m
        torch.testing.assert_close(state["theta"], theta, rtol=0, atol=1e-12)
