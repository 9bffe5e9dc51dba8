"""The picture of the idea: a round of FedAvgM beside one of FedACG."""

from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedacg.report.style import PALETTE
from plots import DOCS, GREY, HERO, INK, PALE, save

Point = tuple[float, float]
THETA, MOVED = (0.4, 0.6), (2.5, 2.4)
"""The server's model, and where the momentum leads."""
GOALS = ((4.9, 2.2), (6.0, 1.3), (4.7, 0.2))
"""What clients want."""
REACH = 0.65
"""The part of the way to its goal that a client goes."""
BLUE = PALETTE[2][0]


def between(start: Point, end: Point, part: float) -> Point:
    return start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])


def arrow(axes: Axes, start: Point, end: Point, colour: str, wide: float, line: str = "-") -> None:
    look = {"arrowstyle": "-|>", "color": colour, "lw": wide, "linestyle": line, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**look, "mutation_scale": 16})


def draw_round(axes: Axes, title: str, begin: Point) -> None:
    """Clients start at `begin`; the server ends at θ + λm + Δ in either method."""
    ends = [between(begin, goal, REACH) for goal in GOALS]
    middle = mean(x for x, _ in ends), mean(y for _, y in ends)
    landed = MOVED[0] + middle[0] - begin[0], MOVED[1] + middle[1] - begin[1]
    arrow(axes, THETA, MOVED, INK, 2.4)
    axes.text(1.0, 1.75, "λm", color=INK, fontsize=13)
    for end in ends:
        arrow(axes, begin, end, PALE, 1.6)
    arrow(axes, begin, middle, BLUE, 2.8)
    axes.annotate("Δ", between(begin, middle, 0.5), (-4, -18), textcoords="offset points", fontsize=13, color=BLUE)
    if begin == THETA:
        arrow(axes, MOVED, landed, BLUE, 2.0, "--")
        axes.text(THETA[0] - 0.3, THETA[1] - 0.6, "φ = θ", fontsize=13)
    else:
        axes.text(THETA[0] - 0.1, THETA[1] - 0.6, "θ", fontsize=13)
        axes.text(begin[0] - 0.5, begin[1] + 0.3, "φ = θ + λm", fontsize=13)
    for goal in GOALS:
        axes.plot(*goal, "x", color=GREY, markersize=9, markeredgewidth=2.2)
    axes.plot(*THETA, "o", color=INK, markersize=9)
    axes.plot(*begin, "o", color="white", markeredgecolor=INK, markeredgewidth=2.4, markersize=11)
    axes.plot(*landed, "o", color=HERO, markersize=12)
    below = begin != THETA
    place = {"xytext": (0, -26 if below else 12), "textcoords": "offset points", "ha": "center"}
    axes.annotate("new θ", landed, fontsize=13, color=HERO, fontweight="bold", **place)
    axes.set(xlim=(-0.3, 6.6), ylim=(-0.4, 3.6))
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)


def idea() -> None:
    made = Figure(figsize=(10, 3.9), layout="constrained", facecolor="white")
    left, right = made.subplots(1, 2)
    draw_round(left, "FedAvgM: clients start at θ, the momentum\ncomes on top, and the step overshoots", THETA)
    draw_round(right, "FedACG: clients start where the momentum\nleads, and correct it", MOVED)
    made.supxlabel(
        "○ where clients start   × what clients want   → local updates and their mean Δ   ● the new model",
        fontsize=10,
        color=GREY,
    )
    save(made, DOCS / "images" / "idea.svg")
