"""A run touches nothing but its own files: not in folders that are no runs, not through links, not by its name."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import fedacg as package
from fedacg.errors import InputError
from support.command import Command

RUN = ["run", "tiny.toml", "--quiet", "--set", "rounds=2", "--set", "method.name=feddyn"]
RECORD = ["--set", "analysis.rounds=[1]"]


def everything(folder: Path) -> dict[str, bytes | str]:
    """All files below a folder, and where links lead."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def project(folder: Path) -> dict[str, bytes | str]:
    """A folder of the user's own, with names that a run folder has too."""
    for name in (
        "clients/acme/contract.txt",
        "clients/7/3.safetensors",
        "clients/0/7-3.safetensors",
        "recorded/00001/round.json",
        "recorded/talk.mp3",
        ".hidden/x",
        "summary.json",
        "metrics.txt",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"my {name}")
    return everything(folder)


@pytest.mark.parametrize("option", [[], ["--resume"], ["--overwrite"]])
@pytest.mark.parametrize("out", ["proj", "proj/", "./proj", "link"])
def test_a_folder_that_is_no_run_is_refused_and_left_alone(fedacg: Command, option: list[str], out: str) -> None:
    before = project(fedacg.folder / "proj")
    (fedacg.folder / "link").symlink_to("proj")
    outcome = fedacg(*RUN, "--out", out, *option)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "is not empty and holds no run" in outcome.err
    assert everything(fedacg.folder / "proj") == before


def test_a_description_beside_a_users_files_makes_no_run_of_them(fedacg: Command) -> None:
    before = project(fedacg.folder / "proj")
    shutil.copy(fedacg.folder / "tiny.toml", fedacg.folder / "proj" / "experiment.toml")
    for option in ("--resume", "--overwrite"):
        assert fedacg("run", "proj/experiment.toml", "--out", "proj", option).code == 2
    (fedacg.folder / "proj" / "experiment.toml").unlink()
    assert everything(fedacg.folder / "proj") == before


def test_python_refuses_it_as_well(tmp_path: Path) -> None:
    before = project(tmp_path / "proj")
    data = (torch.randn(8, 2), torch.randint(0, 2, (8,)))
    for settings in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(InputError, match="is not empty and holds no run"):
            package.run(
                model=torch.nn.Linear(2, 2), clients=[data] * 3, test=data, out=tmp_path / "proj", **settings
            )
    with pytest.raises(InputError, match="out = '': must be the name of a folder"):
        package.run(model=torch.nn.Linear(2, 2), clients=[data] * 3, test=data, out="")
    assert everything(tmp_path / "proj") == before


@pytest.mark.parametrize(
    "command", [RUN, ["compare", "tiny.toml", "-m", "fedavg"], ["report", "run"], ["analyze", "run"]]
)
def test_an_empty_name_is_no_folder(fedacg: Command, command: list[str]) -> None:
    before = everything(fedacg.folder)
    outcome = fedacg(*command, "--out", "")
    assert outcome.code == 2
    assert "must be the name of a folder" in outcome.err
    assert everything(fedacg.folder) == before


def test_an_empty_folder_and_what_a_finder_leaves_are_fine(fedacg: Command) -> None:
    (fedacg.folder / "run").mkdir()
    (fedacg.folder / "run" / ".DS_Store").write_bytes(b"finder")
    assert fedacg(*RUN, "--out", "run").code == 0
    assert (fedacg.folder / "run" / ".DS_Store").read_bytes() == b"finder"


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_a_users_files_within_a_run_folder_stay(fedacg: Command, option: str) -> None:
    assert fedacg(*RUN, *RECORD, "--out", "run").code == 0
    run = fedacg.folder / "run"
    mine = ["notes.txt", "clients/notes.txt", "clients/0/notes.txt", "clients/acme/x", "recorded/00001/notes.txt"]
    mine += [
        "recorded/plots/x.png",
        "clients/0/7-.safetensors",
        "recorded/.00009/mine",
        "clients/0/x/1-1.safetensors",
    ]
    for name in mine:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    assert fedacg(*RUN, "--out", "run", option).code == 0
    assert [name for name in mine if (run / name).read_text() != "mine"] == []
    if option == "--overwrite":
        assert not (run / "recorded" / "00001" / "round.json").exists()


OURS = [
    "run.json",
    "experiment.toml",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "summary.json",
    "model.json",
    ".lock",
]


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
@pytest.mark.parametrize(
    "name", [*OURS, "clients", "recorded", "clients/0", "recorded/00001", "clients/0/5-9.safetensors"]
)
def test_a_link_under_one_of_our_names_is_refused_and_not_followed(
    fedacg: Command, name: str, option: str
) -> None:
    assert fedacg(*RUN, *RECORD, "--out", "run").code == 0
    path, elsewhere = fedacg.folder / "run" / name, fedacg.folder / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.write_text("precious")
    path.symlink_to(elsewhere)
    kept = everything(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()
    outcome = fedacg(*RUN, *RECORD, "--out", "run", option)
    kept_after = everything(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()
    assert kept_after == kept
    if not (
        name.startswith("recorded/") and option == "--resume"
    ):  # a round that is not played again is not touched
        assert outcome.code == 2
        assert f"{name}: is a link" in outcome.err
        assert outcome.err.count("\n") == 1


def test_drafts_that_are_links_are_not_written_through(fedacg: Command) -> None:
    victim = fedacg.folder / "victim"
    victim.write_text("precious")
    run = fedacg.folder / "run"
    run.mkdir()
    for name in OURS[:-1]:
        (run / f".{name}.{os.getpid()}.draft").symlink_to(victim)
        os.link(victim, run / f".{name}.12345.draft")
    assert fedacg(*RUN, "--out", "run").code == 0
    assert victim.read_text() == "precious"
    assert list(run.glob(".*.draft")) == []


def test_a_lock_that_is_another_file_too_is_refused(fedacg: Command) -> None:
    (fedacg.folder / "victim").write_text("precious")
    (fedacg.folder / "run").mkdir()
    os.link(fedacg.folder / "victim", fedacg.folder / "run" / ".lock")
    outcome = fedacg(*RUN, "--out", "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert (fedacg.folder / "victim").read_text() == "precious"


@pytest.mark.parametrize("name", ["../../x", "a/b", "/tmp/x", "..", "a\x00b", "\x1b[2J", "n" * 300])
@pytest.mark.parametrize("command", [["run", "tiny.toml"], ["compare", "tiny.toml", "-m", "fedavg"]])
def test_a_name_does_not_lead_out_of_runs(fedacg: Command, command: list[str], name: str) -> None:
    spelled = name.replace("\x00", "\\u0000").replace("\x1b", "\\u001b")
    before = everything(fedacg.folder.parent)
    outcome = fedacg(*command, "--set", f'name="{spelled}"', "--set", "rounds=1", "--quiet")
    inside = name == ".." and command[0] == "run"  # runs/..-fedacg-s4 is a folder like any other
    assert outcome.code == (0 if inside else 2)
    assert inside or "name = " in outcome.err
    after = everything(fedacg.folder.parent)
    new = [path for path in after if path not in before]
    assert all(path.startswith(f"{fedacg.folder.name}/runs/") for path in new)
