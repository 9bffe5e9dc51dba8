"""Folders that are chosen for the user, runs that are over, what a tab completes, and loggers of many runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedacg.cli import completion
from fedacg.config.recipe import read_toml
from support.command import Command


def rounds_of(folder: Path) -> int:
    found: int = read_toml(folder / "experiment.toml")["rounds"]
    return found


def test_runs_of_other_settings_have_other_folders(fedacg: Command) -> None:
    runs = fedacg.folder / "runs"
    assert fedacg("run", "tiny.toml", "-q", "--set", "rounds=1").out == "runs/tiny-fedacg-s4\n"
    assert fedacg("run", "tiny.toml", "-q", "--set", "rounds=2").out == "runs/tiny-fedacg-s4-2\n"
    assert [rounds_of(runs / name) for name in ("tiny-fedacg-s4", "tiny-fedacg-s4-2")] == [1, 2]
    # The same settings find their own folder again, whichever it is.
    again = fedacg("run", "tiny.toml", "-q", "--set", "rounds=2")
    assert again.code == 2
    assert "runs/tiny-fedacg-s4-2: holds a run" in again.err
    assert fedacg("run", "tiny.toml", "-q", "--set", "rounds=2", "--resume").out == "runs/tiny-fedacg-s4-2\n"
    # Whoever resumes or overwrites means a run that is there, and must not get an empty folder in silence.
    other = fedacg("run", "tiny.toml", "-q", "--set", "rounds=3", "--set", "local.lr=0.2", "--resume")
    assert other.code == 2
    assert "runs/tiny-fedacg-s4: holds a different experiment" in other.err
    assert fedacg("run", "tiny.toml", "-q", "--set", "rounds=3", "--overwrite").out == "runs/tiny-fedacg-s4\n"


def test_comparisons_of_other_settings_have_other_folders(fedacg: Command) -> None:
    command = ["compare", "tiny.toml", "-q", "--methods"]
    assert fedacg(*command, "fedavg", "--set", "rounds=1").out == "runs/tiny/index.html\n"
    assert fedacg(*command, "fedacg", "--set", "rounds=1").out == "runs/tiny/index.html\n", "another method"
    assert fedacg(*command, "fedavg", "--seeds", "7", "--set", "rounds=1").out == "runs/tiny/index.html\n"
    assert fedacg(*command, "fedprox", "--set", "rounds=2").out == "runs/tiny-2/index.html\n"
    assert fedacg(*command, "fedprox", "--set", "rounds=2", "--resume").out == "runs/tiny-2/index.html\n"


def test_sweeps_of_other_settings_have_other_folders(fedacg: Command) -> None:
    command = ["sweep", "tiny.toml", "-q", "--set", "rounds=1"]
    assert fedacg(*command, "--grid", "method.lam=0.5,0.8").out == "runs/tiny-sweep/index.html\n"
    assert fedacg(*command, "--grid", "method.lam=0.8,0.9").out == "runs/tiny-sweep/index.html\n", "some are there"
    other = ["--grid", "method.lam=0.5", "--set", "local.lr=0.2"]
    assert fedacg(*command, *other).out == "runs/tiny-sweep-2/index.html\n"


def test_resuming_what_is_finished_says_so(fedacg: Command) -> None:
    run = ["run", "tiny.toml", "--set", "rounds=2", "--out", "one"]
    first = fedacg(*run)
    again = fedacg(*run, "--resume")
    assert again.code == 0
    assert again.out.startswith("one: this run is finished, so there is nothing to resume; --set rounds=4 would")
    digest = next(line for line in first.out.splitlines() if "sha256" in line)
    assert digest in again.out, "its figures are shown"
    compare = ["compare", "tiny.toml", "--methods", "fedavg,fedacg", "--set", "rounds=1", "--out", "all"]
    assert "finished before" not in fedacg(*compare).out
    assert fedacg(*compare, "--resume").out.startswith("all of 2 runs below all were finished before\n")


def test_every_run_of_a_sweep_is_logged(fedacg: Command) -> None:
    pytest.importorskip("tensorboard")
    sweep = [
        "sweep",
        "tiny.toml",
        "--grid",
        "method.lam=0.5,0.8",
        "--set",
        "rounds=1",
        "-q",
        "--log",
        "tensorboard",
    ]
    assert fedacg(*sweep, "--out", "out").code == 0
    for run in ("lam=0.5-s4", "lam=0.8-s4"):
        assert list((fedacg.folder / "out" / "runs" / run).rglob("events.*"))


def test_every_command_that_runs_can_log(fedacg: Command) -> None:
    for command in ("run", "compare", "sweep", "bench"):
        assert "--log" in fedacg(command, "--help").out


@pytest.mark.parametrize(
    ("offer", "typed", "offered"),
    [
        (completion.recipes, "quick", ["quickstart"]),
        (completion.recipes, "ti", ["tiny-imagenet-large", "tiny.toml"]),
        (completion.recipes, "sub/", ["sub/mine.toml"]),
        (completion.method, "fedac", ["fedacg"]),
        (completion.method, "fedprox+a", ["fedprox+acg", "fedprox+asam"]),
        (completion.method, "fedacg:", ["fedacg:lam=", "fedacg:beta=", "fedacg:server_lr="]),
        (completion.methods, "fedavg,fedac", ["fedavg,fedacg"]),
        (completion.keys, "local.lr", ["local.lr=", "local.lr_decay="]),
        (completion.keys, "data.split=dir", ["data.split=dirichlet"]),
        (completion.keys, "method.la", ["method.lam="]),
        (completion.data_sets, "cifar", ["cifar10", "cifar100"]),
    ],
)
def test_a_tab_offers_what_there_is(offer, typed, offered, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").touch()
    (tmp_path / "tiny.txt").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.toml").touch()
    found = offer(typed)
    assert set(offered) <= set(found)
    assert all(each.startswith(typed) for each in found)
    assert len(found) == len(set(found))
    assert "tiny.txt" not in found


def test_the_shell_gets_completions_without_torch(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "fedacg compare quickstart --methods fedavg,fedac", "COMP_CWORD": "4"}
    program = (
        "import sys; sys.argv = ['fedacg']\n"
        "try:\n    from fedacg.cli import main; main()\n"
        "finally:\n    assert 'torch' not in sys.modules"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**words, "_FEDACG_COMPLETE": "complete_bash", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.stdout.split(), found.stderr) == (["fedavg,fedacg"], "")
