"""What a terminal of 80 × 24 shows while runs go on, and what is left of it."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from fedacg.runs import progress as shown
from fedacg.runs.callbacks import RunView
from fedacg.runs.history import History
from fedacg.runs.progress import Block, make_progress
from fedacg.simulation.metrics import RoundMetrics
from support.command import TINY
from support.runs import tiny
from support.terminal import LINES, Screen, Terminal


def one_round(number: int) -> RoundMetrics:
    return RoundMetrics(number, 0.1, (0,), 10, 1.0, 100, 100, 0.1, 0.0, 0.0, 0.5, 1.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def draw(block: Block, height: int = 24) -> list[str]:
    """The block as it would be drawn now."""
    console = Console(file=(out := io.StringIO()), width=80, height=height, force_terminal=True, color_system=None)
    console.print(block._draw())
    screen = Screen()
    screen.feed(out.getvalue().replace("\n", "\r\n"))
    return screen.lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(shown, "monotonic", found)
    return found


def test_the_block_says_what_is_done_what_goes_on_and_what_is_to_come(tmp_path: Path, clock: Clock) -> None:
    experiment = tiny(tmp_path, "rounds=10", "engine.name=processes")
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    history = History()
    with make_progress(console, False, {"one": 10, "two": 10, "three": 10}) as block:
        assert isinstance(block, Block)
        block.turn("one")
        block.begin(RunView(experiment, History()))
        assert draw(block)[0] == "0 of 3 runs done"
        assert draw(block)[1].split() == ["▸", "one", "starting", "workers", "0/10"]
        clock.now += 20  # workers start, and the first round is played
        for number in range(1, 11):
            clock.now += 2
            history.append(one_round(number))
            block.round(RunView(experiment, history))
            if number == 5:
                # Two seconds per round: what the start took is no measure of the rounds that are left.
                assert draw(block)[0] == "0 of 3 runs done, 50 s left"
                assert draw(block)[1].startswith("▸ one")
                assert draw(block)[1].endswith("5/10 accuracy 50.0 % 10 s left")
        block.end(RunView(experiment, history))
        block.turn("two")
        block.begin(RunView(experiment, History()))
        lines = draw(block)
        assert lines[0] == "1 of 3 runs done, 40 s left"
        assert lines[1].startswith("✓ one")
        assert lines[1].endswith("10/10 accuracy 50.0 % 40 s")
        assert lines[2].split() == ["▸", "two", "round", "1", "0/10"], "workers are there by now"
        assert lines[3].strip() == "three"
        block.end(RunView(experiment, history))
        assert draw(block)[2].startswith("✗ two"), "it did not get to its end"
        block.turn("three")
        block.begin(RunView(experiment, History()))
        block.end(RunView(experiment, history, stopping="good enough"))
        assert draw(block)[3].startswith("✓ three"), "a callback chose its end"


def test_of_many_runs_those_around_the_current_one_are_shown(tmp_path: Path, clock: Clock) -> None:
    experiment = tiny(tmp_path, "rounds=1")
    names = {f"run{number}": 1 for number in range(30)}
    block = Block(Console(file=io.StringIO(), width=80, height=LINES), names)
    for place, name in enumerate(names):
        block.turn(name)
        block._lines[place].started = clock()
        lines = draw(block)
        assert len(lines) <= 14
        assert sum(line.startswith("▸") for line in lines) == 1
        (current,) = (line for line in lines if line.startswith("▸"))
        assert name in current
        hidden = [int(line.split()[2]) for line in lines if "more" in line]
        to_come = sum(line.strip() in names for line in lines)
        assert to_come + sum(hidden) == len(names) - place - 1
        block._lines[place].done = 1
        block.end(RunView(experiment, History()))


@pytest.mark.slow
def test_a_comparison_in_a_terminal_is_one_block_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    methods = "fedavg,fedacg,fedprox,fedavgm"
    terminal = Terminal(tmp_path, "compare", "tiny.toml", "--methods", methods, "--set", "rounds=60", "-o", "all")
    terminal.wait_for(lambda lines: any("1 of 4 runs done" in line and "left" in line for line in lines))
    assert terminal.end() == 0
    for screen in terminal.seen:
        assert sum("━" in line for line in screen) <= 1, screen
        assert sum("runs done" in line for line in screen) <= 1, screen
    left = terminal.screen.past + terminal.screen.lines
    assert not [line for line in left if "━" in line or "▸" in line or "runs done" in line], left
    assert "report: all/index.html" in left
    assert terminal.text.endswith("\r\n")
    assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l")


@pytest.mark.slow
def test_one_run_leaves_its_bar_once(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    terminal = Terminal(tmp_path, "run", "tiny.toml", "--set", "rounds=5", "--out", "run")
    assert terminal.end() == 0
    bars = [line for line in terminal.screen.past + terminal.screen.lines if "━" in line]
    assert len(bars) == 1
    assert "FedACG (seed 4)" in bars[0]
    assert " 5/5 " in bars[0]


@pytest.mark.slow
def test_ctrl_c_takes_the_block_away_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    command = ["compare", "tiny.toml", "--methods", "fedavg,fedacg", "--set", "rounds=100000", "--out", "all"]
    terminal = Terminal(tmp_path, *command)
    terminal.wait_for(lambda lines: any("left" in line and "━" in line for line in lines))
    terminal.press(b"\x03")
    assert terminal.end() == 130
    left = [line for line in terminal.screen.past + terminal.screen.lines if line]
    assert left == ["Stopped; the last complete round is saved. To resume:", "  the same command with --resume"]


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    workers = ["--set", "engine.name=processes", "--set", "engine.workers=2"]
    for moment in ("starting workers", "━"):
        command = ["compare", "tiny.toml", "--methods", "fedavg,fedacg", "--set", "rounds=100000", *workers]
        terminal = Terminal(tmp_path, *command, "--overwrite", "--out", "all")
        terminal.wait_for(lambda lines, moment=moment: any(moment in line for line in lines))  # type: ignore[misc]
        terminal.press(b"\x03")
        terminal.press(b"\x03")
        started = time.monotonic()
        assert terminal.end() == 130
        assert time.monotonic() - started < 5
        time.sleep(1)  # whoever outlives it may still complain
        assert "Traceback" not in terminal.text
        assert "Error" not in terminal.text
