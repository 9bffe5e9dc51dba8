"""The program `fedacg`, in this process or in one of its own."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedacg.cli import main

TINY = """
name = "tiny"
seed = 4
rounds = 40
[data]
clients = 20
alpha = 0.2
[model]
name = "mlp"
hidden = [16]
[cohort]
size = 3
[local]
epochs = 1
batch = 10
[evaluate]
targets = [0.5]
[engine]
name = "serial"
[save]
seconds = 0
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Command:
    """Runs commands here, in a folder of their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "80")
        (folder / "tiny.toml").write_text(TINY)

    def __call__(self, *arguments: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["fedacg", *arguments])
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        captured = self._capsys.readouterr()
        return Outcome(code, captured.out, captured.err)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedacg", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        preexec_fn=_heed_signals,
    )


def _heed_signals() -> None:
    """Undo what tests in the background, or under nohup, were made to ignore: children would ignore it, too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def lines(folder: Path) -> int:
    """How many rounds the run `killed` has written."""
    path = folder / "killed" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def digests_with_and_without_kills(folder: Path, kills: int, moments: random.Random) -> tuple[str, str]:
    """The fingerprints of `tiny.toml` run in one go, and killed at random moments and resumed."""
    whole = start(folder, "run", "tiny.toml", "--out", "whole", "--quiet")
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    for _ in range(kills):
        run = start(folder, "run", "tiny.toml", "--out", "killed", "--resume")
        before = lines(folder)
        while lines(folder) <= before and run.poll() is None:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.05))
        run.kill()
        run.communicate()
        assert run.returncode == -signal.SIGKILL, "the run ended before it was killed"
    last = start(folder, "run", "tiny.toml", "--out", "killed", "--resume", "--quiet")
    last.communicate(timeout=300)
    assert last.returncode == 0
    undisturbed, killed = (
        json.loads((folder / run / "summary.json").read_text())["vector_sha256"] for run in ("whole", "killed")
    )
    return undisturbed, killed


def refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2 and one message on stderr that has all these words."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("error:") == 1
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err
