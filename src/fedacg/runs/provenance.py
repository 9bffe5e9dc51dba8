"""Where a result comes from: the commit of this program, the machine, and checksums of the data and their split.

They are in summary.json, for the card that goes with every table.
"""

import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedacg.core.inputs import tensors
from fedacg.data.examples import Examples, FederatedData

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
