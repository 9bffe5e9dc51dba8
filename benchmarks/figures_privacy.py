"""The figures of docs/privacy.md: accuracy under noise, and under attack."""

from collections.abc import Callable
from statistics import mean, stdev

from matplotlib.figure import Figure

from fedacg.report.style import PALETTE, of_method
from plots import HERO, INK, RESULTS, figure, plain, rows, save


def epsilon() -> None:
    found = rows(RESULTS / "privacy" / "epsilon.csv")
    shown = sorted({float(row["epsilon"]) for row in found})
    made, axes = figure(6.5, 4)
    for method in dict.fromkeys(row["method"] for row in found):
        style = of_method(method.lower())
        ends = [
            [100 * float(r["accuracy"]) for r in found if r["method"] == method and float(r["epsilon"]) == e]
            for e in shown
        ]
        spread = [stdev(each) for each in ends]
        axes.errorbar(
            range(len(shown)),
            [mean(each) for each in ends],
            spread,
            label=method,
            color=style.paper,
            linewidth=style.width,
            marker="o",
            capsize=3,
        )
        axes.annotate(method, (len(shown) - 1, mean(ends[-1])), (9, 0), textcoords="offset points", va="center")
    axes.set_xticks(range(len(shown)), [f"{e:g}" if e != float("inf") else "no noise" for e in shown])
    axes.margins(x=0.16)
    title = "At every ε noise takes no more from FedACG than from FedAvg"
    x = f"ε at δ = 10⁻⁵; SIMULATED: noise of a cohort of {found[-1]['simulated_cohort']}"
    plain(axes, title, x, "test accuracy, %")
    save(made, RESULTS / "privacy" / "epsilon.png")


def robust() -> None:
    found = rows(RESULTS / "privacy" / "robust.csv")
    attacks = [attack for attack in dict.fromkeys(row["attack"] for row in found) if attack != "none"]
    servers, rules = (list(dict.fromkeys(row[key] for row in found)) for key in ("server", "rule"))
    shares = sorted({float(row["bad"]) for row in found})
    made = Figure(figsize=(9, 5), layout="constrained")
    grid = made.subplots(len(servers), len(attacks), sharex=True, sharey=True)
    for line, server in zip(grid, servers, strict=True):
        for axes, attack in zip(line, attacks, strict=True):
            for place, rule in enumerate(rules):
                of = [
                    r
                    for r in found
                    if (r["server"], r["rule"]) == (server, rule) and r["attack"] in (attack, "none")
                ]
                ends = [
                    100 * mean(float(r["accuracy"]) for r in of if float(r["bad"]) == share) for share in shares
                ]
                look = {"color": HERO, "linewidth": 2.6} if rule == "mean" else {"color": PALETTE[place + 1][0]}
                axes.plot(
                    [100 * s for s in shares], ends, marker="osD^vP"[place], markersize=4, label=rule, **look
                )
            plain(axes)
            axes.set_title(f"{server}: {attack}", fontsize=9, color=INK)
        line[0].set_ylabel("test accuracy, %", color=INK)
    for axes in grid[-1]:
        axes.set_xlabel("bad clients, %", color=INK)
    made.suptitle(
        "Robust rules hold where the mean falls, and none withstands everything", fontsize=11, fontweight="bold"
    )
    handles, labels = grid[0][0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=len(rules), frameon=False, fontsize=9)
    save(made, RESULTS / "privacy" / "robust.png")


FIGURES: dict[str, Callable[[], None]] = {
    "docs/results/privacy/epsilon.png": epsilon,
    "docs/results/privacy/robust.png": robust,
}
