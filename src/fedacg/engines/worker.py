"""The work itself, wherever it is done: one resident model that serves any client of a job."""

import torch
from torch import Tensor, nn

from fedacg.data.examples import Examples, labels
from fedacg.engines.base import Answer, Evaluation, Job, Task
from fedacg.link import Message
from fedacg.local import Visit, train
from fedacg.methods.objective import Assignment, Departure, Forward
from fedacg.randomness import stream_seed
from fedacg.vector import FlatModel, clone


class FrozenCopies:
    """Copies of the network that a loss compares with; each is made once and overwritten for every client."""

    def __init__(self, module: nn.Module, channels_last: bool) -> None:
        self._module, self._channels_last = module, channels_last
        self._copies: dict[str, FlatModel] = {}

    def load(self, name: str, vector: Tensor, buffers: Tensor) -> nn.Module:
        if name not in self._copies:
            self._copies[name] = FlatModel(clone(self._module), channels_last=self._channels_last, frozen=True)
        flat = self._copies[name]
        flat.load(vector, buffers)
        return flat.module.eval()


class Worker:
    """Holds one model, overwritten in place for every client; keeps nothing of a client between rounds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.flat = FlatModel(clone(job.module), channels_last=job.channels_last)
        self._copies = FrozenCopies(job.module, job.channels_last)
        self._delta = torch.empty_like(self.flat.w)

    def train(self, task: Task, broadcast: Message, kept: Message) -> Answer:
        """Take a client's local steps from the broadcast and what it kept; encode what it sends."""
        job, flat = self.job, self.flat
        examples = job.data.clients[task.client]
        visit = Visit(job.seed, task.round, task.client, task.steps)
        parts = (*job.method.losses, *job.method.corrections)

        flat.load(broadcast["phi"], broadcast["buffers"])
        assignment = Assignment(
            flat=flat,
            broadcast=broadcast,
            kept=kept,
            lr=job.local.lr_at(task.round),
            steps=task.steps,
            label_counts=lambda: _label_counts(examples, job.data.classes),
            copies=self._copies,
            scratch=self._delta,
        )
        for part in parts:
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
            visit,
        )

        torch.sub(flat.w, broadcast["phi"], out=self._delta)
        departure = self._departure(visit)
        for part in parts:
            part.end(self._delta, departure)
        if "delta" not in departure.upload:
            departure.send("delta", self._delta)
        upload = {**departure.upload, "buffers": flat.read_buffers() - broadcast["buffers"]}
        return Answer(task.client, len(examples), task.steps, loss, upload, departure.keep)

    @torch.no_grad()
    def evaluate(self, model: Message, first: int, last: int) -> Evaluation:
        """Sums over the test examples from `first` up to `last`."""
        flat, data = self.flat, self.job.data
        flat.load(model["theta"], model["buffers"])
        flat.module.eval()
        x, y = data.test.fetch(torch.arange(first, last))
        forward = Forward(flat.module, flat.prepare(data.pipeline(x)), y)
        loss = float(self.job.method.empirical(forward)) * len(y)
        return Evaluation(len(y), loss, _correct(forward.logits, y))

    def _departure(self, visit: Visit) -> Departure:
        link, random = self.job.method.link, visit.random("link")
        return Departure(
            encode=lambda vector: link.encode(vector, random),
            decode=lambda payload: link.decode(payload, self.flat.w),
        )


def _correct(logits: Tensor, y: Tensor) -> int:
    """How many labels are the largest logit; none where the outputs are not one row of logits an example."""
    if y.is_floating_point() or logits.dim() != 2:
        return 0
    return int((logits.argmax(dim=1) == y).sum())


def _label_counts(examples: Examples, classes: int) -> Tensor:
    return torch.bincount(labels(examples), minlength=classes)
