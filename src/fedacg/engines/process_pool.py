"""Worker processes: starting, messaging and ending them. The supervisor replaces them.

They are forked from one process that has loaded torch (fork_server.py), which is shared by all pools of a program.
"""

import atexit
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection

from fedacg.engines.orders import Hello, Order, Outcome
from fedacg.engines.shared_memory import Segment, send_segment
from fedacg.engines.supervisor import Handle, Lost, News, Supervisor

REQUEST = struct.Struct("!cI")
"""What the fork server is asked: START or END, and a number for the worker that the parent chooses."""
START, END = b"s", b"e"
"""START comes with the worker's descriptors: its channel, lifeline and pulse. END is answered when it is dead."""
ENDED = struct.Struct("!Ii")
"""The answer: a worker's number, and its exit code as `subprocess` has it, where a signal's number is negative."""
PARENTS_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""What terminals and systems send to all processes of a run, for the parent alone to act on."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_PATIENCE = 30.0
"""Seconds that the fork server may take to answer."""
_TICK = 1.0
"""Seconds between two looks at the pulses of workers that are waited for."""
_SILENCE, _LONGEST_START = 30, 120
"""Looks without a change of the pulse until it is reported: of a worker that has started, of one that has not."""

_log = logging.getLogger("fedacg")


class ForkServer:
    """The process that workers are forked from, seen from the parent."""

    def __init__(self) -> None:
        self.loaded = False
        """Whether a worker has come of it."""
        self._lock = threading.Lock()
        self._numbers = count()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_PATIENCE)
        # Blocked in the child as well, until it ignores them: Ctrl-C must not meet it while it loads torch.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedacg.engines.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, descriptors: Sequence[int]) -> int:
        """Ask for a worker with these descriptors, and return its number; does not wait for it."""
        with self._lock:
            number = next(self._numbers)
            try:
                socket.send_fds(self._control, [REQUEST.pack(START, number)], descriptors)
            except OSError:
                self.close()  # the worker's channel is closed with this, which shows that it is lost
            return number

    def end(self, number: int) -> str:
        """Kill a worker if it lives, and say how it came to its end."""
        with self._lock:
            if not self.loaded:
                self.close()  # rather than wait for it
                return "ended while it was started"
            try:
                self._control.sendall(REQUEST.pack(END, number))
                while True:
                    answer = self._control.recv(ENDED.size, socket.MSG_WAITALL)
                    if not answer:
                        raise EOFError
                    whose, code = ENDED.unpack(answer)
                    if whose == number:
                        return _cause(code)
            except (OSError, EOFError):
                self.close()  # a worker ends when its lifeline does, also without the server
                return "the process that starts workers has ended"

    def disconnect(self) -> None:
        """Let go of it in a process that was forked from the parent."""
        self._control.close()

    def close(self) -> None:
        """End it, and with it what it has started."""
        self._control.close()
        if not self.loaded:
            self._process.kill()  # it would load torch first
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_servers: dict[int, ForkServer] = {}
"""By process id: a process that was forked from this one must not use its parent's."""


def _server() -> ForkServer:
    server = _servers.get(os.getpid())
    if server is None or not server.alive:
        server = _servers[os.getpid()] = ForkServer()
    return server


@atexit.register
def _close_server() -> None:
    if os.getpid() in _servers:
        _servers.pop(os.getpid()).close()


def _disconnect_child() -> None:
    for server in _servers.values():
        server.disconnect()


os.register_at_fork(after_in_child=_disconnect_child)


class WorkerHandle(Handle):
    """One worker process, seen from the parent; ready when it has sent its process id."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.ready = False
        self._pid = 0
        self._silent = 0
        self._channel, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._pulse = Segment.create(1)
        self._last = self._pulse.bytes(0, 1)[0]
        self._server = _server()
        self._number = self._server.start([theirs.fileno(), lifeline, self._pulse.descriptor])
        theirs.close()
        os.close(lifeline)
        self.connection = Connection(os.dup(self._channel.fileno()))
        with suppress(OSError):  # one that is dead already is noticed when it is listened to
            self.connection.send([Hello(sys.path, number)])

    @property
    def pid(self) -> int:
        return self._pid

    def give(self, order: Order, news: News) -> None:
        try:
            # One message, so that the worker is woken once; the segments follow in the order of their facts.
            self.connection.send([*(fact for fact, _ in news), order])
            for _, segments in news:
                for segment in segments:
                    send_segment(self._channel, segment)
        except OSError:
            raise Lost from None

    def receive(self) -> Outcome | None:
        try:
            word: Outcome | int = self.connection.recv()
        except (EOFError, OSError):
            raise Lost from None
        finally:
            self._server.loaded = True  # it has forked this one, unless it is dead itself
        if isinstance(word, int):
            self._pid, self.ready = word, True
            return None
        return word

    def feel_pulse(self) -> None:
        """Report a worker that is waited for and cannot even show that it lives."""
        pulse = self._pulse.bytes(0, 1)[0]
        self._silent = self._silent + 1 if pulse == self._last else 0
        self._last = pulse
        if self._silent == (_SILENCE if self.ready else _LONGEST_START):
            name = f"worker {self.number}" + (f" (process {self.pid})" if self.ready else "")
            what = "shows no sign of life" if self.ready else "has not started"
            seconds = self._silent * _TICK
            _log.warning("%s %s for %g s: is it stopped, or short of memory? Still waiting.", name, what, seconds)

    def end(self) -> str:
        self.connection.close()
        self._channel.close()
        os.close(self._lifeline)
        return self._server.end(self._number)


class Pool(Supervisor[WorkerHandle]):
    """Workers that are processes of this machine."""

    def _hire(self, number: int) -> WorkerHandle:
        return WorkerHandle(number)

    def _speaking(self, workers: Sequence[WorkerHandle]) -> Iterable[WorkerHandle]:
        of = {worker.connection.fileno(): worker for worker in workers}
        poll = select.poll()  # a tenth of the time of `multiprocessing.connection.wait`
        for channel in of:
            poll.register(channel, select.POLLIN)
        while not (ready := poll.poll(_TICK * 1000)):
            for worker in workers:
                worker.feel_pulse()
        return [of[channel] for channel, _ in ready]


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, often a sign of too little memory" if name == "SIGKILL" else name
