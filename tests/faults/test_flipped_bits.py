"""One flipped bit in any file of a run folder is noticed by what reads that file."""

import random
from pathlib import Path

import pytest

from fedacg.config.experiment import Experiment
from fedacg.core.vector import sha256
from fedacg.errors import InputError
from fedacg.report.runs import load_run
from fedacg.runs import recording
from fedacg.runs.build import prepare
from fedacg.runs.client_states import ClientStates
from fedacg.runs.contents import load_moment, read_summary
from fedacg.runs.folder import RunFolder
from fedacg.runs.model_file import ModelFile, load_model
from fedacg.runs.runner import play
from support.runs import tiny

MOST = 300
"""Bits that are tried in a file; a shorter one has one in every byte."""


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Experiment]:
    settings = ["rounds=3", "analysis.rounds=[2]", "method.name=feddyn", "data.clients=4", "model.hidden=[3]"]
    experiment = tiny(tmp_path, *settings)
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    return tmp_path / "run", experiment


def is_noticed(folder: Path, name: str, experiment: Experiment) -> bool:
    """Whether the reader of a file finds fault with it."""
    try:
        match name.split("/")[0]:
            case "run.json" | "experiment.toml" | "checkpoint.safetensors" | "metrics.jsonl":
                _resume(folder, experiment)
            case "summary.json":
                return read_summary(folder, sealed=True) is None
            case "model.json":
                ModelFile.read(folder)
            case "clients":
                memory = ClientStates(folder / "clients")
                memory.rewind(3)
                for client in memory.clients:
                    memory.read(client)
            case "recorded":
                recorded = recording.load(folder, 2)
                for place in range(len(recorded.clients)):
                    recorded.local(place)
            case other:
                raise AssertionError(f"{other}: nobody reads it")
    except InputError:
        return True
    return False


def _resume(folder: Path, experiment: Experiment) -> None:
    store = RunFolder(folder)
    try:
        store.resume(experiment)
    finally:
        store.close()


def flips(content: bytes, generator: random.Random) -> list[tuple[int, int]]:
    places = range(len(content)) if len(content) <= MOST else generator.sample(range(len(content)), MOST)
    return [(place, generator.randrange(8)) for place in places]


def test_any_flipped_bit_is_noticed(run: tuple[Path, Experiment]) -> None:
    folder, experiment = run
    generator = random.Random(5)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names.remove(".lock")
    assert len(names) == 6 + 4 + 2 + 3
    for name in names:
        assert not is_noticed(folder, name, experiment)
        content = (folder / name).read_bytes()
        for place, bit in flips(content, generator):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            (folder / name).write_bytes(changed)
            assert is_noticed(folder, name, experiment), f"{name}, byte {place}, bit {bit}"
        (folder / name).write_bytes(content)


def test_files_that_changed_places_are_noticed(run: tuple[Path, Experiment]) -> None:
    folder, experiment = run
    for kind, name in (("clients/0/*", "clients"), ("recorded/00002/[0-9]*", "recorded")):
        first, second = sorted(folder.glob(kind))[:2]
        kept = second.read_bytes()
        second.write_bytes(first.read_bytes())
        assert is_noticed(folder, name, experiment)
        second.write_bytes(kept)
        assert not is_noticed(folder, name, experiment)


def test_a_report_notes_a_description_that_was_changed(run: tuple[Path, Experiment]) -> None:
    folder, _ = run
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 0.3"))
    assert any("was changed or damaged since the run began" in note for note in load_run(folder).notes)


def test_load_model_gives_the_model_of_the_summary_or_none(run: tuple[Path, Experiment], tmp_path: Path) -> None:
    folder, _experiment = run
    model = load_model(folder)
    vector = load_moment(folder).vectors["theta"]
    assert [p.shape for p in model.parameters()] == [(3, 64), (3,), (10, 3), (10,)]
    # The checkpoint of another run of the same shape and length: whole in itself, but not this run's.
    other = tiny(
        tmp_path, *(f"{key}={value}" for key, value in (("seed", 9), ("rounds", 3), ("model.hidden", [3])))
    )
    play(other, prepare(other), folder=tmp_path / "other")
    assert sha256(load_moment(tmp_path / "other").vectors["theta"]) != sha256(vector)
    (tmp_path / "other" / "checkpoint.safetensors").replace(folder / "checkpoint.safetensors")
    with pytest.raises(InputError, match="the checkpoint is not what the run ended with"):
        load_model(folder)
