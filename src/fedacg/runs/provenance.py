"""The content of summary.json: figures of the whole run, and where they come from.

That is the commit of this program, the machine, and checksums of the data and their split, for the card that goes
with every table.
"""

import hashlib
import math
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedacg import __version__
from fedacg.config.experiment import Experiment
from fedacg.config.fields import STREAMS
from fedacg.core.tensors import tensors
from fedacg.core.vector import sha256
from fedacg.data.examples import Examples, FederatedData
from fedacg.runs.history import History, Reached

_CLIENTS, _EACH, _TESTS = 256, 4, 512
"""Most clients, examples of each and test examples in a checksum; they are evenly chosen."""


def checksums(federated: FederatedData) -> dict[str, str]:
    """SHA-256 of the test examples and of the split; for large data, of an even choice.

    The clients' sizes are all in it, up to a hundred thousand clients.
    """
    clients, tests, split = federated.clients, hashlib.sha256(), hashlib.sha256()
    tests.update(f"{federated.name}/{federated.classes}/{len(federated.test)}".encode())
    _add(tests, federated.test, _TESTS)
    for client in _evenly(len(clients), 100_000):
        split.update(f"{clients.size(client)},".encode())
    for client in _evenly(len(clients), _CLIENTS):
        _add(split, clients[client], _EACH)
    return {"test": tests.hexdigest(), "split": split.hexdigest()}


def _add(digest: "hashlib._Hash", examples: Examples, most: int) -> None:
    if len(examples):
        x, y = examples.fetch(torch.tensor(_evenly(len(examples), most)))
        for tensor in (*tensors(x), y):
            digest.update(tensor.contiguous().numpy().tobytes())


def _evenly(count: int, most: int) -> list[int]:
    """All numbers below `count`, or `most` of them, evenly chosen."""
    places = np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)
    found: list[int] = places.tolist()
    return found


@cache
def commit() -> str | None:
    """The commit of this program's checkout, with a plus if files differ from it; None if it is installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    git = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root)]
    try:
        head, changed = (
            subprocess.run([*git, *asked], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for asked in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


@cache
def machine() -> dict[str, Any]:
    """The machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def summarise(experiment: Experiment, history: History, vector: Tensor) -> dict[str, Any]:
    """The figures of a whole run, with what is needed to compare and to reproduce them."""
    targets, goals = experiment.evaluate.targets, experiment.evaluate.all_goals
    averages = history.moving_average()
    return {
        "name": experiment.name,
        "method": experiment.method.name,
        "seed": experiment.seed,
        "rounds": history.rounds,
        "accuracy": history.accuracy[-1] if averages else None,
        "moving_average": averages[-1] if averages else None,
        "targets": list(targets),
        "rounds_to": {g.key: str(Reached.of(history.rounds_to(g), history.rounds)) for g in goals},
        "bytes_to": {g.key: str(Reached.of(history.bytes_to(g), history.total_bytes)) for g in goals},
        "bytes_down": history.bytes_down,
        "bytes_up": history.bytes_up,
        "seconds": history.seconds,
        "notes": _notes(history),
        "parameters": vector.numel(),
        "versions": {
            "fedacg": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "seeds": {stream: experiment.seed_of(stream) for stream in STREAMS},
        "commit": commit(),
        "machine": machine(),
        "vector_sha256": sha256(vector),
    }


def _notes(history: History) -> list[str]:
    """What a reader of the figures must know."""
    evaluated = [metrics for metrics in history if metrics.test_loss is not None]
    unsound = [metrics.round for metrics in evaluated if not math.isfinite(metrics.test_loss or 0)]
    if not unsound:
        return []
    number = f"{len(unsound)} of {len(evaluated)} evaluated rounds, first in round {unsound[0]}"
    return [f"the test loss is not a finite number in {number}: outputs that are NaN count as wrong"]
