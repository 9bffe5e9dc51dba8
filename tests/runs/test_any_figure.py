"""Goals and headlines for any figure, reports on runs without accuracy, tables of pandas, and reprs."""

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import nn

import fedacg
from fedacg import InputError
from fedacg.config.fields import Goal, rises
from fedacg.report import write
from fedacg.report.pictures import draw_curves
from fedacg.report.runs import group_runs, load_run
from fedacg.report.series import Axis, curves_of, heights
from fedacg.runs.history import History, Shown
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command


def made_up(**figures: list[float | None]) -> History:
    """Rounds with these figures; a name with two underscores is that of a score."""
    count = len(next(iter(figures.values())))
    history = History()
    for place in range(count):
        values = {name: each[place] for name, each in figures.items() if each[place] is not None}
        scores = {name.replace("__", "/"): value for name, value in values.items() if "__" in name}
        fields: dict[str, Any] = {name: value for name, value in values.items() if "__" not in name}
        history.append(
            RoundMetrics(
                **{"train_loss": 1.0, **fields},
                round=place + 1,
                lr=0.1,
                cohort=(0,),
                examples=1,
                bytes_down=100,
                bytes_up=10,
                seconds_train=1.0,
                seconds_aggregate=0.0,
                scores=scores or None,
            )
        )
    return history


def test_a_goal_is_reached_by_the_moving_average_in_either_direction() -> None:
    history = made_up(test_loss=[1.0, 0.0, 0.0, 0.0], test__f1=[0.0, 1.0, 1.0, 1.0])
    # The averages are 1, 0.9, 0.81, 0.729 and 0, 0.1, 0.19, 0.271.
    assert history.rounds_to("test_loss<=0.9") == 2
    assert history.rounds_to("test/loss <= 0.85") == 3
    assert history.rounds_to("test/f1>=0.18") == 3
    assert history.rounds_to("test/f1>=0.3") is None
    assert history.bytes_to("test/f1>=0.18") == 330
    assert history.bytes_to("test/f1>=0.3") is None
    assert history.rounds_to("test/f1>=0.3", decay=0) == 2, "of the figure itself"
    assert history.rounds_to(Goal("test_loss", 0.75, rising=False)) == 4
    assert history.rounds_to("nothing>=0") is None


def test_a_number_is_a_test_accuracy_as_before() -> None:
    history = made_up(test_accuracy=[0.5, None, 0.9])
    assert history.rounds_to(0.5) == history.rounds_to("test_accuracy>=0.5") == 1
    assert history.rounds_to(0.57) == 3
    assert history.rounds_to(math.nextafter(0.5 + 0.19 * 0.4, 1)) is None


@pytest.mark.parametrize("text", ["test_loss", "test_loss<0.3", "test_loss<=x", "<=3", "a>=nan", "a b>=1"])
def test_what_is_no_goal_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be a figure, >= or <=, and a number"):
        Goal.parse(text)
    with pytest.raises(InputError, match="must be a figure"):
        fedacg.recipe("quickstart", goals=[text])


def test_of_losses_and_errors_less_is_better() -> None:
    assert not any(map(rises, ("test_loss", "validation/loss", "test/rmse", "test/top1_error", "privacy/epsilon")))
    assert all(map(rises, ("test_accuracy", "test/f1", "test/r2", "test/lossless")))


@pytest.mark.parametrize(
    ("figures", "headline"),
    [
        ({"test_accuracy": [0.5], "test_loss": [1.0], "test__f1": [0.1]}, "test_accuracy"),
        ({"validation__loss": [2.0], "validation__accuracy": [0.5], "test__f1": [0.1]}, "validation/accuracy"),
        ({"test_loss": [1.0], "validation__f2": [0.2], "test__f1": [0.1]}, "test/f1"),
        ({"test_loss": [1.0], "validation__loss": [0.2]}, "test_loss"),
        ({"validation__loss": [0.2], "validation__f2": [0.3]}, "validation/f2"),
        ({"validation__loss": [0.2]}, "validation/loss"),
        ({"test_accuracy": [math.nan], "test_loss": [1.0]}, "test_loss"),
        ({"train_loss": [1.0]}, "train_loss"),
    ],
)
def test_one_figure_stands_for_a_run(figures: dict[str, list[float | None]], headline: str) -> None:
    assert made_up(**figures).headline == headline


def test_one_figure_stands_for_several_runs() -> None:
    loss, accuracy = made_up(test_loss=[1.0]), made_up(test_accuracy=[0.5])
    begun = made_up(train_loss=[2.0])
    assert Shown.of([begun, loss, accuracy]) == Shown("test_accuracy")
    assert Shown.of([begun, loss]) == Shown("test_loss")
    assert Shown.of([]) == Shown("test_accuracy")


# Reports on runs without accuracy.


@pytest.fixture(scope="module")
def regressions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    source = torch.Generator().manual_seed(7)
    inputs = [torch.randn(30, 4, generator=source) for _ in range(4)]
    pairs = [(x, x.sum(dim=1, keepdim=True)) for x in inputs]
    for method in ("fedavg", "fedacg"):
        for seed in (0, 1):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                net = nn.Linear(4, 1)
            data: dict[str, Any] = {"model": net, "clients": pairs[:3], "test": pairs[3], "rounds": 8}
            fedacg.run(
                **data,
                method=method,
                loss=nn.functional.mse_loss,
                cohort_size=2,
                local_steps=2,
                seed=seed,
                goals=["test/rmse<=1.5", "test/r2>=0.999"],
                metrics={"worst": lambda outputs, y: (outputs - y).abs().max()},
                out=folder / f"{method}-{seed}",
            )
    return folder


def test_the_table_has_the_figure_that_there_is_and_columns_for_goals(regressions: Path, tmp_path: Path) -> None:
    report = write([regressions], tmp_path)
    with (tmp_path / "table.csv").open() as file:
        rows = {row["label"].lower(): row for row in csv.DictReader(file)}
    histories = [load_run(regressions / f"fedavg-{seed}").history for seed in (0, 1)]
    ends = [history[-1].score("test/rmse") or 0.0 for history in histories]
    assert float(rows["fedavg"]["test/rmse"]) == pytest.approx(sum(ends) / 2)
    assert "accuracy_percent" not in rows["fedavg"]
    reached = [history.rounds_to("test/rmse<=1.5") for history in histories]
    assert all(reached)
    mean = sum(number or 0 for number in reached) / 2
    assert float(rows["fedavg"]["rounds_to_test/rmse<=1.5"]) == pytest.approx(mean)
    assert "rounds_to_test/r2>=0.999" in rows["fedavg"]
    markdown = (tmp_path / "table.md").read_text()
    assert "test rmse" in markdown
    assert "rounds to test/rmse ≤ 1.5" in markdown
    assert not report.rows[0].shown.rises


def test_the_smallest_error_is_marked_as_the_best(regressions: Path, tmp_path: Path) -> None:
    report = write([regressions], tmp_path)
    best = min(report.rows, key=lambda row: row.accuracy.mean if row.accuracy else math.inf)
    line = next(line for line in (tmp_path / "table.md").read_text().splitlines() if f"| {best.label}" in line)
    assert f"**{best.accuracy.mean:.4g}" in line if best.accuracy else False


def test_curves_and_page_draw_what_there_is(regressions: Path, tmp_path: Path) -> None:
    curves = curves_of(group_runs([load_run(folder) for folder in sorted(regressions.iterdir())]))
    assert [curve.shown.name for curve in curves] == ["test/rmse"] * 2
    assert all(len(curve.evaluated.rounds) == 8 for curve in curves)
    low, high = heights(curves, [0.9])
    values = [value for curve in curves for value in curve.evaluated["accuracy"].mean]
    assert 0 <= low <= min(values) <= max(values) <= high < 2 * max(values), "the axis is that of the error"
    (axes,) = draw_curves(curves, Axis.ROUNDS, [0.9]).axes
    assert axes.get_ylabel() == "test rmse, moving average"
    write([regressions], tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert '"shown":{"title":"test rmse","percent":false}' in page
    assert "<span>Test rmse</span>" in page


def test_the_command_shows_goals_and_the_summary_has_them(fedacg: Command) -> None:
    outcome = fedacg(
        "run", "tiny.toml", "--out", "run", "--set", 'evaluate.goals=["test_loss<=2.2"]', "--set", "rounds=9"
    )
    reached = json.loads((fedacg.folder / "run" / "summary.json").read_text())["rounds_to"]
    assert set(reached) == {"0.5", "test_loss<=2.2"}
    assert f"rounds to test_loss ≤ 2.2 {reached['test_loss<=2.2']}" in outcome.out


# Tables and reprs.


def test_rounds_become_a_table() -> None:
    history = made_up(test_accuracy=[None, 0.5], test__f1=[0.1, None])
    frame = history.to_frame()
    assert list(frame.index) == [1, 2]
    assert frame.index.name == "round"
    assert frame["test_accuracy"].dropna().to_dict() == {2: 0.5}
    assert frame["test/f1"].dropna().to_dict() == {1: 0.1}
    assert frame["bytes_down"].sum() == 200
    assert isinstance(History().to_frame(), pandas.DataFrame)


def test_without_pandas_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="needs pandas, which is not installed"):
        made_up(test_loss=[1.0]).to_frame()


def test_reprs_say_what_there_is_in_a_few_lines(tmp_path: Path) -> None:
    assert repr(History()) == "History(no rounds)"
    assert repr(made_up(test_accuracy=[0.5, 0.75])) == "History(2 rounds, test_accuracy 0.75, 220 B)"
    assert repr(made_up(test_loss=[2.0])) == "History(1 round, test_loss 2, 110 B)"
    experiment = fedacg.recipe("quickstart", rounds=1, data={"clients": 10}, engine="serial")
    text = repr(experiment)
    assert text.startswith("Experiment quickstart: fedacg on digits with mlp, 1 round, seed 0\n")
    assert "data.clients=10" in text
    assert len(text.splitlines()) == 2
    result = fedacg.run(experiment, out=tmp_path / "run")
    lines = repr(result).splitlines()
    assert len(lines) <= 5
    assert lines[0] == "Result of quickstart: fedacg, seed 0"
    assert "History(1 round, test_accuracy" in lines[1]
    assert lines[-1] == f"  in {tmp_path / 'run'}"
