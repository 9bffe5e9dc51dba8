"""Weight divergence and cosines of recorded rounds: by hand, and against what every round says of itself."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedacg import models
from fedacg.analysis.rounds import cosines, divergence, mean
from fedacg.config.sections import AnalysisSettings
from fedacg.core.vector import FlatModel
from fedacg.errors import InputError
from fedacg.runs.recording import Recorded, Recorder, load
from fedacg.simulation.probes import Drift, stage_slices
from fedacg.simulation.replies import Arrivals


def record(
    folder: Path,
    phi: Sequence[float],
    local: Sequence[Sequence[float]],
    weights: Sequence[float],
    dtype: torch.dtype = torch.float64,
) -> Recorded:
    nothing = torch.empty(0, dtype=dtype)
    recorder = Recorder(folder, AnalysisSettings(rounds=(3,)))
    centre = torch.tensor(phi, dtype=dtype)
    recorder.begin(3, {"phi": centre, "buffers": nothing})
    for client, (w, weight) in enumerate(zip(local, weights, strict=True)):
        delta = torch.tensor(w, dtype=dtype) - centre
        recorder.see(Arrivals([client], [weight], delta.unsqueeze(0), nothing.unsqueeze(0)))
    recorder.end()
    return load(folder, 3)


def test_divergence_is_that_worked_out_by_hand(tmp_path: Path) -> None:
    """w̄ = ¼(4, 0) + ¾(0, 8) = (1, 6); the distances² are 9 + 36 and 1 + 4, so Σ ω d² = 11.25 + 3.75."""
    recorded = record(tmp_path, [9, 9], [[4, 0], [0, 8]], [0.25, 0.75])
    assert mean(recorded).tolist() == [1, 6]
    parts = {"stage 0": slice(0, 1), "head": slice(1, 2)}
    found = divergence(recorded, parts)
    assert list(found) == ["whole", "stage 0", "head"]
    # Along w₀: ¼·9 + ¾·1 = 3; along w₁: ¼·36 + ¾·4 = 12.
    assert list(found.values()) == pytest.approx([math.sqrt(15), math.sqrt(3), math.sqrt(12)])
    relative = divergence(recorded, parts, relative=True)
    assert list(relative.values()) == pytest.approx([math.sqrt(15 / 37), math.sqrt(3), math.sqrt(12) / 6])


def test_clients_that_agree_do_not_diverge(tmp_path: Path) -> None:
    assert divergence(record(tmp_path, [0, 0], [[1, 2]] * 2, [0.5, 0.5]), {}) == {"whole": 0}


def test_what_is_relative_to_nothing_is_not_a_number(tmp_path: Path) -> None:
    recorded = record(tmp_path, [0, 0], [[1, 2], [-1, 2]], [0.5, 0.5])
    parts = {"stage 0": slice(0, 1), "stage 1": slice(1, 1), "head": slice(1, 2)}
    assert divergence(recorded, parts)["stage 1"] == 0
    found = divergence(recorded, parts, relative=True)
    assert math.isnan(found["stage 0"])
    assert math.isnan(found["stage 1"])
    assert found["head"] == 0
    assert found["whole"] == 0.5


def test_cosines_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    """Δ_i = (6, 0), (0, 8), (−3, 0) with ω = ½, ¼, ¼ give Δ = (2.25, 2), whose length is √(9.0625)."""
    recorded = record(tmp_path, [1, 1], [[7, 1], [1, 9], [-2, 1]], [0.5, 0.25, 0.25])
    length = math.sqrt(9.0625)
    assert cosines(recorded) == pytest.approx([2.25 / length, 2 / length, -2.25 / length])


def test_who_did_not_move_points_nowhere(tmp_path: Path) -> None:
    found = cosines(record(tmp_path / "a", [1, 1], [[1, 1], [2, 1]], [0.5, 0.5]))
    assert math.isnan(found[0])
    assert found[1] == 1
    still = cosines(record(tmp_path / "b", [0, 0], [[1, 1], [-1, -1]], [0.5, 0.5]))
    assert all(map(math.isnan, still))


def test_small_spreads_around_large_weights_keep_their_digits(tmp_path: Path) -> None:
    """In float32, 1000 ± 2⁻¹⁰ are exact, and their squares are not."""
    spread = 2.0**-10
    recorded = record(
        tmp_path, [1000, 1000], [[1000 + spread] * 2, [1000 - spread] * 2], [0.5, 0.5], torch.float32
    )
    assert divergence(recorded, {})["whole"] == pytest.approx(spread * math.sqrt(2), rel=1e-9)


def test_a_round_that_nobody_answered_is_told(tmp_path: Path) -> None:
    recorded = record(tmp_path, [0, 0], [], [])
    assert cosines(recorded) == []
    with pytest.raises(InputError, match="round 3: nobody answered"):
        mean(recorded)
    with pytest.raises(InputError, match="round 3: nobody answered"):
        divergence(recorded, {})


def test_figures_agree_with_those_that_every_round_records(tmp_path: Path) -> None:
    module = models.build("mlp", classes=3, shape=(4,), hidden=[5])
    parts = stage_slices(module)
    source = torch.Generator().manual_seed(0)
    size = len(FlatModel(module).w)
    phi, *local = (torch.randn(size, generator=source, dtype=torch.float64) for _ in range(5))
    weights = [0.1, 0.2, 0.3, 0.4]
    drift = Drift(module)
    drift.begin(3, {"phi": phi, "buffers": torch.empty(0)})
    drift.see(Arrivals(range(4), weights, torch.stack([w - phi for w in local]), torch.empty(4, 0)))
    drift.end()
    figures = drift.figures(None)
    recorded = record(tmp_path, phi.tolist(), [w.tolist() for w in local], weights)
    found = divergence(recorded, parts)
    assert found.pop("whole") == pytest.approx(figures["divergence"])
    assert list(found.values()) == pytest.approx(figures["stages"])
    assert divergence(recorded, {}, relative=True)["whole"] == pytest.approx(figures["divergence_relative"])
    assert sum(cosines(recorded)) / 4 == pytest.approx(figures["cosine"])
