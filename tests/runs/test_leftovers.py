"""What a killed process leaves is cleared by the next one, and what a living one has is left alone."""

import os
import tempfile
import time
from pathlib import Path

import pytest
import torch

from fedacg.core import files
from fedacg.runs.build import prepare
from fedacg.runs.client_states import ClientStates, scratch_folder
from fedacg.runs.runner import play
from support.runs import tiny

DEAD = 2**22 + 1
"""Above the largest number that Linux gives a process."""


def aged(folder: Path) -> Path:
    os.utime(folder, (time.time() - 3600,) * 2)
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_over(place: Path, name: str) -> Path:
    folder = place / name
    (folder / "clients" / "0").mkdir(parents=True)
    (folder / "clients" / "0" / "1-1.safetensors").write_bytes(bytes(1000))
    (folder / ".lock").touch()
    return aged(folder)


def test_the_scratch_folder_of_a_killed_process_is_cleared(temporary: Path) -> None:
    dead = left_over(temporary, "fedacg-abcd_123")
    with scratch_folder() as mine:
        assert not dead.exists()
        assert mine.is_dir()
    assert list(temporary.iterdir()) == []


def test_what_is_not_left_over_stays(temporary: Path) -> None:
    others = [left_over(temporary, name) for name in ("fedacg-notes", "fedacg-abcdefgh", "other-abcd1234")]
    (others[1] / "mine.txt").touch()
    aged(others[1])
    (temporary / "fedacg-11111111").symlink_to(others[0])
    with scratch_folder() as living:
        aged(living)
        with scratch_folder():
            pass
        assert living.is_dir()
        young = left_over(temporary, "fedacg-22222222")
        os.utime(young)
        with scratch_folder():
            pass
        assert young.is_dir(), "its process may just be starting"
    assert all((other / "clients" / "0" / "1-1.safetensors").exists() for other in others)


def test_drafts_of_dead_processes_are_cleared_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    names = {f".a.csv.{DEAD}.draft": False, f".a.csv.{os.getpid()}.draft": True, f".b.csv.{DEAD}.draft": True}
    for name in (*names, "a.csv", ".a.csv.draft"):
        (tmp_path / name).touch()
    files.remove_drafts(tmp_path, ["a.csv"])
    assert {name: (tmp_path / name).exists() for name in names} == names
    assert (tmp_path / "a.csv").exists()
    assert (tmp_path / ".a.csv.draft").exists()


def test_a_run_folder_has_no_drafts_after_a_resume(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=1")
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    (tmp_path / "run" / f".checkpoint.safetensors.{DEAD}.draft").touch()
    (tmp_path / "run" / "checkpoint.draft").touch()
    play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    names = {"run.json", "experiment.toml", "metrics.jsonl", "checkpoint.safetensors", "summary.json", ".lock"}
    names.add("model.json")
    assert {path.name for path in (tmp_path / "run").iterdir()} == names


def test_outdated_states_are_cleared_when_a_run_goes_on(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path / "clients")
    for round in (1, 2, 3):
        memory.write(round, 7, {"h": torch.zeros(2)})
    again = ClientStates(tmp_path / "clients")
    again.rewind(2)
    assert [path.name for path in tmp_path.glob("clients/*/*")] == ["7-2.safetensors"]


def test_no_folder_of_states_gets_long(tmp_path: Path) -> None:
    memory = ClientStates(tmp_path / "clients")
    for client in (0, 999, 1000, 62_999, 1_000_000):
        memory.write(1, client, {"h": torch.full((1,), float(client))})
    assert {path.name for path in (tmp_path / "clients").iterdir()} == {"0", "1", "62", "1000"}
    again = ClientStates(tmp_path / "clients")
    again.rewind(1)
    assert again.clients == {0, 999, 1000, 62_999, 1_000_000}
    assert again.read(62_999)["h"].item() == 62_999


def test_a_file_is_whole_and_known_to_its_folder_when_it_has_been_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda f: (steps.append(Path(f"/proc/self/fd/{f}").readlink().name), fsync(f))
    )
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append("rename"), rename(path, to)))
    files.write_whole(tmp_path / "a", b"content")
    assert steps == [f".a.{os.getpid()}.draft", "rename", tmp_path.name]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read_whole(tmp_path / "pipe")
    monkeypatch.setattr(Path, "replace", lambda path, to: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(tmp_path / "a", b"other")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert list(tmp_path.glob(".a.*")) == []
