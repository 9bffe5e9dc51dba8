"""Every figure of the documents, drawn from committed numbers in one style: `make figures`.

    python benchmarks/figures.py [docs/results/optimum.png …]

Numbers are the CSV files beside the figures, and for two of them the tables of docs/benchmarks.md. Nothing is
trained here. Lines have their method's colour and dashes, bars and dots differ in lightness too, and titles say
the finding. Two pictures are not made here: docs/images/architecture.svg is drawn by hand, and
docs/images/page.png is a screenshot of a report's page, taken by docs/_tools/screenshot.py.
"""

import argparse
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

import curves
import figures_analysis
import figures_privacy
from fedacg.bench.sweep_report import Dot, Effect
from fedacg.bench.tuning import expected_best
from fedacg.config.methods import method_title
from fedacg.report.pictures import draw_curves
from fedacg.report.series import Axis
from fedacg.report.style import PALETTE, of_method
from fedacg.report.table import Spread
from idea import idea
from plots import DOCS, GREY, HERO, INK, PALE, RESULTS, figure, number, plain, rows, save, table

# Curves


def over(folder: str, axis: Axis, name: str, title: Callable[[Sequence[curves.Curve]], str]) -> None:
    """Curves that were kept, along one axis."""
    found = curves.read(RESULTS / folder / "curves.csv")
    made = draw_curves(found, axis, [])
    made.axes[0].set_title(title(found), loc="left", fontsize=11, fontweight="bold", color=INK)
    save(made, RESULTS / folder / name)


def ahead(found: Sequence[curves.Curve]) -> str:
    """Who ends highest, and by how much."""
    ends = sorted(((curve.evaluated["average"].mean[-1], curve.label) for curve in found), reverse=True)
    return f"{ends[0][1]} ends {ends[0][0] - ends[1][0]:.1f} points above {ends[1][1]}"


def digits() -> None:
    over("digits", Axis.ROUNDS, "curves-rounds.png", ahead)


def phones() -> None:
    over("fair/compare", Axis.SECONDS, "curves-phones.png", lambda found: f"{ahead(found)}, on simulated phones")


# Tables of the paper


def bench(folder: str) -> None:
    """The moving average at half of the rounds and at the end, method by method."""
    found: dict[str, dict[float, float]] = {}
    runs: dict[str, str] = {}
    for row in rows(RESULTS / folder / "bench.csv"):
        if row["metric"] == "accuracy":
            found.setdefault(row["method"], {})[float(row["at"])] = float(row["value"])
            runs[row["method"]] = row["run"]
    order = sorted(found, key=lambda name: found[name][max(found[name])])
    made, axes = figure(7.5, 1.1 + 0.3 * len(order))
    for place, name in enumerate(order):
        half, last = (found[name][at] for at in sorted(found[name]))
        style = of_method(runs[name])
        axes.plot([half, last], [place, place], color=style.paper, linewidth=3 if style.bold else 1.5)
        axes.plot(half, place, "o", color="white", markeredgecolor=style.paper, markersize=6)
        axes.plot(last, place, "o", color=style.paper, markersize=8 if style.bold else 6)
        axes.annotate(f"{last:.1f}", (last, place), (7, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(order)), order)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if runs[label.get_text()] == "fedacg" else "normal")
    rounds = sorted(next(iter(found.values())))
    x = f"moving average of the test accuracy, %, after {rounds[0]:g} (open) and {rounds[1]:g} rounds (filled)"
    ends = {name: found[name][rounds[1]] for name in order}
    plain(axes, finding(folder, ends), x=x, grid="x")
    axes.margins(x=0.08)
    save(made, RESULTS / folder / "accuracy.png")


def finding(folder: str, ends: dict[str, float]) -> str:
    """What a table of the paper shows here; methods are in ascending order."""
    gains = [end - ends[name.removesuffix(" + ACG")] for name, end in ends.items() if name.endswith(" + ACG")]
    if gains:
        return f"The lookahead adds {min(gains):.1f} to {max(gains):.1f} points to each"
    if folder == "ablation-components":
        gain = ends["momentum+acceleration"] - ends["momentum"]
        more = ends["momentum+acceleration+reg"] - ends["momentum+acceleration"]
        return f"Acceleration adds {gain:.1f} points to momentum, reg {more:.1f} more"
    *_, second, first = ends
    return f"{first} ends {ends[first] - ends[second]:.1f} points above {second}"


def visits() -> None:
    """Every method less FedAvg with its interval, where clients are visited as often as in the paper."""
    found = [row for row in rows(RESULTS / "main-visits" / "paired.csv") if row["less"]]
    order = sorted(found, key=lambda row: float(row["less"]))
    made, axes = figure(7.5, 1.1 + 0.3 * len(order))
    axes.axvline(0, color=GREY, linewidth=1)
    for place, row in enumerate(order):
        style = of_method(row["method"].lower())
        axes.plot([float(row["low"]), float(row["high"])], [place, place], color=style.paper, linewidth=2.5)
        axes.plot(float(row["less"]), place, "o", color=style.paper, markersize=8 if style.bold else 6)
        words = row["less"].replace("-", "−")
        axes.annotate(
            words, (float(row["high"]), place), (7, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    axes.set_yticks(range(len(order)), [row["method"] for row in order])
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == "FedACG" else "normal")
    first, second = order[-1], order[-2]
    title = f"{first['method']} ends {first['less']} points from FedAvg, {second['method']} {second['less']}"
    plain(
        axes, title, x="points of the moving average above FedAvg's, mean and interval over three seeds", grid="x"
    )
    axes.margins(x=0.1)
    save(made, RESULTS / "main-visits" / "differences.png")


def uploads() -> None:
    """What quantised uploads cost and give: accuracy at the end against all bytes sent."""
    kept = [*rows(RESULTS / "fedpaq" / "bench.csv"), *rows(RESULTS / "main-large" / "bench.csv")]
    made, axes = figure(7.5, 3.4)
    shown = ("FedAvg", "FedPAQ", "FedACG", "FedACG + FedPAQ")
    ends, sent = {}, {}
    for name in shown:
        of = [row for row in kept if row["method"] == name]
        last = max((row for row in of if row["metric"] == "accuracy"), key=lambda row: float(row["at"]))
        # Every round sends the same number of bytes, so those to a target give those to the end.
        rounds, used = (next(float(r["value"]) for r in of if r["metric"] == m) for m in ("rounds_to", "bytes_to"))
        ends[name] = float(last["value"]), of_method(last["run"]).paper
        sent[name] = used / rounds * float(last["at"]) / 1e6
    for name, (end, colour) in ends.items():
        axes.plot(sent[name], end, "o" if "PAQ" not in name else "D", color=colour, markersize=8)
        axes.annotate(name, (sent[name], end), (9, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, 340)
    axes.margins(y=0.2)
    less, loss = 1 - sent["FedPAQ"] / sent["FedAvg"], ends["FedAvg"][0] - ends["FedPAQ"][0]
    title = f"Quantised uploads send {100 * less:.0f} % less and cost FedAvg {loss:.1f} points"
    plain(axes, title, "sent in 100 rounds, MB", "moving average\nof the test accuracy, %")
    save(made, RESULTS / "fedpaq" / "accuracy.png")


def learning_rate() -> None:
    found = rows(RESULTS / "learning-rate" / "sweep.csv")
    dots = [Dot(row["local.lr"], "", Spread(float(row["moving_average_percent"]), None)) for row in found]
    made = Effect("local.lr", dots)._figure
    best = max(found, key=lambda row: float(row["moving_average_percent"]))
    plain(made.axes[0], f"FedAvg is best at a rate of {best['local.lr']}", "local.lr", made.axes[0].get_ylabel())
    save(made, RESULTS / "learning-rate" / "effect.png")


def tuning() -> None:
    """What a budget buys, after the first stage."""
    folder = RESULTS / "fair" / "tune"
    found = rows(folder / "tune.csv")
    first = min(int(row["rounds"]) for row in found)
    made, axes = figure(7.5, 3.6)
    lines = {}
    for method in dict.fromkeys(row["method"] for row in found):
        judged = [
            float(r["validation"] or 0) for r in found if r["method"] == method and int(r["rounds"]) == first
        ]
        style, name, budgets = of_method(method), method_title(method), range(1, len(judged) + 1)
        best = lines[name] = [100 * expected_best(judged, n) for n in budgets]
        look = {"color": style.paper, "linestyle": (0, style.dashes), "linewidth": style.width}
        axes.plot(budgets, best, marker="o", **look)
        axes.annotate(name, (budgets[-1], best[-1]), (9, 0), textcoords="offset points", va="center", fontsize=9)
    most = max(map(len, lines.values()))
    axes.set_xticks(range(1, most + 1))
    axes.set_xlim(0.7, 1.16 * most)
    second, highest = sorted(lines, key=lambda name: lines[name][-1])[-2:]
    leads = [one - other for one, other in zip(lines[highest], lines[second], strict=True)]
    lead = f"{min(leads):.1f} to {max(leads):.1f} points ahead of {second}"
    title = f"With equal trials {highest} is {lead}"
    plain(axes, title, "trials", f"best validation accuracy\nexpected, after {first} rounds, %")
    save(made, folder / "tune.png")


# Benchmarks


def peers() -> None:
    """Seconds per round of six programs on the same work."""
    cells = table(DOCS / "benchmarks.md", "| workload | peer |")
    workloads = list(dict.fromkeys(row[0] for row in cells))
    made = Figure(figsize=(7.5, 0.8 + 1.8 * len(workloads)), layout="constrained")
    panels = made.subplots(len(workloads), sharex=True, squeeze=False)[:, 0]
    for axes, workload in zip(panels, workloads, strict=True):
        found = [(row[1], number(row[2]), number(row[5])) for row in cells if row[0] == workload]
        axes.barh([name for name, *_ in found], [s for _, s, _ in found], color=[HERO, *[PALE] * (len(found) - 1)])
        for place, (_, seconds, times) in enumerate(found):
            word = f"{seconds:.3g} s" + (f"  ({times:.3g} ×)" if place else "")
            axes.annotate(word, (seconds, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
        axes.set_xscale("log")
        axes.invert_yaxis()
        slowest = max(found, key=lambda each: each[2])
        title = f"{workload}: fedacg is {min(t for *_, t in found[1:]):.3g} to {slowest[2]:.3g} times as fast"
        plain(axes, title, grid="x")
    seconds = [number(row[2]) for row in cells]
    panels[-1].set_xlim(min(seconds) / 3, max(seconds) * 6)
    panels[-1].xaxis.set_major_formatter("{x:g}")
    panels[-1].set_xlabel("seconds per round, with two workers", color=INK)
    save(made, DOCS / "images" / "peers.png")


def scale() -> None:
    """Seconds and memory of a round by the size of the cohort and by the number of clients."""
    cells = [[number(cell) for cell in row] for row in table(DOCS / "benchmarks.md", "| clients |")]
    made = Figure(figsize=(7.5, 5), layout="constrained")
    panels = made.subplots(2, 2, sharey="row", sharex="col")
    for column, (label, mine) in enumerate((("clients per round", 1), ("clients in all", 0))):
        other = max({row[1 - mine] for row in cells}, key=[row[1 - mine] for row in cells].count)
        points = sorted((row[mine], row[2], row[5]) for row in cells if row[1 - mine] == other)
        for line, figures in enumerate(([p[1] for p in points], [p[2] for p in points])):
            axes = panels[line, column]
            axes.plot([p[0] for p in points], figures, "o-", color=PALETTE[2][0])
            axes.set_xscale("log")
            finding = ("Time follows the cohort", "The population costs no time")[column] if line == 0 else ""
            plain(
                axes,
                finding,
                label if line else "",
                ("ms per round", "peak memory, MB")[line] if not column else "",
            )
    panels[0, 0].set_yscale("log")
    panels[1, 0].set_ylim(0, 1.3 * max(row[5] for row in cells))
    save(made, DOCS / "images" / "scale.png")


def optimum() -> None:
    import optimum as quadratics

    found = rows(RESULTS / "optimum.csv")
    made, axes = figure(7.5, 0.9 + 0.27 * len(found))
    names = list(found[0])[1:]
    for name, marker, colour, fill in zip(names, "oD", (PALETTE[2][0], HERO), (True, False), strict=True):
        at = [(place, float(row[name])) for place, row in enumerate(found) if row[name] != quadratics.REFUSED]
        label = {"everybody": "everybody takes part"}.get(name, f"{name} take part")
        xs, ys = [max(value, quadratics.LEAST) for _, value in at], [place for place, _ in at]
        axes.plot(
            xs, ys, marker, color=colour if fill else "white", markeredgecolor=colour, label=label, markersize=5
        )
    axes.axvline(quadratics.where_averaging_ends(), color=GREY, linestyle=":", label="where averaging ends")
    axes.set_xscale("log")
    axes.set_yticks(range(len(found)), [row["method"] for row in found])
    axes.invert_yaxis()
    axes.legend(loc="lower left", frameon=False, fontsize=9)
    title = "Only duals and control variates find the optimum"
    plain(axes, title, "distance to the optimum at the end, relative to that at the start")
    save(made, RESULTS / "optimum.png")


def theorem() -> None:
    found = rows(RESULTS / "theorem-1.csv")
    made, axes = figure(7, 4)
    for lam, dashes, colour in zip(
        list(found[0])[1:], ((), (6, 2), (2, 2)), (GREY, PALETTE[2][0], HERO), strict=True
    ):
        line = [(int(row["round"]), float(row[lam])) for row in found]
        axes.loglog(
            [t for t, _ in line], [v for _, v in line], color=colour, linestyle=(0, dashes), label=f"λ = {lam}"
        )
    rounds = [int(row["round"]) for row in found]
    axes.loglog(rounds, [t**-0.5 for t in rounds], "k:", label="1/√T, the bound's leading term")
    axes.set_ylim(1e-4, 1.5)
    axes.legend(frameon=False, fontsize=9)
    plain(axes, "The gradient falls faster than the bound", "rounds T", "least ‖∇F(θ + λm)‖², relative")
    save(made, RESULTS / "theorem-1.png")


BENCHES = ("main-large", "ablation-components", "acg-combinations", "femnist", "shakespeare")
FIGURES: dict[str, Callable[[], None]] = {
    "docs/images/idea.svg": idea,
    "docs/images/peers.png": peers,
    "docs/images/scale.png": scale,
    "docs/results/digits/curves-rounds.png": digits,
    "docs/results/fair/compare/curves-phones.png": phones,
    "docs/results/fair/tune/tune.png": tuning,
    "docs/results/learning-rate/effect.png": learning_rate,
    "docs/results/fedpaq/accuracy.png": uploads,
    "docs/results/main-visits/differences.png": visits,
    "docs/results/optimum.png": optimum,
    "docs/results/theorem-1.png": theorem,
    **figures_analysis.FIGURES,
    **figures_privacy.FIGURES,
    **{f"docs/results/{folder}/accuracy.png": lambda folder=folder: bench(folder) for folder in BENCHES},  # type: ignore[misc]
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=[[], *FIGURES], metavar="FIGURE")
    for name in parser.parse_args().figures or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
