"""Accuracy against the share of bad clients, for the mean and each robust rule, with two servers, on digits.

Writes docs/results/privacy/robust.csv and robust.png; an existing table is extended.

    python benchmarks/robust.py --seeds 3 --rounds 20
"""

import argparse
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

import fedacg
from privacy import FOLDER, read, write

RULES = {
    "mean": "",
    "median": "+median",
    "trimmed mean": "+trim",
    "Krum": "+krum",
    "multi-Krum": "+krum",
    "norm bound": "+bound",
}
OPTIONS = {
    "trimmed mean": {"share": 0.2},
    "Krum": {"share": 0.4, "keep": 1},
    "multi-Krum": {"share": 0.4},
    "norm bound": {"norm": 0.5},
}
ATTACKS = {"sign-flip": 4.0, "scale": 10.0, "noise": 10.0, "label-flip": 0.0}
SHARES = (0.0, 0.2, 0.4)
FIELDS = ("server", "rule", "attack", "bad", "seed", "rounds", "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    table = given.folder / "robust.csv"
    rows = read(table)
    done = {tuple(row[field] for field in FIELDS[:5]) for row in rows}
    for seed in range(given.seeds):
        for server in ("FedAvg", "FedAvg+ACG"):
            for rule in RULES:
                cases = [("none", 0.0), *((attack, share) for attack in ATTACKS for share in SHARES[1:])]
                for attack, share in cases:
                    if (server, rule, attack, f"{share:g}", str(seed)) not in done:
                        rows.append(run(server, rule, attack, share, seed, given.rounds))
        write(table, rows, FIELDS)
    draw(rows, given.folder / "robust.png")


def run(server: str, rule: str, attack: str, share: float, seed: int, rounds: int) -> dict[str, str]:
    failures = {"bad": share, "attack": attack, "strength": ATTACKS[attack]} if share else {}
    experiment = fedacg.recipe(
        "quickstart",
        seed=seed,
        rounds=rounds,
        data={"alpha": 1.0},
        local={"epochs": 2},
        method={"name": f"fedavg{RULES[rule]}{'+acg' if server.endswith('ACG') else ''}", **OPTIONS.get(rule, {})},
        cohort={"size": 0, "fraction": 0.2, "weights": "uniform"},
        failures=failures,
        evaluate={"every": rounds},
        engine={"name": "serial"},
    )
    accuracy = fedacg.run(experiment).history.accuracy[-1]
    row = dict(
        zip(FIELDS, (server, rule, attack, f"{share:g}", str(seed), str(rounds), f"{accuracy:.4f}"), strict=True)
    )
    print(*row.values(), flush=True)
    return row


def draw(rows: list[dict[str, str]], path: Path) -> None:
    figure, grid = plt.subplots(2, len(ATTACKS), figsize=(14, 6), sharex=True, sharey=True)
    for line, server in zip(grid, ("FedAvg", "FedAvg+ACG"), strict=True):
        for axes, attack in zip(line, ATTACKS, strict=True):
            for rule in RULES:
                of = [
                    r
                    for r in rows
                    if (r["server"], r["rule"]) == (server, rule) and r["attack"] in (attack, "none")
                ]
                points = [mean(float(r["accuracy"]) for r in of if float(r["bad"]) == share) for share in SHARES]
                axes.plot(
                    [100 * share for share in SHARES],
                    [100 * point for point in points],
                    marker=".",
                    linestyle="--" if rule == "median" else "-",
                    label=rule,
                )
            axes.set_title(f"{server}: {attack}")
            axes.grid(alpha=0.3)
        line[0].set_ylabel("test accuracy, %")
    for axes in grid[-1]:
        axes.set_xlabel("bad clients, %")
    grid[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
