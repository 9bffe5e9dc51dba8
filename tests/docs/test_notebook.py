"""The notebooks run from top to bottom in a kernel, and show what they say."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_everything.ipynb"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def text_of(cell: Any) -> str:
    """What a cell printed and shows."""
    shown = [o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "\n".join(shown + [o.get("data", {}).get("text/markdown", "") for o in cell.outputs])


def without_numbers(text: str) -> str:
    """Words alone: numbers differ between machines, and with them what is best and how wide a column is."""
    bare = re.sub(r"[*]|</?u>|-+:?", "", re.sub(r"\d[\d.,]*\+?", "0", text))
    return re.sub(r"\s+", " ", bare)


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The notebook as it is kept, and as it is after a run in an empty folder."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    kept, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return kept, notebook


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own packages
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_shows_what_it_is_kept_with(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, notebook = run(path, tmp_path, monkeypatch)
    for before, after in zip(kept.cells, notebook.cells, strict=True):
        if before.cell_type == "code":
            words = [without_numbers(text_of(cell)) for cell in (before, after)]
            assert words[0] == words[1], "python docs/_tools/tutorials.py writes the outputs anew"


def test_every_tutorial_is_listed() -> None:
    listed = (ROOT / "docs" / "tutorials" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in TUTORIALS if f"]({path.name})" not in listed] == []
    assert len(TUTORIALS) == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own packages
def test_the_notebook_runs_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, notebook = run(NOTEBOOK, tmp_path, monkeypatch)
    assert all(not cell.get("outputs") for cell in kept.cells), "the notebook is kept without outputs"
    shown = [text_of(cell) for cell in notebook.cells if cell.cell_type == "code"]
    whole = "\n".join(shown)
    assert "round 1: macro F1 0." in whole
    assert "Result of schools: __main__:bounded, seed 0" in whole
    assert "stopped early: macro F1 is 0." in whole
    assert "clients: mean 0." in whole
    table = next(each for each in shown if "centralised" in each)
    assert all(name in table for name in ("local-only", "fedavg", "fedacg", "bounded"))
    assert not list(tmp_path.iterdir())
