"""The command line on good input, and on runs that fail: what is written, printed and returned."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from fedacg import __version__
from fedacg.config.experiment import Experiment
from fedacg.config.fields import Section
from fedacg.config.recipe import find, override, read_toml, recipe_names, with_method
from fedacg.methods import METHODS, MODIFIERS
from fedacg.runs.history import History, read_metrics
from fedacg.simulation.sampling import Attendance, Sampling
from support.command import TINY, Command, start

RUN_FILES = {
    "run.json",
    "experiment.toml",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "summary.json",
    "model.json",
}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_run_writes_its_files_and_says_where(fedacg: Command) -> None:
    outcome = fedacg("run", "tiny.toml", "--set", "rounds=3")
    assert outcome.code == 0
    assert outcome.err == ""
    folder = Path("runs/tiny-fedacg-s4")
    assert files(fedacg.folder / folder) == RUN_FILES
    assert outcome.out.splitlines()[-1].split() == ["folder", str(folder)]
    figures = summary(fedacg.folder / folder)
    assert f"{100 * figures['accuracy']:.2f} %" in outcome.out
    assert figures["vector_sha256"][:16] in outcome.out
    assert read_metrics(fedacg.folder / folder / "metrics.jsonl")[0].rounds == 3


def test_a_quiet_run_prints_its_folder_and_nothing_else(fedacg: Command) -> None:
    outcome = fedacg("run", "tiny.toml", "--quiet", "--set", "rounds=1", "--out", "here")
    assert (outcome.code, outcome.out, outcome.err) == (0, "here\n", "")


def test_settings_and_method_options_from_the_shell_reach_the_run(fedacg: Command) -> None:
    outcome = fedacg(
        *("run", "tiny.toml", "--method", "fedacg:lam=0.9:beta=0.1", "--quiet", "--out", "here"),
        *("--set", "rounds=2", "--set", "local.lr=0.05", "--set", "name=other", "--set", "model.hidden=[4, 5]"),
    )
    assert outcome.code == 0
    found = Experiment.parse(read_toml(fedacg.folder / "here" / "experiment.toml"))
    assert found.method.options == {"lam": 0.9, "beta": 0.1, "server_lr": 1.0}
    assert (found.rounds, found.local.lr, found.name, found.model.options) == (
        2,
        0.05,
        "other",
        {"hidden": [4, 5]},
    )
    assert [metrics.lr for metrics in read_metrics(fedacg.folder / "here" / "metrics.jsonl")[0]] == [0.05, 0.05]


def settable(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted key, the type and the default of every field of a description."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from settable(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.annotation, field.default


NAMED = {
    "data.name": "cifar10",
    "data.split": "iid",
    "model.name": "cnn",
    "method.name": "fedavg",
    "cohort.draw": "coin",
    "local.schedule": "constant",
    "local.within": "linear",
    "local.milestones": (7,),
    "evaluate.goals": ("test_loss<=0.3",),
    "evaluate.metrics": ("my_package:f1",),
    "callbacks": ({"name": "best-checkpoint"},),
    "clock.profile": "phones",
    "clock.over_select": 1.5,
}
"""Another value where only some are known."""
BESIDE = {
    "evaluate.client_every": "evaluate.clients=train",
    "evaluate.client_steps": "evaluate.clients=train",
    "evaluate.held_out": "evaluate.clients=held-out",
    "cohort.gap": "cohort.draw=spaced",
    "failures.attack": "failures.bad=0.2",
    "failures.strength": "failures.bad=0.2",
    "local.milestones": "local.schedule=step",
    "start_vectors": "start=/elsewhere",
    "data.validation_from": "data.validation=0.1",
    "local.epoch_decay": "local.lr_decay=0.5",
    "local.nesterov": "local.momentum=0.5",
    "clock.deadline": "clock.profile=phones",
    "clock.over_select": "clock.profile=phones",
    "asynchronous.staleness": "asynchronous.buffer=2",
    "asynchronous.aggregate": "asynchronous.buffer=2",
}
"""What some settings need to have an effect."""


def another(key: str, kind: Any, value: Any) -> Any:
    """A valid value that is not this one."""
    if key in NAMED:
        return NAMED[key]
    if kind is bool:
        return not value
    if kind is int:
        return value + 1
    if kind is float:
        return value / 2 or 0.5
    if kind is str:
        return f"/another {value}"
    if isinstance(value, tuple):
        return (*value, 7 if key == "analysis.rounds" else 0.25)
    return next(choice for choice in get_args(kind) if choice != value)


def flat(experiment: Experiment) -> dict[str, Any]:
    tree = experiment.model_dump()
    tables = {key: value if isinstance(value, dict) else {"": value} for key, value in tree.items()}
    return {f"{table}.{key}".strip("."): value for table, keys in tables.items() for key, value in keys.items()}


FIELDS = list(settable(Experiment))


def test_the_fields_are_all_of_a_description_but_the_methods_own() -> None:
    keys = {key for key, _, _ in FIELDS}
    assert keys == flat(Experiment()).keys() - {"method.lam", "method.beta", "method.server_lr"}
    assert {"seed", "data.alpha", "local.lr", "save.seconds"} <= keys


@pytest.mark.parametrize(("key", "kind", "default"), FIELDS, ids=[key for key, _, _ in FIELDS])
def test_set_reaches_every_field_and_changes_no_other(key: str, kind: Any, default: Any) -> None:
    value = another(key, kind, default)
    written = (
        [each["name"] if isinstance(each, dict) else each for each in value] if isinstance(value, tuple) else value
    )
    text = json.dumps(written)
    beside = [BESIDE[key]] if key in BESIDE else []
    before = flat(Experiment.parse(override({}, beside)))
    after = flat(Experiment.parse(override({}, [*beside, f"{key}={text}"])))
    assert after[key] == value != before[key]
    if key != "method.name":
        assert {**after, key: before[key]} == before


def test_a_plain_word_needs_no_quotes() -> None:
    assert Experiment.parse(override({}, ["data.split = iid", "name=a b"])).name == "a b"


def test_compare_writes_runs_table_curves_and_page_and_resumes_without_doing_anything_again(
    fedacg: Command,
) -> None:
    command = ["compare", "tiny.toml", "--methods", "fedavg,fedacg:lam=0.9", "--seeds", "0,1", "--out", "all"]
    first = fedacg(*command, "--set", "rounds=3")
    assert (first.code, first.err) == (0, "")
    folder = fedacg.folder / "all"
    runs = {"fedavg-s0", "fedavg-s1", "fedacg-s0-lam=0.9", "fedacg-s1-lam=0.9"}
    curves = {f"curves-{axis}.{kind}" for axis in ("rounds", "bytes", "seconds") for kind in ("png", "pdf")}
    others = {"table.csv", "table.md", "table.tex", "split.png", "split.pdf", "index.html"}
    others |= {"card.json", "card.md", "differences.csv", "differences.md"}
    assert files(folder) == runs | curves | others
    assert all(files(folder / run) == RUN_FILES for run in runs)
    assert read_toml(folder / "fedacg-s1-lam=0.9" / "experiment.toml")["method"]["lam"] == 0.9
    assert "fedacg" in first.out
    assert "index.html" in first.out

    def moments() -> dict[str, int]:
        return {f"{run}/{name}": (folder / run / name).stat().st_mtime_ns for run in runs for name in RUN_FILES}

    before, table = moments(), (folder / "table.csv").read_bytes()
    again = fedacg(*command, "--set", "rounds=3", "--resume")
    assert (again.code, again.err) == (0, "")
    assert moments() == before
    assert (folder / "table.csv").read_bytes() == table
    told, _, table_again = again.out.partition("\n")
    assert told == "all of 4 runs below all were finished before"
    assert first.out.endswith(table_again), "the same table is shown"

    lost = summary(folder / "fedavg-s1")["vector_sha256"]
    for name in RUN_FILES:
        (folder / "fedavg-s1" / name).unlink()
    assert fedacg(*command, "--set", "rounds=3", "--resume", "--quiet").out == "all/index.html\n"
    assert summary(folder / "fedavg-s1")["vector_sha256"] == lost
    assert {k: v for k, v in moments().items() if "fedavg-s1" not in k} == {
        k: v for k, v in before.items() if "fedavg-s1" not in k
    }


def test_output_fits_eighty_columns(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDACG_DATA", "data")
    commands = [
        ["run", "tiny.toml", "--set", "rounds=2"],
        ["compare", "tiny.toml", "--methods", "fedavg,fedprox+acg,fedacg", "--set", "rounds=2"],
        ["report", "runs/tiny"],
        ["methods"],
        ["recipes"],
        ["data", "list"],
        ["--help"],
        ["run", "--help"],
        ["compare", "--help"],
        ["report", "--help"],
        ["data", "--help"],
    ]
    for command in commands:
        outcome = fedacg(*command)
        assert outcome.code == 0, outcome
        assert outcome.err == ""
        assert outcome.out.strip()
        assert "\\[" not in outcome.out
        long = [line for line in outcome.out.splitlines() if len(line.rstrip()) > 80]
        assert not long, command


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_a_sound_experiment_that_sets_nothing_unknown(name: str) -> None:
    experiment = Experiment.parse(find(name))
    assert experiment.name == name
    assert Experiment.parse(with_method(find(name), "fedprox+acg")).method.name == "fedprox+acg"


def test_what_there_is_can_be_listed(fedacg: Command) -> None:
    listed = fedacg("methods").out
    assert {*METHODS, *(f"+{name}" for name in MODIFIERS)} <= set(listed.split())
    assert len(listed.splitlines()) <= 24, "it fits a screen"
    equations = fedacg("methods", "--equations").out
    assert all(f"\n{name} " in equations for name in (*METHODS, *(f"+{part}" for part in MODIFIERS)))
    assert [line.split()[0] for line in fedacg("recipes").out.splitlines()] == recipe_names()
    assert "digits" in fedacg("data", "list").out
    assert fedacg("--version").out == f"fedacg {__version__}\n"
    commands = fedacg("--help").out
    assert all(command in commands for command in ("run", "compare", "report", "methods", "recipes", "data"))


def test_tensorboard_gets_the_metrics_of_every_round(fedacg: Command) -> None:
    run = ["run", "tiny.toml", "--out", "run", "--log", "tensorboard", "--quiet", "--set", "rounds=4"]
    outcome = fedacg(*run, "--set", "evaluate.every=2")
    assert outcome.code == 0, outcome
    folder = fedacg.folder / "run"
    history = read_metrics(folder / "metrics.jsonl")[0]
    assert len(list((folder / "tensorboard").glob("events.out.tfevents.*"))) == 1
    scalars = read_scalars(folder / "tensorboard")
    assert scalars.pop("test/moving_average") == pytest.approx(by_round(history, history.moving_average()))
    expected = {
        "train/loss": {m.round: m.train_loss for m in history},
        "train/lr": {m.round: m.lr for m in history},
        "bytes/down": {m.round: m.bytes_down for m in history},
        "bytes/up": {m.round: m.bytes_up for m in history},
        "seconds/train": {m.round: m.seconds_train for m in history},
        "seconds/aggregate": {m.round: m.seconds_aggregate for m in history},
        "seconds/evaluate": {m.round: m.seconds_evaluate for m in history},
        "test/accuracy": by_round(history, [m.test_accuracy for m in history.evaluated]),
        "test/loss": by_round(history, [m.test_loss for m in history.evaluated]),
    }
    assert scalars.keys() == expected.keys()
    for name, values in expected.items():
        assert scalars[name] == pytest.approx(values, rel=1e-6), name


def by_round(history: History, values: list[Any]) -> dict[int, float]:
    return dict(zip([m.round for m in history.evaluated], values, strict=True))


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: {each.step: each.value for each in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_tensorboard_that_is_not_installed_is_told_with_what_installs_it(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    outcome = fedacg("run", "tiny.toml", "--log", "tensorboard")
    assert outcome.code == 2
    assert outcome.err == "error: --log tensorboard: needs pip install 'fedacg[tensorboard]'\n"
    assert not (fedacg.folder / "runs").exists()


def test_a_run_that_diverges_ends_with_code_1_and_names_the_round(fedacg: Command) -> None:
    outcome = fedacg(
        "run", "tiny.toml", "--out", "run", "--set", "local.lr=3.0", "--set", "local.weight_decay=1.0"
    )
    assert outcome.code == 1
    error, kept = outcome.err.splitlines()
    assert error.startswith("error: diverged in round ")
    assert "local.lr" in error
    last = read_metrics(fedacg.folder / "run" / "metrics.jsonl")[0].rounds
    assert f"round {last + 1}:" in error
    assert kept == f"error: round {last} is saved in run/checkpoint.safetensors"
    assert not (fedacg.folder / "run" / "summary.json").exists()


def test_a_bug_is_not_dressed_up_as_bad_input(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(self: Sampling, round: int, history: object) -> Attendance:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Sampling, "attendance", bug)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        fedacg("run", "tiny.toml")


def test_a_bug_shows_its_traceback_and_ends_with_code_1(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    program = (
        "import fedacg.simulation.sampling as s, fedacg.cli as c\n"
        "s.Sampling.attendance = lambda self, round, history: [1 // 0]\n"
        "c.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "tiny.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.strip().endswith("ZeroDivisionError: integer division or modulo by zero")


def test_python_m_fedacg_is_the_program(tmp_path: Path) -> None:
    process = start(tmp_path, "run", "nowhere.toml")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert output == "error: nowhere.toml: cannot be read: No such file or directory\n"
