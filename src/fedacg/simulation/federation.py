"""The round loop, Algorithm 1 of the paper: sample, broadcast, train in parallel, aggregate, evaluate.

Knows neither processes nor the run folder: an engine trains, and whoever iterates over the rounds saves them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from fedacg.config.sections import EvaluateSettings
from fedacg.core.messages import Message, message_bytes
from fedacg.core.vector import FlatModel, clone
from fedacg.errors import RunError
from fedacg.methods.rules import Reply, State
from fedacg.runs.client_states import ClientStates
from fedacg.runs.recording import Recorder
from fedacg.simulation.drift import Drift, stage_slices
from fedacg.simulation.engine import Answers, Engine, Job, Task
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.sampling import Attendance, Sampling


@dataclass(frozen=True)
class Moment:
    """Where a federation stands: the rounds done and the server's vectors after them."""

    round: int
    state: State


class Federation:
    """A job, who takes part, and the engine that does the work; `moment` is whole at every instant."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        *,
        rounds: int,
        sampling: Sampling,
        evaluate: EvaluateSettings,
        memory: ClientStates,
        recorder: Recorder | None = None,
    ) -> None:
        self.job, self.engine, self.rounds, self.memory = job, engine, rounds, memory
        self.sampling, self.recorder, self._evaluate = sampling, recorder, evaluate
        self.stages = list(stage_slices(job.module).values())
        flat = FlatModel(clone(job.module), channels_last=job.channels_last)
        self.moment = Moment(0, {**job.method.rule.init(flat.w), "buffers": flat.read_buffers()})

    def resume(self, moment: Moment) -> None:
        """Go on from where an earlier federation stood."""
        self.moment = moment

    def run(self) -> Iterator[RoundMetrics]:
        """Play the rounds that are left, one at a time."""
        self.engine.setup(self.job)
        rule, local = self.job.method.rule, self.job.local
        for round in range(self.moment.round + 1, self.rounds + 1):
            state = self.moment.state
            attendance = self.sampling.attendance(round)
            start = perf_counter()
            sizes = {client: self.job.data.clients.size(client) for client in attendance.answered}
            tasks = self._tasks(round, attendance, sizes)

            broadcast = {**rule.broadcast(state), "buffers": state["buffers"]}
            asked = perf_counter()
            answers = self.engine.train(broadcast, tasks, self.memory.read)
            waited, lost = perf_counter() - asked, self.engine.lost
            answered = [task.client for task in tasks if task.client not in lost]
            replies = Replies(self, answers, round, [sizes[client] for client in answered], state, broadcast)
            if answered:  # when nobody answers, nothing moves and nothing decays
                state = {**rule.step(state, replies, len(self.job.data.clients)), "buffers": replies.buffers}
            aggregated = perf_counter()
            waited += replies.seconds

            evaluated = round % self._evaluate.every == 0 or round == self.rounds
            test = self.engine.evaluate(_model(state)) if evaluated else None
            if test is not None and test.examples == 0:
                test = None
            self.moment = Moment(round, state)
            yield RoundMetrics(
                round=round,
                lr=local.lr_at(round),
                cohort=attendance.asked,
                answered=tuple(answered),
                stragglers=tuple(c for c in attendance.stragglers if c not in lost) or None,
                examples=sum(replies.examples),
                train_loss=replies.loss,
                bytes_down=len(attendance.asked) * message_bytes(broadcast),
                bytes_up=replies.bytes,
                seconds_train=waited,
                seconds_aggregate=aggregated - start - waited,
                seconds_evaluate=perf_counter() - aggregated,
                test_accuracy=test.correct / test.examples if test and self.job.data.classes else None,
                test_loss=test.loss / test.examples if test else None,
                client_losses=tuple(replies.losses) if self._evaluate.client_losses else None,
                drift=replies.drift.figures(state.get("m")) if answered else None,
                extra={"lost": {str(client): lost[client] for client in lost}} if lost else {},
            )

    def _tasks(self, round: int, attendance: Attendance, sizes: Mapping[int, int]) -> list[Task]:
        """The work of those who are to answer, clients of these sizes."""
        steps_for, stragglers = self.job.local.steps_for, set(attendance.stragglers)
        return [
            Task(round, client, self.sampling.steps(steps_for(sizes[client]), client in stragglers))
            for client in attendance.answered
        ]


class Replies:
    """A round's answers as the server rule sees them: decoded, weighed, checked, and counted on the way."""

    def __init__(
        self,
        federation: Federation,
        answers: Iterable[Answers],
        round: int,
        sizes: Sequence[int],
        state: State,
        broadcast: Message,
    ) -> None:
        self._job, self._memory, self._recorder = federation.job, federation.memory, federation.recorder
        self._answers, self._round, self._broadcast = iter(answers), round, broadcast
        self.weights = federation.sampling.weigh(sizes)
        self.examples: list[int] = []
        self.losses: list[float] = []
        self.bytes = 0
        self.seconds = 0.0
        """Time spent waiting for clients."""
        self.buffers = state["buffers"].clone()
        """Normalisation buffers: averaged like weights, without momentum, penalty or quantisation."""
        self.drift = Drift(broadcast["phi"], federation.stages)

    def __iter__(self) -> Iterator[Reply]:
        if self._recorder:
            self._recorder.begin(self._round, self._broadcast)
        while (answers := self._wait()) is not None:
            vectors = self._decode(answers)
            weights = self.weights[len(self.losses) :][: len(answers.losses)]
            self._keep(answers, weights)
            self.drift.add(vectors["delta"], weights)
            self.bytes += message_bytes(answers.upload)
            self.examples.extend(answers.examples)
            self.losses.extend(answers.losses)
            yield from self._replies(answers, vectors, weights)
        if self._recorder:
            self._recorder.end()

    def _wait(self) -> Answers | None:
        """The answers of the next group of clients."""
        start = perf_counter()
        answers = next(self._answers, None)
        self.seconds += perf_counter() - start
        return answers

    def _decode(self, answers: Answers) -> dict[str, Tensor]:
        """Δ_i, or what a method sends in its place, and the further vectors: a row for each client."""
        decode = self._job.method.link.decode_rows
        vectors = {
            name: decode(payloads, self._broadcast["phi"])
            for name, payloads in answers.upload.items()
            if name != "buffers"
        }
        for rows in vectors.values():
            finite = rows.sum(dim=1).isfinite()
            if not finite.all():
                client = answers.tasks[int(finite.int().argmin())].client
                raise RunError(
                    f"diverged in round {self._round}: the update of client {client} is not finite; "
                    "a lower local.lr or a local.clip may help"
                )
        return vectors

    def _keep(self, answers: Answers, weights: Sequence[float]) -> None:
        """Take care of what does not go through the server rule: buffers, what clients keep, recordings."""
        if self.buffers.numel():
            for change, weight in zip(answers.upload["buffers"], weights, strict=True):
                self.buffers.add_(change, alpha=weight)
        if answers.keep:
            for answer in answers:
                self._memory.write(self._round, answer.client, answer.keep)

    def _replies(
        self, answers: Answers, vectors: Mapping[str, Tensor], weights: Sequence[float]
    ) -> Iterator[Reply]:
        lr, record = self._job.local.lr_at(self._round), self._recorder is not None and self._recorder.active
        rows = {name: matrix.unbind() for name, matrix in vectors.items()}
        deltas = rows.pop("delta")
        for place, task in enumerate(answers.tasks):
            if record:
                self._record(task.client, weights[place], deltas[place], answers.upload["buffers"][place])
            extras = {name: its[place] for name, its in rows.items()}
            examples, loss = answers.examples[place], answers.losses[place]
            yield Reply(task.client, weights[place], examples, task.steps, lr, loss, deltas[place], extras)

    def _record(self, client: int, weight: float, delta: Tensor, buffers: Tensor) -> None:
        assert self._recorder is not None
        self._recorder.add(client, weight, self._broadcast["phi"] + delta, self._broadcast["buffers"] + buffers)

    @property
    def loss(self) -> float:
        """The weighted mean of the clients' training losses; NaN when nobody answered."""
        if not self.losses:
            return math.nan
        return sum(weight * loss for weight, loss in zip(self.weights, self.losses, strict=True))


def _model(state: State) -> dict[str, Tensor]:
    return {"theta": state["theta"], "buffers": state["buffers"]}
