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
from fedacg.methods.rules import Reply
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

    def groups(self) -> Iterator[tuple[Answers, list[Reply]]]:
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
            clients = [task.client for task in answers.tasks]
            for probe in self._probes:
                probe.see(Arrivals(clients, weights, deltas, buffers))
            yield answers, self._made(answers, weights, deltas, buffers, tensors)
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
    ) -> list[Reply]:
        """A reply for every row of what a group of clients sent."""
        local, share = self._job.local, 1 / len(self._weights)
        delta, buffer = deltas.unbind(), buffers.unbind()
        extra = {name: rows.unbind() for name, rows in extras.items()}
        encoded = is_encoded if self._job.method.chain.links else lambda _: False
        payload = {name: rows.unbind() for name, rows in answers.upload.items() if encoded(name)}
        nothing: Message = {}  # one for all: replies are many
        return [
            Reply(
                client=task.client,
                weight=weights[row],
                share=share,
                examples=examples,
                steps=task.steps,
                total_lr=self._total_lr(task.round.lr, task.steps, -(-examples // local.batch)),
                loss=answers.losses[row],
                delta=delta[row],
                buffers=buffer[row],
                extras={name: rows[row] for name, rows in extra.items()} if extra else nothing,
                payloads={name: rows[row] for name, rows in payload.items()} if payload else nothing,
            )
            for row, (task, examples) in enumerate(zip(answers.tasks, answers.examples, strict=True))
        ]
