"""The broadcast and the local models of chosen rounds, on disk, for analysis after the run.

    recorded/00050/round.json             the cohort and its weights
    recorded/00050/broadcast.safetensors  φ and the buffers that were sent
    recorded/00050/7.safetensors          w_i of client 7 as it arrived, and its buffers

A round's folder appears when it is complete. Recording does not affect the run. Vectors are in the
canonical order, and only files of these names are touched.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from fedacg.config.sections import AnalysisSettings
from fedacg.core import files
from fedacg.core.vector import CANONICAL, Layout, load_vectors, pack_vectors
from fedacg.errors import InputError, RunError
from fedacg.simulation.replies import Arrivals

FOLDER = "recorded"
_ROUND = re.compile(r"[0-9]{5,18}")
_FILE = re.compile(r"round\.json|(broadcast|[0-9]{1,18})\.safetensors|\.round\.json\.[0-9]+\.draft")


class Recorder:
    """Writes the recorded rounds of a run folder."""

    def __init__(self, run: Path, settings: AnalysisSettings, layout: Layout = CANONICAL) -> None:
        self._folder, self._settings, self._layout = run / FOLDER, settings, layout
        self._draft: Path | None = None
        self._round = 0
        self._cohort: list[tuple[int, float]] = []

    def rewind(self, round: int) -> None:
        """Remove what was recorded after a round, and incomplete recordings; 0 removes all."""
        if not self._folder.is_dir():
            return
        try:
            for folder in self._folder.iterdir():
                draft, name = folder.name.startswith("."), folder.name.removeprefix(".")
                if _ROUND.fullmatch(name) and (draft or int(name) > round):
                    _remove(folder)
            if round == 0:
                files.remove_if_empty(self._folder)
        except OSError as error:
            raise RunError(f"{self._folder}: cannot be written: {error}") from error

    def begin(self, round: int, broadcast: Mapping[str, Tensor]) -> None:
        """A round begins; it is recorded until `end` if requested."""
        self._draft, self._round, self._cohort = None, round, []
        self._phi, self._buffers = broadcast["phi"], broadcast["buffers"]
        if self._settings.wants(round):
            self._draft = self._folder / f".{round:05d}"
            try:
                _remove(self._draft)
                files.make_folder(self._draft)
            except OSError as error:
                raise RunError(f"{self._draft}: cannot be written: {error}") from error
            self._write("broadcast", {"phi": broadcast["phi"], "buffers": broadcast["buffers"]})

    def see(self, arrivals: Arrivals) -> None:
        """Local models as they arrived."""
        if self._draft is None:
            return
        for row, (client, weight) in enumerate(zip(arrivals.clients, arrivals.weights, strict=True)):
            w, buffers = self._phi + arrivals.deltas[row], self._buffers + arrivals.buffers[row]
            self._cohort.append((client, weight))
            self._write(str(client), {"w": w, "buffers": buffers})

    def end(self) -> None:
        """The round is complete."""
        if self._draft is None:
            return
        clients, weights = zip(*self._cohort, strict=True) if self._cohort else ((), ())
        final = self._draft.with_name(f"{self._round:05d}")
        try:
            record = json.dumps({"clients": clients, "weights": weights})
            files.write_whole(self._draft / "round.json", files.seal(record).encode())
            _remove(final)
            self._draft.rename(final)
            files.sync(self._folder)
        except OSError as error:
            raise RunError(f"{final}: cannot be written: {error}") from error

    def _write(self, name: str, vectors: Mapping[str, Tensor]) -> None:
        assert self._draft is not None
        path = self._draft / f"{name}.safetensors"
        try:
            content = pack_vectors(self._layout.to_canonical(vectors), _facts(self._round, name))
            files.write_new(path, content)
            files.sync(path)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: cannot be written: {error}") from error


def _facts(round: int, name: str) -> dict[str, str]:
    return {"round": str(round), "of": name}


def _remove(folder: Path) -> None:
    """Remove a round; a link in its place is refused, and a user's file beside ours stays, with the folder."""
    if files.is_link(folder):
        raise InputError(f"{folder}: is a link; the files of a run folder are its own")
    if not folder.is_dir():
        return
    # The file that marks the round as complete goes first.
    for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".json"):
        if _FILE.fullmatch(path.name):
            files.remove(path)
    files.remove_if_empty(folder)


@dataclass(frozen=True)
class Recorded:
    """A recorded round. Vectors are in the canonical order."""

    folder: Path
    round: int
    phi: Tensor
    buffers: Tensor
    clients: tuple[int, ...]
    """Those that answered, in the order of the cohort."""
    weights: tuple[float, ...]
    """ω_i"""
    sealed: bool = True
    """Whether its files must have checksums."""

    def local(self, place: int) -> tuple[Tensor, Tensor]:
        """w_i and the buffers of the client at this place of the cohort."""
        name = str(self.clients[place])
        found = _read(self.folder, self.round, name, "w", self.sealed)
        if found["w"].shape != self.phi.shape or found["w"].dtype != self.phi.dtype:
            raise InputError(f"{self.folder / name}.safetensors: does not match the broadcast of its round")
        return found["w"], found["buffers"]


def rounds(run: Path) -> list[int]:
    """The recorded rounds of a run folder."""
    try:
        found = [path for path in (run / FOLDER).iterdir() if (path / "round.json").is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{run / FOLDER}: cannot be read: {error.strerror}") from None
    return sorted(int(path.name) for path in found if _ROUND.fullmatch(path.name))


def load(run: Path, round: int, *, sealed: bool = True) -> Recorded:
    """A recorded round of a run folder; without `sealed`, also one that an older version wrote."""
    there = rounds(run)
    if not there:
        raise InputError(f"{run}: has no recorded rounds; run it with --set 'analysis.rounds=[{round}]'")
    if round not in there:
        raise InputError(f"{run}: round {round} was not recorded; choose from {', '.join(map(str, there))}")
    folder = run / FOLDER / f"{round:05d}"
    path = folder / "round.json"
    try:
        cohort = files.unseal(files.read_whole(path, files.MOST_TEXT), sealed=sealed)
    except (OSError, InputError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    clients: Any = cohort.get("clients")
    weights: Any = cohort.get("weights")
    if not _are(clients, int) or not _are(weights, float) or len(clients) != len(weights):
        raise InputError(f"{path}: cannot be read: must list clients and as many weights")
    broadcast = _read(folder, round, "broadcast", "phi", sealed)
    return Recorded(folder, round, broadcast["phi"], broadcast["buffers"], tuple(clients), tuple(weights), sealed)


def _are(values: Any, kind: type) -> bool:
    """Whether these are different numbers of clients, or finite weights."""
    if not isinstance(values, list) or not all(type(value) in (int, kind) for value in values):
        return False
    if kind is int:
        return len(set(values)) == len(values) and all(0 <= value < 2**63 for value in values)
    return all(abs(value) <= 1 for value in values) and all(map(math.isfinite, values))


def _read(folder: Path, round: int, name: str, vector: str, sealed: bool) -> dict[str, Tensor]:
    path = folder / f"{name}.safetensors"
    found, facts = load_vectors(path, sealed=sealed)
    if facts and facts != _facts(round, name):
        raise InputError(f"{path}: damaged: is not what this round recorded under this name")
    if found.keys() != {vector, "buffers"} or any(v.dim() != 1 for v in found.values()):
        raise InputError(f"{path}: cannot be read: must hold the vectors {vector} and buffers")
    return found
