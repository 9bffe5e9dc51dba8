"""Sweeps: grids of settings, what is refused, what is written, interruption, and the picture of the effect."""

import csv
import signal
import time
from pathlib import Path

import pytest

from fedacg.bench.grid import Axis, expand, parse_axis
from fedacg.bench.sweep_report import Dot, Effect
from fedacg.config.recipe import find
from fedacg.errors import InputError
from fedacg.report.runs import load_run
from fedacg.report.table import Spread
from support.command import Command, refused, start

SMALL = ["--set", "rounds=6", "--out", "out"]


# Grids


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("method.lam=0.75,0.8", "method.lam", ("0.75", "0.8")),
        (" rounds = 10 , 20 ", "rounds", ("10", "20")),
        ("model.hidden=[64,32],[128]", "model.hidden", ("[64,32]", "[128]")),
        ("data.split=iid,dirichlet", "data.split", ("iid", "dirichlet")),
        ("name='a,b',\"c,]\"", "name", ("'a,b'", '"c,]"')),
        ("local.lr=0.1", "local.lr", ("0.1",)),
    ],
)
def test_a_key_and_its_values_are_taken_apart(text: str, key: str, values: tuple[str, ...]) -> None:
    assert parse_axis(text) == Axis(key, values)


def test_a_grid_has_every_combination_with_every_seed(tmp_path: Path) -> None:
    axes = [parse_axis("method.lam=0.8,0.9"), parse_axis("local.lr=0.1,0.2,0.3")]
    points = expand(find("quickstart"), axes, [0, 7], tmp_path)
    assert [point.values for point in points] == [(a, b) for a in ("0.8", "0.9") for b in ("0.1", "0.2", "0.3")]
    first = points[1]
    assert [folder.relative_to(tmp_path / "runs").name for folder in first.runs] == [
        "lam=0.8-local.lr=0.2-s0",
        "lam=0.8-local.lr=0.2-s7",
    ]
    assert [(run.method.options["lam"], run.local.lr, run.seed) for run in first.runs.values()] == [
        (0.8, 0.2, 0),
        (0.8, 0.2, 7),
    ]


def test_a_method_in_a_grid_brings_its_own_options(tmp_path: Path) -> None:
    points = expand(find("quickstart"), [parse_axis("method.name=fedavg,fedprox")], [], tmp_path)
    names = [run.method.name for point in points for run in point.runs.values()]
    assert names == ["fedavg", "fedprox"]


@pytest.mark.parametrize(
    ("grids", "words"),
    [
        (["method.lam"], ["--grid 'method.lam'", "must look like"]),
        (["method.lam="], ["--grid 'method.lam='", "must look like"]),
        (["method.lam=0.8,,0.9"], ["must look like"]),
        (["=3"], ["must look like"]),
        (["method.lamb=0.8,0.9"], ["unknown option of method fedacg 'lamb'", "did you mean 'lam'?"]),
        (["local.lrr=0.1"], ["unknown key 'local.lrr'", "did you mean 'local.lr'?"]),
        (["method.lam=0.8,1.5"], ["method.lam = 1.5", "[0, 1)"]),
        (["rounds=5,ten"], ["rounds = 'ten'", "integer"]),
        (["a.b.c=1"], ["a.b.c=1"]),
        (["method.lam=0.8", "method.lam=0.9"], ["--grid method.lam: is given twice"]),
        (["method.lam=0.8,0.80"], ["0.8 and 0.80 are the same experiment"]),
        (["engine.workers=1,2"], ["1 and 2 are the same experiment"]),
        (["seed=0,1"], ["give seeds with --seeds"]),
        (["cohort.size=3,1000"], ["cohort.size = 1000", "only 20 clients"]),
        (["model.name=mlp,resnet"], ["unknown model 'resnet'"]),
    ],
)
def test_bad_keys_and_values_are_refused_before_anything_runs(
    fedacg: Command, grids: list[str], words: list[str]
) -> None:
    arguments = [word for grid in grids for word in ("--grid", grid)]
    refused(fedacg("sweep", "tiny.toml", *arguments, *SMALL, "--quiet"), *words)
    assert not (fedacg.folder / "out").exists()


@pytest.mark.parametrize("seeds", ["0,x", "0,-3"])
def test_bad_seeds_are_refused(fedacg: Command, seeds: str) -> None:
    refused(fedacg("sweep", "tiny.toml", "--grid", "method.lam=0.8", "--seeds", seeds, "--quiet"), "seed")


def test_a_sweep_needs_a_grid(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs at least one key"):
        expand(find("quickstart"), [], [], tmp_path)


# Playing


def test_a_sweep_plays_the_grid_and_writes_table_picture_and_page(fedacg: Command) -> None:
    command = [
        "sweep",
        "tiny.toml",
        "--grid",
        "method.lam=0.5,0.9",
        "--grid",
        "local.lr=0.05,0.1",
        "--seeds",
        "0,1",
    ]
    outcome = fedacg(*command, *SMALL)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith("8 runs below out/runs, 0 of them finished\n")
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "lam=0.5-local.lr=0.05-s0: 6 rounds" in outcome.out
    assert "beside it: effect.png, effect.pdf, sweep.csv" in outcome.out
    out = fedacg.folder / "out"
    assert (out / "effect.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "effect.pdf").read_bytes().startswith(b"%PDF")
    assert "Effect of method.lam" in (out / "index.html").read_text()
    rows = list(csv.DictReader((out / "sweep.csv").read_text().splitlines()))
    table = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert [(row["method.lam"], row["local.lr"], row["seeds"]) for row in rows] == [
        ("0.5", "0.05", "2"),
        ("0.5", "0.1", "2"),
        ("0.9", "0.05", "2"),
        ("0.9", "0.1", "2"),
    ]
    ends = sorted(float(row["moving_average_percent"]) for row in rows)
    assert ends == pytest.approx(sorted(float(row["moving_average_percent"]) for row in table))
    again = fedacg(*command, *SMALL)
    assert again.out.startswith("8 runs below out/runs, 8 of them finished\n")
    assert ": 6 rounds" not in again.out, "finished runs are kept without being asked"


def test_a_sweep_with_held_out_data_goes_by_these(fedacg: Command) -> None:
    settings = ("-s", "rounds=3", "-s", "data.validation=0.2", "-s", "evaluate.test=end")
    outcome = fedacg("sweep", "tiny.toml", "--grid", "local.lr=0.01,0.3", *settings, "--out", "out", "--quiet")
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader((fedacg.folder / "out" / "sweep.csv").read_text().splitlines()))
    for row in rows:
        history = load_run(fedacg.folder / "out" / "runs" / f"local.lr={row['local.lr']}-s4").history
        last = history.moving_average(figure="validation/accuracy")[-1]
        assert float(row["validation_moving_average_percent"]) == pytest.approx(100 * last)
        assert len(history.accuracy) == 1
    page = (fedacg.folder / "out" / "index.html").read_text()
    assert "moving average of the validation accuracy over the grid" in page


def test_a_value_that_diverges_leaves_the_others(fedacg: Command) -> None:
    outcome = fedacg("sweep", "tiny.toml", "--grid", "local.lr=0.1,1e30", *SMALL, "--quiet")
    assert outcome.code == 1
    assert outcome.out == "out/index.html\n"
    assert "local.lr=1e30-s4: diverged in round 1" in outcome.err
    rows = (fedacg.folder / "out" / "sweep.csv").read_text().splitlines()
    assert rows[1].startswith("0.1,1,")
    assert rows[2] == "1e30,1,,"


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_resumed_finds_the_same(fedacg: Command) -> None:
    command = ["sweep", "tiny.toml", "--grid", "method.lam=0.8,0.9", "--quiet", "--out"]
    killed = fedacg.folder / "killed"
    assert fedacg(*command, "whole").code == 0
    run = start(fedacg.folder, *command, "killed")
    while not list(killed.rglob("checkpoint.safetensors")) and run.poll() is None:
        time.sleep(0.005)
    run.kill()
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    refused(fedacg(*command, "killed"), "holds a run that was stopped", "--resume")
    assert fedacg(*command, "killed", "--resume").code == 0
    for name in ("sweep.csv", "effect.png"):
        assert (killed / name).read_bytes() == (fedacg.folder / "whole" / name).read_bytes()


# The picture


def drawn(key: str, *dots: Dot):
    (axes,) = Effect(key, dots)._figure.axes
    return axes


def test_the_picture_has_a_line_for_every_other_setting_with_bars_over_seeds() -> None:
    axes = drawn(
        "method.lam",
        Dot("0.9", "local.lr=0.1", Spread(60.0, 2.0)),
        Dot("0.8", "local.lr=0.1", Spread(50.0, 1.0)),
        Dot("0.8", "local.lr=0.2", Spread(40.0, None)),
        Dot("0.9", "local.lr=0.2", None),
    )
    first, second = (container.lines[0] for container in axes.containers)
    assert [container.get_label() for container in axes.containers] == ["local.lr=0.1", "local.lr=0.2"]
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([0.8, 0.9], [50.0, 60.0])
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([0.8], [40.0])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.9", "0.8"]
    bars = [segment for container in axes.containers[:1] for segment in container.lines[2][0].get_segments()]
    assert [sorted(y for _, y in segment) for segment in bars] == [[49.0, 51.0], [58.0, 62.0]]


def test_numbers_over_a_wide_range_have_a_logarithmic_axis_and_words_have_places() -> None:
    wide = drawn("method.beta", *(Dot(value, "", Spread(1.0, None)) for value in ("0.001", "0.01", "1")))
    narrow = drawn("method.lam", *(Dot(value, "", Spread(1.0, None)) for value in ("0.75", "0.9")))
    zero = drawn("method.beta", *(Dot(value, "", Spread(1.0, None)) for value in ("0", "1")))
    words = drawn("data.split", *(Dot(value, "", Spread(1.0, None)) for value in ("iid", "dirichlet")))
    assert [axes.get_xscale() for axes in (wide, narrow, zero, words)] == ["log", "linear", "linear", "linear"]
    assert [label.get_text() for label in words.get_xticklabels()] == ["iid", "dirichlet"]
    assert words.containers[0].lines[0].get_linestyle() == "None", "there is nothing between two words"


def test_a_reader_who_cannot_see_the_picture_is_told_the_numbers() -> None:
    effect = Effect("method.lam", [Dot("0.8", "", Spread(50.123, None)), Dot("0.9", "", None)])
    assert "method.lam=0.8: 50.12 %" in effect.picture.alt
    assert "0.9" not in effect.picture.alt
