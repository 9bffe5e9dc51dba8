"""What the figures of the documents share: where their numbers are, and how they look."""

import csv
import io
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedacg.report.pictures import render
from fedacg.report.style import PALETTE

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
INK, GRID, GREY, PALE = "#333333", "#e4e4e4", "#6b7075", "#b9bec4"
HERO = PALETTE[0][0]
Row = dict[str, str]


def rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(page: Path, start: str) -> list[list[str]]:
    """The cells of the first table of a page whose heading row starts like this."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(start)) + 2
    found = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.split("|")[1:-1]])
    return found


def number(cell: str) -> float:
    return float(re.sub(r"[^\d.e+-]", "", cell))


def plain(axes: Axes, title: str = "", x: str = "", y: str = "", grid: str = "both") -> None:
    """The style that all figures share."""
    axes.grid(axis=grid, color=GRID, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, which="both", colors=INK, labelsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    if title:
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.add_subplot()


def save(made: Figure, path: Path) -> None:
    path.write_bytes(render(made, path.suffix[1:], dpi=130) if path.suffix == ".png" else _svg(made))
    print(path.relative_to(ROOT))


def _svg(made: Figure) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedacg", "svg.fonttype": "path"}):
        made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
