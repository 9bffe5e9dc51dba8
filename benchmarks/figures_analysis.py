"""The figures of docs/analysis.md, redrawn from the numbers that `fedacg analyze` wrote beside its pictures."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from fedacg.analysis import pictures, surfaces
from fedacg.analysis.pictures import Ink, over_seeds
from fedacg.report.style import of_method
from plots import INK, RESULTS, Row, rows, save

FOLDER = RESULTS / "analysis-cifar10-small"
LAST = 20
"""The rounds over which the end of a run is judged."""
TITLE, LEGEND = 0.3, 0.25
"""Their heights in inches."""


def by_method(name: str) -> dict[Ink, list[Row]]:
    """The rows of a table, method by method in its order."""
    grouped: dict[str, list[Row]] = {}
    for row in rows(FOLDER / name):
        grouped.setdefault(row["method"], []).append(row)
    return {Ink(label, place, of_method(label.lower())): of for place, (label, of) in enumerate(grouped.items())}


def line(ink: Ink, of: list[Row], column: str) -> pictures.Line:
    """A column along the rounds; there is one seed."""
    return over_seeds(ink, [{int(row["round"]): float(row[column]) for row in of if row[column]}])


def titled(made: Figure, finding: str, name: str) -> None:
    """The finding above all panels and the legend."""
    wide, high = made.get_size_inches()
    high += TITLE
    made.set_size_inches(wide, high)
    (legend,) = made.legends
    legend.set_bbox_to_anchor((0, 0, 1, 1 - TITLE / high), transform=made.transFigure)
    legend.set_in_layout(False)
    made.get_layout_engine().set(rect=(0, 0, 1, 1 - (TITLE + LEGEND) / high))  # type: ignore[union-attr,call-arg]
    made.text(0.01, 0.985, finding, fontsize=11, fontweight="bold", color=INK, va="top")
    save(made, FOLDER / name)


def surface() -> None:
    panels, gains = [], []
    for ink in by_method("cka.csv"):
        found = rows(FOLDER / f"surface-{ink.label.lower()}.csv")
        grid = [row for row in found if row["what"] == "grid"]
        xs, ys = (list(dict.fromkeys(float(row[axis]) for row in grid)) for axis in "xy")
        values = np.array([float(row["loss"]) for row in grid]).reshape(len(ys), len(xs))
        at = {(row["what"], row["client"]): (float(row["x"]), float(row["y"])) for row in found if row not in grid}
        clients = {int(client): point for (what, client), point in at.items() if what == "local model"}
        marks = clients, at["mean", ""], at["broadcast", ""]
        panels.append(surfaces.Panel(ink.label, np.array(xs), np.array(ys), values, *marks))
        local, mean = ([float(r["loss"]) for r in found if r["what"] == what] for what in ("local model", "mean"))
        gains.append(fmean(local) - mean[0])
    recorded = rows(FOLDER / "cka.csv")[0]["round"]
    made = surfaces.draw_panels(panels, f"global training loss, round {recorded}")
    titled(
        made,
        f"The mean of three local models has a loss {min(gains):.2f} to {max(gains):.2f} below theirs",
        "surface.png",
    )


def divergence() -> None:
    found = by_method("divergence.csv")
    whole = [line(ink, of, "divergence_relative") for ink, of in found.items()]
    columns = [name for name in next(iter(found.values()))[0] if name.startswith("stage_") or name == "head"]
    parts = {name.replace("_", " "): [line(ink, of, name) for ink, of in found.items()] for name in columns}
    least, *_, most = sorted(whole, key=lambda each: each.ys.mean())
    times = most.ys.mean() / least.ys.mean()
    finding = f"{least.ink.label}'s local models stay {times:.1f} times closer together than {most.ink.label}'s"
    titled(pictures.divergence(whole, parts), finding, "divergence.png")


def cka() -> None:
    found = by_method("cka.csv")
    first = next(iter(found.values()))
    layers = [row["layer"] for row in first]
    lines = [over_seeds(ink, [dict(enumerate(float(row["cka"]) for row in of))]) for ink, of in found.items()]
    ends = [[each.ys[place] for each in lines] for place in (0, -1)]
    start, end = (f"{min(of):.2f}–{max(of):.2f}" for of in ends)
    finding = f"CKA falls from {start} after the first stage to {end} at the head"
    titled(pictures.cka(layers, lines, int(first[0]["round"])), finding, "cka.png")


def stability() -> None:
    steady = []
    for ink, of in by_method("stability.csv").items():
        squares = line(ink, of, "squared_deviation_points")
        steady.append(pictures.Steadiness(squares, float(squares.ys.mean()), None))
    over_all = min(steady, key=lambda each: each.mean).squares.ink.label
    at_the_end = min(steady, key=lambda each: each.squares.ys[-LAST:].mean()).squares.ink.label
    finding = f"{over_all} is steadiest over all rounds, {at_the_end} over the last {LAST}"
    made = pictures.stability(steady)
    made.axes[1].set_yticks(range(len(steady)), [each.squares.ink.label for each in steady])
    titled(made, finding, "stability.png")


def drift() -> None:
    found = by_method("drift.csv")
    means, strips = [], []
    for ink, of in found.items():
        means.append(line(ink, [row for row in of if not row["client"]], "cosine"))
        clients = [row for row in of if row["client"]]
        for recorded in dict.fromkeys(int(row["round"]) for row in clients):
            cosines = [float(row["cosine"]) for row in clients if int(row["round"]) == recorded]
            strips.append(pictures.Strip(ink, recorded, np.array(cosines)))
    most = max(means, key=lambda each: each.ys.mean()).ink.label
    titled(pictures.drift(means, strips), f"{most}'s clients agree most on the direction", "drift.png")


FIGURES: dict[str, Callable[[], None]] = {
    f"docs/results/{FOLDER.name}/{draw.__name__}.png": draw
    for draw in (surface, divergence, cka, stability, drift)
}
