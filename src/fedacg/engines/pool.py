"""Worker processes and their lifetimes: started, kept up to date, replaced when they die.

Knows what a worker must have been told before an order, not what the orders mean.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import Counter, deque
from multiprocessing.connection import Connection, wait

from fedacg.engines.protocol import Evaluate, Fact, Failed, Hello, Order, Outcome, Prepare
from fedacg.engines.shared import Segment, send_segment
from fedacg.errors import RunError

_ATTEMPTS = 3


Facts = dict[type[Fact], tuple[Fact, tuple[Segment, ...]]]
"""What workers are to know, by kind and in the order of telling, each with the segments that follow it."""


class WorkerHandle:
    """One worker process, seen from the parent."""

    def __init__(self) -> None:
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
        self.orders: deque[Order] = deque()
        """Orders given and not yet answered; the first is the one being worked on."""
        self._told: dict[type[Fact], Fact] = {}
        self.connection.send(Hello(sys.path))

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, order: Order, facts: Facts) -> None:
        """Send an order, after whatever the worker must know before it."""
        self.orders.append(order)
        for kind, (fact, segments) in facts.items():
            if self._told.get(kind) is not fact:
                self.connection.send(fact)
                for segment in segments:
                    send_segment(self._channel, segment)
                self._told[kind] = fact
        self.connection.send(order)

    def end(self) -> int:
        """Stop the process and return its exit code, negative for the signal that ended it."""
        self.connection.close()
        self._channel.close()
        os.close(self._lifeline)
        code = self._process.poll()
        if code is None:
            self._process.kill()
            code = self._process.wait()
        return code


class Pool:
    """A fixed number of workers; one that dies is replaced and its orders are given again."""

    def __init__(self, workers: int) -> None:
        self._workers = [WorkerHandle() for _ in range(workers)]
        self._facts: Facts = {}
        self._deaths: Counter[Order] = Counter()

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def least_load(self) -> int:
        """Orders in the hands of the worker that has the fewest."""
        return min(len(worker.orders) for worker in self._workers)

    def tell(self, fact: Fact, *segments: Segment) -> None:
        """Set what workers are to know from now on; each is told before its next order."""
        self._facts[type(fact)] = fact, segments

    def give(self, order: Order) -> None:
        """Hand an order to the worker that has the fewest."""
        worker = min(self._workers, key=lambda worker: len(worker.orders))
        try:
            worker.give(order, self._facts)
        except OSError:
            self._replace(worker)

    def collect(self) -> Outcome:
        """The next outcome, whichever order it belongs to."""
        while True:
            busy = {worker.connection: worker for worker in self._workers if worker.orders}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    outcome: Outcome = worker.connection.recv()
                except (EOFError, OSError):
                    self._replace(worker)
                    break
                worker.orders.popleft()
                if isinstance(outcome, Failed):
                    raise pickle.loads(outcome.exception)
                return outcome

    def abandon(self) -> None:
        """Drop all orders that are out; workers in the middle of one are replaced."""
        self._deaths.clear()
        for place, worker in enumerate(self._workers):
            if worker.orders:
                worker.end()
                self._workers[place] = WorkerHandle()

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _replace(self, dead: WorkerHandle) -> None:
        """Put a new worker in the place of a dead one and give it the same orders."""
        code = dead.end()
        fresh = WorkerHandle()
        self._workers[self._workers.index(dead)] = fresh
        victim = dead.orders[0]
        self._deaths[victim] += 1
        if self._deaths[victim] == _ATTEMPTS:
            times = f"ended its worker {_ATTEMPTS} times ({_cause(code)})"
            raise RunError(f"{_describe(victim)} {times}; giving up")
        try:
            for order in dead.orders:
                fresh.give(order, self._facts)
        except OSError:
            fresh.orders = dead.orders
            self._replace(fresh)


def _describe(order: Order) -> str:
    if isinstance(order, Evaluate):
        return f"evaluating test examples {order.first} to {order.last - 1}"
    if isinstance(order, Prepare):
        return "taking on the job"
    clients = ", ".join(str(task.client) for task in order.tasks)
    return f"training client{'s' if len(order.tasks) > 1 else ''} {clients} in round {order.tasks[0].round}"


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, often a sign of too little memory" if name == "SIGKILL" else name
