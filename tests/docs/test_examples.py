"""The examples, and the README's Python block, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override
from fedacg.runs.build import prepare

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(folder: Path, *arguments: str) -> str:
    """What a program prints, in a folder of its own."""
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_prints_numbers_and_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    printed = run(tmp_path, str(path))
    assert re.search(r"\d\.\d", printed)
    assert max(map(len, printed.splitlines())) <= 100
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_in_the_list_of_examples() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    assert [path.name for path in EXAMPLES if f"[{path.name}]({path.name})" not in listed] == []


def test_the_command_in_the_data_set_example_finds_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "examples" / "add_a_data_set.py").read_text()
    assert len(text.splitlines()) < 30
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    ((recipe, settings),) = re.findall(r"^fedacg run (\S+) (.*)$", text, re.MULTILINE)
    experiment = Experiment.parse(override(find(recipe), re.findall(r"--set (\S+)", settings)))
    data = prepare(experiment).data
    assert (data.name, len(data.clients), data.classes, data.shape) == ("wine", 10, 3, (13,))
    sys.modules.pop("add_a_data_set")


def test_the_readme_block_runs_and_learns(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    printed = run(tmp_path, "-c", block)
    found = re.fullmatch(r"accuracy (0\.\d+)\n", printed)
    assert found
    assert float(found[1]) > 0.6
    assert list(tmp_path.iterdir()) == []
