"""The work itself, wherever it is done: one resident model that serves any client of a job."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedacg.core.devices import place, seed_layers
from fedacg.core.messages import Message
from fedacg.core.randomness import stream_seed
from fedacg.core.vector import FlatModel, clone
from fedacg.data.device_copy import settle
from fedacg.data.examples import Examples, fetch, labels
from fedacg.methods.objective import Assignment, Departure, Forward
from fedacg.simulation import fused
from fedacg.simulation.engine import Answer, Answers, ClientMemory, Evaluation, Job, Task, check_device
from fedacg.simulation.local import Visit, train

_HOST = torch.device("cpu")


class FrozenCopies:
    """Copies of the network that a loss compares with; each is made once and overwritten for every client."""

    def __init__(self, module: nn.Module, channels_last: bool, device: torch.device = _HOST) -> None:
        self._module, self._channels_last, self._device = module, channels_last, device
        self._copies: dict[str, FlatModel] = {}

    def load(self, name: str, vector: Tensor, buffers: Tensor) -> nn.Module:
        if name not in self._copies:
            module = clone(self._module).to(self._device)
            self._copies[name] = FlatModel(module, channels_last=self._channels_last, frozen=True)
        flat = self._copies[name]
        flat.load(vector, buffers)
        return flat.module.eval()


class Worker:
    """Holds one model, overwritten in place for every client; keeps nothing of a client between rounds.

    Messages come and go in the CPU's memory; model, data and all computing are on the worker's device.
    """

    def __init__(self, job: Job, number: int = 0) -> None:
        self.job = job
        check_device(job.device)
        self.device = place(job.device, number)
        self.flat = FlatModel(clone(job.module).to(self.device), channels_last=job.channels_last)
        self._data = settle(job.data, self.device)
        self._copies = FrozenCopies(job.module, job.channels_last, self.device)
        self._sent: Message = {}
        self._broadcast: Message = {}
        self._delta = torch.empty_like(self.flat.w)
        if job.group > 1:
            self._w, self._deltas = self._delta.new_empty(2, job.group, len(self._delta))

    def train_group(self, group: Sequence[Task], broadcast: Message, kept: ClientMemory) -> Answers:
        """Train a group of clients, at once if the job has them fused; the answers are valid until the next."""
        if self.job.group > 1:
            return self._train_fused(group, broadcast)
        (task,) = group
        return Answers.of_one(task, self.train(task, broadcast, kept(task.client)))

    def train(self, task: Task, broadcast: Message, kept: Message) -> Answer:
        """Take a client's local steps from the broadcast and what it kept; encode what it sends."""
        job, flat, broadcast = self.job, self.flat, self._receive(broadcast)
        examples = self._data.clients[task.client]
        visit = self._visit(task)
        parts = (*job.method.losses, *job.method.corrections)

        flat.load(broadcast["phi"], broadcast["buffers"])
        assignment = self._assignment(task, examples, broadcast, _to(kept, self.device), self._delta)
        for part in parts:
            part.begin(assignment)
        seed_layers(self.device, stream_seed(job.seed, "layers", task.round, task.client))
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
        upload = {**departure.upload, "buffers": (flat.read_buffers() - broadcast["buffers"]).cpu()}
        return Answer(task.client, len(examples), task.steps, loss, upload, _to(departure.keep, _HOST))

    def _train_fused(self, group: Sequence[Task], broadcast: Message) -> Answers:
        """The same for many clients at once: a row of w for each, by falling K."""
        job, flat, broadcast = self.job, self.flat, self._receive(broadcast)
        order = sorted(range(len(group)), key=lambda place: -group[place].steps)
        visits = [self._visit(group[place]) for place in order]
        clients = [self._data.clients[visit.client] for visit in visits]
        w, deltas = self._w[: len(group)], self._deltas[: len(group)]

        w.copy_(broadcast["phi"])
        # Parts that fuse are the same for all clients of a round: the first one's assignment is everybody's.
        assignment = self._assignment(group[order[0]], clients[0], broadcast, {}, deltas)
        for part in (*job.method.losses, *job.method.corrections):
            part.begin(assignment)
        flat.module.train()
        losses = fused.train(
            flat, w, clients, job.data.pipeline, job.method.losses, job.method.corrections, job.local, visits
        )

        back = torch.tensor(order).argsort()
        torch.sub(w, broadcast["phi"], out=deltas)
        streams = (self._visit(task).random("link") for task in group)
        delta = job.method.link.encode_rows(deltas.cpu()[back], streams)
        return Answers(
            group,
            [len(clients[row]) for row in back.tolist()],
            [losses[row] for row in back.tolist()],
            upload={"delta": delta, "buffers": torch.empty(len(group), 0, dtype=w.dtype)},
            keep={},
        )

    @torch.no_grad()
    def evaluate(self, model: Message, first: int, last: int) -> Evaluation:
        """Sums over the test examples from `first` up to `last`."""
        flat, data = self.flat, self._data
        flat.load(model["theta"], model["buffers"])
        flat.module.eval()
        x, y = fetch(data.test, torch.arange(first, last), self.device)
        forward = Forward(flat.module, flat.prepare(data.pipeline(x)), y)
        loss = float(self.job.method.empirical(forward)) * len(y)
        return Evaluation(len(y), loss, _correct(forward.logits, y))

    def _receive(self, broadcast: Message) -> Message:
        """A round's broadcast on the device, where it is copied once."""
        if broadcast is not self._sent:
            self._sent, self._broadcast = broadcast, _to(broadcast, self.device)
        return self._broadcast

    def _visit(self, task: Task) -> Visit:
        return Visit(self.job.seed, task.round, task.client, task.steps)

    def _assignment(
        self, task: Task, examples: Examples, broadcast: Message, kept: Message, scratch: Tensor
    ) -> Assignment:
        return Assignment(
            flat=self.flat,
            broadcast=broadcast,
            kept=kept,
            lr=self.job.local.lr_at(task.round),
            steps=task.steps,
            label_counts=lambda: _label_counts(examples, self.job.data.classes).to(self.device),
            copies=self._copies,
            scratch=scratch,
        )

    def _departure(self, visit: Visit) -> Departure:
        link, random = self.job.method.link, visit.random("link")
        return Departure(
            encode=lambda vector: link.encode(vector.cpu(), random),
            decode=lambda payload: link.decode(payload, self.flat.w).to(self.device),
        )


def _to(message: Message, device: torch.device) -> Message:
    return {name: vector.to(device) for name, vector in message.items()}


def _correct(logits: Tensor, y: Tensor) -> int:
    """How many labels are the largest logit; none where the outputs are not one row of logits an example."""
    if y.is_floating_point() or logits.dim() != 2:
        return 0
    return int((logits.argmax(dim=1) == y).sum())


def _label_counts(examples: Examples, classes: int) -> Tensor:
    return torch.bincount(labels(examples), minlength=classes)
