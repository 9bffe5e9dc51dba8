"""Colours of methods, the headline, names at line ends, settings without effect, heat maps and runs to come."""

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fedacg.bench.grid import Axis as GridAxis
from fedacg.bench.sweep_report import Dot, Effect, HeatMap
from fedacg.config.methods import METHODS
from fedacg.report import pictures, write
from fedacg.report.live import LiveReport
from fedacg.report.page_text import effective
from fedacg.report.runs import find_runs, group_runs, load_run
from fedacg.report.series import Axis, curves_of, gather
from fedacg.report.style import HERO, PALETTE, Style, of_method, styles_of
from fedacg.report.table import Effort, Row, Spread, headline
from fedacg.runs.history import Reached, Shown
from fedacg.runs.session import PLAN, PlannedRun, announce_runs, planned_runs
from support.folders import add_round, fake_run

# Colours


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("which", "ground"), [(0, "#ffffff"), (1, "#14181d")])
def test_every_colour_stands_out_from_its_ground(which: int, ground: str) -> None:
    for pair in PALETTE:
        bright, dark = sorted((luminance(pair[which]), luminance(ground)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 3


def test_every_method_of_the_catalogue_looks_like_no_other_and_one_is_bold() -> None:
    styles = {name: of_method(name) for name in METHODS}
    assert len(set(styles.values())) == len(METHODS)
    assert [name for name, style in styles.items() if style.bold] == [HERO]
    assert [name for name, style in styles.items() if style.colour == styles[HERO].colour] == [HERO]


def test_the_methods_that_are_compared_most_differ_in_grey() -> None:
    for compared in (("fedavg", "fedprox", "fedavgm", "fedacg"), ("fedavg", "fedavgm", "fedcm", "fedacg")):
        usual = [of_method(name) for name in compared]
        assert len({(style.dashes, style.bold) for style in usual}) == len(usual)


def test_a_method_keeps_its_colour_whatever_stands_beside_it(tmp_path: Path) -> None:
    fake_run(tmp_path / "one" / "a", [0.5], "fedavg")
    fake_run(tmp_path / "one" / "b", [0.5], "fedacg")
    fake_run(tmp_path / "two" / "a", [0.5], "moon")
    fake_run(tmp_path / "two" / "b", [0.5], "fedacg")
    fake_run(tmp_path / "two" / "c", [0.5], "fedavg")
    one, two = (
        {c.label: c.style for c in curves_of(group_runs([load_run(f) for f in find_runs([tmp_path / name])]))}
        for name in ("one", "two")
    )
    assert {label: two[label] for label in one} == one
    assert one["FedACG"] == of_method("fedacg")


def test_several_lines_of_one_method_are_told_apart() -> None:
    alone = styles_of(["fedacg"] * 5)
    assert len(set(alone)) == 5
    assert not any(style.bold for style in alone)
    mixed = styles_of(["fedacg", "fedavg", "fedavg", "fedavg"])
    assert mixed[0] == Style(0, bold=True)
    assert len({style.colour for style in mixed[1:]}) == 1
    assert len(set(mixed)) == 4


def test_a_composed_method_has_the_colour_of_its_base_in_dashes() -> None:
    base, composed = of_method("fedprox"), of_method("fedprox+acg")
    assert composed.colour == base.colour
    assert composed.dashes != base.dashes


# The headline


def row(
    label: str, average: float | None, std: float | None = None, seeds: int = 1, rounds: int | None = None
) -> Row:
    end = None if average is None else Spread(average, std)
    effort = Effort(tuple(Reached.of(rounds, 60) for _ in range(seeds)))
    seconds = Spread(1.0, None)
    return Row(label, label.lower(), tuple(range(seeds)), end, end, (effort,), (effort,), seconds)


def test_the_headline_says_who_won_by_how_much_and_that_one_seed_is_one() -> None:
    rows = [row("FedAvg", 80.0), row("FedACG", 90.25, rounds=40), row("FedDyn", 88.0)]
    assert headline(rows, [0.9], over=True) == (
        "FedACG ended highest, with a moving average of the test accuracy of 90.25 %: 2.25 points above FedDyn "
        "and 10.25 above FedAvg. It reached 90 % after 40 rounds, which FedAvg did not in 60. "
        "One seed each: the order may be chance."
    )
    assert headline(rows, [0.9], over=False).startswith("FedACG is highest so far, with")


def test_the_headline_weighs_the_difference_against_the_seeds() -> None:
    rows = [row("FedAvg", 80.0, 3.0, 3, 50), row("FedACG", 84.0, 4.0, 3, 20)]
    assert headline(rows, [0.9], over=True).endswith(
        "It reached 90 % after 20 rounds, FedAvg after 50. "
        "Over 3 seeds the difference is no more than its standard deviation of 5.00 points."
    )
    rows = [row("FedAvg", 80.0, 0.3, 3), row("FedACG", 84.0, 0.4, 3)]
    assert headline(rows, [0.9], over=True).endswith("is more than its standard deviation of 0.50 points.")


def test_the_headline_of_equals_of_one_and_of_none() -> None:
    level = headline([row("FedAvg", 80.001), row("FedProx", 80.0)], [], over=True)
    assert level.startswith("FedAvg and FedProx ended level, at")
    alone = headline([row("FedAvg", 80.0, rounds=7)], [0.9], over=True)
    assert alone == (
        "FedAvg ended at a moving average of the test accuracy of 80.00 %. It reached 90 % after 7 rounds. "
        "One seed."
    )
    assert headline([row("FedAvg", None)], [0.9], over=True) == ""


def test_different_data_sets_have_no_winner(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", [0.5], data="digits")
    fake_run(tmp_path / "b", [0.6], data="cifar10")
    assert gather(group_runs([load_run(folder) for folder in find_runs([tmp_path])]), None).headline == ""


# Pictures


def test_what_is_a_moving_average_says_so(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", [0.5, 0.6])
    drawn = curves_of(group_runs([load_run(tmp_path / "a")]))
    (axes,) = pictures.draw_curves(drawn, Axis.ROUNDS, []).axes
    assert axes.get_ylabel() == "test accuracy, moving average, %"
    effect = Effect("method.lam", [Dot("0.5", "", Spread(80.0, None))])
    assert "moving average" in effect._figure.axes[0].get_ylabel()


def test_many_curves_have_their_names_at_their_ends_and_few_a_legend(tmp_path: Path) -> None:
    for number in range(9):
        fake_run(tmp_path / f"{number}", [0.3, 0.3 + number / 100], f"m{number}")
    drawn = curves_of(group_runs([load_run(folder) for folder in find_runs([tmp_path])]))
    many = pictures.draw_curves(drawn, Axis.ROUNDS, [])
    assert not many.legends
    names = [text.get_text().split()[0] for text in many.axes[0].texts]
    assert names == [f"m{number}" for number in reversed(range(9))]
    heights = [text.xyann[1] for text in many.axes[0].texts]
    assert all(above - below >= 0.044 for above, below in pairwise(heights))
    few = pictures.draw_curves(drawn[:7], Axis.ROUNDS, [])
    assert len(few.legends) == 1
    assert not few.axes[0].texts


def test_names_are_near_their_ends_in_their_order_and_within_the_span() -> None:
    assert pictures.apart([90, 50, 10], (0, 100), 0.1) == [90, 50, 10]
    assert pictures.apart([50, 50, 50], (0, 100), 0.1) == [50, 40, 30]
    assert pictures.apart([2, 1, 0], (0, 100), 0.1) == [20, 10, 0]
    crowded = pictures.apart([0.0] * 21, (0, 100), 0.1)
    assert crowded[0] == pytest.approx(100)
    assert crowded[-1] == 0


def test_single_seeds_are_drawn_on_request(tmp_path: Path) -> None:
    for seed in range(3):
        fake_run(tmp_path / f"{seed}", [0.3, 0.4 + seed / 10], seed=seed)
    drawn = curves_of(group_runs([load_run(folder) for folder in find_runs([tmp_path])]))
    usual, single = (
        pictures.draw_curves(drawn, Axis.ROUNDS, [], each_seed=each).axes[0] for each in (False, True)
    )
    assert (len(usual.lines), len(usual.collections)) == (2, 1), "raw accuracy and mean, with a band"
    assert (len(single.lines), len(single.collections)) == (4, 0), "three seeds and their mean"
    written = write([tmp_path], tmp_path / "out", each_seed=True)
    assert written.headline.startswith("FedAvg ended at")


def test_two_keys_have_a_heat_map_with_the_best_framed() -> None:
    axes = GridAxis("method.lam", ("0.5", "0.9")), GridAxis("local.lr", ("0.1", "1"))
    ends = {("0.5", "0.1"): Spread(70.0, None), ("0.9", "0.1"): Spread(90.0, None), ("0.5", "1"): None}
    heat = HeatMap(axes, ends)
    axes_drawn = heat._figure.axes[0]
    assert (axes_drawn.get_xlabel(), axes_drawn.get_ylabel()) == ("method.lam", "local.lr")
    assert sorted(text.get_text() for text in axes_drawn.texts) == ["70.0", "90.0", "–", "–"]
    (frame,) = axes_drawn.patches
    assert frame.get_xy() == (0.5, -0.5), "the second value of the first key, the first of the second"
    assert heat.picture.alt == "method.lam=0.5, local.lr=0.1: 70.00 %; method.lam=0.9, local.lr=0.1: 90.00 %"
    assert "moving average" in heat._figure.axes[1].get_ylabel()
    assert set(heat.files) == {"heatmap.png", "heatmap.pdf"}


# What the page says


def test_scores_and_drift_are_figures_of_a_curve(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", [])
    for number in (1, 2):
        add_round(run, number, 0.5, scores={"clients/worst_tenth": number / 10}, drift={"cosine": number / 4})
    add_round(run, 3, 0.5)
    (curve,) = curves_of(group_runs([load_run(run)]))
    assert list(curve.further) == ["clients/worst_tenth", "drift/cosine"]
    assert curve.further["clients/worst_tenth"].rounds == (1, 2)
    assert curve.further["clients/worst_tenth"]["value"].mean.tolist() == [0.1, 0.2]
    assert curve.further["drift/cosine"]["value"].mean.tolist() == [0.25, 0.5]
    page = write([run], tmp_path / "out").paths
    text = next(path for path in page if path.suffix == ".html").read_text()
    assert 'name="figure" value="clients/worst_tenth"' in text


def test_settings_without_effect_are_left_out() -> None:
    settings = {
        "data.name": "digits",
        "data.split": "iid",
        "data.alpha": 0.3,
        "data.shards": 2,
        "data.beta": 1.0,
        "data.path": "",
        "cohort.fraction": 0.1,
        "cohort.size": 3,
        "population.present": 0,
        "population.stage": 100,
        "failures.straggle": 0.5,
        "failures.work": 0.5,
        "local.epochs": 5,
        "local.steps": 0,
        "local.schedule": "exponential",
        "local.lr_decay": 1.0,
        "local.beta1": 0.9,
        "engine.name": "serial",
        "engine.workers": 0,
    }
    assert list(effective(settings)) == [
        *("data.name", "data.split", "cohort.size", "failures.straggle", "failures.work", "local.epochs"),
        "engine.name",
    ]
    other = {
        **settings,
        "data.split": "shards",
        "local.steps": 4,
        "local.lr_decay": 0.9,
        "local.optimiser": "adam",
    }
    shown = effective(other)
    assert {"data.shards", "local.steps", "local.schedule", "local.lr_decay", "local.beta1"} <= shown.keys()
    assert "local.epochs" not in shown


def test_tables_can_be_downloaded_from_the_page(tmp_path: Path) -> None:
    import base64
    import re

    out = tmp_path / "out"
    text = next(p for p in write([fake_run(tmp_path / "a", [0.5])], out).paths if p.suffix == ".html").read_text()
    for name, kind in (("table.csv", "text/csv"), ("table.tex", "application/x-tex")):
        found = re.search(rf'download="{name}" href="data:{kind};base64,([^"]*)"', text)
        assert found
        assert base64.b64decode(found[1]) == (out / name).read_bytes()


# Runs to come


def test_a_live_page_has_progress_time_left_and_runs_to_come(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", [0.5] * 10, finished=False)
    fake_run(tmp_path / "b", [0.5], "fedacg")
    plan = {tmp_path / name: rounds for name, rounds in (("a", 100), ("b", 1), ("c", 70))}
    with announce_runs(tmp_path, plan):
        assert planned_runs([tmp_path]) == [PlannedRun("c", 70)]
        report = LiveReport([tmp_path])
        page = report.page()
        assert "1 of 3 runs finished" in page
        assert '<progress max="100" value="10.0"' in page
        assert "10 / 100 rounds, 90 s left" in page or "10 / 100 rounds, 2 min left" in page
        assert "70 rounds to come" in page
        seen = report.version
    assert not (tmp_path / PLAN).exists(), "the command is over"
    news = json.loads(report.news(seen))
    assert "to come" not in news["parts"]["progress-part"]


def test_the_plan_of_a_process_that_is_gone_is_no_plan(tmp_path: Path) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    (tmp_path / PLAN).write_text(json.dumps({"process": gone, "runs": {"a": 3}}))
    assert planned_runs([tmp_path]) == []
    (tmp_path / PLAN).write_text("no JSON")
    assert planned_runs([tmp_path]) == []


def test_a_headline_of_losses_says_who_is_lowest() -> None:
    rows = [
        replace(row(name, value), shown=Shown("test_loss"), goals=()) for name, value in (("A", 0.5), ("B", 0.25))
    ]
    assert headline(rows, [], over=True) == (
        "B ended lowest, with a moving average of the test loss of 0.25: 0.25 below A. "
        "One seed each: the order may be chance."
    )
