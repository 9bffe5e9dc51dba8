"""Accuracy against the share of bad clients, for the mean and each robust rule, with two servers, on digits.

Writes docs/results/privacy/robust.csv, which `make figures` draws; an existing table is extended.

    python benchmarks/robust.py --seeds 3 --rounds 20
"""

import argparse
from pathlib import Path

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


if __name__ == "__main__":
    main()
