"""The work itself, wherever it is done: one resident model that serves any client of a job."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from fedacg.core.randomness import stream_seed
from fedacg.core.round import Message, Round, kinds
from fedacg.core.tensors import device_of_worker, seed_layers
from fedacg.core.vector import FlatModel, as_rows, clone
from fedacg.data.examples import Examples, ViewExamples, feed, fetch, labels, settle
from fedacg.methods.baselines import OWN, OWN_BUFFERS
from fedacg.methods.method import Method
from fedacg.methods.parts import Forward
from fedacg.methods.upload import Memory
from fedacg.methods.visit import Assignment, Departure
from fedacg.simulation import fused
from fedacg.simulation.attacks import Mislabelled, falsify
from fedacg.simulation.clients import FIGURES
from fedacg.simulation.engine import (
    Answer,
    Answers,
    Held,
    Job,
    Measured,
    See,
    Task,
    Traffic,
    as_row,
    check_device,
    chunks,
)
from fedacg.simulation.local import full_gradient, train
from fedacg.simulation.schedule import rates_of_steps, total_rate
from fedacg.simulation.scoring import Evaluation, examples_per_pass, measure, total

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
        self.device = device_of_worker(job.device, number)
        self.flat = FlatModel(clone(job.module).to(self.device), channels_last=job.channels_last)
        self._data = settle(job.data, self.device)
        self._copies = FrozenCopies(job.module, job.channels_last, self.device)
        self._schedule = lru_cache(partial(rates_of_steps, job.local))  # few clients of a round differ in it
        self._sent: Message = {}
        self._broadcast: Message = {}
        self._delta = torch.empty_like(self.flat.w)
        self._pass = 0
        if job.group > 1:
            self._w, self._deltas = self._delta.new_empty(2, job.group, len(self._delta))

    def serve(self, group: Sequence[Task], broadcast: Message, kept: Message) -> Answers:
        """Do the work of a group of clients, at once if the job has them fused; `kept` has a row for each.

        The answers are valid until the next.
        """
        if group[0].measure:
            return self._figures(group, self._receive(broadcast), kept)
        if not group[0].steps:
            return self._gradients(group, self._receive(broadcast))
        if self.job.group > 1:
            return self._train_together(group, self._receive(broadcast), kept)
        (task,) = group
        return Answers.of_one(task, self.train(task, broadcast, {name: rows[0] for name, rows in kept.items()}))

    def train(self, task: Task, broadcast: Message, kept: Message) -> Answer:
        """Take a client's local steps from the broadcast and what it kept; encode what it sends."""
        job, flat, broadcast, kept = self.job, self.flat, self._receive(broadcast), _to(kept, self.device)
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
        kept = _to({name: rows[order] for name, rows in kept.items()}, self.device)

        flat.module.train()
        assignment = self._assignment(tasks, clients, broadcast, kept, rates, deltas)
        for part in job.method.parts:
            part.begin(assignment)
        start = self._start(broadcast["phi"])
        w.copy_(start)
        losses = fused.train(
            flat, w, clients, job.data.pipeline, job.method, job.local, rates, [task.seed_of for task in tasks]
        )

        torch.sub(w, start, out=deltas)
        upload, keep = self._leave(tasks, w, deltas, w.new_empty(len(group), 0), kept)
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
        links = _to({name: rows for name, rows in kept.items() if name.startswith(_LINKS)}, _HOST)
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
        return upload, _to(keep, _HOST)

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

    def _figures(self, group: Sequence[Task], broadcast: Message, kept: Message) -> Answers:
        """Evaluate the broadcast model, or a client's own, on the examples for evaluating clients."""
        rows = torch.zeros(len(group), FIGURES, dtype=torch.float64)
        for row, task in enumerate(group):
            mine = _to({name: each[row] for name, each in kept.items()}, self.device)
            own = OWN in mine
            self.flat.load(
                mine[OWN] if own else broadcast["phi"],
                mine[OWN_BUFFERS] if own and OWN_BUFFERS in mine else broadcast["buffers"],
            )
            on = self._measured.test[task.client] if task.measure == "client" else self._held(task.measure)
            found = [self._on(on)]
            if task.measure == "client" and task.steps:
                self._fine_tune(task)
                found.append(self._on(on))
            numbers = [n for each in found for n in (each.loss, each.correct, each.counted)]
            rows[row, : 1 + len(numbers)] = torch.tensor([len(on), *numbers], dtype=torch.float64)
        return Answers(group, [0] * len(group), [0.0] * len(group), upload={"figures": rows}, keep={})

    @property
    def _measured(self) -> Measured:
        assert self.job.measured is not None
        return self.job.measured

    def _fine_tune(self, task: Task) -> None:
        """Plain steps on the client's training examples, from where the model is."""
        job = self.job
        plain = Method(job.method.rule, (job.method.empirical,))
        self._seed_layers(task, "personal")
        self.flat.module.train()
        train(
            self.flat,
            self._measured.train[task.client],
            job.data.pipeline,
            plain,
            job.local,
            [task.round.lr] * task.steps,
            lambda purpose: task.random(f"personal {purpose}"),
        )

    def _held(self, part: str) -> Examples:
        held = self._data.validation if part == "validation" else self._data.test
        assert held is not None
        return held

    def _on(self, examples: Examples) -> Evaluation:
        """Sums over all of some examples for the model as it is."""
        spans = chunks(len(examples), self.job.evaluate_batch)
        return total([self._sums(examples, first, last) for first, last in spans])

    def evaluate(
        self, model: Message, first: int, last: int, part: Held = "test", see: See | None = None
    ) -> Evaluation:
        """Sums over the examples of a part from `first` up to `last`, whose outputs are shown to `see`."""
        self.flat.load(model["theta"], model["buffers"])
        return self._sums(self._held(part), first, last, see)

    @torch.no_grad()
    def _sums(self, examples: Examples, first: int, last: int, see: See | None = None) -> Evaluation:
        """Sums over the examples from `first` up to `last` for the model as it is."""
        flat = self.flat
        flat.module.eval()
        found, seen = [], []
        for index in torch.split(torch.arange(first, last), self._pass_over(examples)):
            x, y = fetch(examples, index, self.device)
            forward = Forward(flat.module, feed(flat, self._data.pipeline, x), y)
            loss = float(self.job.method.empirical(forward)) * len(y)
            found.append(measure(self.job.aim, forward.logits, y, loss))
            if see is not None:
                outputs = forward.logits.cpu()  # NumPy has no bfloat16
                seen.append((outputs.float() if outputs.dtype == torch.bfloat16 else outputs, y.cpu()))
        if see is not None:
            see(*map(torch.cat, zip(*seen, strict=True)))
        return total(found)

    def _pass_over(self, examples: Examples) -> int:
        """How many examples go through the network at once; found once, with the first."""
        if not self._pass and len(examples):
            x, _ = fetch(examples, torch.arange(1), self.device)
            self._pass = examples_per_pass(self.flat.module, feed(self.flat, self._data.pipeline, x))
        return self._pass or 1

    def _examples(self, task: Task) -> Examples:
        """What a client trains on."""
        examples = self._data.clients[task.client]
        if task.bad and self.job.failures.attack == "label-flip":
            return Mislabelled(examples, self.job.data.classes)
        return examples

    def _receive(self, broadcast: Message) -> Message:
        """A round's broadcast on the device, where it is copied once."""
        if broadcast is not self._sent:
            self._sent, self._broadcast = broadcast, _to(broadcast, self.device)
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

    def _seed_layers(self, task: Task, purpose: str) -> None:
        seed_layers(self.device, stream_seed(self.job.seed, purpose, task.round.number, task.client))


_LINKS = "upload/"
"""Where the links of the upload chain keep what they keep."""
FEW = 2
"""Examples of the rehearsal: normalisation over a batch needs more than one."""


def rehearse(job: Job) -> Traffic:
    """One step of one client on two examples, from the state before the first round: what is sent and kept.

    It changes nothing, and what cannot work at all fails here, before anything is begun.
    """
    clients = job.data.clients
    client = next((c for c in range(min(len(clients), 64)) if clients.size(c) >= FEW), 0)
    few = ViewExamples(clients[client], torch.arange(min(FEW, clients.size(client))))
    worker = Worker(replace(job, group=1, device="cpu", data=replace(job.data, clients=_One(client, few))))
    rule, buffers = job.method.rule, worker.flat.read_buffers()
    round = Round(number=1, clients=len(clients), expected=1, lr=job.local.lr, seed=job.seed)
    state = job.first_state(worker.flat.w.clone())
    first: Message = {}
    with torch.random.fork_rng(devices=[]):
        if rule.first_exchange:
            phi = rule.broadcast(state, round)["phi"]
            (gradient,) = worker.serve([Task(round, client, 0)], {"phi": phi, "buffers": buffers}, {})
            first = gradient.upload
            state = rule.learn(state, first["gradient"], round)
        broadcast = {**rule.broadcast(state, round), "buffers": buffers}
        answer = worker.train(Task(round, client, 1), broadcast, {})
    return Traffic(*map(kinds, (broadcast, answer.upload, first, answer.keep)))


class _One:
    """A federation in which only one client can be asked."""

    def __init__(self, client: int, examples: Examples) -> None:
        self._client, self._examples = client, examples

    def __len__(self) -> int:
        return self._client + 1

    def __getitem__(self, client: int) -> Examples:
        return self._examples

    def size(self, client: int) -> int:
        return len(self._examples)


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Numbers one below the other, of the type and device of a vector."""
    return torch.tensor(numbers, dtype=like.dtype).unsqueeze(1).to(like.device)


def _to(message: Message, device: torch.device) -> Message:
    return {name: tensor.to(device) for name, tensor in message.items()}
