"""The curves of finished runs as one small CSV, which is committed and which figures are drawn from.

    python benchmarks/curves.py docs/results/digits/curves.csv runs/seeds

A row is a round of a group of seeds: bytes sent so far, the test accuracy and its moving average in percent, and their
standard deviations over the seeds.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from fedacg.report.runs import find_runs, group_runs, load_run
from fedacg.report.series import Curve, Means, Track, curves_of
from fedacg.report.style import styles_of

FIELDS = ("label", "method", "seeds", "round", "bytes", "accuracy", "accuracy_std", "average", "average_std")


def collect(folders: list[Path]) -> list[dict[str, str]]:
    """The rows of all runs in and below these folders; methods in the order of the folders."""
    groups = group_runs([load_run(folder) for folder in find_runs(folders)])
    rows = []
    for group, curve in zip(groups, curves_of(groups), strict=True):
        track = curve.evaluated
        for place, number in enumerate(track.rounds):
            figures = [value for name in ("accuracy", "average") for value in _at(track[name], place)]
            values = [group.label, group.method, len(group.runs), number, int(track.sent[place]), *figures]
            rows.append(dict(zip(FIELDS, map(str, values), strict=True)))
    return rows


def _at(means: Means, place: int) -> tuple[str, str]:
    spread = "" if means.deviation is None else f"{means.deviation[place]:.3f}"
    return f"{means.mean[place]:.3f}", spread


def read(path: Path, labels: dict[str, str] | None = None) -> list[Curve]:
    """Curves as a report draws them, in its colours; `labels` are names in place of those in the file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups = {label: [row for row in rows if row["label"] == label] for label in dict.fromkeys(r["label"] for r in rows)}
    styles = styles_of([each[0]["method"] for each in groups.values()])
    return [
        Curve((labels or {}).get(label, label), style, _track(each), Track((), np.empty(0), np.empty(0), {}))
        for (label, each), style in zip(groups.items(), styles, strict=True)
    ]


def _track(rows: list[dict[str, str]]) -> Track:
    figures = {}
    for name in ("accuracy", "average"):
        mean = np.array([float(row[name]) for row in rows])
        spread = [row[f"{name}_std"] for row in rows]
        figures[name] = Means(mean, np.array([float(each) for each in spread]) if all(spread) else None)
    sent = np.array([float(row["bytes"]) for row in rows])
    return Track(tuple(int(row["round"]) for row in rows), sent, np.zeros(len(rows)), figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    rows = collect(arguments.folders)
    with arguments.table.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{arguments.table}: {len(rows)} rows")


if __name__ == "__main__":
    main()
