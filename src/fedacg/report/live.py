"""A report that follows runs while they go on: the page, and what is new since it was last asked.

Does nothing unless it is asked, and then reads what has been added and nothing else, so that a run is not slowed.
Answering a browser is `server`'s business.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter

from fedacg.errors import InputError
from fedacg.report import page
from fedacg.report.content import Material, gather
from fedacg.report.runs import Group, Run, find_runs, group_runs, load_run
from fedacg.report.split import splits_of
from fedacg.report.tail import Tail
from fedacg.runs.folder import EXPERIMENT, MARKER, METRICS, SUMMARY
from fedacg.runs.history import History

SOONEST = 2.0
"""Seconds between two looks of a page, at least."""
SHARE = 0.05
"""The part of a core's time that looking may take, at most."""


class LiveReport:
    """The page of the runs in and below some folders, and of those that begin there later."""

    def __init__(self, folders: Sequence[Path], targets: Sequence[float] | None = None) -> None:
        self._folders, self._targets = folders, targets
        self._tails: dict[Path, Tail] = {}
        self._runs: dict[Path, Run] = {}
        self._splits = page.Splits()
        self._files, self._deals, self._wait = "", 0, SOONEST
        self._lock = Lock()
        find_runs(folders)  # a folder without a run is refused, as it would be waited for in vain
        self._look()

    @property
    def version(self) -> str:
        """Changes with the files of the runs, and when it is known who holds what."""
        return f"{self._files}-{self._deals}"

    def page(self) -> str:
        """The whole page as it is now."""
        with self._lock:
            self._look()
            return page.render(self._material, self._splits, version=self.version)

    def news(self, seen: str) -> str:
        """JSON with what has changed, if anything has since the version `seen`, and how long to wait."""
        with self._lock:
            started = perf_counter()
            self._look()
            if self.version == seen:
                return json.dumps({"version": seen, "wait": self._wait})
            parts = json.dumps(page.parts(self._material, self._splits), ensure_ascii=False)
            data = page.data(self._material, self._splits)
            self._wait = round(max(SOONEST, (perf_counter() - started) / SHARE), 1)
            return f'{{"version": "{self.version}", "wait": {self._wait}, "parts": {parts}, "data": {data}}}'

    def _look(self) -> None:
        """Read what is new, if there is anything."""
        found = self._find()
        files = _fingerprint(found)
        if files == self._files:
            return
        before = list(self._runs)
        self._material = self._gather(found)
        self._files = files
        if list(self._runs) != before:
            # Data may take seconds to read, and the rest of the page need not wait for them. Not a daemon: the
            # interpreter would end it in the midst of PyTorch's code, which aborts the program.
            Thread(target=self._deal, args=[self._runs]).start()

    def _deal(self, runs: dict[Path, Run]) -> None:
        """See who holds what, which makes another version of the page."""
        splits = page.Splits(*splits_of(list(runs.values())))
        with self._lock:
            if runs.keys() == self._runs.keys():
                self._splits = splits
                self._deals += 1

    def _find(self) -> list[Path]:
        try:
            return find_runs(self._folders)
        except InputError:
            return list(self._runs)  # they were there, and may be about to be written anew

    def _gather(self, found: Sequence[Path]) -> Material:
        """All runs that can be read; of one that no longer can, what was last seen."""
        runs: dict[Path, Run] = {}
        failed: list[InputError] = []
        for folder in found:
            try:
                runs[folder] = load_run(folder, self._read)
            except InputError as error:
                failed.append(error)
                if folder in self._runs:
                    runs[folder] = self._runs[folder]
        if not runs:
            raise failed[0]
        self._runs = runs
        groups = [part for group in group_runs(list(runs.values())) for part in _apart(group)]
        material = gather(groups, self._targets)
        return replace(material, notes=(*material.notes, *map(str, failed)))

    def _read(self, path: Path, *, sealed: bool) -> tuple[History, list[str]]:
        return self._tails.setdefault(path, Tail(path)).read(sealed=sealed), []


def _apart(group: Group) -> list[Group]:
    """The seeds of a group one by one as long as one of them goes on: a mean would be cut to its few rounds."""
    if all(run.summary is not None for run in group.runs):
        return [group]
    return [Group(run.label, (run,), group.copy) for run in group.runs]


def _fingerprint(folders: Sequence[Path]) -> str:
    """Changes when anything that a page shows of these runs does."""
    names = (MARKER, EXPERIMENT, METRICS, SUMMARY)
    states = [(str(folder), [_state(folder / name) for name in names]) for folder in folders]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


def _state(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns
