"""A worker process, forked by fork_server.py or `python -m fedacg.engines.worker_process CHANNEL LIFELINE PULSE`.

All three are file descriptors. The channel carries orders and outcomes; the lifeline is a pipe whose other end
only the parent holds, so that a worker never outlives it; the pulse is shared memory, a byte that changes as long
as this process can run at all.
"""

import os
import select
import socket
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from fedacg.core.output import enduring_output
from fedacg.engines.orders import (
    Broadcast,
    Fact,
    Hello,
    Order,
    Room,
    Setup,
    Train,
    TrainedInSlot,
    TrainInSlot,
    WorkerLoop,
)
from fedacg.engines.shared_memory import Segment, end_of, read_message, receive_segment, thaw, write_message
from fedacg.simulation.engine import Job
from fedacg.simulation.worker import Worker

_BEAT = 0.5
"""Seconds between two beats of the pulse."""


class WorkerProcess(WorkerLoop):
    """Serves orders until the channel closes."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._orders = Connection(os.dup(channel.fileno()))

    def listen(self) -> None:
        while True:
            for word in self._orders.recv():
                self._hear(word)

    def _hear(self, word: Hello | Fact | Order) -> None:
        match word:
            case Hello():
                self.greet(word)
                self._orders.send(os.getpid())
            case Setup(job):
                self._frozen, self._arrays = job, receive_segment(self._channel)
                self._worker = None
            case Room(slot):
                self._down, self._up = receive_segment(self._channel), receive_segment(self._channel)
                self._slot = slot
            case Broadcast(places):
                self._message = read_message(self._down, places)
            case Order():
                self._orders.send(self.serve(word))

    def _job(self) -> Job:
        job: Job = thaw(self._frozen, self._arrays)
        return job

    def _train(self, worker: Worker, order: Train) -> TrainedInSlot:
        assert isinstance(order, TrainInSlot)
        kept = read_message(self._up, order.kept)
        answers = worker.serve(order.tasks, self._message, kept)
        # What the client kept stays whole, in case this worker dies and the task is done again.
        start = end_of(order.kept, start=order.slot * self._slot)
        upload = write_message(self._up, answers.upload, start)
        keep = write_message(self._up, answers.keep, end_of(upload, start))
        return TrainedInSlot(order.key, answers.examples, answers.losses, upload, keep)


def work(channel: int, lifeline: int, pulse: int) -> None:
    """Be a worker: serve the orders that come over the channel until the parent closes it."""
    threading.Thread(target=_live, args=(lifeline, Segment(pulse, 1).bytes(0, 1)), daemon=True).start()
    # What a user's code prints must not end the work; and a closed channel means that the work is over.
    with enduring_output(), suppress(EOFError, ConnectionError):
        WorkerProcess(socket.socket(fileno=channel)).listen()


def _live(lifeline: int, pulse: memoryview) -> None:
    """Show that this process is alive, and end it with its parent, whatever it is doing then."""
    while not select.select([lifeline], [], [], _BEAT)[0]:
        pulse[0] = (pulse[0] + 1) % 256
    os._exit(0)


if __name__ == "__main__":
    work(*map(int, sys.argv[1:]))
