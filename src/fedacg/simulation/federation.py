"""The round loop, Algorithm 1 of the paper: sample, broadcast, train in parallel, aggregate, evaluate.

It knows neither processes nor the run folder: an engine trains, and the caller that iterates over rounds saves
them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter
from typing import Protocol

from torch import Tensor

from fedacg.config.sections import EvaluateSettings
from fedacg.core.round import Message, Round, message_bytes
from fedacg.core.vector import FlatModel, clone
from fedacg.errors import RunError
from fedacg.methods.rules import State, Totals
from fedacg.simulation.clients import ClientFigures
from fedacg.simulation.clock import CLOCK
from fedacg.simulation.engine import Answers, Engine, Job, Network, Task, Training, nothing_kept
from fedacg.simulation.evaluator import Evaluator
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.probes import Account, Drift
from fedacg.simulation.replies import Probe, Replies
from fedacg.simulation.sampling import Attendance, Sampling
from fedacg.simulation.schedule import rate_of_round
from fedacg.simulation.scoring import Metric


@dataclass(frozen=True)
class ServerState:
    """Where a federation stands: the rounds done and the server's vectors after them."""

    round: int
    vectors: State


def first_server(job: Job) -> ServerState:
    """The server before the first round."""
    flat = FlatModel(clone(job.module), channels_last=job.channels_last)
    return ServerState(0, {**job.first_state(flat.w), "buffers": flat.read_buffers()})


class Memory(Protocol):
    """What clients keep between rounds."""

    def read(self, client: int) -> Message:
        """What a client kept from its last visit; empty before its first."""
        ...

    def write(self, round: int, client: int, state: Message) -> None:
        """Store what a client keeps from a round."""
        ...


class Federation:
    """A job, its participants, and the engine that does the work; `server` is consistent at every instant."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        *,
        rounds: int,
        sampling: Sampling,
        evaluate: EvaluateSettings,
        memory: Memory,
        probes: Sequence[Probe] = (),
        account: Account | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.job, self.engine, self.rounds, self.memory = job, engine, rounds, memory
        self.sampling, self._evaluate = sampling, evaluate
        self._size = cache(job.data.clients.size)
        self._planned = cache(lambda client: job.local.steps_for(self._size(client)))
        self._drift, self._network = Drift(job.module), Network(job)
        self._probes = (self._drift, *probes)
        self.server = first_server(job)
        self._ready = False
        self._history: list[RoundMetrics] = []
        self._evaluator = Evaluator(job, engine, evaluate, rounds, memory.read, metrics or {})
        self.account = account
        """The privacy spent, if the method promises any."""

    def resume(self, server: ServerState, history: Iterable[RoundMetrics]) -> None:
        """Continue from where an earlier federation stopped, after its rounds."""
        self.server, self._history = server, list(history)

    def run(self) -> Iterator[RoundMetrics]:
        """Run the remaining rounds, one at a time."""
        self._setup()
        for number in range(self.server.round + 1, self.rounds + 1):
            metrics = self._play(self._context(number))
            self._history.append(metrics)
            yield metrics

    def _setup(self) -> None:
        """Give the engine its job, once."""
        if not self._ready:
            self.engine.setup(self.job)
            self._ready = True

    def _play(self, round: Round) -> RoundMetrics:
        """One round: sample, broadcast, train, aggregate."""
        rule, state, start = self.job.method.rule, self.server.vectors, perf_counter()
        attendance = self.sampling.attendance(round.number, self._history)
        tasks = self._tasks(round, attendance)

        state, broadcast, asked_first = self._broadcast(state, round, tasks)
        asked = perf_counter()
        training = self.engine.train(broadcast, tasks, self.memory.read)
        waited = perf_counter() - asked
        replies = Replies(self.job, round, broadcast, training, self._weights(tasks, training), self._probes)
        totals = Totals(rule, self._network)
        for answers, group in replies.groups():
            totals.add_rows(group)
            self._keep(round, answers)
        if totals.count or rule.always:  # by default, without answers nothing moves and nothing decays
            moved = rule.step(state, totals, round)
            buffers = replies.buffers if rule.common else state["buffers"]
            state = {**moved, "buffers": moved["buffers"] if rule.moves_buffers else buffers}
        beside_down, beside_up = rule.beside_bytes(len(attendance.asked), totals.count)
        waited += replies.seconds + asked_first.seconds

        spent = self.account.scores(self._history, attendance.asked) if self.account else {}
        down = 0 if rule.silent else len(attendance.asked) * message_bytes(broadcast) + beside_down
        return self._finish(
            round,
            state,
            replies,
            (start, waited),
            cohort=attendance.asked,
            stragglers=[client for client in attendance.stragglers if client not in training.lost],
            sent=(down, 0 if rule.silent else asked_first.bytes + replies.bytes + beside_up),
            training=training,
            scores={**totals.figures, **spent, **self._time(attendance.seconds)},
        )

    def _finish(
        self,
        round: Round,
        state: State,
        replies: Replies,
        since: tuple[float, float],
        *,
        cohort: tuple[int, ...],
        stragglers: Sequence[int],
        sent: tuple[int, int],
        training: Training,
        scores: Mapping[str, float],
    ) -> RoundMetrics:
        """Evaluate the server after a round, and measure the round.

        `since` is when it began and how long it waited for clients, `sent` are bytes down and up.
        """
        start, waited = since
        aggregated = perf_counter()
        tested = self._evaluator.due(state, round, self._history, replies.clients)
        self.server = ServerState(round.number, state)
        return RoundMetrics(
            round=round.number,
            lr=round.lr,
            cohort=cohort,
            answered=tuple(replies.clients),
            stragglers=tuple(stragglers) or None,
            examples=sum(replies.examples),
            train_loss=replies.loss,
            bytes_down=sent[0],
            bytes_up=sent[1],
            seconds_train=waited,
            seconds_aggregate=aggregated - start - waited,
            seconds_evaluate=perf_counter() - aggregated,
            test_accuracy=tested.accuracy,
            test_loss=tested.loss,
            client_losses=tuple(replies.losses) if self._evaluate.client_losses else None,
            drift=self._drift.figures(self.job.method.rule.momentum(state))
            if replies.clients and not training.stand_ins
            else None,
            scores={**tested.scores, **scores} or None,
            extra={"lost": {str(client): why for client, why in training.lost.items()}} if training.lost else {},
        )

    def _time(self, seconds: float) -> dict[str, float]:
        """The clock's time after a round of this duration; empty without a clock."""
        if self.sampling.clock is None:
            return {}
        before = self._history[-1].score(CLOCK) if self._history else 0.0
        return {CLOCK: (before or 0.0) + seconds}

    def _context(self, number: int) -> Round:
        lr = rate_of_round(self.job.local, number, self.rounds)
        return Round(number, len(self.job.data.clients), self.sampling.size, lr, self.job.seed, self.rounds)

    def _tasks(self, round: Round, attendance: Attendance) -> list[Task]:
        """The tasks of the clients that will answer."""
        stragglers, bad, steps = set(attendance.stragglers), self.sampling.bad, self.sampling.steps
        return [
            Task(round, client, steps(self._planned(client), client in stragglers), bad=client in bad)
            for client in attendance.answered
        ]

    def _broadcast(
        self, state: State, round: Round, tasks: Sequence[Task]
    ) -> tuple[State, Message, "_FirstExchange"]:
        """The broadcast, after a first exchange of full gradients if the rule asks for one."""
        rule, first = self.job.method.rule, _FirstExchange()
        broadcast = rule.broadcast(state, round)
        if rule.first_exchange and tasks:
            point = {"phi": broadcast["phi"], "buffers": state["buffers"]}
            training = self.engine.train(point, [task._replace(steps=0) for task in tasks], nothing_kept)
            gradient = first.mean(training.answers, self._weights(tasks, training))
            state = {**rule.learn(state, gradient, round), "buffers": state["buffers"]}
            broadcast = rule.broadcast(state, round)
        return state, {**broadcast, "buffers": state["buffers"]}, first

    def _weights(self, tasks: Sequence[Task], training: Training) -> list[float]:
        """ω_i of the clients that answer."""
        return self.sampling.weigh([self._size(task.client) for task in tasks if task.client not in training.lost])

    def _keep(self, round: Round, answers: Answers) -> None:
        """Store what clients keep."""
        if answers.keep:
            for task, keep in zip(answers.tasks, answers.rows(answers.keep), strict=True):
                self.memory.write(round.number, task.client, keep)

    def conclude(self) -> RoundMetrics | None:
        """The last round with the full evaluation of a run's last round; None if nothing was missing.

        For a run that ends early.
        """
        if not self._history or not self._evaluator.lacks(self._history[-1].round):
            return None
        self._setup()
        last, start = self._history[-1], perf_counter()
        tested = self._evaluator.rest(self.server.vectors, self._context(last.round), self._history)
        concluded = replace(
            last,
            test_accuracy=last.test_accuracy if tested.accuracy is None else tested.accuracy,
            test_loss=last.test_loss if tested.loss is None else tested.loss,
            scores={**(last.scores or {}), **tested.scores} or None,
            seconds_evaluate=last.seconds_evaluate + perf_counter() - start,
        )
        self._history[-1] = concluded
        return concluded

    @property
    def clients(self) -> tuple[ClientFigures, ...]:
        """The results of single clients in their last evaluation."""
        return self._evaluator.clients


class _FirstExchange:
    """The full gradients that clients send before they train, summed up and counted."""

    def __init__(self) -> None:
        self.bytes, self.seconds = 0, 0.0

    def mean(self, groups: Iterator[Answers], weights: Sequence[float]) -> Tensor:
        """Σ ω_i ∇f_i(φ), in the order of the cohort."""
        start, waiting = perf_counter(), iter(weights)
        total: Tensor | None = None
        for answers in groups:
            self.bytes += message_bytes(answers.upload)
            for gradient in answers.upload["gradient"]:
                term = gradient * next(waiting)
                total = term if total is None else total.add_(term)
        self.seconds = perf_counter() - start
        if total is None:
            raise RunError("no client answered in the first exchange of a round")
        return total
