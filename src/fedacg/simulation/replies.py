"""A round's answers on their way to the server rule: decoded, checked, weighed and counted, group by group."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Protocol

from torch import Tensor

from fedacg.core.round import BESIDE, Message, Round, is_encoded, message_bytes
from fedacg.errors import RunError
from fedacg.methods.reply import ReplyRows
from fedacg.simulation.engine import Answers, Job, Training
from fedacg.simulation.schedule import rates_of_steps, total_rate


@dataclass(frozen=True)
class Arrivals:
    """The updates of some clients as the server sees them, one row each."""

    clients: Sequence[int]
    weights: Sequence[float]
    deltas: Tensor
    buffers: Tensor
    """How normalisation buffers changed."""


class Probe(Protocol):
    """An observer of a round's updates as they arrive; it changes nothing."""

    def begin(self, round: int, broadcast: Message) -> None:
        """A round begins, with this message to its clients."""
        ...

    def see(self, arrivals: Arrivals) -> None:
        """Updates have arrived, in the order of the cohort; they are valid until this returns."""
        ...

    def end(self) -> None:
        """All updates have arrived."""
        ...


class Replies:
    """The replies of one round, streamed: training goes on as they are taken, and none is held for long."""

    def __init__(
        self,
        job: Job,
        round: Round,
        broadcast: Message,
        training: Training,
        weights: Sequence[float],
        probes: Sequence[Probe],
    ) -> None:
        self._job, self._round, self._broadcast = job, round, broadcast
        self._training, self._weights, self._probes = training, weights, probes
        for link in job.method.chain.links:
            link.hear(broadcast)
        self._total_lr = cache(lambda *of: total_rate(rates_of_steps(job.local, *of)))
        self.clients: list[int] = []
        """Those that answered."""
        self.examples: list[int] = []
        self.losses: list[float] = []
        self.bytes = 0
        self.seconds = 0.0
        """Time spent waiting for clients."""
        self.buffers = broadcast["buffers"].clone()
        """Normalisation buffers: averaged like weights, without momentum, penalty or quantisation."""

    @property
    def loss(self) -> float:
        """The weighted mean of the clients' training losses; NaN when nobody answered."""
        if not self.losses:
            return math.nan
        return sum(weight * loss for weight, loss in zip(self._weights, self.losses, strict=True))

    def groups(self) -> Iterator[tuple[Answers, ReplyRows]]:
        """The answers of each group of clients, with the replies made from them."""
        for probe in self._probes:
            probe.begin(self._round.number, self._broadcast)
        while (answers := self._wait()) is not None:
            tensors = self._decode(answers)
            first = len(self.losses)
            weights = self._weights[first : first + len(answers.losses)]
            self._count(answers)
            deltas, buffers = tensors.pop("delta"), tensors.pop("buffers")
            if len(self.buffers):
                for change, weight in zip(buffers, weights, strict=True):
                    self.buffers.add_(change, alpha=weight)
            made = self._made(answers, weights, deltas, buffers, tensors)
            for probe in self._probes:
                probe.see(Arrivals(made.clients, weights, deltas, buffers))
            yield answers, made
        for probe in self._probes:
            probe.end()

    def _wait(self) -> Answers | None:
        """The answers of the next group of clients."""
        start = perf_counter()
        answers = next(self._training.answers, None)
        self.seconds += perf_counter() - start
        return answers

    def _decode(self, answers: Answers) -> dict[str, Tensor]:
        """Δ_i, or what a method sends in its place, and all the rest: a row for each client."""
        chain, like = self._job.method.chain, self._broadcast["phi"]
        tensors = {
            name.removeprefix(BESIDE): chain.decode_rows(rows, like) if is_encoded(name) else rows
            for name, rows in answers.upload.items()
        }
        for rows in tensors.values():
            finite = rows.sum(dim=1).isfinite()
            if not finite.all():
                client = answers.tasks[int(finite.int().argmin())].client
                raise RunError(
                    f"diverged in round {self._round.number}: the update of client {client} is not finite; "
                    "a lower local.lr or a local.clip may help"
                )
        return tensors

    def _count(self, answers: Answers) -> None:
        self.bytes += message_bytes(answers.upload)
        self.clients.extend(task.client for task in answers.tasks)
        self.examples.extend(answers.examples)
        self.losses.extend(answers.losses)

    def _made(
        self, answers: Answers, weights: Sequence[float], deltas: Tensor, buffers: Tensor, extras: Message
    ) -> ReplyRows:
        """The replies of a group of clients, from what it sent."""
        tasks, examples, batch = answers.tasks, answers.examples, self._job.local.batch

        def total_lr(row: int) -> float:
            return self._total_lr(tasks[row].round.lr, tasks[row].steps, -(-examples[row] // batch))

        links = self._job.method.chain.links
        return ReplyRows(
            clients=[task.client for task in tasks],
            weights=weights,
            share=1 / len(self._weights),
            examples=examples,
            steps=[task.steps for task in tasks],
            total_lr=total_lr,
            losses=answers.losses,
            deltas=deltas,
            extras=extras,
            buffers=buffers,
            payloads={name: rows for name, rows in answers.upload.items() if links and is_encoded(name)},
        )
