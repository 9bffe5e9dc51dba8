"""The main program of a worker process: `python -m fedacg.engines.worker_process CHANNEL LIFELINE`.

Both arguments are file descriptors. The channel carries orders and outcomes; the lifeline is a pipe whose
other end only the parent holds, so that a worker never outlives it.
"""

import os
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection

from fedacg.engines.orders import Broadcast, Hello, Order, Room, Setup, Train, TrainedInSlot, TrainInSlot
from fedacg.engines.shared_memory import end_of, read_message, receive_segment, thaw, write_message
from fedacg.engines.worker_loop import Service
from fedacg.simulation.engine import Job
from fedacg.simulation.worker import Worker


class WorkerProcess(Service):
    """Serves orders until the channel closes."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._orders = Connection(os.dup(channel.fileno()))

    def listen(self) -> None:
        while True:
            word = self._orders.recv()
            match word:
                case Hello():
                    self.greet(word)
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


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(0)


def main() -> None:
    channel, lifeline = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    try:
        WorkerProcess(socket.socket(fileno=channel)).listen()
    except (EOFError, ConnectionError):
        return  # the parent has closed the channel: the work is over


if __name__ == "__main__":
    main()
