"""Methods at equal rounds, equal bytes and equal seconds of a device profile, as Markdown, from kept curves.

    python benchmarks/equal.py docs/results/main-visits/curves.csv [--round 100] [--by FedAvg]

The budgets are what one method has spent after that round; a method's figure is its moving average at its last
evaluation within the budget. The seconds are those that `benchmarks/curves.py --clock` wrote.
"""

import argparse
from pathlib import Path

from plots import Row, rows


def within(curve: list[Row], spent: str, budget: float) -> Row:
    """The last evaluation that the budget pays for."""
    return [row for row in curve if float(row[spent]) <= budget][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", type=Path)
    parser.add_argument("--round", type=int, default=100)
    parser.add_argument("--by", default="FedAvg", metavar="METHOD")
    arguments = parser.parse_args()
    curves: dict[str, list[Row]] = {}
    for row in rows(arguments.curves):
        curves.setdefault(row["label"], []).append(row)
    spent = within(curves[arguments.by], "round", arguments.round)
    found = {
        name: [within(curve, column, float(spent[column])) for column in ("round", "bytes", "seconds")]
        for name, curve in curves.items()
    }
    print(f"| method | after {arguments.round} rounds | {float(spent['bytes']) / 1e6:.0f} MB | rounds ", end="")
    print(f"| {float(spent['seconds']):.0f} s | rounds |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (equal, sent, lasted) in sorted(found.items(), key=lambda item: -float(item[1][0]["average"])):
        averages = [f"{float(row['average']):.2f}" for row in (equal, sent, lasted)]
        cells = (name, averages[0], averages[1], sent["round"], averages[2], lasted["round"])
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
