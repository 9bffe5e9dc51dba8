"""kill -9 and full disks, at operations on files and at random instants: nothing is lost, and no bit differs."""

from pathlib import Path

import pytest

from support.disturbing import Plan, disturb

STATEFUL = ["feddyn", "feddc", "moon"]
ENGINES = {"serial": ["engine.name=serial"], "workers": ["engine.name=processes", "engine.workers=2"]}
KILLS = 180
"""In each of the six cases: more than a thousand together."""


def settings(method: str, engine: str, *others: str) -> list[str]:
    # Three of six clients per round: those of a broken round have been there before and will be again.
    small = ["rounds=10", "data.clients=6", "model.hidden=[4]", "evaluate.examples=50"]
    return [f"method.name={method}", *small, *ENGINES[engine], *others]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", STATEFUL)
def test_runs_killed_hundreds_of_times_have_the_bits_of_an_undisturbed_one(
    method: str, engine: str, tmp_path: Path
) -> None:
    seconds = {"feddyn": 0, "feddc": 0.02, "moon": 0}[method]
    plan = Plan(str(tmp_path), settings(method, engine, f"save.seconds={seconds}"), "kill", KILLS, seed=len(method))
    report = disturb(plan)
    assert report.unexpected == []
    assert report.differing == 0
    assert report.disturbances >= KILLS
    assert min(report.at_operations, report.at_bytes, report.at_instants) > KILLS // 10
    assert report.runs > 1


@pytest.mark.slow
@pytest.mark.parametrize(("method", "engine"), [("feddyn", "serial"), ("moon", "serial"), ("feddc", "workers")])
def test_runs_on_a_full_disk_lose_nothing(method: str, engine: str, tmp_path: Path) -> None:
    report = disturb(Plan(str(tmp_path), settings(method, engine), "full", 60, seed=1))
    assert report.unexpected == []
    assert report.differing == 0
    assert report.disturbances >= 60
    assert min(report.at_operations, report.at_bytes) > 6
