"""The work itself, wherever it is done: one resident model that serves any client of a job."""

import torch
from torch import Tensor

from fedacg.engines.base import Answer, Evaluation, Job, Task
from fedacg.link import Message
from fedacg.local import Visit, train
from fedacg.methods.objective import Assignment, Forward
from fedacg.randomness import stream_seed
from fedacg.vector import FlatModel, clone


class Worker:
    """Holds one model, overwritten in place for every client; keeps nothing of a client between rounds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.flat = FlatModel(clone(job.module), channels_last=job.channels_last)
        self._delta = torch.empty_like(self.flat.w)

    def train(self, task: Task, broadcast: Message) -> Answer:
        """Decode the broadcast, take the client's local steps, encode its update."""
        job, flat = self.job, self.flat
        phi, buffers = broadcast["phi"], broadcast["buffers"]
        examples = job.data.clients[task.client]
        steps = job.local.steps_for(len(examples))
        self._load(phi, buffers)
        assignment = Assignment(phi=phi, lr=job.local.lr_at(task.round), steps=steps)
        for part in (*job.method.losses, *job.method.corrections):
            part.begin(assignment)
        # Layers that draw for themselves, such as dropout, use the global generator.
        torch.default_generator.manual_seed(stream_seed(job.seed, "layers", task.round, task.client))
        flat.module.train()
        loss = train(
            flat,
            examples,
            job.data.pipeline,
            job.method.losses,
            job.method.corrections,
            job.local,
            Visit(job.seed, task.round, task.client),
        )
        torch.sub(flat.w, phi, out=self._delta)
        upload = {
            "delta": job.method.link.encode(self._delta),
            "buffers": flat.read_buffers() - buffers,
        }
        return Answer(task.client, len(examples), steps, loss, upload)

    @torch.no_grad()
    def evaluate(self, model: Message, first: int, last: int) -> Evaluation:
        """Sums over the test examples from `first` up to `last`."""
        flat, data = self.flat, self.job.data
        self._load(model["theta"], model["buffers"])
        flat.module.eval()
        x, y = data.test.fetch(torch.arange(first, last))
        forward = Forward(flat.module, flat.prepare(data.pipeline(x)), y)
        loss = float(self.job.method.empirical(forward)) * len(y)
        return Evaluation(len(y), loss, _correct(forward.logits, y))

    def _load(self, vector: Tensor, buffers: Tensor) -> None:
        self.flat.w.copy_(vector)
        self.flat.write_buffers(buffers)


def _correct(logits: Tensor, y: Tensor) -> int:
    """How many labels are the largest logit; none where the outputs are not one row of logits an example."""
    if y.is_floating_point() or logits.dim() != 2:
        return 0
    return int((logits.argmax(dim=1) == y).sum())
