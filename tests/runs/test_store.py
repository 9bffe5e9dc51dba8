"""Run folders: complete, locked, consistent at every instant, and resumed to the bit."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.core.files import unseal
from fedacg.core.vector import sha256
from fedacg.errors import InputError, RunError
from fedacg.methods import METHODS, build
from fedacg.runs.build import prepare
from fedacg.runs.contents import load_moment
from fedacg.runs.folder import RunFolder
from fedacg.runs.history import read_metrics
from fedacg.runs.model_file import load_model
from fedacg.runs.runner import play
from fedacg.simulation.metrics import RoundMetrics
from support.command import TINY, Command, digests_with_and_without_kills, lines, start
from support.runs import StopAfter, digest, tiny

COMBINATIONS = ["fedprox+acg", "fedacg+paq", "feddyn+paq", "feddc+paq", "moon+acg+prox", "fedmlb+acg+prox+paq"]


@pytest.mark.parametrize("method", [*METHODS, *COMBINATIONS])
def test_resume_continues_bit_for_bit(tmp_path: Path, method: str) -> None:
    everybody = ["cohort.size=0", "cohort.fraction=1"] if "full participation" in build(method).needs else []
    experiment = tiny(tmp_path, f"method.name={method}", "rounds=8", "save.seconds=1000", *everybody)
    whole = play(experiment, prepare(experiment), folder=tmp_path / "whole")
    for stop in (3, 6):
        with pytest.raises(KeyboardInterrupt):
            play(
                experiment,
                prepare(experiment),
                folder=tmp_path / "parts",
                resume=True,
                callbacks=[StopAfter(stop)],
            )
        assert load_moment(tmp_path / "parts").round == stop
    parts = play(experiment, prepare(experiment), folder=tmp_path / "parts", resume=True)
    assert digest(parts) == digest(whole)
    untimed = [
        [{k: v for k, v in unseal(m.to_json().encode()).items() if not k.startswith("seconds")} for m in r.history]
        for r in (whole, parts)
    ]
    assert untimed[0] == untimed[1]
    assert read_metrics(tmp_path / "parts" / "metrics.jsonl")[0].rounds == 8


def test_a_run_from_its_own_experiment_file_gives_the_same_bits(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=3", "method.lam=0.7")
    first = play(experiment, prepare(experiment), folder=tmp_path / "first")
    again = Experiment.parse(read_toml(tmp_path / "first" / "experiment.toml"))
    assert again == experiment
    assert digest(play(again, prepare(again))) == digest(first)


def test_the_summary_says_what_happened(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=5", "evaluate.targets=[0.01, 0.999]")
    result = play(experiment, prepare(experiment), folder=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    del summary["check"]
    assert summary == json.loads(json.dumps(result.summary))
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    assert summary["parameters"] == parameters
    assert summary["bytes_down"] == summary["bytes_up"] == 5 * 3 * 4 * parameters
    assert summary["rounds_to"] == {"0.01": "1", "0.999": "5+"}
    assert summary["bytes_to"]["0.999"] == f"{2 * 5 * 3 * 4 * parameters}+"
    assert summary["vector_sha256"] == sha256(result.vector)
    model = load_model(tmp_path / "run")
    assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()), result.vector)


def test_lines_after_the_checkpoint_are_dropped_and_played_again(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=6")
    whole = play(experiment, prepare(experiment), folder=tmp_path / "run")
    saved = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        play(experiment, prepare(experiment), folder=tmp_path / "run", overwrite=True, callbacks=[StopAfter(3)])
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() != saved
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(lines.splitlines()[-1].replace('"round": 3', '"round": 4') + "\n")
        file.write('{"round": 5, "lr": 0.1, "coh')
    assert digest(play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)) == digest(whole)


def test_a_resume_that_does_not_fit_names_the_difference(tmp_path: Path) -> None:
    first = tiny(tmp_path, "rounds=2")
    play(first, prepare(first), folder=tmp_path / "run")
    other = tiny(tmp_path, "rounds=2", "local.lr=0.2", "method.name=fedavg")
    with pytest.raises(InputError) as caught:
        play(other, prepare(other), folder=tmp_path / "run", resume=True)
    assert "local.lr is 0.1 there and 0.2 here" in str(caught.value)
    assert 'method.name is "fedacg" there and "fedavg" here' in str(caught.value)
    assert "method.lam is 0.85 there and absent here" in str(caught.value)


def test_another_engine_may_resume(tmp_path: Path) -> None:
    serial = tiny(tmp_path, "rounds=6")
    whole = play(serial, prepare(serial))
    with pytest.raises(KeyboardInterrupt):
        play(serial, prepare(serial), folder=tmp_path / "run", callbacks=[StopAfter(2)])
    processes = tiny(tmp_path, "rounds=6", "engine.name=processes", "engine.workers=2")
    assert digest(play(processes, prepare(processes), folder=tmp_path / "run", resume=True)) == digest(whole)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    experiment = tiny(tmp_path)
    holder = RunFolder(tmp_path / "run")
    try:
        with pytest.raises(InputError, match="in use by another run"):
            play(experiment, prepare(experiment), folder=tmp_path / "run")
    finally:
        holder.close()


def test_an_existing_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=1")
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    with pytest.raises(InputError, match="--resume or replace it with --overwrite"):
        play(experiment, prepare(experiment), folder=tmp_path / "run")
    play(experiment, prepare(experiment), folder=tmp_path / "run", overwrite=True)


@pytest.mark.parametrize("cut", [0, 50, 3000])
def test_a_truncated_checkpoint_is_told_plainly(tmp_path: Path, cut: int) -> None:
    experiment = tiny(tmp_path, "rounds=1")
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"checkpoint.safetensors: cannot be read"):
        play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)


def test_divergence_names_the_round_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    # w ← w − 3(g + 1·w) doubles the weights at every step: fine for a few rounds, then no longer finite.
    experiment = tiny(tmp_path, "local.lr=3.0", "local.weight_decay=1.0", "save.seconds=1000")
    with pytest.raises(RunError, match=r"diverged in round (\d+): the update of client \d+") as caught:
        play(experiment, prepare(experiment), folder=tmp_path / "run")
    failed = int(str(caught.value).split("round ")[1].split(":")[0])
    assert failed > 1
    moment = load_moment(tmp_path / "run")
    assert moment.round == failed - 1
    assert all(vector.isfinite().all() for vector in moment.vectors.values())
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[0].rounds == failed - 1
    assert f"round {failed - 1} is saved in" in caught.value.__notes__[0]


def test_a_full_disk_is_told_and_costs_only_the_rounds_since_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(tmp_path, "rounds=5")
    whole = play(experiment, prepare(experiment))
    real = RunFolder.save

    def full(folder: RunFolder, moment: object) -> None:
        if moment.round >= 3:  # type: ignore[attr-defined]
            monkeypatch.setattr("fedacg.core.files.write_new", _no_space)
        real(folder, moment)  # type: ignore[arg-type]

    monkeypatch.setattr(RunFolder, "save", full)
    with pytest.raises(RunError, match=r"checkpoint.safetensors: cannot be written: .*No space left"):
        play(experiment, prepare(experiment), folder=tmp_path / "run")
    monkeypatch.undo()
    assert load_moment(tmp_path / "run").round == 2
    resumed = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert digest(resumed) == digest(whole)


def _no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.slow
def test_kill_9_at_five_random_moments_and_resume_give_the_same_bits(fedacg: Command) -> None:
    folder = fedacg.folder
    (folder / "tiny.toml").write_text(
        TINY.replace("rounds = 40", "rounds = 120").replace('"serial"', '"processes"\nworkers = 2')
    )
    whole, killed = digests_with_and_without_kills(folder, 5, random.Random(7))
    assert whole == killed


@pytest.mark.parametrize(("written", "saved"), [(True, 3), (False, 2)])
def test_ctrl_c_at_a_rounds_line_saves_what_has_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool, saved: int
) -> None:
    append = RunFolder.append

    def interrupted(store: RunFolder, metrics: RoundMetrics) -> None:
        if metrics.round < 3 or written:
            append(store, metrics)
        if metrics.round == 3:
            raise KeyboardInterrupt

    experiment = tiny(tmp_path, "rounds=6")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play(experiment, prepare(experiment), folder=tmp_path / "killed")
    assert load_moment(tmp_path / "killed").round == saved == lines(tmp_path)
    resumed = play(experiment, prepare(experiment), folder=tmp_path / "killed", resume=True)
    assert torch.equal(resumed.vector, play(experiment, prepare(experiment)).vector)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(fedacg: Command, number: signal.Signals) -> None:
    run = start(
        fedacg.folder, "run", "tiny.toml", "--out", "killed", "-s", "rounds=100000", "-s", "save.seconds=1000"
    )
    while lines(fedacg.folder) < 3 and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(number)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    assert "fedacg run killed/experiment.toml --out killed --resume" in output
    assert "Traceback" not in output
    moment = load_moment(fedacg.folder / "killed")
    assert moment.round == read_metrics(fedacg.folder / "killed" / "metrics.jsonl")[0].rounds >= 3
