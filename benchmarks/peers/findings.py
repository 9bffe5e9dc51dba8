"""The measurements of the peers as a table, a picture and figures; compare.py makes them."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from fedacg.report.style import PALETTE

LABELS = {
    "fedacg": "fedacg",
    "bare": "bare PyTorch",
    "pfl": "pfl-research",
    "flower": "Flower",
    "tutorial": "Flower, as its tutorial",
    "fluke": "fluke",
}
_INK, _GRID, _OTHERS = "#333333", "#e4e4e4", "#b8b8b8"


@dataclass
class Peer:
    """The measurements of one peer on one workload."""

    name: str
    start: float = 0.0
    """Seconds from the start of the program to the end of its first round."""
    turns: list[list[float]] = field(default_factory=list)
    """Seconds of every round, turn by turn."""
    difference: float = 0.0
    """From the model of this package after the same rounds, as a part of the way from θ."""
    versions: dict[str, str] = field(default_factory=dict)
    examples: int = 0
    """Of all local steps of a round."""
    memory: int = 0
    """Bytes of all its processes after a turn, at most."""

    @property
    def seconds(self) -> float:
        return median(seconds for turn in self.turns for seconds in turn)

    def times(self, other: "Peer") -> float:
        """How many times the other's seconds: the median over the turns, as the machine drifts."""
        return median(median(a) / median(b) for a, b in zip(self.turns, other.turns, strict=True))


Found = Mapping[str, Sequence[Peer]]
"""The peers of every workload."""


def _named(peers: Sequence[Peer], name: str) -> Peer:
    return next(peer for peer in peers if peer.name == name)


def machine() -> str:
    """The machine in a line, with its load: beside other work, figures mean little."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [
            line.partition(":")[2].strip() for line in information.read_text().splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} × {cpu}, {platform.system()}, Python {platform.python_version()}; load before: {load}"
    )


def markdown(found: Found, machine: str) -> str:
    """One table, then versions and machine."""
    lines = [
        "| workload | peer | seconds per round | examples per second | of bare | of fedacg | memory, GB "
        "| start, s | difference |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for workload, peers in found.items():
        ours, bare = _named(peers, "fedacg"), _named(peers, "bare")
        for peer in peers:
            difference = "–" if peer is ours else f"{peer.difference:.0e}"
            cells = [
                workload,
                LABELS[peer.name],
                f"{peer.seconds:.4f}",
                f"{peer.examples / peer.seconds:,.0f}",
                f"{peer.times(bare):.2f}",
                f"{peer.times(ours):.2f}",
                f"{peer.memory / 1e9:.2f}",
                f"{peer.start - peer.seconds:.1f}",
                difference,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    versions = [
        f"- {LABELS[peer.name]}: " + ", ".join(f"{name} {number}" for name, number in peer.versions.items())
        for peer in {peer.name: peer for peers in found.values() for peer in peers}.values()
    ]
    return "\n".join([*lines, "", *versions, f"- {machine}", ""])


def draw(found: Found) -> Figure:
    """Seconds per round as bars on one logarithmic axis, a panel for each workload."""
    figure = Figure(figsize=(8, 0.7 + 1.4 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), sharex=True, squeeze=False)[:, 0]
    for axes, (workload, peers) in zip(panels, found.items(), strict=True):
        ours = _named(peers, "fedacg")
        colours = [PALETTE[0][0] if peer is ours else _OTHERS for peer in peers]
        axes.barh([LABELS[peer.name] for peer in peers], [peer.seconds for peer in peers], color=colours)
        for place, peer in enumerate(peers):
            times = "" if peer is ours else f"  ({_short(peer.times(ours))} ×)"
            axes.annotate(
                f"{_short(peer.seconds)} s{times}",
                xy=(peer.seconds, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=_INK,
            )
        axes.set_xscale("log")
        axes.invert_yaxis()
        axes.set_title(workload, loc="left", fontsize=10, color=_INK)
        axes.grid(axis="x", color=_GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, which="both", colors=_INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
    seconds = [peer.seconds for peers in found.values() for peer in peers]
    axes.set_xlim(min(seconds) / 3, max(seconds) * 5)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("seconds per round, with two workers", color=_INK)
    return figure


def _short(value: float) -> str:
    """Three digits, and no exponent."""
    return f"{float(f'{value:.3g}'):g}"


def write(found: Found, machine: str, folder: Path) -> None:
    """table.md, peers.png and figures.json."""
    text = markdown(found, machine)
    (folder / "table.md").write_text(text, encoding="utf-8")
    draw(found).savefig(folder / "peers.png", dpi=200, metadata={"Software": None})
    figures = {
        "machine": machine,
        "workloads": {name: [asdict(peer) for peer in peers] for name, peers in found.items()},
    }
    (folder / "figures.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(text)
    print(f"in {folder}: table.md, peers.png, figures.json")
