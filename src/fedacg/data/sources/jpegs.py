"""JPEG files by the ten thousand, decoded into one array by as many processes as there are cores.

The readers of the data sets know the files and their labels; packed.py reads them. Pixels go straight from the
processes into the array's file, so that memory does not grow with the data set.
"""

import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fedacg.data.files import damaged
from fedacg.data.prepared import array_file
from fedacg.data.sources import decode
from fedacg.data.sources.decode import Fault
from fedacg.data.sources.packed import Files
from fedacg.errors import RunError

_STEP = 100
"""Images that a process decodes at a time."""
_FEW = 500
"""Up to this many images are decoded here: starting processes takes longer."""


def decode_all(
    files: Files,
    names: Sequence[str],
    folder: Path,
    array: str,
    side: int,
    advance: Callable[[int], None],
    *,
    resize: bool,
) -> None:
    """Decode files into an array (N, 3, side, side) in a folder; other sizes are resized, or refused."""
    offset = array_file(folder, array, (len(names), 3, side, side)).offset  # type: ignore[attr-defined]
    path = folder / f"{array}.npy"
    size = 3 * side * side
    starts = range(0, len(names), _STEP)
    few = len(names) <= _FEW
    count = 1 if few else min(_cores(), len(starts))
    workers: list[_Here | _Process] = []
    idle: queue.SimpleQueue[_Here | _Process] = queue.SimpleQueue()

    def decode_some(first: int) -> int:
        chosen = names[first : first + _STEP]
        images = [files.read(name) for name in chosen]
        worker = idle.get()
        try:
            fault = worker.decode(offset + first * size, images)
        finally:
            idle.put(worker)
        if fault is not None:
            raise damaged(files.dataset, files.path(chosen[fault[0]]), fault[1])
        return len(chosen)

    # Threads read files and wait for processes; each holds the files of one step and no more.
    pool = ThreadPoolExecutor(count)
    try:
        for _ in range(count):
            workers.append((_Here if few else _Process)(path, side, resize=resize))
            idle.put(workers[-1])
        for done in pool.map(decode_some, starts):
            advance(done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.stop()
        pool.shutdown()  # those that waited for a process have been answered or failed by now
        for worker in workers:
            worker.close()


class _Here:
    """Decodes in this process."""

    def __init__(self, path: Path, side: int, *, resize: bool) -> None:
        self._side, self._resize = side, resize
        self._file = os.open(path, os.O_WRONLY)

    def decode(self, at: int, images: list[bytes]) -> Fault | None:
        return decode.decode_into(self._file, at, images, self._side, resize=self._resize)

    def stop(self) -> None:
        """Nothing to do here."""

    def close(self) -> None:
        os.close(self._file)


class _Process:
    """Decodes in a process of its own."""

    def __init__(self, path: Path, side: int, *, resize: bool) -> None:
        # By its path and not by its name: importing the package would import torch.
        program = [sys.executable, "-P", str(Path(decode.__file__))]
        arguments = [str(path), str(side), "resize" if resize else "keep"]
        self._process = subprocess.Popen(program + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def decode(self, at: int, images: list[bytes]) -> Fault | None:
        assert self._process.stdin
        assert self._process.stdout
        try:
            pickle.dump((at, images), self._process.stdin)
            self._process.stdin.flush()
            fault: Fault | None = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._process.wait()
            raise RunError(f"a process that decodes images ended with code {code}; is memory short?") from None
        return fault

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with suppress(OSError):  # what was still to be sent
                pipe.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
