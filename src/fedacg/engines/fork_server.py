"""The program that workers are forked from: `python -m fedacg.engines.fork_server CONTROL`.

It loads torch once, so that a worker costs a fork and not an import. It starts no thread, since what another
thread holds at the time of a fork stays locked in the child; if there is one all the same, or the system
does not report it, each worker is a fresh interpreter. CONTROL is the descriptor of a socket to the parent
(process_pool.py); when that closes, all workers are killed.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from fedacg.engines.process_pool import ENDED, PARENTS_SIGNALS, REQUEST, START
from fedacg.engines.worker_process import work


def serve(control: socket.socket) -> None:
    """Start and end workers until the parent is gone."""
    workers: dict[int, int] = {}
    with suppress(ConnectionError):  # a parent that ended at once has left something unread
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 3)
            if not request:
                break
            verb, number = REQUEST.unpack(request)
            if verb == START:
                workers[number] = _start(control, descriptors)
            else:
                control.sendall(ENDED.pack(number, _end(workers.pop(number))))
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)


def _start(control: socket.socket, descriptors: Sequence[int]) -> int:
    if _may_fork():
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_worker(descriptors)
    else:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        program = [sys.executable, "-m", "fedacg.engines.worker_process", *map(str, descriptors)]
        pid = os.posix_spawn(sys.executable, program, os.environ)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _may_fork() -> bool:
    """Whether this is the only thread, as far as the system reports it."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def _become_worker(descriptors: Sequence[int]) -> NoReturn:
    """Work, and end without what an interpreter does at its end, which is left to the server at its own."""
    code = 1
    try:
        np.random.seed()  # noqa: NPY002 - as a fresh interpreter does; no result of ours depends on it
        work(*descriptors)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end(pid: int) -> int:
    # Nobody else waits for it, so this is no other process by the same number.
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    # They are blocked from before this program was started.
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    gc.collect()
    gc.freeze()  # what is there now stays; to look through it in every worker would copy its memory
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    serve(control)


if __name__ == "__main__":
    main()
