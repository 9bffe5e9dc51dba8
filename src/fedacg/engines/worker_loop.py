"""What a worker does with an order, wherever it runs; how orders and vectors reach it lives with the engines."""

import sys
import traceback
from abc import ABC, abstractmethod

import cloudpickle
import torch

from fedacg.core.messages import Message
from fedacg.engines.orders import Evaluate, Evaluated, Failed, Hello, Order, Outcome, Prepared, Train
from fedacg.simulation.engine import Job
from fedacg.simulation.worker import Worker


class Service(ABC):
    """Serves the orders of one job after the other; the worker is made when a job's first order comes."""

    _worker: Worker | None
    """None while a new job waits to be taken on."""
    _message: Message
    """The last broadcast."""

    def greet(self, hello: Hello) -> None:
        self._number = hello.number
        sys.path.extend(folder for folder in hello.path if folder not in sys.path)
        torch.set_num_threads(1)

    def serve(self, order: Order) -> Outcome:
        """Do what is ordered; an exception is an outcome, too."""
        try:
            if self._worker is None:
                self._worker = Worker(self._job(), self._number)
            if isinstance(order, Train):
                return self._train(self._worker, order)
            if isinstance(order, Evaluate):
                return Evaluated(order.key, self._worker.evaluate(self._message, order.first, order.last))
            return Prepared(order.key)
        except Exception as error:
            # Raised again in the parent, where the user sees it.
            error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)))
            return Failed(order.key, _pickled(error))

    @abstractmethod
    def _job(self) -> Job:
        """The job to take on."""

    @abstractmethod
    def _train(self, worker: Worker, order: Train) -> Outcome:
        """Train a group of clients and say where the answers are."""


def _pickled(error: Exception) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:
        # An exception that does not survive pickling is told in words.
        data = cloudpickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return data
