"""Recorded rounds: what they hold, and that recording changes nothing."""

import json
from pathlib import Path

import pytest
import torch

from fedacg.core.files import seal
from fedacg.errors import InputError
from fedacg.runs import recording
from fedacg.runs.build import prepare
from fedacg.runs.runner import Result, play
from fedacg.simulation.probes import Drift
from fedacg.simulation.replies import Arrivals
from support.command import Command
from support.runs import StopAfter, digest, tiny

ROUNDS = ["rounds=6", "analysis.rounds=[2]", "analysis.every=3", "cohort.size=4"]


def run(tmp_path: Path, folder: str, *settings: str) -> Result:
    experiment = tiny(tmp_path, *settings)
    return play(experiment, prepare(experiment), folder=tmp_path / folder)


@pytest.mark.parametrize("method", ["fedacg", "feddyn", "fedcm", "fedacg+paq"])
def test_recording_changes_no_bit_of_a_run(tmp_path: Path, method: str) -> None:
    on = run(tmp_path, "on", *ROUNDS, f"method.name={method}")
    off = run(tmp_path, "off", "rounds=6", "cohort.size=4", f"method.name={method}")
    assert digest(on) == digest(off)
    assert recording.rounds(tmp_path / "on") == [2, 3, 6]
    assert recording.rounds(tmp_path / "off") == []


def test_a_recorded_round_holds_the_broadcast_and_every_local_model(tmp_path: Path) -> None:
    result = run(tmp_path, "run", *ROUNDS)
    recorded = recording.load(tmp_path / "run", 3)
    metrics = result.history[2]
    assert recorded.clients == metrics.arrived
    assert sum(recorded.weights) == pytest.approx(1)
    # The figures of the round follow from what was recorded.
    drift = Drift(result.model)
    drift.begin(3, {"phi": recorded.phi, "buffers": recorded.buffers})
    for place, weight in enumerate(recorded.weights):
        w, buffers = recorded.local(place)
        assert buffers.numel() == 0
        drift.see(Arrivals([place], [weight], (w - recorded.phi).unsqueeze(0), buffers.unsqueeze(0)))
    drift.end()
    found = drift.figures(None)
    assert metrics.drift is not None
    for name in ("divergence", "distance", "cosine", "delta_norm"):
        assert found[name] == pytest.approx(metrics.drift[name], rel=1e-4)


def test_the_first_broadcast_is_the_initial_model(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=1", "analysis.every=1")
    ingredients = prepare(experiment)
    play(experiment, ingredients, folder=tmp_path / "run")
    initial = torch.cat([p.detach().reshape(-1) for p in ingredients.module.parameters()])
    assert torch.equal(recording.load(tmp_path / "run", 1).phi, initial)


def test_what_is_recorded_survives_a_stop_and_is_the_same_after_it(tmp_path: Path) -> None:
    run(tmp_path, "whole", *ROUNDS)
    experiment = tiny(tmp_path, *ROUNDS)
    ingredients = prepare(experiment)
    with pytest.raises(KeyboardInterrupt):
        play(experiment, ingredients, folder=tmp_path / "cut", callbacks=[StopAfter(4)])
    draft = tmp_path / "cut" / "recorded" / ".00005"
    draft.mkdir()
    play(experiment, ingredients, folder=tmp_path / "cut", resume=True)
    files = [
        {path.relative_to(tmp_path / run): path.read_bytes() for path in (tmp_path / run).rglob("recorded/*/*")}
        for run in ("whole", "cut")
    ]
    assert len(files[0]) == 3 * 6
    assert files[0] == files[1]
    assert not draft.exists()


def test_a_run_that_is_replaced_takes_its_recordings_with_it(tmp_path: Path) -> None:
    run(tmp_path, "run", *ROUNDS)
    experiment = tiny(tmp_path, "rounds=6", "analysis.rounds=[1]")
    play(experiment, prepare(experiment), folder=tmp_path / "run", overwrite=True)
    assert recording.rounds(tmp_path / "run") == [1]


def test_another_choice_of_rounds_may_resume(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=6")
    with pytest.raises(KeyboardInterrupt):
        play(experiment, prepare(experiment), folder=tmp_path / "run", callbacks=[StopAfter(3)])
    later = tiny(tmp_path, "rounds=6", "analysis.rounds=[5]")
    play(later, prepare(later), folder=tmp_path / "run", resume=True)
    assert recording.rounds(tmp_path / "run") == [5]


def test_what_was_not_recorded_is_told(tmp_path: Path) -> None:
    run(tmp_path, "off", "rounds=2")
    with pytest.raises(InputError, match=r"has no recorded rounds; run it with --set 'analysis.rounds=\[2\]'"):
        recording.load(tmp_path / "off", 2)
    run(tmp_path, "on", *ROUNDS)
    with pytest.raises(InputError, match="round 4 was not recorded; choose from 2, 3, 6"):
        recording.load(tmp_path / "on", 4)
    folder = tmp_path / "on" / "recorded" / "00002"
    (folder / "round.json").write_text("{")
    with pytest.raises(InputError, match=r"round\.json: cannot be read"):
        recording.load(tmp_path / "on", 2)
    for cohort in ({"clients": ["1"], "weights": [1.0]}, {"clients": [1], "weights": [1.0, 2.0]}, {"clients": 1}):
        (folder / "round.json").write_text(seal(json.dumps(cohort)))
        with pytest.raises(InputError, match=r"round\.json: cannot be read: must list clients and as many"):
            recording.load(tmp_path / "on", 2)
    (folder / "round.json").write_text(seal(json.dumps({"clients": [1], "weights": [1.0]})))
    (folder / "broadcast.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match=r"broadcast\.safetensors: cannot be read"):
        recording.load(tmp_path / "on", 2)


def test_rounds_that_are_never_played_cannot_be_recorded(fedacg: Command) -> None:
    outcome = fedacg("run", "tiny.toml", "--set", "analysis.rounds=[41]")
    assert outcome.code == 2
    assert "analysis.rounds has 41: must be at most rounds = 40" in outcome.err
