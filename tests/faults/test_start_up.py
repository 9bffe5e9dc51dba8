"""Signals while a command starts: from its first own step over the loading of torch to the first rounds."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.command import TINY, start

INSTANTS = (0, 0.02, 0.1, 0.3, 0.6, 1, 1.5, 2, 3, 4, 5, 6, 7, 8)
"""Seconds after the program has taken charge of signals; torch alone takes some of them to load."""


def takes_signals(program: "subprocess.Popen[str]") -> bool:
    """Whether SIGHUP is caught, which the interpreter does not do by itself."""
    for line in Path(f"/proc/{program.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGHUP - 1) & 1)
    return False


def stop(folder: Path, instant: float | None, *numbers: signal.Signals) -> str:
    """Start a run, send it signals at an instant, or after its next round, and return what it said."""
    words = ["--set", "rounds=100000", "--set", "engine.name=processes", "--set", "engine.workers=2"]
    metrics = folder / "run" / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.exists() else 0
    program = start(folder, "run", "tiny.toml", "--out", "run", "--resume", *words)
    while not takes_signals(program):
        time.sleep(0.001)
    time.sleep(instant or 0)
    while (
        instant is None and not (metrics.exists() and metrics.stat().st_size > before) and program.poll() is None
    ):
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
    said = [stop(tmp_path, instant, *numbers) for instant in INSTANTS]
    assert "To resume" not in said[0], "nothing was begun"
    last = stop(tmp_path, None, *numbers)
    assert "--out run --resume" in last or numbers == [signal.SIGINT] * 2
