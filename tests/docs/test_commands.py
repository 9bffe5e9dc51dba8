"""Documents are done as written: every page in a folder and a namespace of its own, from top to bottom."""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedacg.config.recipe import read_toml
from fedacg.methods import METHODS, MODIFIERS
from support.command import Command
from support.thorough import THOROUGH

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])
BLOCK = re.compile(r"^```(python|bash|console|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w-]+\.(?:py|toml))`:\n*\Z")
"""A block after a line that ends so is the content of that file."""

NOT_RUN = {
    r"^(pip|make|\S*python) ": "installs, tests and benchmarks, which need no page",
    r"\b(run|compare|sweep|tune) (cifar|femnist|shakespeare)": "real data, and minutes to hours",
    r"\bfedacg bench (?!main-lage)": "real data, and minutes to hours",
    r"\bfedacg data (get|check) ": "real data",
    r"\bfedacg (report|analyze) runs/(fair|trio-cifar)": "of runs with real data",
    r"\bfedacg watch ": "serves until Ctrl-C; tests/report/test_watch.py",
    r"rounds=4000": "shown as it is stopped by Ctrl-C; tests/runs/test_store.py",
    r"engine\.name=ray": "needs a cluster; tests/engines/test_ray.py",
    r"^fedacg report runs --out report$": "of a federation of nodes; tests/flower",
    r"--methods fedavg,fedavgm,fedacg,fedadam,": "135 runs, four minutes",
}
"""What is not run, and why; such commands are still read by test_docs.py."""

IN_FULL = ("docs/README.md", "docs/start.md")
"""Pages whose runs train as long as a reader's do; those of the others train one local epoch in place of five."""


@dataclass(frozen=True)
class Step:
    """One thing that a reader of a page does."""

    kind: str
    text: str
    """The code, or the command."""
    file: str = ""
    """The file that the page says it is in."""
    output: str = ""


def steps(text: str) -> Iterator[Step]:
    """What a page says to do, in its order."""
    for block in BLOCK.finditer(text):
        kind, body = block[1], block[2]
        named = FILE.search(text[: block.start()])
        if kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield Step("command", command, output=output)
        elif kind == "bash":
            yield from (Step("command", line) for line in body.splitlines() if line.strip())
        else:
            yield Step(kind, body, named[1] if named else "")


def reason(command: str) -> str:
    """Why a command is not run; empty if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), "")


def to_do(path: Path) -> list[Step]:
    return [
        step for step in steps(path.read_text(encoding="utf-8")) if step.kind != "command" or not reason(step.text)
    ]


def with_commands() -> list[Path]:
    return [path for path in PAGES if any(step.kind == "command" for step in to_do(path))]


def with_python() -> list[Path]:
    return [path for path in PAGES if any(step.kind == "python" for step in to_do(path))]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A namespace, in an empty folder without data; what a page brings into this process is taken out again."""
    tables: list[dict[str, Any]] = [METHODS, MODIFIERS]  # type: ignore[list-item]
    before, modules = [dict(table) for table in tables], set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path / "no-data"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield {"__name__": "document"}
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the recipe that most commands name train for less: as many runs, rounds and files as the page says."""

    def read(path: Path) -> dict[str, Any]:
        tree = read_toml(path)
        if path.name == "quickstart.toml":
            tree["local"]["epochs"] = 1
        return tree

    monkeypatch.setattr("fedacg.config.recipe.read_toml", read)


def do(step: Step, namespace: dict[str, Any], folder: Path, place: str) -> None:
    """Python runs in the page's namespace, or in a file's own if it is to be in a file."""
    if step.file:
        (folder / step.file).write_text(step.text, encoding="utf-8")
    if step.kind == "python":
        exec(compile(step.text, place, "exec"), {"__name__": step.file} if step.file else namespace)


@pytest.mark.parametrize("path", with_python(), ids=named)
def test_the_python_of_a_page_runs(path: Path, fresh: dict[str, Any], tmp_path: Path) -> None:
    for number, step in enumerate((s for s in to_do(path) if s.kind == "python"), start=1):
        do(step, fresh, tmp_path, f"{named(path)}, block {number}")
    for name, value in list(fresh.items()):
        if name.startswith("test_"):
            value()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of code in documents and of the tools that they start
@pytest.mark.parametrize("path", with_commands(), ids=named)
def test_a_page_can_be_done_from_top_to_bottom(
    path: Path,
    fresh: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fedacg = Command(tmp_path, capsys, monkeypatch)
    (tmp_path / "tiny.toml").unlink()
    if not THOROUGH and named(path) not in IN_FULL:
        shorten(monkeypatch)
    for step in to_do(path):
        if step.kind != "command":
            do(step, fresh, tmp_path, named(path))
            continue
        program, *arguments = shlex.split(step.text, comments=True)
        assert program == "fedacg", step.text
        outcome = fedacg(*arguments)
        expected = 2 if step.output.startswith("error: ") else 0
        assert outcome.code == expected, f"{step.text}\n{outcome.out}{outcome.err}"


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_every_exception_is_needed(pattern: str) -> None:
    written = [s.text for path in PAGES for s in steps(path.read_text(encoding="utf-8")) if s.kind == "command"]
    assert any(re.search(pattern, command) for command in written)
