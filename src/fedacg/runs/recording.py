"""The broadcast and the local models of chosen rounds, on disk, for analysis after the run.

    recorded/00050/round.json             the cohort and its weights
    recorded/00050/broadcast.safetensors  φ and the buffers that were sent
    recorded/00050/7.safetensors          w_i of client 7 as it arrived, and its buffers

A round's folder appears when it is whole. Recording reads the run and changes nothing of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedacg.config.sections import AnalysisSettings
from fedacg.errors import InputError, RunError
from fedacg.simulation.replies import Arrivals

FOLDER = "recorded"


class Recorder:
    """Writes the recorded rounds of a run folder."""

    def __init__(self, run: Path, settings: AnalysisSettings) -> None:
        self._folder, self._settings = run / FOLDER, settings
        self._draft: Path | None = None
        self._round = 0
        self._cohort: list[tuple[int, float]] = []

    def rewind(self, round: int) -> None:
        """Forget what was recorded after a round; 0 forgets everything."""
        for folder in self._folder.glob("*"):
            if not folder.name.isdecimal() or int(folder.name) > round:
                rmtree(folder)

    def begin(self, round: int, broadcast: Mapping[str, Tensor]) -> None:
        """A round begins; from here to `end` it is recorded if it was asked for."""
        self._draft, self._round, self._cohort = None, round, []
        self._phi, self._buffers = broadcast["phi"], broadcast["buffers"]
        if self._settings.wants(round):
            self._draft = self._folder / f".{round:05d}"
            rmtree(self._draft, ignore_errors=True)
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
        """The round is whole."""
        if self._draft is None:
            return
        clients, weights = zip(*self._cohort, strict=True) if self._cohort else ((), ())
        final = self._draft.with_name(f"{self._round:05d}")
        try:
            (self._draft / "round.json").write_text(json.dumps({"clients": clients, "weights": weights}))
            rmtree(final, ignore_errors=True)
            self._draft.rename(final)
        except OSError as error:
            raise RunError(f"{final}: cannot be written: {error}") from error

    def _write(self, name: str, vectors: Mapping[str, Tensor]) -> None:
        assert self._draft is not None
        path = self._draft / f"{name}.safetensors"
        try:
            self._draft.mkdir(parents=True, exist_ok=True)
            save_file({key: vector.contiguous() for key, vector in vectors.items()}, path)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: cannot be written: {error}") from error


@dataclass(frozen=True)
class Recorded:
    """A recorded round. Vectors are in the order of the run's flat model."""

    folder: Path
    round: int
    phi: Tensor
    buffers: Tensor
    clients: tuple[int, ...]
    """Those that answered, in the order of the cohort."""
    weights: tuple[float, ...]
    """ω_i"""

    def local(self, place: int) -> tuple[Tensor, Tensor]:
        """w_i and the buffers of the client at this place of the cohort."""
        found = _read(self.folder / f"{self.clients[place]}.safetensors")
        return found["w"], found["buffers"]


def rounds(run: Path) -> list[int]:
    """The recorded rounds of a run folder."""
    return sorted(int(path.parent.name) for path in (run / FOLDER).glob("[0-9]*/round.json"))


def load(run: Path, round: int) -> Recorded:
    """A recorded round of a run folder."""
    there = rounds(run)
    if not there:
        raise InputError(f"{run}: has no recorded rounds; run it with --set 'analysis.rounds=[{round}]'")
    if round not in there:
        raise InputError(f"{run}: round {round} was not recorded; choose from {', '.join(map(str, there))}")
    folder = run / FOLDER / f"{round:05d}"
    try:
        cohort = json.loads((folder / "round.json").read_text())
        clients, weights = tuple(cohort["clients"]), tuple(cohort["weights"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'round.json'}: cannot be read: {error}") from None
    broadcast = _read(folder / "broadcast.safetensors")
    return Recorded(folder, round, broadcast["phi"], broadcast["buffers"], clients, weights)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
