"""Every method of a comparison less one of them, seed by seed: a CSV table, and the same as Markdown.

    python benchmarks/paired.py runs/main [runs/more …] [--less FedAvg] [--at 100] [--out TABLE.csv]

Figures are moving averages of the test accuracy in percent, at the last round or at an earlier one. Intervals are
paired bootstraps over the seeds, as in a report's differences, and p is corrected by Holm; there methods are
compared with the best, here with the one that is asked for, by its name in a report.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import rows as table
from fedacg.report.runs import find_runs, group_runs, load_run
from fedacg.report.statistics import differences

COLUMNS = ("method", "seeds", "mean", "deviation", "less", "low", "high", "p", "each")


def samples(folders: Sequence[Path], round: int | None) -> dict[str, dict[int, float]]:
    """Moving averages by method and seed, in percent; runs that have not come so far are left out."""
    found: dict[str, dict[int, float]] = {}
    for group in group_runs([load_run(run) for run in find_runs(folders)]):
        for run in group.runs:
            last = round or (len(run.history) if run.summary else 0)
            value = run.history.moving_average_at(last)
            if value is not None and len(run.history) >= last:
                found.setdefault(group.label, {})[run.seed] = 100 * value
    return found


def shown(row: table.Row) -> tuple[str, ...]:
    """The cells of a table's row in a document."""
    spread = f"{row['mean']} ±{row['deviation']}" if row["deviation"] else row["mean"]
    between = f"{row['low']} to {row['high']}" if row["low"] else ""
    return tuple(cell.replace("-", "−") for cell in (row["method"], spread, row["less"], between, row["p"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--less", default="FedAvg", metavar="METHOD")
    parser.add_argument("--at", type=int, default=None, metavar="ROUND")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    found = samples(arguments.folders, arguments.at)
    names = list(found)
    if arguments.less not in names:
        parser.error(f"--less {arguments.less}: no finished run of it; there are {', '.join(names)}")
    compared = differences([found[name] for name in names], names.index(arguments.less))
    made = []
    for name, less in zip(names, compared, strict=True):
        values = [found[name][seed] for seed in sorted(found[name])]
        cells = [name, str(len(values)), f"{fmean(values):.2f}", f"{stdev(values):.2f}" if len(values) > 1 else ""]
        if less is None:
            cells += [""] * 4
        else:
            cells += [*(f"{number:+.2f}" for number in (less.mean, less.low, less.high)), f"{less.p:.3f}"]
        made.append(dict(zip(COLUMNS, [*cells, " ".join(f"{value:.2f}" for value in values)], strict=True)))
    print(f"| method | moving average % | less {arguments.less} | 95 % interval | p (Holm) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in made:
        print("| " + " | ".join(shown(row)) + " |")
    table.save(arguments.out, COLUMNS, made)


if __name__ == "__main__":
    main()
