"""The card that goes with every table: what a reader needs to trust its numbers, or to reproduce them.

Commit, experiments, checksums of data and split, seeds by stream, the budget that was spent, machine, versions.
All of it is read from the run folders; what runs of older versions did not write is left out.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fedacg.config.experiment import show
from fedacg.config.fields import STREAMS
from fedacg.report.cells import Cell, Column, to_markdown
from fedacg.report.page import Chapter
from fedacg.report.runs import Run
from fedacg.runs.history import human_bytes, three_digits
from fedacg.version import __version__

WORDS = "What it takes to trust or reproduce these numbers. A plus after a commit: files differed from it."


def card(runs: Sequence[Run]) -> dict[str, Any]:
    """The facts behind a table, for programs."""
    summaries = [run.summary or {} for run in runs]
    return {
        "program": f"fedacg {__version__}",
        "commits": _distinct(summary.get("commit") for summary in summaries),
        "experiments": _distinct(run.experiment.get("name") for run in runs),
        "data": _distinct(run.settings.get("data.name") for run in runs),
        "checksums": {
            part: _distinct(_table(summary, "checksums").get(part) for summary in summaries)
            for part in ("test", "split")
        },
        "seeds": {stream: sorted({run.seed_of(stream) for run in runs}) for stream in STREAMS},
        "budget": {
            "runs": len(runs),
            "unfinished": sum(run.summary is None for run in runs),
            "rounds": sum(len(run.history) for run in runs),
            "visits": sum(len(metrics.arrived) for run in runs for metrics in run.history),
            "bytes": sum(run.history.total_bytes for run in runs),
            "seconds": sum(run.history.seconds["total"] for run in runs),
        },
        "machines": _distinct(summary.get("machine") for summary in summaries),
        "versions": _distinct(summary.get("versions") for summary in summaries),
        "runs": [
            {
                "folder": run.folder.name,
                "method": run.method,
                "seeds": {stream: run.seed_of(stream) for stream in STREAMS},
                "rounds": run.history.rounds,
                "bytes": run.history.total_bytes,
                "seconds": run.history.seconds["total"],
                "vector_sha256": (run.summary or {}).get("vector_sha256"),
            }
            for run in runs
        ],
    }


def parts(runs: Sequence[Run]) -> tuple[Chapter, dict[str, bytes]]:
    """The card as a chapter of the page, and as card.json and card.md."""
    facts = card(runs)
    said = list(_sentences(facts))
    columns = [
        Column("fact", tuple(Cell(name) for name, _ in said)),
        Column("value", tuple(Cell(value) for _, value in said)),
    ]
    files = {
        "card.json": f"{json.dumps(facts, indent=2, ensure_ascii=False, default=str)}\n".encode(),
        "card.md": f"# Result card\n\n{to_markdown(columns)}\n{WORDS}\n".encode(),
    }
    return Chapter("Result card", WORDS, columns, []), files


def _sentences(facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    yield "program", facts["program"]
    yield from _listed("commit", facts["commits"])
    yield from _listed("experiment", facts["experiments"])
    yield from _listed("data", facts["data"])
    for part, found in facts["checksums"].items():
        yield from _listed(f"SHA-256 of the {part}", [str(each)[:16] for each in found])
    for stream, seeds in facts["seeds"].items():
        yield f"seeds: {stream}", ", ".join(map(str, seeds))
    budget = facts["budget"]
    ongoing = f", {budget['unfinished']} of them unfinished" if budget["unfinished"] else ""
    yield "budget: runs", f"{budget['runs']}{ongoing}"
    yield "budget: rounds", f"{budget['rounds']}, {budget['visits']} visits of clients"
    yield "budget: bytes", human_bytes(budget["bytes"])
    yield "budget: seconds", three_digits(budget["seconds"])
    for machine in facts["machines"]:
        if isinstance(machine, dict):
            yield "machine", ", ".join(f"{name} {_quantity(name, value)}" for name, value in machine.items())
    for versions in facts["versions"]:
        if isinstance(versions, dict):
            yield "versions", ", ".join(f"{name} {show(value)}" for name, value in versions.items())


def _quantity(name: str, value: object) -> str:
    """What is known of a machine; its memory is a number of bytes."""
    if name == "memory" and isinstance(value, int) and not isinstance(value, bool):
        return human_bytes(value)
    return show(value)


def _listed(name: str, values: Sequence[Any]) -> Iterable[tuple[str, str]]:
    if values:
        yield name, ", ".join(map(show, values))


def _table(summary: dict[str, Any], name: str) -> dict[str, Any]:
    found = summary.get(name)
    return found if isinstance(found, dict) else {}


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of their first appearance; those that are missing are left out."""
    found: dict[str, Any] = {}
    for value in values:
        if value is not None:
            found.setdefault(json.dumps(value, sort_keys=True, default=str), value)
    return list(found.values())
