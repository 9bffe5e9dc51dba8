"""What a run folder contains, and how it is read, by the run itself and by everybody else.

    run.json                 says that this is a run folder, its format, and the layout that the run computes in
    experiment.toml          the complete description
    metrics.jsonl            one line per round
    checkpoint.safetensors   the server's vectors and the round they belong to
    summary.json             when the run has ended
    model.json               what it takes to build the network again (model_file.py)
    clients.csv              results of single clients in their last evaluation
    best.safetensors         the model of the best round, where a callback kept it
    clients/                 client states, for methods that need them (client_states.py)
    recorded/                the local models of recorded rounds (recording.py)

Vectors are in the canonical order, and every file that a run resumes from has a checksum. folder.py writes them.
"""

import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedacg import __version__
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.core import files
from fedacg.core.vector import Layout, load_vectors
from fedacg.errors import InputError
from fedacg.simulation.federation import ServerState

MARKER, EXPERIMENT, METRICS = "run.json", "experiment.toml", "metrics.jsonl"
CHECKPOINT, SUMMARY, MODEL, LOCK = "checkpoint.safetensors", "summary.json", "model.json", ".lock"
BEST = "best.safetensors"
CLIENTS, RECORDED = "clients", "recorded"
CLIENT_TABLE = "clients.csv"

FORMAT = "2"
_FIRST_FORMAT = "1"
"""The first format: without run.json, checksums and the canonical order."""


@dataclass(frozen=True)
class Marker:
    """The contents of run.json."""

    layout: str
    experiment: str
    """The checksum of experiment.toml."""
    older: bool
    """Whether the run was started by a version without checksums."""
    longer: str = ""
    """The checksum of the new experiment.toml while a run with more rounds replaces the old one."""

    def write(self, folder: Path) -> None:
        record = {
            "program": "fedacg",
            "format": FORMAT,
            "version": __version__,
            "layout": self.layout,
            "experiment": self.experiment,
            "older": self.older,
            **({"longer": self.longer} if self.longer else {}),
        }
        files.write_whole(folder / MARKER, files.seal(json.dumps(record, indent=2)).encode())


def read_marker(folder: Path) -> Marker | None:
    """The contents of run.json; None if there is none, as in folders of the first format."""
    path = folder / MARKER
    if not os.path.lexists(path):
        return None
    try:
        record = files.unseal(files.read_whole(path, files.MOST_TEXT))
        if record.get("format") != FORMAT:
            raise InputError(f"format {record.get('format')!r}, this version reads {FORMAT!r}")
        longer = str(record.get("longer", ""))
        return Marker(str(record["layout"]), str(record["experiment"]), bool(record["older"]), longer)
    except (OSError, InputError, KeyError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None


def is_run(folder: Path) -> bool:
    """Whether there is a run, of any format."""
    try:
        if files.unseal(files.read_whole(folder / MARKER, files.MOST_TEXT)).get("program") == "fedacg":
            return files.is_file(folder / EXPERIMENT)
    except (OSError, InputError):
        pass
    return files.is_file(folder / EXPERIMENT) and files.is_file(folder / METRICS)


def is_finished(folder: Path, experiment: Experiment) -> bool:
    """Whether this experiment is finished there."""
    marker = read_marker(folder) if os.path.lexists(folder / MARKER) else None
    if read_summary(folder, sealed=marker is not None and not marker.older) is None:
        return False
    return not Experiment.parse(read_toml(folder / EXPERIMENT)).difference(experiment)


def is_played(folder: Path, experiment: Experiment) -> bool:
    """Whether all rounds of this experiment have been run there: a run stopped early can continue."""
    return is_finished(folder, experiment) and "stopped_early" not in (read_summary(folder, sealed=False) or {})


def read_summary(folder: Path, *, sealed: bool) -> dict[str, Any] | None:
    """The figures of a finished run; None if it is not finished, or they cannot be read."""
    try:
        return files.unseal(files.read_whole(folder / SUMMARY, files.MOST_TEXT), sealed=sealed)
    except (OSError, InputError):
        return None


def load_moment(folder: Path, name: str = CHECKPOINT) -> ServerState:
    """The server's vectors in a run folder's checkpoint, or in a model saved beside it, in the canonical order."""
    path = folder / name
    marker = read_marker(folder)
    sealed = marker is not None and not marker.older
    state, facts = load_vectors(path, sealed=sealed)
    allowed = [FORMAT] if sealed else [FORMAT, _FIRST_FORMAT]
    if facts.get("format") not in allowed:
        raise InputError(f"{path}: format {facts.get('format')!r}, this version reads {' and '.join(allowed)}")
    if not re.fullmatch("[0-9]{1,18}", facts.get("round", "")):
        raise InputError(f"{path}: does not say which round it belongs to")
    return ServerState(int(facts["round"]), state)


def check_description(folder: Path, marker: Marker | None) -> None:
    """Refuse a description other than the one the run was started with."""
    path = folder / EXPERIMENT
    try:
        content = files.read_whole(path, files.MOST_TEXT)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if marker is not None and checksum(content) not in (marker.experiment, marker.longer):
        raise InputError(f"{path}: was changed or damaged since the run began: its checksum does not match")


def check_first_format(folder: Path, experiment: Experiment, layout: Layout) -> None:
    """Refuse vectors of the first format, which did not record their order, unless that is certain."""
    given = experiment.model.name.partition(":")[0] == GIVEN
    if layout.matters and (layout.channels_last or given):
        raise InputError(
            f"{folder}: was written by an older version, which stored convolutions in an unrecorded memory "
            "layout; run it again with --overwrite"
        )


def checksum(content: bytes) -> str:
    """CRC-32 of a file's contents, as run.json has it."""
    return f"{zlib.crc32(content):08x}"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return f"lacks {error}" if isinstance(error, KeyError) else str(error)
