"""All work in this process, one group of clients after the other."""

from collections.abc import Iterator, Sequence

from fedacg.core.messages import Message
from fedacg.engines.worker import Worker
from fedacg.simulation.engine import NOBODY, Answers, ClientMemory, Evaluation, Job, Task, chunks, groups, total


class SerialEngine:
    """One worker, here."""

    lost = NOBODY

    def setup(self, job: Job) -> None:
        self._worker = Worker(job)

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Iterator[Answers]:
        for group in groups(tasks, self._worker.job.group):
            yield self._worker.train_group(group, broadcast, kept)

    def evaluate(self, model: Message) -> Evaluation:
        job = self._worker.job
        spans = chunks(len(job.data.test), job.evaluate_batch)
        return total([self._worker.evaluate(model, first, last) for first, last in spans])

    def close(self) -> None:
        """Nothing was started."""
