"""Reading a run folder runs no code that it names, unless the user says so; and a model is loaded without data."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import enumerate as all_threads

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.utils import parameters_to_vector

import fedacg as package
from fedacg import models
from fedacg.core import files, plugins
from fedacg.errors import DataMissing, InputError
from fedacg.models import parameters
from fedacg.report.live import LiveReport
from fedacg.runs.build import prepare
from fedacg.runs.model_file import load_model
from fedacg.runs.runner import play
from support.command import Command
from support.runs import StopAfter, tiny

HELPER = """
import pathlib
import torch
from fedacg.data import dataset

pathlib.Path("imported").touch()

def load():
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    return dataset((x[:90], torch.arange(90) % 3), (x[90:], torch.arange(30) % 3))
"""
SMALL = ("data.name=helper:load", "data.clients=6", "cohort.size=4", "rounds=2", "analysis.rounds=[2]")
FAST = ("--workers", "1", "--resolution", "2", "--examples", "20")


def lie(path: Path, change: Mapping[str, object]) -> None:
    """Write other things into a sealed file, and seal it again."""
    record = files.unseal(path.read_bytes())
    path.write_text(files.seal(json.dumps({**record, **change})))


@pytest.fixture
def foreign(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder whose data are a function in the current folder; the module leaves a mark if imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (fedacg.folder / "helper.py").write_text(HELPER)
    settings = [word for setting in SMALL for word in ("--set", setting)]
    outcome = fedacg("run", "tiny.toml", "--out", "theirs", "--quiet", *settings)
    assert outcome.code == 0, outcome
    assert (fedacg.folder / "imported").exists()
    forget(fedacg.folder)
    yield Path("theirs")
    sys.modules.pop("helper", None)


def forget(folder: Path) -> None:
    (folder / "imported").unlink()
    del sys.modules["helper"]


def test_analyze_imports_nothing_that_a_folder_names_unless_it_is_trusted(fedacg: Command, foreign: Path) -> None:
    for what in ("surface", "cka", "surface,divergence,cka,stability,drift"):
        outcome = fedacg("analyze", str(foreign), "--what", what, "--out", "an", *FAST)
        assert outcome.code == 2
        assert "theirs: data.name = 'helper:load': names code, load of the module helper" in outcome.err
        assert "If you trust the author of the folder, add --trust" in outcome.err
        assert "Traceback" not in outcome.err
        assert not Path("an").exists()
    assert not Path("imported").exists()
    assert fedacg("analyze", str(foreign), "--out", "an", *FAST, "--trust").code == 0
    assert Path("imported").exists()


def test_pictures_that_need_no_data_need_no_trust(fedacg: Command, foreign: Path) -> None:
    outcome = fedacg("analyze", str(foreign), "--what", "divergence,stability,drift", "--out", "an")
    assert outcome.code == 0, outcome
    assert not Path("imported").exists()


def test_report_and_watch_import_nothing(fedacg: Command, foreign: Path) -> None:
    outcome = fedacg("report", str(foreign), "--out", "report")
    assert outcome.code == 0, outcome
    live = LiveReport([foreign])
    for thread in all_threads():
        if thread.name.endswith("(_deal)"):
            thread.join()
    assert "helper:load" in live.page()
    assert not Path("imported").exists()


def test_load_model_needs_neither_data_nor_trust(fedacg: Command, foreign: Path) -> None:
    (fedacg.folder / "helper.py").unlink()
    summary = json.loads((foreign / "summary.json").read_text())
    model = package.load_model(foreign)
    assert parameters_to_vector(model.parameters()).numel() == summary["parameters"]
    assert not Path("imported").exists()


def test_a_folder_of_an_older_version_is_loaded_from_its_data_if_it_is_trusted(
    fedacg: Command, foreign: Path
) -> None:
    expected = parameters_to_vector(load_model(foreign).parameters())
    (foreign / "model.json").unlink()
    with pytest.raises(InputError, match=r"data\.name = 'helper:load'.* call load_model\(\.\.\., trust=True\)"):
        load_model(foreign)
    assert not Path("imported").exists()
    assert torch.equal(parameters_to_vector(load_model(foreign, trust=True).parameters()), expected)
    assert Path("imported").exists()


@pytest.mark.parametrize("name", ["helper:load", "helper:Load.inner", "os:getcwd"])
def test_no_name_passes_the_gate_while_a_folder_is_read(name: str, fedacg: Command, foreign: Path) -> None:
    with plugins.reading(foreign, trust=False, allow="…"), pytest.raises(InputError):
        plugins.load("model.name", name)
    with (
        plugins.reading(foreign, trust=False, allow="…"),
        plugins.reading(foreign, trust=True, allow="…"),
        pytest.raises(InputError),
    ):
        plugins.load("method.name", name)
    assert not Path("imported").exists()


def test_a_model_that_is_code_is_imported_only_with_trust(fedacg: Command, foreign: Path) -> None:
    lie(foreign / "model.json", {"name": "helper:net"})
    with pytest.raises(InputError, match=r"model\.name = 'helper:net': names code, net of the module helper"):
        load_model(foreign)
    assert not Path("imported").exists()


# What model.json is for


def test_a_model_is_loaded_where_its_data_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(tmp_path, "rounds=1", "method.name=fedavg")
    result = play(experiment, prepare(experiment), folder=tmp_path / "run")
    path = tmp_path / "run" / "experiment.toml"
    path.write_text(path.read_text().replace('"digits"', '"cifar10"'))
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path / "nothing"))
    model = load_model(tmp_path / "run")
    assert torch.equal(parameters_to_vector(model.parameters()), result.vector)
    (tmp_path / "run" / "model.json").unlink()
    with pytest.raises(DataMissing, match=r"has no model\.json, as an older version started the run"):
        load_model(tmp_path / "run")


def test_a_model_of_another_layout_and_type_comes_back_as_it_was(tmp_path: Path) -> None:
    experiment = tiny(
        tmp_path, "rounds=1", "cohort.size=1", "local.steps=1", "model.name=cnn", "model.layout=channels-last"
    )
    torch.set_default_dtype(torch.float64)
    try:
        ingredients = prepare(experiment)
    finally:
        torch.set_default_dtype(torch.float32)
    result = play(experiment, ingredients, folder=tmp_path / "run")
    described = json.loads((tmp_path / "run" / "model.json").read_text())
    assert (described["channels_last"], described["dtype"]) == (True, "float64")
    assert torch.equal(parameters_to_vector(load_model(tmp_path / "run").parameters()), result.vector)


def test_a_run_that_was_stopped_is_loaded_and_a_resumed_one_gets_its_model_file(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=3")
    with pytest.raises(KeyboardInterrupt):
        play(experiment, prepare(experiment), folder=tmp_path / "run", callbacks=[StopAfter(1)])
    load_model(tmp_path / "run")
    (tmp_path / "run" / "model.json").unlink()
    result = play(experiment, prepare(experiment), folder=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.json").exists()
    assert torch.equal(parameters_to_vector(load_model(tmp_path / "run").parameters()), result.vector)


def test_a_checkpoint_that_is_not_what_the_run_ended_with_is_refused(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=1")
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    before = path.read_bytes()
    header = int.from_bytes(before[:8], "little")
    described = json.loads(before[8 : 8 + header])
    start = 8 + header + described["theta"]["data_offsets"][0]
    path.write_bytes(before[:start] + bytes([before[start] ^ 1]) + before[start + 1 :])
    with pytest.raises(InputError):
        load_model(tmp_path / "run")
    path.write_bytes(before)
    load_model(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [10**13]}, "the checkpoint has"),
        ({"shape": [10**18, 10**18]}, "too large"),
        ({"shape": []}, "must be|takes"),
        ({"shape": "8"}, "does not describe a network"),
        ({"classes": -1}, "does not describe a network"),
        ({"classes": 10**9}, "the checkpoint has"),
        ({"options": {"hidden": [10**12]}}, "the checkpoint has"),
        ({"options": {"hidden": "many"}}, r"model\.hidden"),
        ({"options": {"name": "lstm"}}, "name is not an option"),
        ({"options": {"classes": 3}}, "classes is not an option"),
        ({"name": "lenet5"}, "unknown model"),
        ({"name": "python:Net"}, "given from Python"),
        ({"dtype": "float16"}, "dtype = 'float16'"),
        ({"more": 1}, "does not describe a network"),
    ],
)
def test_a_model_file_that_lies_is_refused_and_takes_no_memory(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    experiment = tiny(tmp_path, "rounds=1")
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    lie(tmp_path / "run" / "model.json", change)
    with pytest.raises(InputError, match=words):
        load_model(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "{}", "7", "[" * 100_000])
def test_a_damaged_model_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(text)
    save_file(
        {"theta": torch.zeros(3), "buffers": torch.zeros(0)},
        tmp_path / "checkpoint.safetensors",
        metadata={"format": "1", "round": "1"},
    )
    with pytest.raises(InputError):
        load_model(tmp_path)


def test_parameters_are_counted_as_they_are_built() -> None:
    for name, shape in {"mlp": (4,), "cnn": (3, 32, 32), "resnet18": (3, 32, 32), "lstm": (80,)}.items():
        module = models.build(name, classes=7, shape=shape)
        assert parameters(name, classes=7, shape=shape) == sum(p.numel() for p in module.parameters())
