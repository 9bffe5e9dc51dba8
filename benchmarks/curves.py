"""The curves of finished runs as one small CSV, which is committed and which figures are drawn from.

    python benchmarks/curves.py docs/results/digits/curves.csv runs/seeds
    python benchmarks/curves.py docs/results/fair/compare/curves.csv runs/fair --clock phones

A row is a round of a group of seeds: bytes sent so far, the test accuracy and its moving average in percent, and
their standard deviations over the seeds. With --clock it also has the seconds that a federation of such devices
would have taken so far.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from fedacg.report import federation_time
from fedacg.report.runs import find_runs, group_runs, load_run
from fedacg.report.series import Curve, Means, Track, curves_of
from fedacg.report.style import styles_of

FIELDS = (
    "label",
    "method",
    "seeds",
    "round",
    "bytes",
    "accuracy",
    "accuracy_std",
    "average",
    "average_std",
    "seconds",
)


def collect(folders: list[Path], clock: str | None = None) -> list[dict[str, str]]:
    """The rows of all runs in and below these folders; methods in the order of the folders."""
    groups = group_runs([load_run(folder) for folder in find_runs(folders)])
    if clock:
        groups = federation_time._timed(groups, clock)
    rows = []
    for group, curve in zip(groups, curves_of(groups), strict=True):
        track = curve.evaluated
        for place, number in enumerate(track.rounds):
            figures = [value for name in ("accuracy", "average") for value in _at(track[name], place)]
            seconds = f"{track.seconds[place]:.3f}" if clock else ""
            values = [
                group.label,
                group.method,
                len(group.runs),
                number,
                int(track.sent[place]),
                *figures,
                seconds,
            ]
            rows.append(dict(zip(FIELDS, map(str, values), strict=True)))
    return rows


def _at(means: Means, place: int) -> tuple[str, str]:
    spread = "" if means.deviation is None else f"{means.deviation[place]:.3f}"
    return f"{means.mean[place]:.3f}", spread


def read(path: Path) -> list[Curve]:
    """Curves as a report draws them, in its colours."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = dict.fromkeys(row["label"] for row in rows)
    groups = {label: [row for row in rows if row["label"] == label] for label in labels}
    styles = styles_of([each[0]["method"] for each in groups.values()])
    return [
        Curve(label, style, _track(each), Track((), np.empty(0), np.empty(0), {}))
        for (label, each), style in zip(groups.items(), styles, strict=True)
    ]


def _track(rows: list[dict[str, str]]) -> Track:
    figures = {}
    for name in ("accuracy", "average"):
        mean = np.array([float(row[name]) for row in rows])
        spread = [row[f"{name}_std"] for row in rows]
        figures[name] = Means(mean, np.array([float(each) for each in spread]) if all(spread) else None)
    sent = np.array([float(row["bytes"]) for row in rows])
    seconds = np.array([float(row.get("seconds") or 0) for row in rows])
    return Track(tuple(int(row["round"]) for row in rows), sent, seconds, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--clock", help="a profile of devices, such as phones")
    arguments = parser.parse_args()
    rows = collect(arguments.folders, arguments.clock)
    with arguments.table.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{arguments.table}: {len(rows)} rows")


if __name__ == "__main__":
    main()
