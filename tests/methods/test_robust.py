"""Robust aggregation and attacks: by hand, and against each other."""

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import methods
from fedacg.config.participation import CohortSettings, FailureSettings
from fedacg.data.examples import TensorExamples, labels
from fedacg.errors import InputError
from fedacg.methods.robust import Krum, Median, Trimmed
from fedacg.methods.rules import Average
from fedacg.simulation.attacks import Mislabelled
from fedacg.simulation.sampling import Sampling
from support.quadratics import client, states


def rows(*values: tuple[float, ...]) -> dict[str, Tensor]:
    return {"delta": torch.tensor(values, dtype=torch.float64)}


def near(actual: Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-12)


def test_median_and_trimmed_mean_of_each_entry() -> None:
    odd, even = rows((1, 9), (5, -9), (100, 2)), rows((1, 9), (5, -9), (100, 2), (3, 4))
    near(Median(Average()).middle(odd)["delta"], 5, 2)
    near(Median(Average()).middle(even)["delta"], 4, 3)
    near(Trimmed(Average(), 0.25).middle(even)["delta"], 4, 3)
    near(Trimmed(Average(), 0.2).middle(even)["delta"], 109 / 4, 1.5)
    near(Trimmed(Average(), 0.4).middle(rows((1,), (2,), (3,), (40,), (-50,)))["delta"], 2)


def test_krum_takes_those_with_the_closest_neighbours() -> None:
    # Of five with one bad, two neighbours count. Squares to them: 0 → 1 + 4, 1 → 1 + 1, 2 → 1 + 4, 6 → 16 + 25.
    sent = rows((0,), (1,), (2,), (6,), (50,))
    assert Krum(Average(), 0.2, 1).chosen(sent["delta"]).tolist() == [1]
    assert Krum(Average(), 0.2, 0).chosen(sent["delta"]).tolist() == [0, 1, 2, 3]
    near(Krum(Average(), 0.2, 3).middle(sent)["delta"], 1)
    assert Krum(Average(), 0.4, 1).chosen(torch.zeros(1, 2)).tolist() == [0]


def test_a_robust_middle_moves_the_server_as_a_mean_would() -> None:
    """Three clients agree and one pulls far away: the median is where the three are, with momentum on top."""
    clients = [client((8, 0)), client((8, 0)), client((8, 0)), client((-1000, 500))]
    for name in ("fedavg+median", "fedavg+median+acg", "fedavg+krum", "scaffold+median", "feddyn+median"):
        plain = name.replace("+median", "").replace("+krum", "")
        options = {"share": 0.25} if "krum" in name else {}
        bent = states(clients, name, options, lr=0.5, rounds=3, weights="uniform", cohorts=[range(4)] * 3)
        alone = states(clients[:3], plain, lr=0.5, rounds=3, weights="uniform")
        ours, theirs = next(bent)["theta"], next(alone)["theta"]
        if not name.startswith(("scaffold", "feddyn")):  # whose sums are over N
            for one, other in zip(bent, alone, strict=True):
                torch.testing.assert_close(one["theta"], other["theta"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_bound_keeps_the_direction_and_the_weights() -> None:
    # Δ = (16, 0) and (0, 2): the first is cut to 4. Weights 1 : 3 by examples.
    clients = [client((32, 0)), client((0, 4), (0, 4), (0, 4))]
    (after,) = states(clients, "fedavg+bound", {"norm": 4}, lr=0.5)
    near(after["theta"], 1, 1.5)


def test_lies_are_told_after_training() -> None:
    def moved(attack: str, strength: float = 0) -> Tensor:
        failures = {"bad": 1.0, "attack": attack, **({"strength": strength} if strength else {})}
        clients = [client((8, 0))]
        data = fedacg.run(
            model=_Point(),
            clients=clients,
            test=clients[0],
            loss=_half_square,
            method="fedavg",
            rounds=1,
            lr=0.5,
            local_steps=1,
            participation=1.0,
            failures=failures,
        )
        return data.vector

    near(moved("sign-flip"), -4, 0)
    near(moved("sign-flip", 3), -12, 0)
    near(moved("scale"), 40, 0)
    assert float(moved("noise", 2).norm()) == pytest.approx(8)
    assert abs(float(moved("noise", 2)[1])) > 1e-3


class _Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def _half_square(outputs: Tensor, _: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(dim=1).mean()


def test_labels_are_turned_around() -> None:
    wrong = Mislabelled(TensorExamples(torch.zeros(3, 1), torch.tensor([0, 1, 4])), 5)
    assert labels(wrong).tolist() == [4, 3, 0]
    assert wrong.fetch(torch.tensor([2]))[1].tolist() == [0]


def test_who_is_bad_follows_from_the_seed() -> None:
    def bad(seed: int) -> frozenset[int]:
        failures = FailureSettings(bad=0.3, attack="scale")
        return Sampling(CohortSettings(), clients=20, seed=seed, failures=failures).bad

    assert len(bad(0)) == 6
    assert bad(0) == bad(0) != bad(1)
    assert Sampling(CohortSettings(), clients=20, seed=0).bad == frozenset()


@pytest.mark.parametrize("attack", ["sign-flip", "scale", "noise", "label-flip"])
def test_any_engine_and_fused_clients_tell_the_same_lies(attack: str) -> None:
    source = torch.Generator().manual_seed(0)
    data = [(torch.randn(6, 5, generator=source), torch.randint(3, (6,), generator=source)) for _ in range(8)]
    torch.manual_seed(0)
    net = nn.Linear(5, 3)

    def vector(attack: str = attack, **given: object) -> Tensor:
        failures = {"bad": 0.5, "attack": attack} if attack else {}
        return fedacg.run(  # type: ignore[misc]
            model=net,
            clients=data,
            test=data[0],
            method="fedavg+median",
            rounds=2,
            weights="uniform",
            participation=1.0,
            failures=failures,
            **given,
        ).vector

    alone = vector(engine="serial", fuse="off")
    assert torch.equal(alone, vector(workers=2, fuse="off"))
    torch.testing.assert_close(alone, vector(engine="serial", fuse="on"), rtol=1e-4, atol=1e-5)
    assert not torch.equal(alone, vector(""))


def test_an_attack_that_would_do_nothing_is_refused() -> None:
    for given, reason in (
        ({"strength": 2.0}, "failures.strength = 2: has no effect, as failures.bad is 0"),
        ({"attack": "scale"}, "failures.attack = 'scale': has no effect, as failures.bad is 0"),
        ({"bad": 0.1, "attack": "label-flip", "strength": 2.0}, "failures.strength = 2: has no effect"),
    ):
        with pytest.raises(InputError, match=reason):
            fedacg.recipe("quickstart", failures=given)


def test_weights_by_examples_and_sums_of_squares_are_refused() -> None:
    with pytest.raises(InputError, match=r"needs cohort.weights = 'uniform'"):
        fedacg.run(fedacg.recipe("quickstart", method="fedavg+median"))
    with pytest.raises(InputError, match="needs more of each update than a sum"):
        methods.build("fedexp+krum")
