"""Time to a target on real devices: from finished runs, without training, and the same as a run with the clock."""

import csv
from pathlib import Path

import pytest

from fedacg.errors import InputError
from fedacg.report import write
from fedacg.runs.build import prepare
from fedacg.runs.runner import play
from fedacg.simulation.clock import CLOCK
from support.command import Command, refused
from support.runs import tiny


def rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "clock.csv").read_text(encoding="utf-8").splitlines()))


def test_a_finished_run_gives_the_seconds_that_its_clock_would_have_given(tmp_path: Path) -> None:
    """With stragglers, with answers that are lost, and with devices that follow from a seed of their own."""
    failures = ("failures.straggle=0.4", "failures.drop=0.4", "seeds.cohorts=3")
    settings = ("rounds=6", *failures, "evaluate.targets=[0.1, 0.99]")
    plain, timed = tiny(tmp_path, *settings), tiny(tmp_path, *settings, "clock.profile=phones")
    play(plain, prepare(plain), folder=tmp_path / "plain")
    history = play(timed, prepare(timed), folder=tmp_path / "timed").history
    write([tmp_path / "plain"], tmp_path / "out", clocks=["phones", "hospitals"])
    found = {(row["profile"], row["target"]): row for row in rows(tmp_path / "out")}
    ends = history.series(CLOCK)
    assert float(found["phones", ""]["seconds"]) == pytest.approx(ends[6])
    reached = history.rounds_to(0.1)
    assert reached is not None
    assert float(found["phones", "0.1"]["seconds"]) == pytest.approx(ends[reached])
    assert (found["phones", "0.1"]["reached"], found["phones", "0.99"]["reached"]) == ("1", "0")
    assert float(found["hospitals", ""]["seconds"]) < ends[6] / 2
    assert (tmp_path / "out" / "curves-phones.pdf").stat().st_size > 1000
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Seconds of a federation</h2>" in page
    assert "phones, to 10\u00a0%" in page


def test_runs_with_a_clock_show_it_unasked(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=3", "clock.profile=phones", "clock.deadline=100")
    history = play(experiment, prepare(experiment), folder=tmp_path / "run").history
    write([tmp_path / "run"], tmp_path / "out")
    (row,) = [row for row in rows(tmp_path / "out") if row["target"] == ""]
    assert (row["profile"], float(row["seconds"])) == ("own", pytest.approx(history.series(CLOCK)[3]))
    with pytest.raises(InputError, match="its own clock"):
        write([tmp_path / "run"], tmp_path / "out", clocks=["hospitals"])


def test_the_command_line(fedacg: Command) -> None:
    assert fedacg("run", "tiny.toml", "-s", "rounds=2", "--out", "run", "-q").code == 0
    assert fedacg("report", "run", "--clock", "phones,datacentre", "--out", "out", "-q").code == 0
    assert {row["profile"] for row in rows(fedacg.folder / "out")} == {"phones", "datacentre"}
    refused(fedacg("report", "run", "--clock", "phone", "--out", "out", "-q"), "phone", "phones")
