"""The example notebook runs from top to bottom in a kernel, and shows what it says."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_everything.ipynb"


def text_of(cell: Any) -> str:
    """What a cell printed and shows."""
    shown = [o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "\n".join(shown + [o.get("data", {}).get("text/markdown", "") for o in cell.outputs])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own packages
def test_the_notebook_runs_and_learns(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [text_of(cell) for cell in notebook.cells if cell.cell_type == "code"]
    whole = "\n".join(shown)
    assert "round 1: macro F1 0." in whole
    assert "Result of schools: __main__:bounded, seed 0" in whole
    assert "stopped early: macro F1 is 0." in whole
    assert "clients: mean 0." in whole
    table = next(each for each in shown if "centralised" in each)
    assert all(name in table for name in ("local-only", "fedavg", "fedacg", "bounded"))
    assert not list(tmp_path.iterdir())
