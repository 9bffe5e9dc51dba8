"""Accuracy against ε: FedAvg, FedAvgM and FedACG with `+dp` on FEMNIST, small scale, a simulated larger cohort.

Every method is given the same noise for the same ε: what the server does after the noise costs nothing. Writes
docs/results/privacy/epsilon.csv, which `make figures` draws; an existing table is extended, so it can be stopped.

    python benchmarks/privacy.py --seeds 3 --rounds 40
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import fedacg
from fedacg.core.accounting import Gaussian, least_noise

METHODS = {
    "FedAvg": {"name": "fedavg+dp"},
    "FedAvgM": {"name": "fedavgm+dp", "beta": 0.85},
    "FedACG": {"name": "fedacg+dp", "lam": 0.85, "beta": 0.01},
}
EPSILONS = (1.0, 2.0, 4.0, 8.0, float("inf"))
RATE, COHORT, CLIP, DELTA = 0.1, 100, 0.3, 1e-5
FIELDS = (
    "method",
    "epsilon",
    "noise",
    "seed",
    "rounds",
    "accuracy",
    "clipped",
    "signal_to_noise",
    "simulated_cohort",
)
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "results" / "privacy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--workers", type=int, default=0, help="0 trains in this process.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    table = given.folder / "epsilon.csv"
    rows = read(table)
    done = {(row["method"], row["epsilon"], row["seed"]) for row in rows}
    for seed in range(given.seeds):
        for epsilon in EPSILONS:
            noise = 0.0 if epsilon == float("inf") else noise_for(epsilon, given.rounds)
            for method in METHODS:
                if (method, f"{epsilon:g}", str(seed)) not in done:
                    rows.append(run(method, epsilon, noise, seed, given.rounds, given.workers))
                    write(table, rows)


def noise_for(epsilon: float, rounds: int) -> float:
    return least_noise(lambda noise: Gaussian(noise, RATE), rounds, epsilon, DELTA)


def run(method: str, epsilon: float, noise: float, seed: int, rounds: int, workers: int) -> dict[str, str]:
    options = {"clip": CLIP, "noise": noise, "delta": DELTA, "cohort": COHORT if noise else 0}
    experiment = fedacg.recipe(
        "femnist-small",
        seed=seed,
        rounds=rounds,
        data={"partial": True, "clients": 0},
        model={"name": "logistic"},
        method={**METHODS[method], **options},
        cohort={"size": 0, "fraction": RATE, "draw": "coin", "weights": "uniform"},
        local={"steps": 10, "batch": 20, "lr": 0.01},
        evaluate={"every": rounds},
        engine={"name": "processes", "workers": workers} if workers else {"name": "serial"},
    )
    result = fedacg.run(experiment)
    clipped = mean(m.scores["privacy/clipped"] for m in result.history if m.scores and m.arrived)
    ratio = result.history[-1].score("privacy/signal_to_noise")
    row = {
        "method": method,
        "epsilon": f"{epsilon:g}",
        "noise": f"{noise:g}",
        "seed": str(seed),
        "rounds": str(rounds),
        "accuracy": f"{result.history.accuracy[-1]:.4f}",
        "clipped": f"{clipped:.3f}",
        "signal_to_noise": "" if ratio is None else f"{ratio:.3f}",
        "simulated_cohort": str(options["cohort"]),
    }
    print(*row.values(), flush=True)
    return row


def read(table: Path) -> list[dict[str, str]]:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def write(table: Path, rows: list[dict[str, str]], fields: Sequence[str] = FIELDS) -> None:
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
