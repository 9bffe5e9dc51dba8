"""Signals while a command starts: from its first own step over the loading of torch to the first rounds."""

import math
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.command import TINY, start

INSTANTS = (0, 0.02, 0.1, 0.3, 0.6, 1, 1.5, 2, 3, 4, 5, 6, 7, 8)
"""Seconds after the program has taken charge of signals; torch alone takes some of them to load.

How many come before its first round is the machine's affair: those after it would be one case again and again.
"""


def takes_signals(program: "subprocess.Popen[str]") -> bool:
    """Whether SIGHUP is caught, which the interpreter does not do by itself."""
    for line in Path(f"/proc/{program.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGHUP - 1) & 1)
    return False


def written(folder: Path) -> int:
    """How many bytes the run has written about its rounds."""
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.stat().st_size if metrics.exists() else 0


def stop(folder: Path, instant: float, *numbers: signal.Signals) -> str:
    """Start a run, send it signals at an instant, or after its next round if that is sooner; what it said."""
    words = ["--set", "rounds=100000", "--set", "engine.name=processes", "--set", "engine.workers=2"]
    before = written(folder)
    program = start(folder, "run", "tiny.toml", "--out", "run", "--resume", *words)
    while not takes_signals(program):
        time.sleep(0.001)
    deadline = time.monotonic() + instant
    while time.monotonic() < deadline and written(folder) == before and program.poll() is None:
        time.sleep(0.01)
    for number in numbers:
        program.send_signal(number)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 130, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert "Stopped" in said
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT] * 2, [signal.SIGHUP] * 2],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP", "Ctrl-C twice", "SIGHUP twice"],
)
def test_a_command_that_is_stopped_while_it_starts_says_so_and_can_be_resumed(
    numbers: list[signal.Signals], tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    first, *later = INSTANTS
    assert "To resume" not in stop(tmp_path, first, *numbers), "nothing was begun"
    for instant in later:
        before = written(tmp_path)
        stop(tmp_path, instant, *numbers)
        if written(tmp_path) > before:
            break
    last = stop(tmp_path, math.inf, *numbers)
    assert "--out run --resume" in last or numbers == [signal.SIGINT] * 2
