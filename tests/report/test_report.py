"""Reports on made-up run folders: what differs, tables, curves, files and the command."""

import csv
import io
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fedacg.cli.report import report as report_command
from fedacg.config.experiment import flatten
from fedacg.errors import InputError
from fedacg.report import Report, pictures, write
from fedacg.report.cells import Cell, Column, columns_of, escape, to_latex, to_markdown
from fedacg.report.runs import cautions, common, differing, find_runs, group_runs, labels, load_run, targets_of
from fedacg.report.series import curves_of
from fedacg.report.table import Effort, Row, Spread
from fedacg.runs.history import Reached
from support.folders import fake_run

FILES = {"card.json", "card.md", "table.csv", "table.md", "table.tex", "index.html"} | {
    f"{name}.{kind}"
    for name in ("curves-rounds", "curves-bytes", "curves-seconds", "split")
    for kind in ("png", "pdf")
}


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a report's time, and most tests do not look at them."""
    monkeypatch.setattr(pictures, "render", lambda figure, kind, dpi=0: kind.encode())


def table_of(report: Report, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(report.table)
    return out.getvalue()


def csv_rows(out: Path) -> dict[str, dict[str, str]]:
    with (out / "table.csv").open(encoding="utf-8", newline="") as file:
        return {row["label"]: row for row in csv.DictReader(file)}


def test_settings_that_are_shared_and_that_differ():
    one = flatten({"seed": 0, "data": {"name": "digits", "alpha": 0.3}, "model": {"hidden": [1, 2]}})
    two = flatten({"seed": 1, "data": {"name": "digits", "alpha": 0.3, "k": 2}, "model": {"hidden": [1, 3]}})
    assert one == {"seed": 0, "data.name": "digits", "data.alpha": 0.3, "model.hidden": [1, 2]}
    assert differing([one, two]) == ["seed", "model.hidden", "data.k"]
    assert common([one, two]) == {"data.name": "digits", "data.alpha": 0.3}


def settings(method: str, data: str = "digits", **others: Any) -> dict[str, Any]:
    return {"data.name": data, "method.name": method} | {k.replace("__", "."): v for k, v in others.items()}


def test_labels_say_no_more_than_is_needed():
    assert labels([settings("fedavg"), settings("fedacg", method__lam=0.85)]) == ["FedAvg", "FedACG"]
    sweep = [settings("fedacg", method__lam=lam, method__beta=0.01, local__lr=0.1) for lam in (0.5, 0.85)]
    assert labels(sweep) == ["FedACG lam=0.5", "FedACG lam=0.85"]
    # Both lr and batch differ, but lr alone tells them apart.
    lr = [
        settings("fedavg", local__lr=0.1, local__batch=10),
        settings("fedavg", local__lr=0.2, local__batch=5),
    ]
    assert labels(lr) == ["FedAvg local.lr=0.1", "FedAvg local.lr=0.2"]
    assert labels([settings("fedavg"), settings("fedacg", data="cifar10")]) == [
        "FedAvg digits",
        "FedACG cifar10",
    ]


def test_runs_that_differ_only_in_what_changes_no_bits_are_one_group(tmp_path):
    folders = [fake_run(tmp_path / f"{seed}", [0.5], seed=seed) for seed in (0, 1, 2)]
    for folder, more in zip(folders, ("[engine]\nworkers = 1", "[engine]\nname = 'ray'", ""), strict=True):
        with (folder / "experiment.toml").open("a") as file:
            file.write(more)
    (group,) = group_runs([load_run(folder) for folder in folders])
    assert [run.seed for run in group.runs] == [0, 1, 2]
    assert cautions([group]) == []


def test_a_key_that_was_left_to_its_default_is_as_good_as_given(tmp_path):
    folders = [fake_run(tmp_path / f"{seed}", [0.5], seed=seed) for seed in (0, 1)]
    with (folders[0] / "experiment.toml").open("a") as file:
        file.write("[local]\nepochs = 5\n[cohort]\nweights = 'examples'\n")
    assert len(group_runs([load_run(folder) for folder in folders])) == 1


def test_targets_that_a_run_was_resumed_with_count(tmp_path):
    folder = fake_run(tmp_path / "a", [0.5], targets="[0.4]")
    (folder / "summary.json").write_text(json.dumps({"targets": [0.4, 0.6]}))
    assert targets_of([load_run(folder)]) == [0.4, 0.6]


def test_runs_that_differ_only_by_seed_are_one_group(tmp_path):
    folders = [fake_run(tmp_path / f"avg{seed}", [0.5], seed=seed) for seed in (2, 10, 0)]
    folders.append(fake_run(tmp_path / "acg", [0.5], method="fedacg"))
    groups = group_runs([load_run(folder) for folder in folders])
    assert [(g.label, [r.seed for r in g.runs]) for g in groups] == [("FedAvg", [0, 2, 10]), ("FedACG", [0])]
    assert [run.label for run in groups[0].runs] == ["FedAvg, seed 0", "FedAvg, seed 2", "FedAvg, seed 10"]
    assert groups[1].runs[0].label == "FedACG"


def test_second_run_of_the_same_seed_is_no_second_sample(tmp_path):
    fake_run(tmp_path / "a", [0.5])
    fake_run(tmp_path / "b", [0.7])
    report = write([tmp_path], tmp_path / "out")
    assert [(row.label, row.seeds) for row in report.rows] == [("FedAvg", (0,)), ("FedAvg #2", (0,))]
    assert any("same settings and seed" in note and str(tmp_path / "b") in note for note in report.notes)


def test_folders_above_runs_count_as_all_runs_below_and_each_run_once(tmp_path):
    first = fake_run(tmp_path / "demo" / "fedavg-s0", [0.5])
    second = fake_run(tmp_path / "demo" / "deep" / "fedavg-s1", [0.5], seed=1)
    assert find_runs([first, tmp_path / "demo"]) == [first, second]
    assert find_runs([first, second / ".." / ".." / "fedavg-s0"]) == [first]


def test_a_folder_without_a_run_is_told_what_it_lacks(tmp_path):
    for load in (load_run, lambda folder: find_runs([folder])):
        with pytest.raises(InputError, match=r"experiment\.toml and metrics\.jsonl"):
            load(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        find_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize(("text", "said"), [("seed = \n", "cannot be read"), ("seed = 0\n", "method")])
def test_a_bad_experiment_is_named(tmp_path, text, said):
    (tmp_path / "experiment.toml").write_text(text)
    with pytest.raises(InputError, match=rf"experiment\.toml.*{said}"):
        load_run(tmp_path)


def test_table_gives_mean_and_sample_deviation_over_seeds(tmp_path):
    series = {0: [0.5, 0.8, 0.95], 1: [0.6, 0.7, 0.9], 2: [0.4, 0.9, 0.85]}
    for seed, accuracies in series.items():
        fake_run(tmp_path / "runs" / str(seed), accuracies, seed=seed)
    write([tmp_path / "runs"], tmp_path / "out", [0.5])
    row = csv_rows(tmp_path / "out")["FedAvg"]

    averages, rounds = [], []
    for accuracies in series.values():
        ema = accuracies[0]
        seen = [ema] + [ema := 0.9 * ema + 0.1 * accuracy for accuracy in accuracies[1:]]
        averages.append(100 * ema)
        rounds.append(next((n for n, value in enumerate(seen, start=1) if value >= 0.5), None))
    assert rounds == [1, 1, None]
    finals = [100 * accuracies[-1] for accuracies in series.values()]
    assert row["seeds"] == "3"
    assert float(row["accuracy_percent"]) == pytest.approx(sum(finals) / 3)
    assert float(row["accuracy_percent_std"]) == pytest.approx(5.0)
    assert float(row["moving_average_percent"]) == pytest.approx(sum(averages) / 3)
    assert float(row["moving_average_percent_std"]) == pytest.approx(statistics.stdev(averages))
    assert (row["not_reached_0.5"], row["rounds_to_0.5"], row["bytes_to_0.5"]) == ("1", "3", "6000")
    numbers = [value for name, value in row.items() if name not in ("label", "method")]
    assert all(math.isfinite(float(value or 0)) for value in numbers), "numbers only"
    assert float(row["seconds"]) == pytest.approx(3.0)


def test_rounds_and_bytes_of_seeds_that_all_reach_the_target_are_averaged(tmp_path):
    fake_run(tmp_path / "a", [0.2, 0.2, 1.0], seed=0)
    fake_run(tmp_path / "b", [0.3, 0.2, 0.2], seed=1)
    write([tmp_path], tmp_path / "out", [0.25])
    row = csv_rows(tmp_path / "out")["FedAvg"]
    assert (float(row["rounds_to_0.25"]), float(row["bytes_to_0.25"])) == (2.0, 4000.0)
    assert float(row["rounds_to_0.25_std"]) == pytest.approx(math.sqrt(2))
    assert "| 2.0 ±1.4 | 4.00 ±2.83 kB |" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


def test_an_effort_in_vain_is_the_least_that_a_seed_spent_without_success():
    effort = Effort((Reached(41, True), Reached(100, False), Reached(60, False)))
    assert (effort.spread, effort.spent, effort.reached) == (None, 60, 1)
    assert Effort((Reached(41, True), Reached(43, True))).spread == Spread(42.0, statistics.stdev([41, 43]))


def row_of(label: str, accuracy: float, rounds: Reached, sent: int = 0) -> Row:
    final = Spread(accuracy, None)
    reached = Effort((rounds,)), Effort((Reached(sent, rounds.reached),))
    return Row(label, label, (0,), final, final, (reached[0],), (reached[1],), Spread(1.0, None))


def test_best_and_second_are_marked_and_equals_share_a_mark():
    rows = [
        row_of("a", 90.001, Reached(50, True), 7),
        row_of("b", 90.004, Reached(30, False), 3),
        row_of("c", 80.0, Reached(50, True), 9),
        row_of("d", 70.0, Reached(60, True), 5),
    ]
    columns = {c.heading: [cell.mark for cell in c.cells] for c in columns_of(rows, [0.9])}
    assert columns["accuracy %"] == ["best", "best", "second", ""]
    assert columns["rounds to 90 %"] == ["best", "", "best", "second"]
    assert columns["bytes to 90 %"] == ["second", "", "", "best"]
    assert columns["seconds"] == [""] * 4
    assert not any(cell.mark for column in columns_of(rows[:1], [0.9]) for cell in column.cells)


def test_markdown_marks_the_best_and_escapes_labels():
    rows = [row_of("a|b_c<i>", 90.0, Reached(5, True)), row_of("d", 80.0, Reached(9, False))]
    lines = to_markdown(columns_of(rows, [0.9])).splitlines()
    assert lines[2].startswith("| a\\|b\\_c\\<i> | 1 | **90.00** | **90.00** | **5** |")
    assert lines[3].startswith("| d | 1 | <u>80.00</u> | <u>80.00</u> | 9+ |")


def test_latex_marks_the_best_and_escapes_what_latex_would_read():
    rows = [row_of("a_b & 5 % {x}", 90.0, Reached(5, True)), row_of("d", 80.0, Reached(9, False))]
    lines = to_latex(columns_of(rows, [0.9])).splitlines()
    assert lines[1:3] == [r"\begin{tabular}{lrrrrrr}", r"\toprule"]
    assert lines[3].startswith(r"method & seeds & accuracy \% & moving average \% & rounds to 90 \% & ")
    assert lines[5].startswith(r"a\_b \& 5 \% \{x\} & 1 & \textbf{90.00} & \textbf{90.00} & \textbf{5} & ")
    assert lines[6].startswith(r"d & 1 & \underline{80.00} & \underline{80.00} & 9+ & ")
    assert [line.count(" & ") for line in (lines[3], *lines[5:7])] == [6, 6, 6]
    assert all(line.endswith(r"\\") for line in (lines[3], *lines[5:7]))
    assert lines[7:] == [r"\bottomrule", r"\end{tabular}"]


def test_latex_prints_every_sign_as_it_stands():
    assert escape("1.0 ±0.5") == r"1.0 $\pm$0.5"
    assert escape(r"\~^$#") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}\$\#"
    # Or the bracket after the end of a line would be taken for an option.
    table = to_latex([Column("x", (Cell("first"), Cell("[2] second")))])
    assert table.splitlines()[-3] == r"{[}2{]} second \\"


def test_cells_are_sorted_by_their_numbers_and_what_was_missed_comes_last():
    rows = [
        row_of("a", 90.0, Reached(100, True), 7_000_000),
        row_of("b", 9.5, Reached(30, False), 2),
        row_of("c", 80.0, Reached(9, True), 90_000),
        row_of("d", 70.0, Reached(20, False), 1),
    ]
    columns = {c.heading: [cell.value for cell in c.cells] for c in columns_of(rows, [0.9])}
    assert columns["method"] == [None] * 4
    assert columns["accuracy %"] == [90.0, 9.5, 80.0, 70.0]
    for heading, order in (("rounds to 90 %", [2, 0, 3, 1]), ("bytes to 90 %", [2, 0, 3, 1])):
        assert sorted(range(4), key=columns[heading].__getitem__) == order


def test_terminal_table_is_plain_and_whole_at_80_columns(tmp_path):
    for seed in range(3):
        fake_run(tmp_path / f"a{seed}", [0.2] * 99 + [0.95 + seed / 100], "fedacg", seed, {"lam": 0.85})
        fake_run(tmp_path / f"b{seed}", [0.2] * 99 + [0.9 - seed / 10], "fedacg", seed, {"lam": 0.5})
        fake_run(tmp_path / f"c{seed}", [0.9] * 99 + [0.9], "fedavg", seed)
    report = write([tmp_path], tmp_path / "out")
    lines = table_of(report).splitlines()
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("FedACG lam=0.85"))
    assert row.split()[2:] == [
        "3",
        "96.00",
        "±1.00",
        "27.60",
        "±0.10",
        "100+",
        "(0/3)",
        "200",
        "kB+",
        "100",
        "±0",
    ]
    assert "1.0 ±0.0" in next(line for line in lines if line.startswith("FedAvg"))


def test_terminal_leaves_out_bytes_of_several_targets_only_without_room(tmp_path):
    run = fake_run(tmp_path / "a", [0.5, 0.6])
    targets = [0.5, 0.6, 0.7, 0.8, 0.9]
    report = write([run], tmp_path / "out", targets)
    assert "bytes" in table_of(report, 160)
    assert "bytes" not in table_of(report, 80)
    assert "80 %" in table_of(report, 80)


def test_curve_is_mean_with_deviation_over_rounds_that_all_seeds_evaluated(tmp_path):
    fake_run(tmp_path / "a", [0.5, None, 0.7, 0.8], seed=0, sent=100)
    fake_run(tmp_path / "b", [0.3, 0.4, 0.5, None], seed=1, sent=300)
    (curve,) = curves_of(group_runs([load_run(tmp_path / "a"), load_run(tmp_path / "b")]))
    averages = [[0.5, 0.81 * 0.5 + 0.19 * 0.7], [0.3, 0.9 * (0.9 * 0.3 + 0.1 * 0.4) + 0.1 * 0.5]]
    track = curve.evaluated
    assert track.rounds == (1, 3)
    assert track.sent.tolist() == [400.0, 1200.0]
    assert track.seconds.tolist() == [1.0, 3.0]
    assert track["accuracy"].mean == pytest.approx([40.0, 60.0])
    assert track["average"].mean == pytest.approx([50 * (averages[0][i] + averages[1][i]) for i in (0, 1)])
    deviations = [100 * statistics.stdev([averages[0][i], averages[1][i]]) for i in (0, 1)]
    assert track["average"].deviation == pytest.approx(deviations)
    assert track["loss"].mean == pytest.approx([0.6, 0.4])
    assert track["loss"].deviation == pytest.approx([math.sqrt(0.02), math.sqrt(0.02)])
    assert curve.played.rounds == (1, 2, 3, 4)
    assert curve.played.sent.tolist() == [400.0, 800.0, 1200.0, 1600.0]
    assert curve.played["training"].mean.tolist() == [1.0] * 4


def test_band_ends_where_percentages_do(tmp_path):
    for seed, accuracy in enumerate([1.0, 1.0, 0.4]):
        fake_run(tmp_path / f"{seed}", [accuracy], seed=seed)
    (curve,) = curves_of(group_runs([load_run(folder) for folder in find_runs([tmp_path])]))
    band = curve.evaluated["average"].band
    assert band is not None
    (lower,), (upper,) = band
    assert lower == pytest.approx(80 - 100 * statistics.stdev([1, 1, 0.4]))
    assert upper == 100.0


def test_report_is_whole_and_the_same_every_time(tmp_path, monkeypatch):
    monkeypatch.undo()
    run = fake_run(tmp_path / "a", [0.5, 0.6])
    report = write([run], tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES == {p.name for p in report.paths}
    before = {path.name: path.read_bytes() for path in report.paths}
    write([run], tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in report.paths}
    assert before["curves-rounds.png"].startswith(b"\x89PNG")
    assert before["curves-bytes.pdf"].startswith(b"%PDF")
    assert report.notes == ()


def test_a_run_in_progress_is_reported_with_a_note(tmp_path):
    run = fake_run(tmp_path / "a", [0.5, 0.6], finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "lr"')
    begun = fake_run(tmp_path / "b", [], "fedacg", finished=False)
    (begun / "metrics.jsonl").unlink()
    report = write([run, begun], tmp_path / "out")
    assert any("in progress, 2 of 100 rounds" in note for note in report.notes)
    assert any("is incomplete" in note for note in report.notes)
    assert any(str(begun) in note and "no rounds yet" in note for note in report.notes)
    assert "–" in table_of(report)
    assert (tmp_path / "out" / "index.html").read_text(encoding="utf-8").count("in progress") >= 2
    with pytest.raises(InputError, match="no round has been recorded"):
        write([begun], tmp_path / "out")


def test_nan_evaluations_and_a_broken_summary_are_noted(tmp_path):
    run = fake_run(tmp_path / "a", [0.5, math.nan])
    (run / "summary.json").write_text("{")
    report = write([run], tmp_path / "out")
    assert report.rows[0].accuracy == Spread(50.0, None)
    assert any("not a number in 1 round" in note for note in report.notes)
    assert any("summary.json" in note for note in report.notes)


def test_a_run_without_any_evaluation_shows_its_training_loss(tmp_path):
    report = write([fake_run(tmp_path / "a", [None, None])], tmp_path / "out")
    assert report.rows[0].shown.name == "train_loss"
    assert report.rows[0].accuracy == Spread(1.0, None)
    assert csv_rows(tmp_path / "out")["FedAvg"]["rounds_to_0.9"] == "2"


def test_different_data_sets_are_noted_and_not_ranked(tmp_path):
    fake_run(tmp_path / "a", [0.5], data="digits")
    fake_run(tmp_path / "b", [0.6], data="cifar10", alpha=0.6)
    report = write([tmp_path], tmp_path / "out")
    assert any("different data sets (digits, cifar10)" in note for note in report.notes)
    assert any("differ in data.alpha" in note for note in report.notes)
    assert "**" not in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert {row.label for row in report.rows} == {"FedAvg digits", "FedAvg cifar10"}


def test_targets_come_from_the_experiments_unless_given(tmp_path):
    fake_run(tmp_path / "a", [0.5], targets="[0.9, 0.4]")
    fake_run(tmp_path / "b", [0.6], seed=1, targets="[0.5]")
    runs = [load_run(tmp_path / "a"), load_run(tmp_path / "b")]
    assert len(group_runs(runs)) == 1
    write([tmp_path], tmp_path / "out")
    heads = csv_rows(tmp_path / "out")["FedAvg"].keys()
    assert [head for head in heads if re.fullmatch(r"rounds_to_[\d.]+", head)] == [
        f"rounds_to_{target}" for target in ("0.4", "0.5", "0.9")
    ]
    assert not any("rounds_to" in head for head in _heads(tmp_path, []))
    for target in (0.0, 90.0, math.nan):
        with pytest.raises(InputError, match="fraction"):
            write([tmp_path / "a"], tmp_path / "out", [target])


def _heads(folder: Path, targets: list[float]) -> list[str]:
    write([folder / "a"], folder / "out", targets)
    return list(csv_rows(folder / "out")["FedAvg"])


def test_report_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        write([fake_run(tmp_path / "a", [0.5])], tmp_path / "out")
    assert (tmp_path / "out").read_text() == "in the way"


def command(*arguments: object) -> Any:
    # Typer 0.20 warns of its own when it is imported beside Click 8.5, so it is imported where that is let pass.
    app = typer.Typer()
    app.command()(report_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def test_command_prints_the_table_the_notes_and_the_page(tmp_path):
    fake_run(tmp_path / "runs" / "a", [0.5, 0.65], finished=False)
    result = command(tmp_path / "runs", "--out", tmp_path / "out", "--target", 0.5, "--target", 0.51)
    assert result.exit_code == 0, result.output
    assert "65.00" in result.output
    assert "to 51 %" in result.output
    assert "note: " in result.output
    assert "in progress" in result.output
    assert f"report: {tmp_path / 'out' / 'index.html'}" in result.output
    quiet = command(tmp_path / "runs", "-o", tmp_path / "out", "-q")
    assert quiet.output == f"{tmp_path / 'out' / 'index.html'}\n"


def test_command_passes_input_errors_on(tmp_path):
    result = command(tmp_path, "--out", tmp_path / "out")
    assert isinstance(result.exception, InputError)
    assert not (tmp_path / "out").exists()
