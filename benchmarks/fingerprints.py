"""The bits of small runs: `vector_sha256` of every method and combination, on every engine.

    python benchmarks/fingerprints.py TABLE.csv                 make the table with the installed fedacg
    python benchmarks/fingerprints.py TABLE.csv --against OLD   and compare it with an earlier one, row by row

A change that is meant to keep all results keeps this table. The bits belong to one kind of processor and one
version of torch, so tables of different machines are not compared.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

METHODS = "fedavg fedprox fedavgm fedadam feddyn moon fedcm fedmlb fedlc fedntd feddc feddecorr fedacg"
BASES = METHODS.split()
COMBINATIONS = (
    "fedavg+acg fedprox+acg moon+acg fedmlb+acg fedlc+acg fedntd+acg feddecorr+acg fedavg+prox fedavgm+prox "
    "fedavg+acg+prox feddyn+paq feddc+paq fedcm+paq moon+paq fedadam+paq fedacg+paq fedmlb+acg+paq"
)
COMBINED = COMBINATIONS.split()
ROUNDS = "rounds=6"
PLAIN = (ROUNDS, "cohort.size=4")
FUSED = (ROUNDS, "cohort.size=12", "engine.fuse=on")
HARD = (
    *PLAIN,
    "local.momentum=0.5",
    "local.weight_decay=0.001",
    "local.clip=1",
    "local.lr_decay=0.99",
    "local.epoch_decay=true",
    "failures.drop=0.2",
    "failures.straggle=0.3",
    "population.present=30",
    "population.stage=2",
)
FUSED_METHODS = (
    "fedavg fedprox fedavgm fedadam fedcm feddyn feddc fedacg fedavg+acg fedprox+acg fedavg+prox "
    "fedacg+paq feddc+paq"
)
FUSIBLE = FUSED_METHODS.split()
CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "plain": ([*BASES, *COMBINED], PLAIN),
    "fused": (FUSIBLE, FUSED),
    "hard": ([*BASES, "fedmlb+acg+paq", "fedacg+paq"], HARD),
    "channels-last": ([*BASES, "fedacg+paq"], (*PLAIN, "rounds=3", "model.name=cnn")),
}
"""A case: its name, methods and settings."""
ENGINES = {
    "serial": ("engine.name=serial",),
    "processes": ("engine.name=processes", "engine.workers=2"),
    "ray": ("engine.name=ray", "engine.workers=2"),
}


def fingerprints(case: str, engine: str) -> dict[str, str]:
    """`vector_sha256` by method."""
    methods, settings = CASES[case]
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedacg", "compare", "quickstart", "--methods", ",".join(methods)]
        for setting in (*settings, *ENGINES[engine]):
            command += ["--set", setting]
        subprocess.run([*command, "--out", folder, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        return {
            method: json.loads((Path(folder) / f"{method}-s0" / "summary.json").read_text())["vector_sha256"]
            for method in methods
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--against", type=Path, help="an earlier table; differences end with exit code 1")
    parser.add_argument("--engines", default=",".join(ENGINES))
    arguments = parser.parse_args()
    rows = [
        (case, method, engine, sha)
        for case in CASES
        for engine in arguments.engines.split(",")
        for method, sha in fingerprints(case, engine).items()
    ]
    with arguments.table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("case", "method", "engine", "vector_sha256"))
        writer.writerows(rows)
    print(f"{len(rows)} runs, {len({row[3] for row in rows})} different results: {arguments.table}")
    if arguments.against:
        with arguments.against.open(newline="") as file:
            before = {tuple(row[:3]): row[3] for row in csv.reader(file)}
        changed = [row[:3] for row in rows if before.get(row[:3]) != row[3]]
        for row in changed:
            print("differs:", *row)
        print(f"{len(rows) - len(changed)} of {len(rows)} as in {arguments.against}")
        sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
