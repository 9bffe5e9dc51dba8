"""The work itself, wherever it is done: one resident model that serves any client of a job."""

from collections.abc import Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from fedacg.core.round import Message
from fedacg.core.vector import FlatModel, as_rows, clone
from fedacg.data.examples import Examples, labels
from fedacg.methods.upload import Memory
from fedacg.methods.visit import Assignment, Departure
from fedacg.simulation import fused
from fedacg.simulation.attacks import Mislabelled, falsify
from fedacg.simulation.engine import Answer, Answers, Job, Task, as_row, to_device
from fedacg.simulation.local import full_gradient, train
from fedacg.simulation.resident import Resident
from fedacg.simulation.schedule import rates_of_steps, total_rate

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


class Worker(Resident):
    """Holds one model, overwritten in place for every client; keeps nothing of a client between rounds.

    Messages come and go in the CPU's memory; model, data and all computing are on the worker's device.
    """

    def __init__(self, job: Job, number: int = 0) -> None:
        super().__init__(job, number)
        self._copies = FrozenCopies(job.module, job.channels_last, self.device)
        self._schedule = lru_cache(partial(rates_of_steps, job.local))  # few clients of a round differ in it
        self._sent: Message = {}
        self._broadcast: Message = {}
        self._delta = torch.empty_like(self.flat.w)
        if job.group > 1:
            self._w, self._deltas = self._delta.new_empty(2, job.group, len(self._delta))

    def serve(self, group: Sequence[Task], broadcast: Message, kept: Message) -> Answers:
        """Do the work of a group of clients, at once if the job has them fused; `kept` has a row for each.

        The answers are valid until the next.
        """
        if group[0].measure:
            return self.figures(group, self._receive(broadcast), kept)
        if not group[0].steps:
            return self._gradients(group, self._receive(broadcast))
        if self.job.group > 1:
            return self._train_together(group, self._receive(broadcast), kept)
        (task,) = group
        return Answers.of_one(task, self.train(task, broadcast, {name: rows[0] for name, rows in kept.items()}))

    def train(self, task: Task, broadcast: Message, kept: Message) -> Answer:
        """Take a client's local steps from the broadcast and what it kept; encode what it sends."""
        job, flat, broadcast, kept = self.job, self.flat, self._receive(broadcast), to_device(kept, self.device)
        examples = self._examples(task)
        rates = self._rates(task, examples)

        flat.load(broadcast["phi"], broadcast["buffers"])
        assignment = self._assignment([task], [examples], broadcast, kept, [rates], self._delta)
        for part in job.method.parts:
            part.begin(assignment)
        start = self._start(broadcast["phi"])
        flat.w.copy_(start)
        self._seed_layers(task, "layers")
        flat.module.train()
        loss = train(flat, examples, job.data.pipeline, job.method, job.local, rates, task.random)

        torch.sub(flat.w, start, out=self._delta)
        buffers = flat.read_buffers() - broadcast["buffers"]
        upload, keep = self._leave([task], flat.w, self._delta, buffers, as_row(kept))
        answer = Answers([task], [len(examples)], [loss], upload, keep)
        return next(iter(answer))

    def _train_together(self, group: Sequence[Task], broadcast: Message, kept: Message) -> Answers:
        """The same for many clients at once: a row of w for each, by falling K."""
        job, flat = self.job, self.flat
        order = sorted(range(len(group)), key=lambda place: -group[place].steps)
        tasks = [group[place] for place in order]
        clients = [self._examples(task) for task in tasks]
        rates = [self._rates(task, examples) for task, examples in zip(tasks, clients, strict=True)]
        w, deltas = self._w[: len(group)], self._deltas[: len(group)]
        kept = to_device({name: rows[order] for name, rows in kept.items()}, self.device)

        if not flat.module.training:
            flat.module.train()
        assignment = self._assignment(tasks, clients, broadcast, kept, rates, deltas)
        for part in job.method.parts:
            part.begin(assignment)
        start = self._start(broadcast["phi"])
        w.copy_(start)
        seeds = [task.seed_of for task in tasks]
        buffers = broadcast["buffers"].expand(len(group), -1).clone()
        losses = fused.train(flat, w, clients, job.data.pipeline, job.method, job.local, rates, seeds, buffers)

        torch.sub(w, start, out=deltas)
        upload, keep = self._leave(tasks, w, deltas, buffers.sub_(broadcast["buffers"]), kept)
        answers = Answers(tasks, [len(examples) for examples in clients], losses, upload, keep)
        return answers if tasks == list(group) else answers.ordered(torch.tensor(order).argsort())

    def _start(self, phi: Tensor) -> Tensor:
        """Where local steps start: at φ, unless a part moves the point."""
        for part in self.job.method.parts:
            phi = part.start(phi)
        return phi

    def _leave(
        self, tasks: Sequence[Task], w: Tensor, delta: Tensor, buffers: Tensor, kept: Message
    ) -> tuple[Message, Message]:
        """What clients send and what they keep, a row for each; `kept` has rows too."""
        for row, task in enumerate(tasks):
            if task.bad:
                falsify(self.job.failures, as_rows(delta, len(tasks))[row], task.random("attack"))
        chain = self.job.method.chain
        using = tasks if chain.links else ()  # an empty chain has no use for memories and randomness
        links = to_device({name: rows for name, rows in kept.items() if name.startswith(_LINKS)}, _HOST)
        memories = [
            Memory({name: rows[row] for name, rows in links.items()}, {}, _LINKS) for row in range(len(using))
        ]
        randoms = [task.random("link") for task in using]
        departure = Departure(chain, w, memories, randoms, self._broadcast)
        for part in self.job.method.parts:
            part.end(delta, departure)
        upload = departure.finish(delta, buffers)
        keep: dict[str, Tensor] = {}
        for part in self.job.method.parts:
            keep |= {name: as_rows(tensor, len(tasks)) for name, tensor in part.keep(departure.arrived).items()}
        for name in memories[0].keep if memories else ():
            keep[name] = torch.stack([memory.keep[name] for memory in memories])
        return upload, to_device(keep, _HOST)

    def _gradients(self, group: Sequence[Task], broadcast: Message) -> Answers:
        """The full gradients of clients at φ."""
        rows, sizes = [], []
        for task in group:
            examples = self._data.clients[task.client]
            assignment = self._assignment([task], [examples], broadcast, {}, [()], self._delta)
            for part in self.job.method.losses:
                part.begin(assignment)
            rows.append(assignment.full_gradient().cpu())
            sizes.append(len(examples))
        return Answers(group, sizes, [0.0] * len(group), upload={"gradient": torch.stack(rows)}, keep={})

    def _examples(self, task: Task) -> Examples:
        """What a client trains on."""
        examples = self._data.clients[task.client]
        if task.bad and self.job.failures.attack == "label-flip":
            return Mislabelled(examples, self.job.data.classes)
        return examples

    def _receive(self, broadcast: Message) -> Message:
        """A round's broadcast on the device, where it is copied once."""
        if broadcast is not self._sent:
            self._sent, self._broadcast = broadcast, to_device(broadcast, self.device)
        return self._broadcast

    def _rates(self, task: Task, examples: Examples) -> tuple[float, ...]:
        return self._schedule(task.round.lr, task.steps, -(-len(examples) // self.job.local.batch))

    def _assignment(
        self,
        tasks: Sequence[Task],
        clients: Sequence[Examples],
        broadcast: Message,
        kept: Message,
        rates: Sequence[tuple[float, ...]],
        scratch: Tensor,
    ) -> Assignment:
        steps, totals = [task.steps for task in tasks], [total_rate(mine) for mine in rates]
        alone = scratch.dim() == 1
        return Assignment(
            flat=self.flat,
            broadcast=broadcast,
            kept=kept,
            round=tasks[0].round,
            local=self.job.local,
            steps=steps[0] if alone else _column(steps, scratch),
            total_lr=totals[0] if alone else _column(totals, scratch),
            label_counts=lambda: self._label_counts(clients).view(*scratch.shape[:-1], -1),
            full_gradient=lambda: self._full_gradient(tasks, clients, broadcast).view(scratch.shape),
            copies=self._copies,
            scratch=scratch,
            rates=rates,
            randoms=[task.random for task in tasks],
        )

    def _label_counts(self, clients: Sequence[Examples]) -> Tensor:
        """n_{i,c} of these clients, a row each."""
        counts = [torch.bincount(labels(examples), minlength=self.job.data.classes) for examples in clients]
        return torch.stack(counts).to(self.device)

    def _full_gradient(self, tasks: Sequence[Task], clients: Sequence[Examples], broadcast: Message) -> Tensor:
        """∇f_i(φ) of these clients, a row each; leaves the model at φ."""
        job, flat, found = self.job, self.flat, []
        flat.module.train()
        flat.load(broadcast["phi"], broadcast["buffers"])
        for task, examples in zip(tasks, clients, strict=True):
            self._seed_layers(task, "full gradient")
            found.append(full_gradient(flat, examples, job.data.pipeline, job.method.losses, job.evaluate_batch))
        return torch.stack(found)


_LINKS = "upload/"
"""Where the links of the upload chain keep what they keep."""


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Numbers one below the other, of the type and device of a vector."""
    return torch.tensor(numbers, dtype=like.dtype).unsqueeze(1).to(like.device)
