"""Vectors on disk: safetensors with a checksum of names, types, shapes, entries and facts in its metadata."""

import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedacg.errors import InputError

_FACTS = "fedacg"
"""The single entry of the metadata: safetensors would write several in arbitrary order."""


def pack(vectors: Mapping[str, Tensor], facts: Mapping[str, str]) -> bytes:
    """The bytes of a file that holds these vectors, and facts about them."""
    whole = {name: vector.contiguous() for name, vector in vectors.items()}
    packed: bytes = save(whole, {_FACTS: json.dumps({**facts, "check": _digest(whole, facts)})})
    return packed


def load(path: Path, *, sealed: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The vectors of a file and the facts about them; raises InputError if it is damaged or something else.

    Without `sealed`, a file written before there were checksums is accepted as well.
    """
    try:
        # A pipe in place of the file would block for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: not a regular file")
        with safe_open(path, framework="pt") as file:
            facts = _facts(file.metadata() or {})
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None
    check = facts.pop("check", None)
    if check is None and sealed:
        raise InputError(f"{path}: damaged: has no checksum")
    if check is not None and check != _digest(vectors, facts):
        raise InputError(f"{path}: damaged: its checksum does not match")
    return vectors, facts


def _facts(metadata: Mapping[str, str]) -> dict[str, str]:
    """The facts in a file's metadata; before there were checksums, each fact was a separate entry."""
    if _FACTS not in metadata:
        return dict(metadata)
    facts = json.loads(metadata[_FACTS])
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("not the facts of a vector")
    return facts


def _digest(vectors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    # SHA-256 has instructions of its own in today's processors, and was the fastest of the standard library.
    found = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, vector in sorted(vectors.items()):
        found.update(repr((name, str(vector.dtype), tuple(vector.shape))).encode())
        found.update(vector.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]


def _reason(error: Exception) -> str:
    """A system error without the file name, which the message has already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
