"""Seconds of a real federation against a hand-worked example; deadlines, over-selection, traces, profiles."""

import csv
import hashlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedacg
from fedacg.config.participation import ClockSettings
from fedacg.config.sections import LocalSettings
from fedacg.data.own_data import from_pairs
from fedacg.errors import InputError
from fedacg.methods import build
from fedacg.runs.build import prepare
from fedacg.runs.runner import Result, play
from fedacg.simulation.clock import CLOCK, Clock, devices
from fedacg.simulation.engine import Job
from support.command import Command, refused
from support.runs import digest, tiny

HEAD = "client,flops,down,up,latency\n"


def trace(folder: Path, *lines: str, head: str = HEAD) -> str:
    path = folder / "devices.csv"
    path.write_text(head + "".join(f"{line}\n" for line in lines))
    return str(path)


def job(sizes: list[int], method: str = "fedavg", **local: float) -> Job:
    """A linear model from 3 inputs to 2 classes: 8 parameters, 32 bytes either way."""
    pairs = [(torch.zeros(n, 3), torch.arange(n) % 2) for n in sizes]
    settings = LocalSettings.model_validate({"epochs": 2, "batch": 4, **local})
    return Job(nn.Linear(3, 2), False, from_pairs(pairs, pairs[0]), build(method), settings, 0, 10)


def test_a_visit_takes_latency_download_work_and_upload(tmp_path: Path) -> None:
    """By hand: a linear layer of 3×2 costs 2·3·2 = 12 operations forward and 12 for its weights' gradient; that of
    its input is not needed. 10 examples in 2 epochs make 20. So 1 + 32/8 + 24·20/96 + 32/16 = 12 seconds."""
    clock = Clock(ClockSettings(profile=trace(tmp_path, "0,96,8,16,1", "1,48,8,16,1")), job([10, 10]), seed=0)
    assert clock.operations == 24
    assert clock.planned(0) == 6
    assert clock.seconds(0, 6) == 1 + 4 + 5 + 2
    assert clock.seconds(1, 6) == 1 + 4 + 10 + 2
    # Four steps: an epoch of 3 with all 10 examples, and one more batch of 4.
    assert clock.seconds(0, 4) == 1 + 4 + 24 * 14 / 96 + 2


def test_what_a_method_adds_to_the_work_counts() -> None:
    plain, ascent = (Clock(ClockSettings(profile="phones"), job([10], name), 0) for name in ("fedavg", "fedsam"))
    assert ascent.operations == 2 * plain.operations


def closing(**settings: float) -> Clock:
    return Clock(ClockSettings.model_validate({"profile": "phones", **settings}), job([10]), 0)


@pytest.mark.parametrize(
    ("settings", "asked", "wanted", "taken", "seconds"),
    [
        ({}, 3, 3, [1, 4, 7], 9.0),  # as long as the slowest answer
        ({}, 4, 4, [1, 4, 7], 9.0),  # one was lost, and nobody knows when to stop waiting for it
        ({"deadline": 5.0}, 3, 3, [1, 7], 5.0),  # the late one is dropped, and was waited for
        ({"deadline": 20.0}, 3, 3, [1, 4, 7], 9.0),  # all are there before
        ({"deadline": 20.0}, 4, 4, [1, 4, 7], 20.0),  # the lost one is waited for
        ({"over_select": 1.5}, 3, 2, [1, 7], 3.0),  # the first two are enough
        ({"over_select": 1.5, "deadline": 2.5}, 3, 2, [7], 2.5),
        ({"deadline": 1.0}, 3, 3, [], 1.0),
        ({"deadline": 3.0}, 3, 3, [1, 7], 3.0),  # who answers at that very moment is in time
    ],
)
def test_a_round_ends_with_its_last_answer_or_at_the_deadline(
    settings: dict[str, float], asked: int, wanted: int, taken: list[int], seconds: float
) -> None:
    assert closing(**settings).close({1: 3.0, 4: 9.0, 7: 2.0}, asked, wanted) == (taken, seconds)


def played(folder: Path, *settings: str) -> Result:
    experiment = tiny(folder, "rounds=4", *settings)
    return play(experiment, prepare(experiment))


def test_a_clock_alone_changes_no_bit_and_counts_up(tmp_path: Path) -> None:
    plain, timed = played(tmp_path), played(tmp_path, "clock.profile=phones")
    assert digest(plain) == digest(timed)
    times = list(timed.history.series(CLOCK).values())
    assert len(times) == 4
    assert times == sorted(times)
    assert times[0] > 0
    assert plain.history.series(CLOCK) == {}


def test_the_late_are_dropped_and_the_first_taken(tmp_path: Path) -> None:
    slow = [f"{client},{1e3 if client % 2 else 1e12},1e9,1e9,0" for client in range(20)]
    path = trace(tmp_path, *slow)
    cut = played(tmp_path, f"clock.profile={path}", "clock.deadline=5")
    assert all(client % 2 == 0 for m in cut.history for client in m.arrived)
    assert any(client % 2 for m in cut.history for client in m.cohort)
    assert [m.cohort for m in cut.history] == [m.cohort for m in played(tmp_path).history]
    wide = played(tmp_path, f"clock.profile={path}", "clock.over_select=2")
    assert {len(m.cohort) for m in wide.history} == {6}
    assert all(len(m.arrived) == 3 for m in wide.history)
    fast = [sum(client % 2 == 0 for client in m.cohort) for m in wide.history]
    even = [sum(client % 2 == 0 for client in m.arrived) for m in wide.history]
    assert even == [min(3, number) for number in fast]


def test_devices_follow_from_the_seed_of_cohorts_and_the_client(tmp_path: Path) -> None:
    drawn = [devices("phones").draw(3, client) for client in range(500)]
    assert drawn == [devices("phones").draw(3, client) for client in range(500)]
    assert np.median([device.flops for device in drawn]) == pytest.approx(1e10, rel=0.15)
    assert np.std(np.log([device.down for device in drawn])) == pytest.approx(0.8, rel=0.1)
    lines = trace(tmp_path, "1,1,1,0", "2,1,1,0", head="flops,down,up,latency\n")
    assert {devices(lines).draw(0, client).flops for client in range(30)} == {1.0, 2.0}


@pytest.mark.parametrize(
    ("profile", "flops", "down", "up", "latency", "speed", "link"),
    [
        ("phones", 1e10, 20, 5, 0.1, 0.8, 0.8),
        ("hospitals", 5e12, 100, 100, 0.03, 0.4, 0.3),
        ("datacentre", 5e13, 1e4, 1e4, 0.001, 0.05, 0.05),
    ],
)
def test_profiles_are_the_documented_ones(
    profile: str, flops: float, down: float, up: float, latency: float, speed: float, link: float
) -> None:
    """Medians, in Mbit/s, and deviations of logarithms, of 2000 clients; speed and links are independent."""
    drawn = [devices(profile).draw(0, client) for client in range(2000)]
    logs = np.log([[each.flops, each.down * 8e-6, each.up * 8e-6] for each in drawn]).T
    assert np.exp(np.median(logs, axis=1)) == pytest.approx([flops, down, up], rel=0.1)
    assert logs.std(axis=1) == pytest.approx([speed, link, link], rel=0.07)
    assert abs(np.corrcoef(logs) - np.eye(3)).max() < 0.1
    assert {each.latency for each in drawn} == {latency}


@pytest.mark.parametrize(
    ("line", "words"),
    [("0,0,1,1,0", "line 2: flops is '0'"), ("0,1,x,1,0", "down is 'x'"), ("0,1,1,1,-1", "latency is '-1'")],
)
def test_a_bad_trace_is_refused(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        devices(trace(tmp_path, line))


def test_a_trace_without_a_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no device for client 1"):
        devices(trace(tmp_path, "0,1,1,1,0")).draw(0, 1)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("clock.profile=phone", ("phone", "phones")),
        ("clock.profile=absent.csv", ("clock.profile", "absent.csv")),
        ("clock.deadline=5", ("clock.deadline", "clock.profile")),
        ("clock.over_select=0.5", ("clock.over_select",)),
    ],
)
def test_a_clock_that_cannot_be_is_refused(fedacg: Command, setting: str, words: tuple[str, ...]) -> None:
    refused(fedacg("run", "tiny.toml", "-s", setting), *words)


def test_from_python(tmp_path: Path) -> None:
    result = fedacg.run(
        model=nn.Linear(3, 2),
        clients=[(torch.randn(8, 3), torch.arange(8) % 2)] * 2,
        test=(torch.randn(8, 3), torch.arange(8) % 2),
        participation=1.0,
        rounds=2,
        clock={"profile": trace(tmp_path, "inf,inf,inf,2.5", head="flops,down,up,latency\n")},
    )
    assert list(result.history.series(CLOCK).values()) == [2.5, 5.0]
    assert math.isfinite(result.history[-1].train_loss)


def test_what_is_in_a_trace_belongs_to_the_experiment(fedacg: Command) -> None:
    """A trace that was changed makes another experiment: nothing resumes it, and no folder is shared."""
    path = Path(trace(fedacg.folder, "1e9,1e6,1e6,0", head="flops,down,up,latency\n"))
    arguments = ("run", "tiny.toml", "-s", "rounds=4", "-s", "clock.profile=devices.csv", "-q")
    assert fedacg(*arguments, "--out", "first").code == 0
    described = (fedacg.folder / "first" / "experiment.toml").read_text()
    assert hashlib.sha256(path.read_bytes()).hexdigest() in described
    assert fedacg(*arguments, "--out", "first", "--resume").code == 0
    assert [fedacg(*arguments).out, fedacg(*arguments, "--resume").out] == ["runs/tiny-fedacg-s4\n"] * 2

    old = path.read_bytes()
    path.write_text(path.read_text().replace("1e9", "2e9"))
    refused(fedacg(*arguments, "--out", "first", "--resume"), "clock.profile is")
    assert fedacg(*arguments).out == "runs/tiny-fedacg-s4-2\n"
    again = ("run", "first/experiment.toml", "--out", "again", "-q")
    refused(fedacg(*again), "the trace was another when this experiment was described")
    assert fedacg(*again, "-s", "clock.profile=devices.csv").code == 0, "the path alone is a new experiment"
    assert fedacg("report", "first", "--out", "page", "-q").code == 0, "a finished run needs no devices"
    path.write_bytes(old)
    assert fedacg(*arguments, "--out", "first", "--resume").code == 0


def test_runs_with_different_traces_are_rows_of_their_own(fedacg: Command) -> None:
    for seed, speed in ((0, "1e9"), (1, "1e9"), (2, "2e9")):
        trace(fedacg.folder, f"{speed},1e6,1e6,0", head="flops,down,up,latency\n")
        settings = ("-s", "rounds=1", "-s", f"seed={seed}", "-s", "clock.profile=devices.csv")
        assert fedacg("run", "tiny.toml", *settings, "--out", f"all/{seed}", "-q").code == 0
    assert fedacg("report", "all", "--out", "page", "-q").code == 0
    rows = list(csv.DictReader((fedacg.folder / "page" / "table.csv").read_text().splitlines()))
    assert [row["seeds"] for row in rows] == ["2", "1"], "two seeds of one trace, and another trace"
    assert all(re.fullmatch(r"\w+ clock\.profile=devices\.csv [0-9a-f]{8}", row["label"]) for row in rows)
