"""Worker processes: how they are started, spoken with and ended. What befalls them is staff.py's matter."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, wait

from fedacg.engines.orders import Hello, Order, Outcome
from fedacg.engines.shared_memory import send_segment
from fedacg.engines.supervisor import Handle, Lost, News, Staff


class WorkerHandle(Handle):
    """One worker process, seen from the parent."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._channel = ours
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fedacg.engines.worker_process",
                str(theirs.fileno()),
                str(lifeline),
            ],
            pass_fds=(theirs.fileno(), lifeline),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        theirs.close()
        os.close(lifeline)
        self.connection = Connection(os.dup(ours.fileno()))
        self.connection.send(Hello(sys.path, number))

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, order: Order, news: News) -> None:
        try:
            for fact, segments in news:
                self.connection.send(fact)
                for segment in segments:
                    send_segment(self._channel, segment)
            self.connection.send(order)
        except OSError:
            raise Lost from None

    def receive(self) -> Outcome:
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            raise Lost from None
        return outcome

    def end(self) -> str:
        self.connection.close()
        self._channel.close()
        os.close(self._lifeline)
        code = self._process.poll()
        if code is None:
            self._process.kill()
            code = self._process.wait()
        return _cause(code)


class Pool(Staff[WorkerHandle]):
    """Workers that are processes of this machine."""

    def _hire(self, number: int) -> WorkerHandle:
        return WorkerHandle(number)

    def _speaking(self, workers: Sequence[WorkerHandle]) -> Iterable[WorkerHandle]:
        ready = wait([worker.connection for worker in workers])
        return [worker for worker in workers if worker.connection in ready]


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, often a sign of too little memory" if name == "SIGKILL" else name
