"""The main program of a worker process: `python -m fedacg.engines.worker_process CHANNEL LIFELINE`.

Both arguments are file descriptors. The channel carries orders and outcomes; the lifeline is a pipe whose
other end only the parent holds, so that a worker never outlives it.
"""

import os
import signal
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection

import cloudpickle
import torch

from fedacg.engines.protocol import (
    Broadcast,
    Evaluate,
    Evaluated,
    Failed,
    Hello,
    Order,
    Outcome,
    Prepare,
    Prepared,
    Room,
    Setup,
    Train,
    Trained,
)
from fedacg.engines.shared import end_of, read_message, receive_segment, thaw, write_message
from fedacg.engines.worker import Worker
from fedacg.link import Message


class WorkerProcess:
    """Serves orders until the channel closes."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._orders = Connection(os.dup(channel.fileno()))

    def serve(self) -> None:
        while True:
            order = self._orders.recv()
            match order:
                case Hello(path):
                    sys.path.extend(folder for folder in path if folder not in sys.path)
                case Setup(job):
                    self._job, self._arrays = job, receive_segment(self._channel)
                    self._worker: Worker | None = None
                case Room(slot):
                    self._down, self._up = receive_segment(self._channel), receive_segment(self._channel)
                    self._slot = slot
                case Broadcast(places):
                    self._message: Message = read_message(self._down, places)
                case Prepare() | Train() | Evaluate():
                    self._orders.send(self._work(order))

    def _work(self, order: Order) -> Outcome:
        try:
            if self._worker is None:
                self._worker = Worker(thaw(self._job, self._arrays))
            if isinstance(order, Prepare):
                return Prepared(order.key)
            if isinstance(order, Evaluate):
                return Evaluated(order.key, self._worker.evaluate(self._message, order.first, order.last))
            kept = read_message(self._up, order.kept)
            answers = self._worker.train_group(order.tasks, self._message, lambda _: kept)
            # What the client kept stays whole, in case this worker dies and the task is done again.
            start = end_of(order.kept, start=order.slot * self._slot)
            upload = write_message(self._up, answers.upload, start)
            keep = write_message(self._up, answers.keep, end_of(upload, start))
            return Trained(order.key, answers.examples, answers.losses, upload, keep)
        except Exception as error:
            # Raised again in the parent, where the user sees it.
            error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)))
            return Failed(order.key, _pickled(error))


def _pickled(error: Exception) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:
        # An exception that does not survive pickling is told in words.
        data = cloudpickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return data


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(0)


def main() -> None:
    channel, lifeline = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    try:
        WorkerProcess(socket.socket(fileno=channel)).serve()
    except (EOFError, ConnectionError):
        return  # the parent has closed the channel: the work is over


if __name__ == "__main__":
    main()
