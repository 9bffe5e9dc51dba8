"""Damage to every file of a run folder: each command says what is wrong in one line, or does its work."""

import pickle
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fedacg import analysis
from fedacg.errors import InputError
from fedacg.report import live, pictures
from fedacg.report.live import LiveReport
from support.command import Command
from support.damage import Damage, every_damage
from support.thorough import THOROUGH

SETTINGS = ["rounds=4", "analysis.rounds=[2]", "method.name=feddyn", "data.clients=6", "local.steps=1"]
SET = [word for setting in SETTINGS for word in ("--set", setting)]
COMMANDS = {
    "report": ["report", "run", "--out", "report", "--quiet"],
    "analyze": [
        "analyze",
        "run",
        "--out",
        "analysis",
        "--quiet",
        "--what",
        "divergence,stability,drift,cka",
        "--examples",
        "20",
        "--workers",
        "1",
    ],
    "resume": ["run", "tiny.toml", "--out", "run", "--resume", "--quiet", *SET],
}
"""The last one alone changes the folder."""
PARTS = 24
DRAWN = 10
"""Of so many damaged folders the pictures of one analysis are drawn."""
LONGEST = 60
"""Seconds after which a command is taken to hang."""


@pytest.fixture
def whole(fedacg: Command) -> Iterator[Path]:
    """A finished run with client states and a recorded round, and files of the user's own beside it."""
    assert fedacg("run", "tiny.toml", "--out", "whole", "--quiet", *SET).code == 0
    (fedacg.folder / "precious").mkdir()
    (fedacg.folder / "precious" / "thesis.txt").write_text("dear")

    def hangs(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    yield fedacg.folder / "whole"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def damaged(whole: Path, damage: Damage) -> Path:
    run = whole.parent / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    damage.do(run)
    signal.alarm(LONGEST)
    return run


def watched(run: Path) -> None:
    try:
        report = LiveReport([run])
    except InputError:
        return
    assert "<html" in report.page()
    assert report.news("").startswith("{")


def once(function: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draws what has other values than all before: most damage leaves those of a picture as they are."""
    drawn: dict[bytes, Figure] = {}

    def draw(*arguments: Any, **options: Any) -> Figure:
        key = pickle.dumps((arguments, options))
        if key not in drawn:
            drawn[key] = function(*arguments, **options)
        return drawn[key]

    return draw


def rendered(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """Figures that `once` has drawn stay, and so do their pictures."""
    if (figure, kind, dpi) not in PICTURES:
        PICTURES[figure, kind, dpi] = RENDER(figure, kind, dpi)
    return PICTURES[figure, kind, dpi]


RENDER = pictures.render
PICTURES: dict[tuple[Figure, str, int], bytes] = {}
DRAW = {name: once(getattr(pictures, name)) for name in ("draw_curves", "draw_labels")}


def undrawn(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """In place of a picture of a figure."""
    figure.clear()
    return b""


def met_by(damage: Damage, place: int) -> list[str]:
    """The commands that meet a damage: of those that read the same files by the same code, in turn."""
    if THOROUGH:
        return list(COMMANDS)
    if "is strange" in damage.name:  # there are many of these
        return list(COMMANDS)[place % 6 :][:1]
    return ["analyze" if place % 2 or damage.name.startswith("recorded") else "report", "resume"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_commands_meet_every_damage_with_one_line(
    fedacg: Command, whole: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(live, "splits_of", lambda runs: ([], []))
    monkeypatch.setattr(pictures, "render", rendered)
    for name, draw in DRAW.items():
        monkeypatch.setattr(pictures, name, draw)
    damages = list(every_damage(whole, random.Random(part)))
    assert len(damages) > 2000
    for place, damage in enumerate(damages[part::PARTS]):
        # Most of the time goes into pixels, so only some of the figures are turned into pictures.
        monkeypatch.setattr(analysis, "render", RENDER if place % DRAWN == 0 else undrawn)
        watched(damaged(whole, damage))
        for name in met_by(damage, place):
            signal.alarm(LONGEST)
            outcome = fedacg(*COMMANDS[name])
            assert outcome.code in (0, 1, 2), (damage.name, name)
            assert bool(outcome.code) == outcome.err.startswith("error: "), (damage.name, name, outcome.err)
            assert "\x1b" not in outcome.out + outcome.err, (damage.name, name)
        assert (whole.parent / "precious" / "thesis.txt").read_text() == "dear", damage.name


def test_one_damaged_run_does_not_take_the_page_of_the_others_down(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "splits_of", lambda runs: ([], []))
    runs = whole.parent / "runs"
    shutil.copytree(whole, runs / "good")
    for place, damage in enumerate(every_damage(whole, random.Random(1))):
        if place % 200 == 0:
            shutil.copytree(whole, runs / f"bad{place}")
            damage.do(runs / f"bad{place}")
    (runs / "worse").mkdir()
    (runs / "worse" / "experiment.toml").write_text("seed = [1]")
    report = LiveReport([runs])
    assert "feddyn" in report.page()
    assert "worse/experiment.toml: has no method" in report.page()
