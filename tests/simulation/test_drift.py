"""How local models spread: the figures of every round, by hand on two parameters, and over the stages."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import fedacg
from fedacg import models
from fedacg.core.vector import FlatModel
from fedacg.models import StagedModel
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.probes import Drift, stage_slices
from fedacg.simulation.replies import Arrivals
from support.quadratics import Point, client, half_square

PHI = torch.tensor([3.0, 4.0], dtype=torch.float64)


class TwoStages(StagedModel):
    """One parameter in the only stage and one in the head."""

    def __init__(self) -> None:
        super().__init__([nn.Linear(1, 1, bias=False)], nn.Linear(1, 1, bias=False))


def figures(deltas: list[list[float]], weights: list[float], module: nn.Module | None = None) -> dict[str, Any]:
    drift = Drift(module or Point())
    drift.begin(1, {"phi": PHI, "buffers": torch.empty(0)})
    for number, (delta, weight) in enumerate(zip(deltas, weights, strict=True)):
        rows = torch.tensor([delta], dtype=torch.float64)
        drift.see(Arrivals([number], [weight], rows, torch.empty(1, 0)))
    drift.end()
    return drift.figures(torch.tensor([0.0, -2.0], dtype=torch.float64))


def test_the_figures_are_those_worked_out_by_hand() -> None:
    """Δ_1 = (2, 0) with weight ¼ and Δ_2 = (0, 2) with ¾: Δ = (½, 3/2), ‖Δ‖ = √2.5, w̄ = (3.5, 5.5).

    w_1 − w̄ = (3/2, −3/2), w_2 − w̄ = (−½, ½): ¼·4.5 + ¾·0.5 = 1.5. Cosines: 1/(2√2.5) and 3/(2√2.5).
    """
    found = figures([[2, 0], [0, 2]], [0.25, 0.75], TwoStages())
    assert found["divergence"] == pytest.approx(math.sqrt(1.5))
    assert found["divergence_relative"] == pytest.approx(math.sqrt(1.5) / math.hypot(3.5, 5.5))
    assert found["distance"] == pytest.approx(2)
    assert found["distance_relative"] == pytest.approx(2 / 5)
    assert found["cosine"] == pytest.approx((0.5 + 1.5) / math.sqrt(2.5) / 2)
    assert found["delta_norm"] == pytest.approx(math.sqrt(2.5))
    assert found["momentum_norm"] == pytest.approx(2)
    assert found["stages"] == pytest.approx([math.sqrt(0.75), math.sqrt(0.75)])


def test_clients_that_agree_do_not_spread() -> None:
    found = figures([[1, 2], [1, 2], [1, 2]], [0.2, 0.3, 0.5])
    assert found["divergence"] == pytest.approx(0, abs=1e-7)
    assert found["cosine"] == pytest.approx(1)
    assert "stages" not in found


def test_what_has_no_direction_has_no_cosine() -> None:
    assert math.isnan(figures([[1, 0], [-1, 0]], [0.5, 0.5])["cosine"])
    assert figures([[0, 0], [0, 2]], [0.5, 0.5])["cosine"] == pytest.approx(0.5), "who did not move counts as 0"


@pytest.mark.parametrize("channels_last", [False, True])
def test_stages_lie_where_the_slices_say(channels_last: bool) -> None:
    flat = FlatModel(models.build("cnn", classes=4, shape=(3, 8, 8)), channels_last=channels_last)
    slices = stage_slices(flat.module)
    assert list(slices) == ["stage 0", "stage 1", "stage 2", "head"]
    assert slices["head"].stop == len(flat.w)
    parts = [*flat.module.stages, flat.module.head]  # type: ignore[union-attr]
    for part, place in zip(parts, slices.values(), strict=True):
        inside = torch.cat([p.detach().reshape(-1) for p in part.parameters()])
        assert torch.equal(inside.sort().values, flat.w[place].sort().values)
    assert stage_slices(torch.nn.Linear(2, 2)) == {}


def test_every_round_records_its_drift() -> None:
    """One step of size 1 ends at the client's centre: (2, 0) and (0, 2) from φ = 0, so w̄ = (1, 1)."""
    clients = [client([2.0, 0.0]), client([0.0, 2.0])]
    result = fedacg.run(
        model=Point(), clients=clients, test=clients[0], method="fedavgm", loss=half_square, rounds=2,
        participation=1.0, local_steps=1, lr=1.0,
    )  # fmt: skip
    first = result.history[0].drift
    assert first is not None
    assert first["divergence"] == pytest.approx(math.sqrt(2))
    assert first["divergence_relative"] == pytest.approx(1)
    assert math.isnan(first["distance_relative"]), "φ is zero"
    assert first["cosine"] == pytest.approx(1 / math.sqrt(2))
    assert first["momentum_norm"] == first["delta_norm"] == pytest.approx(math.sqrt(2))
    line = result.history[0].to_json()
    assert '"distance_relative": null' in line
    again = RoundMetrics.from_json(line).drift
    assert again is not None
    assert math.isnan(again["distance_relative"])
    assert again["divergence"] == first["divergence"]


def test_a_round_that_nobody_answers_has_no_drift() -> None:
    clients = [client([2.0, 0.0]), client([0.0, 2.0])]
    result = fedacg.run(
        model=Point(), clients=clients, test=clients[0], loss=half_square, rounds=1, failures={"drop": 1.0}
    )
    assert result.history[0].drift is None
