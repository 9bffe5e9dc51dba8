"""Planned runs of a command, for `fedacg watch`: a file that exists as long as the command."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedacg.core import files
from fedacg.errors import InputError
from fedacg.runs.folder import EXPERIMENT

PLAN = "plan.json"


@dataclass(frozen=True)
class Coming:
    """A run that is planned: the name of its folder, and its rounds."""

    name: str
    rounds: int


@contextmanager
def planned(root: Path, runs: Mapping[Path, int]) -> Iterator[None]:
    """Announce the runs that this process will start below `root`, with their rounds."""
    listed = {os.path.relpath(folder, root): rounds for folder, rounds in runs.items()}
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    with suppress(OSError):  # nothing depends on it
        files.make_folder(root)
        files.write_whole(root / PLAN, json.dumps({"process": os.getpid(), "runs": listed}).encode())
    try:
        yield
    finally:
        with suppress(OSError):
            files.remove(root / PLAN)
            for folder in made:  # it is empty only if no run started
                folder.rmdir()


def to_come(folders: Sequence[Path]) -> list[Coming]:
    """Runs in and directly below these folders that live processes have planned but not started."""
    found: dict[Path, Coming] = {}
    for folder in folders:
        for path in (folder / PLAN, *sorted(folder.glob(f"*/{PLAN}"))):
            for name, rounds in _read(path).items():
                if not (path.parent / name / EXPERIMENT).exists():
                    found[path.parent / name] = Coming(name, rounds)
    return list(found.values())


def _read(path: Path) -> dict[str, int]:
    try:
        record = json.loads(files.read_whole(path, files.MOST_TEXT))
        os.kill(int(record["process"]), 0)
        return {str(name): int(rounds) for name, rounds in record["runs"].items()}
    except (OSError, InputError, ValueError, KeyError, TypeError, AttributeError):
        return {}
