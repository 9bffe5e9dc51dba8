"""Output that fails: the run goes on to its end all the same, and its folder is whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import TINY

OUTPUTS = {
    "full": ("> /dev/full", {}, "warning: standard output cannot be written: No space left on device\n"),
    "both full": ("> /dev/full 2>&1", {}, ""),
    "closed": (">&- 2>&-", {}, ""),
    "everything closed": ("<&- >&- 2>&-", {}, ""),
    "read no further": ("| head -1 > /dev/null", {}, ""),
    "read by nobody": ("| true", {}, ""),
    "ASCII": ("> said.txt", {"PYTHONIOENCODING": "ascii"}, ""),
    "C locale": ("> said.txt", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
}
PRINTING = """
import torch
def rows():
    from fedacg.data import dataset
    return dataset(train=Rows(200), test=Rows(50), classes=3)
class Rows:
    def __init__(self, count):
        self.x, self.y = torch.rand(count, 5), torch.arange(count) % 3
    def __len__(self):
        return len(self.y)
    def fetch(self, index):
        print("words of a user's own", flush=True)
        return self.x[index], self.y[index]
"""


@pytest.mark.slow
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_run_gets_to_its_end_whatever_happens_to_its_output(output: str, tmp_path: Path) -> None:
    words, environment, warning = OUTPUTS[output]
    (tmp_path / "tiny.toml").write_text(TINY.replace('"tiny"', '"täglich ∇"'))
    program = f"{sys.executable} -m fedacg run tiny.toml --out run --set rounds=3 --set engine.name=processes"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {program} {words}"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, warning)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


@pytest.mark.slow
def test_what_workers_print_into_a_closed_pipe_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "own.py").write_text(PRINTING)
    settings = "--set rounds=3 --set engine.name=processes --set data.name=own:rows"
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; {sys.executable} -m fedacg run tiny.toml --out run {settings} | head -1",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "summary.json").exists()
