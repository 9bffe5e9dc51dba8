"""A second signal while the first one is obeyed: the last complete round is being saved then."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fedacg.runs.contents import load_moment
from fedacg.runs.folder import RunFolder
from support.command import Command

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEATED = (signal.SIGTERM, signal.SIGHUP)
"""Those of which a second one changes nothing; a second Ctrl-C ends the program at once."""


@pytest.fixture
def heeded() -> Iterator[None]:
    """Signals that tests in the background, or under nohup, were made to ignore would not stop a run."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("second", REPEATED, ids=lambda number: f"then {number.name}")
@pytest.mark.parametrize("first", STOPPING, ids=lambda number: number.name)
def test_a_second_signal_does_not_disturb_the_save(
    first: signal.Signals, second: signal.Signals, fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, save = RunFolder.append, RunFolder.save

    def stopped_in_round_3(store: RunFolder, metrics: Any) -> None:
        append(store, metrics)
        if metrics.round == 3:
            os.kill(os.getpid(), first)

    def disturbed(store: RunFolder, moment: Any) -> None:
        os.kill(os.getpid(), second)
        save(store, moment)
        os.kill(os.getpid(), second)

    monkeypatch.setattr(RunFolder, "append", stopped_in_round_3)
    monkeypatch.setattr(RunFolder, "save", disturbed)
    run = ["run", "tiny.toml", "--out", "run", "--set", "rounds=5", "--set", "save.seconds=1000"]
    outcome = fedacg(*run)
    assert outcome.code == 130
    assert "fedacg run run/experiment.toml --out run --resume" in outcome.out + outcome.err
    assert load_moment(fedacg.folder / "run").round == 3
    monkeypatch.setattr(RunFolder, "append", append)
    monkeypatch.setattr(RunFolder, "save", save)
    assert fedacg(*run, "--resume").code == 0
