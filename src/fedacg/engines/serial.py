"""All work in this process, one group of clients after the other."""

from collections.abc import Sequence

from fedacg.core.round import Message
from fedacg.simulation.engine import ClientMemory, Held, Job, See, Task, Training, chunks, groups, recall
from fedacg.simulation.scoring import Evaluation, total
from fedacg.simulation.worker import Worker


class SerialEngine:
    """One worker, here."""

    def setup(self, job: Job) -> None:
        self._worker = Worker(job)

    def train(self, broadcast: Message, tasks: Sequence[Task], kept: ClientMemory) -> Training:
        worker = self._worker
        return Training(worker.serve(g, broadcast, recall(kept, g)) for g in groups(tasks, worker.job.group))

    def evaluate(self, model: Message, part: Held = "test", see: See | None = None) -> Evaluation:
        job = self._worker.job
        spans = chunks(len(job.held(part)), job.evaluate_batch)
        return total([self._worker.evaluate(model, first, last, part, see) for first, last in spans])

    def close(self) -> None:
        """Nothing was started."""
