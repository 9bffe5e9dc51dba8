"""The table of a benchmark, from runs whose rounds are made up: numbers, marks, files, and 80 columns."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from fedacg.bench import paper
from fedacg.bench.comparison import Comparison, Printed, compare, write
from fedacg.bench.paper import Block, make_plan
from fedacg.config.experiment import Experiment
from fedacg.report.table import Spread
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command

Accuracy = Callable[[Experiment, int], float | None]


def made_up(folder: Path, experiment: Experiment, accuracy: Accuracy, rounds: int | None = None) -> None:
    """A run folder as if the experiment had been played, or only so many rounds of it; 10 bytes per round."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(experiment.to_toml())
    last = rounds or experiment.rounds
    lines = [
        RoundMetrics(
            round=number,
            lr=0.1,
            cohort=(0,),
            examples=10,
            train_loss=1.0,
            bytes_down=6,
            bytes_up=4,
            seconds_train=1.0,
            seconds_aggregate=0.0,
            test_accuracy=accuracy(experiment, number),
        ).to_json()
        for number in range(1, last + 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if rounds is None:
        (folder / "summary.json").write_text(json.dumps({"vector_sha256": "0" * 64}))


def block_of(tmp_path: Path, accuracy: Accuracy, **plan: object) -> Block:
    """cifar10-large at small scale in ten rounds."""
    options: dict[str, object] = {"on": ["cifar10-large"], "settings": ["rounds=10"], **plan}
    (block,) = make_plan("main-large", "small", tmp_path, **options)  # type: ignore[arg-type]
    for folder, experiment in block.runs.items():
        made_up(folder, experiment, accuracy)
    return block


def constant(levels: Mapping[str, float]) -> Accuracy:
    """Each method has the same accuracy in all rounds, and so the same average."""
    return lambda experiment, _: levels.get(experiment.method.name, 0.3)


def row_of(comparison: Comparison, label: str) -> int:
    return [row.label for row in comparison.here].index(label)


def texts(comparison: Comparison, label: str) -> dict[str, str]:
    """The cells of a row by their headings; best and second best are marked as in Markdown."""
    wraps = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    columns = [column for group in comparison.groups for column in group]
    place = row_of(comparison, label)
    return {column.heading: wraps[column.cells[place].mark].format(column.cells[place].text) for column in columns}


# Numbers


def test_the_table_has_the_paper_beside_what_was_measured(tmp_path: Path) -> None:
    def learning(experiment: Experiment, number: int) -> float:
        return {"fedavg": 0.5, "fedavgm": 0.53, "fedacg": 0.4 + 0.03 * number}[experiment.method.name]

    comparison = compare(block_of(tmp_path, learning, methods=["fedavg", "fedavgm", "fedacg"]))
    assert comparison.targets == (0.51, 0.54)
    assert texts(comparison, "FedAvg") == {
        "paper, at 500": "58.74",
        "here, at 5": "<u>50.00</u>",
        "paper, at 1000": "71.45",
        "here, at 10": "50.00",
        "paper, to 73 %": "1000+",
        "here, to 51 %": "10+",
        "paper, to 77 %": "1000+",
        "here, to 54 %": "10+",
        "bytes, to 51 %": "100 B+",
        "bytes, to 54 %": "100 B+",
    }
    acg = texts(comparison, "FedACG")
    # FedACG's average by hand: 0.43 in the first round, and 0.9·average + 0.1·accuracy from there.
    average, averages = 0.43, [0.43]
    for number in range(2, 11):
        average = 0.9 * average + 0.1 * (0.4 + 0.03 * number)
        averages.append(average)
    first = next(number for number, value in enumerate(averages, start=1) if value >= 0.51)
    assert acg["here, at 5"] == f"{100 * averages[4]:.2f}"
    assert acg["here, at 10"] == f"**{100 * averages[9]:.2f}**"
    assert (acg["here, to 51 %"], acg["bytes, to 51 %"]) == (f"<u>{first}</u>", f"<u>{10 * first} B</u>")
    assert (acg["paper, at 1000"], acg["paper, to 73 %"]) == ("**82.80**", "**484**")
    assert texts(comparison, "FedAvgM")["here, to 51 %"] == "**1**"
    assert texts(comparison, "FedAvgM")["here, to 54 %"] == "10+"


def test_several_seeds_have_mean_and_deviation_and_targets_by_the_mean_of_fedavg(tmp_path: Path) -> None:
    levels = {0: 0.48, 1: 0.52}
    comparison = compare(
        block_of(
            tmp_path,
            lambda experiment, _: levels[experiment.seed] + 0.02 * (experiment.method.name == "fedacg"),
            methods=["fedavg", "fedacg"],
            seeds=[0, 1],
        )
    )
    assert comparison.targets == (0.51, 0.54)
    avg, acg = comparison.here
    assert avg.moving_average is not None
    assert (avg.moving_average.mean, avg.moving_average.std) == (pytest.approx(50), pytest.approx(8**0.5))
    assert texts(comparison, "FedACG")["here, at 10"] == "**52.00 ±2.83**"
    assert texts(comparison, "FedACG")["here, to 51 %"] == "10+ (1/2)"
    assert [seed.reached for seed in acg.rounds_to[1].seeds] == [False, True], (
        "an average of 54 % has reached 54 %"
    )
    assert texts(comparison, "FedAvg")["here, to 51 %"] == "10+ (1/2)"


def test_at_paper_scale_targets_and_rounds_are_the_papers(tmp_path: Path) -> None:
    (block,) = make_plan("low-participation", "paper", tmp_path, on=["cifar10-large-low"], methods=["fedacg"])
    for folder, experiment in block.runs.items():
        made_up(folder, experiment, lambda _, number: 0.5 if number <= 500 else 0.9)
    comparison = compare(block)
    assert (comparison.targets, comparison.rounds) == ((0.68,), (500, 1000))
    (row,) = comparison.here
    assert row.accuracy == Spread(50.0, None)
    # 0.9 − 0.4·0.9ⁿ ≥ 0.68 from n = 6 on.
    assert [seed.value for seed in row.rounds_to[0].seeds] == [506]
    assert list(texts(comparison, "FedACG")) == [
        "paper, at 500",
        "here, at 500",
        "paper, at 1000",
        "here, at 1000",
        "paper, to 68 %",
        "here, to 68 %",
        "bytes, to 68 %",
    ]
    assert not any("FedAvg" in note for note in comparison.notes)


def test_rounds_that_were_not_evaluated_or_not_numbers_are_passed_over(tmp_path: Path) -> None:
    def holes(experiment: Experiment, number: int) -> float | None:
        return {3: 0.5, 4: float("nan"), 8: 0.6}.get(number)

    comparison = compare(block_of(tmp_path, holes, methods=["fedavg"]))
    (row,) = comparison.here
    assert row.accuracy is not None
    assert row.moving_average is not None
    assert row.accuracy.mean == pytest.approx(50)
    assert row.moving_average.mean == pytest.approx(100 * (0.5 + (1 - 0.9**5) * 0.1))


def test_a_run_that_did_not_get_there_has_no_accuracy_there(tmp_path: Path) -> None:
    (block,) = make_plan(
        "main-large",
        "small",
        tmp_path,
        on=["cifar10-large"],
        settings=["rounds=10"],
        methods=["fedavg", "feddyn"],
        seeds=[0, 1],
    )
    for folder, experiment in block.runs.items():
        stopped = experiment.method.name == "feddyn" and experiment.seed == 1
        made_up(folder, experiment, constant({"fedavg": 0.5, "feddyn": 0.6}), rounds=6 if stopped else None)
    comparison = compare(block)
    dyn = texts(comparison, "FedDyn")
    assert (dyn["here, at 5"], dyn["here, at 10"]) == ("**60.00 ±0.00**", "–")
    assert dyn["here, to 51 %"] == "**1.0 ±0.0**"
    assert "FedDyn, seed 1: ended after 6 of 10 rounds" in comparison.notes


def test_without_fedavgs_end_there_are_no_targets(tmp_path: Path) -> None:
    (block,) = make_plan("main-large", "small", tmp_path, on=["cifar10-large"], methods=["fedacg"])
    for folder, experiment in block.runs.items():
        made_up(folder, experiment, constant({}), rounds=40 if experiment.method.name == "fedavg" else None)
    comparison = compare(block)
    assert comparison.targets == ()
    assert not any("here, to" in heading or "bytes" in heading for heading in texts(comparison, "FedACG"))
    assert any("so there are no targets" in note for note in comparison.notes)
    write(comparison, "fedacg bench main-large")
    assert (block.folder / "index.html").exists()


def test_notes_say_what_is_not_as_in_the_paper(tmp_path: Path) -> None:
    (block,) = make_plan("fedpaq", "small", tmp_path, on=["cifar10-large"], settings=["rounds=10"])
    for folder, experiment in block.runs.items():
        made_up(folder, experiment, constant({}))
    notes = " / ".join(compare(block).notes)
    assert "the paper's table has no cifar10-large" in notes
    assert "changed from the recipe: rounds=10" in notes
    assert "30.6 % and 32.4 %, that is 102 % and 108 % of FedAvg's 30.00 %" in notes
    (added,) = make_plan("ablation-beta", "small", tmp_path, on=["cifar10-large"], settings=["rounds=10"])
    for folder, experiment in added.runs.items():
        if not folder.exists():
            made_up(folder, experiment, constant({}))
    assert "FedAvg was run as well, as the targets derive from it" in compare(added).notes


# Files


def test_files_have_the_same_numbers(tmp_path: Path) -> None:
    block = block_of(tmp_path, constant({"fedavg": 0.5, "fedacg": 0.515}), methods=["fedavg", "fedacg"])
    comparison = compare(block)
    written = write(comparison, "fedacg bench main-large --on cifar10-large")
    assert {"bench.md", "bench.csv", "bench.tex", "index.html"} <= {path.name for path in written.paths}
    markdown = (block.folder / "bench.md").read_text()
    assert "\nfedacg bench main-large --on cifar10-large\n" in markdown
    assert (
        "| FedACG | **73.61** | **51.50** | **82.80** | **51.50** | **484** | **1** | **605** | 10+ |" in markdown
    )
    latex = (block.folder / "bench.tex").read_text()
    assert r"FedACG & \textbf{73.61} & \textbf{51.50}" in latex
    assert re.search(r"here, to 51 \\%", latex)
    assert all(line.startswith("%") for line in latex.split(r"\begin{tabular}")[0].splitlines())
    rows = list(csv.DictReader((block.folder / "bench.csv").read_text().splitlines()))
    acg = [row for row in rows if row["run"] == "fedacg"]
    assert [
        (row["metric"], row["paper_at"], row["paper"], row["at"], row["value"], row["not_reached"]) for row in acg
    ] == [
        ("accuracy", "500", "73.61", "5", "51.5", ""),
        ("accuracy", "1000", "82.8", "10", "51.5", ""),
        ("rounds_to", "73", "484", "51", "1", "0"),
        ("bytes_to", "", "", "51", "10", "0"),
        ("rounds_to", "77", "605", "54", "10", "1"),
        ("bytes_to", "", "", "54", "100", "1"),
    ]
    page = (block.folder / "index.html").read_text()
    assert "Beside the paper" in page
    assert "main-large at small scale, cifar10-large-small, seed 0." in page


@pytest.mark.parametrize("table", ["ablation-lambda", "ablation-beta"])
def test_the_ablation_of_an_option_has_the_picture_of_a_sweep(tmp_path: Path, table: str) -> None:
    (block,) = make_plan(table, "small", tmp_path, on=["cifar10-large"], settings=["rounds=4"])
    for folder, experiment in block.runs.items():
        made_up(folder, experiment, constant({}))
    written = write(compare(block), "fedacg bench")
    assert {"effect.png", "effect.pdf"} <= {path.name for path in written.paths}
    assert (block.folder / "effect.png").read_bytes().startswith(b"\x89PNG")


# On a terminal


def printed(comparison: Comparison, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(Printed(comparison))
    return capture.get().splitlines()


@pytest.mark.parametrize("table", paper.table_names())
@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
def test_every_table_reads_at_80_columns_and_in_one_piece_where_there_is_room(
    tmp_path: Path, table: str, seeds: list[int]
) -> None:
    block = make_plan(table, "small", tmp_path, seeds=seeds, settings=["rounds=20"])[0]
    for folder, experiment in block.runs.items():
        made_up(folder, experiment, lambda e, n: 0.3 + 0.013 * n + 0.01 * e.seed)
    comparison = compare(block)
    narrow, wide = printed(comparison, 80), printed(comparison, 250)
    assert max(map(len, narrow)) <= 80
    pieces = sum(line.startswith("method") for line in narrow)
    assert sum(line.startswith("method") for line in wide) == 1
    widest = max(len(line.label) for line in block.lines)
    for line in block.lines:
        whole = [text for text in narrow if text[:widest].rstrip() == line.label]
        assert len(whole) == pieces, f"{line.label} is broken over lines"


def test_the_program_prints_the_table_its_notes_and_where_it_is(fedacg: Command) -> None:
    block = block_of(Path("out"), constant({"fedavg": 0.5}), methods=["fedavg", "fedacg"])
    command = ["bench", "main-large", "--on", "cifar10-large", "--methods", "fedavg,fedacg", "--set", "rounds=10"]
    outcome = fedacg(*command, "--out", "out")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "2 runs below out/runs, 2 of them finished"
    assert "main-large at small scale, cifar10-large-small, seed 0" in lines
    assert re.search(r"^FedAvg +58\.74 +50\.00 +71\.45 +50\.00\b", outcome.out, re.MULTILINE)
    assert "note: changed from the recipe: rounds=10" in lines
    assert f"report: {block.folder / 'index.html'}" in lines
    assert "beside it: bench.md, bench.csv, bench.tex" in lines
    assert not (block.folder / "effect.png").exists()


def test_quiet_prints_the_path_of_each_table_alone(fedacg: Command) -> None:
    block = block_of(Path("out"), constant({}), methods=["fedavg"])
    command = ["bench", "main-large", "--on", "cifar10-large", "--methods", "fedavg", "--set", "rounds=10"]
    outcome = fedacg(*command, "--out", "out", "--quiet")
    assert (outcome.code, outcome.out) == (0, f"{block.folder / 'bench.md'}\n")
