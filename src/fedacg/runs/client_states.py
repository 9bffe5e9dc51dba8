"""What clients keep between rounds, on disk: it grows with the clients that have taken part, not with N.

A visit writes a file of its own, `CLIENT/ROUND.safetensors`, and never touches an older one. So a run that
goes back to the checkpoint of a round finds the states of that round, whatever was written after it.
"""

import os
from collections import defaultdict
from pathlib import Path
from shutil import rmtree

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedacg.core.messages import Message
from fedacg.errors import RunError


class ClientStates:
    """The states of clients below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._visits: defaultdict[int, list[int]] = defaultdict(list)
        """The rounds whose states are there, by client, in ascending order."""
        self._unsettled: set[int] = set()
        """Clients with visits that no checkpoint covers yet."""

    def rewind(self, round: int) -> None:
        """Go back to how things stood after a round; 0 forgets everything."""
        self._visits.clear()
        self._unsettled.clear()
        if round == 0 and self._folder.exists():
            rmtree(self._folder)
        for path in sorted(self._folder.glob("*/*.safetensors")):
            visit = int(path.stem)
            if visit > round:
                path.unlink()
            else:
                self._visits[int(path.parent.name)].append(visit)
        for visits in self._visits.values():
            visits.sort()

    @property
    def clients(self) -> set[int]:
        """Who has kept something."""
        return set(self._visits)

    def last(self, client: int) -> int:
        """The round of a client's last visit, 0 before its first."""
        return self._visits[client][-1] if client in self._visits else 0

    def read(self, client: int) -> Message:
        """What a client kept of its last visit, nothing before its first."""
        visits = self._visits.get(client)
        return load_file(self._path(client, visits[-1])) if visits else {}

    def write(self, round: int, client: int, state: Message) -> None:
        """Keep what a client takes away from a round."""
        path = self._path(client, round)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: vector.contiguous() for name, vector in state.items()}, path)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: cannot be written: {error}") from error
        if round not in self._visits[client]:
            self._visits[client].append(round)
        self._unsettled.add(client)

    def settle(self, round: int) -> None:
        """Make sure that the states after a round are on the disk, before a checkpoint counts on them."""
        for client in self._unsettled:
            for visit in [visit for visit in self._visits[client] if visit <= round][-1:]:
                path = self._path(client, visit)
                try:
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                except OSError as error:
                    raise RunError(f"{path}: cannot be written: {error}") from error

    def forget(self, round: int) -> None:
        """Remove what nobody can ask for any more, now that a checkpoint of this round is on the disk."""
        for client in list(self._unsettled):
            visits = self._visits[client]
            covered = [visit for visit in visits if visit <= round]
            for visit in covered[:-1]:
                self._path(client, visit).unlink(missing_ok=True)  # gone if Ctrl-C came in the middle of this
            self._visits[client] = covered[-1:] + [visit for visit in visits if visit > round]
            if visits[-1] <= round:
                self._unsettled.discard(client)

    def _path(self, client: int, round: int) -> Path:
        return self._folder / str(client) / f"{round}.safetensors"
