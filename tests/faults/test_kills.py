"""kill -9, full disks and signals, at file operations and at random instants: nothing is lost, no bit differs."""

from pathlib import Path

import pytest

from support.disturbing import Plan, disturb
from support.thorough import count

ENGINES = {"serial": ["engine.name=serial"], "workers": ["engine.name=processes", "engine.workers=2"]}
KILLS = count(120, thorough=180)
"""In each of the six cases; half of them at different operations on files, of the first ninety."""
FULL_DISKS = count(40, thorough=60)
STOPS = count(40, thorough=60)


def settings(method: str, engine: str, seconds: float = 0) -> list[str]:
    # Three of six clients per round: those of a broken round have been there before and will be again.
    small = ["rounds=10", "data.clients=6", "model.hidden=[4]", "evaluate.examples=50"]
    return [f"method.name={method}", *small, *ENGINES[engine], f"save.seconds={seconds}"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("method", "seconds"), [("feddyn", 0), ("feddc", 0.02), ("moon", 0)])
def test_runs_killed_hundreds_of_times_have_the_bits_of_an_undisturbed_one(
    method: str, seconds: float, engine: str, tmp_path: Path
) -> None:
    report = disturb(Plan(str(tmp_path), settings(method, engine, seconds), "kill", KILLS, seed=len(method)))
    assert report.unexpected == []
    assert report.differing == 0
    assert report.disturbances >= KILLS
    assert min(report.ways[way] for way in ("operation", "byte", "instant")) > KILLS // 10
    assert report.runs > 1


@pytest.mark.slow
@pytest.mark.parametrize(("method", "engine"), [("feddyn", "serial"), ("moon", "serial"), ("feddc", "workers")])
def test_runs_on_a_full_disk_lose_nothing_and_say_so_plainly(method: str, engine: str, tmp_path: Path) -> None:
    report = disturb(Plan(str(tmp_path), settings(method, engine), "full", FULL_DISKS, seed=1))
    assert report.unexpected == []
    assert report.differing == 0
    assert report.disturbances >= FULL_DISKS
    assert min(report.ways[way] for way in ("operation", "byte")) > FULL_DISKS // 10


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_runs_asked_to_end_at_any_instant_once_or_twice_can_be_resumed(engine: str, tmp_path: Path) -> None:
    report = disturb(Plan(str(tmp_path), settings("feddyn", engine, 1000), "signal", STOPS, seed=2))
    assert report.unexpected == []
    assert report.differing == 0
    assert report.disturbances >= STOPS
    assert min(report.ways[way] for way in ("instant", "twice")) > STOPS // 10
