"""Asynchronous rounds: a second loop beside federation.py, with the same server rules and clients.

M clients are always at work. Whenever one answers, the next is asked at once, with what the server broadcasts at
that moment. As soon as `buffer` answers have come, the server moves; such a step is what a round is here. An
answer to a broadcast of τ steps ago weighs ω_i (1 + τ)^−a.

    FedBuff     FedAvg's rule on the updates: θ ← θ + η_g Σ ω_i (1 + τ_i)^−a Δ_i
    FedAsync    a buffer of one and the models: θ ← θ + α (1 + τ)^−a (w_i − θ), where α is η_g
    FedACG      φ = θ + λm is broadcast at any moment, m moves with every step

When answers come follows from the clock alone and not from what is trained, so the whole timetable is known
without training. Hence the work of a step is done together, in the order of answers and by the version that they
are of; and a run is resumed by playing the timetable again. Only versions of the broadcast that are still being
worked on are kept, and saved.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from time import perf_counter
from typing import Any

from fedacg.config.participation import AsynchronousSettings
from fedacg.core.round import Message, Round, message_bytes
from fedacg.errors import InputError, RunError
from fedacg.methods.rules import State, Totals
from fedacg.simulation.clock import CLOCK, Clock
from fedacg.simulation.engine import Answers, Engine, Job, Task, Training
from fedacg.simulation.federation import Federation, ServerState
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.replies import Replies
from fedacg.simulation.sampling import Sampling

STALENESS = "clock/staleness"
"""The figure with the mean number of steps since a round's answers were asked for."""
VERSION = "version/"
"""What is kept of earlier broadcasts has names that begin like this."""
_MOST_DRAWS = 1000
"""Cohorts that are drawn in vain before a place stays empty."""


@dataclass(frozen=True, order=True)
class Visit:
    """A client at work; visits are ordered by when their answers come, and those of one instant by client."""

    ends: float
    draw: int
    """The number of the cohort it was drawn in: with the client, it names the visit's randomness."""
    client: int
    version: int = field(compare=False)
    """The steps that the server had taken when it was asked."""
    steps: int = field(compare=False)
    straggles: bool = field(compare=False)


class Timetable:
    """Who is asked when and whose answer comes when: it follows from sampling and clock alone."""

    def __init__(self, sampling: Sampling, clock: Clock, buffer: int) -> None:
        self._sampling, self._clock, self._buffer = sampling, clock, buffer
        self.now = 0.0
        self._draw = 0
        self._waiting: deque[tuple[int, int, bool, bool]] = deque()
        """Those of the last cohort who have not been asked: draw, client, whether it answers and straggles."""
        self.visits: list[Visit] = []
        """The clients at work, a heap."""

    def step(self, version: int, history: Sequence[RoundMetrics]) -> tuple[list[Visit], int]:
        """The visits whose answers make up the step from this version, and how many clients were asked for it.

        All answers of one instant are taken before anybody is asked anew.
        """
        taken: list[Visit] = []
        asked = self._ask(version, history, taken)
        while len(taken) < self._buffer:
            if not self.visits:
                raise RunError(f"round {version + 1}: nobody is at work and nobody is left to ask")
            self.now = self.visits[0].ends
            while self.visits and self.visits[0].ends == self.now and len(taken) < self._buffer:
                taken.append(heappop(self.visits))
            if len(taken) < self._buffer:
                asked += self._ask(version, history, taken)
        return taken, asked

    def _ask(self, version: int, history: Sequence[RoundMetrics], taken: Sequence[Visit]) -> int:
        """Fill the free places from one cohort after the other; those who are busy are passed over."""
        busy = {visit.client for visit in (*self.visits, *taken)}
        asked, last = 0, self._draw + _MOST_DRAWS
        while len(self.visits) < self._sampling.size and self._draw < last:
            if not self._waiting:
                self._draw += 1
                self._draw_cohort(history)
                continue
            draw, client, answers, straggles = self._waiting.popleft()
            if client in busy:
                continue
            asked += 1
            if answers:
                steps = self._sampling.steps(self._clock.planned(client), straggles)
                ends = self.now + self._clock.seconds(client, steps)
                heappush(self.visits, Visit(ends, draw, client, version, steps, straggles))
                busy.add(client)
        return asked

    def _draw_cohort(self, history: Sequence[RoundMetrics]) -> None:
        attendance = self._sampling.attendance(self._draw, history)
        self._waiting.extend(
            (self._draw, client, client in attendance.answered, client in attendance.stragglers)
            for client in attendance.asked
        )


class AsynchronousFederation(Federation):
    """A federation whose rounds are steps of the server, each made of the next answers that come."""

    def __init__(
        self, job: Job, engine: Engine, *, settings: AsynchronousSettings, clock: Clock, **shared: Any
    ) -> None:
        super().__init__(job, engine, **shared)
        self._settings = settings
        self._timetable = Timetable(self.sampling, clock, settings.buffer)

    def resume(self, server: ServerState, history: Iterable[RoundMetrics]) -> None:
        """Go on from where an earlier federation stood: its timetable is played again, its work is not."""
        super().resume(server, history)
        for number in range(1, server.round + 1):
            taken, _ = self._timetable.step(number - 1, self._history[: number - 1])
            expected = sorted(visit.client for visit in taken)
            if expected != sorted(self._history[number - 1].arrived):
                raise InputError(f"round {number}: with these settings clients {expected} would have answered")
        for visit in self._timetable.visits:
            if f"{VERSION}{visit.version}/phi" not in server.vectors:
                raise InputError(f"the checkpoint lacks the broadcast {visit.version} that clients still work on")

    def _play(self, round: Round) -> RoundMetrics:
        """One step of the server: the next answers, each with the broadcast that it is of."""
        rule, version, start = self.job.method.rule, round.number - 1, perf_counter()
        vectors = self.server.vectors
        state = {name: vector for name, vector in vectors.items() if not name.startswith(VERSION)}
        taken, asked = self._timetable.step(version, self._history)

        broadcast = {**rule.broadcast(state, round), "buffers": state["buffers"]}
        sent = {visit.version: _version(vectors, visit.version) for visit in (*taken, *self._timetable.visits)}
        sent[version] = broadcast
        taken.sort(key=lambda visit: visit.version)  # stable: by version, and then by when they came
        training = Training(self._answers(taken, sent))
        replies = Replies(self.job, round, broadcast, training, self._weigh(taken, version), self._probes)
        totals, of = Totals(rule), {(visit.draw, visit.client): visit.version for visit in taken}
        for answers, group in replies.groups():
            for task, reply in zip(answers.tasks, group, strict=True):
                base = of[task.round.number, task.client]
                if self._settings.aggregate == "models" and base != version:
                    reply = replace(reply, delta=reply.delta + (sent[base]["phi"] - broadcast["phi"]))
                totals.add(reply)
            self._keep(round, answers)
        state = {**rule.step(state, totals, round), "buffers": replies.buffers}

        needed = {visit.version for visit in self._timetable.visits}
        kept = {
            f"{VERSION}{number}/{name}": vector
            for number in sorted(needed)
            for name, vector in sent[number].items()
        }
        stale = sum(version - visit.version for visit in taken) / len(taken)
        return self._finish(
            round,
            {**state, **kept},
            replies,
            (start, replies.seconds),
            cohort=tuple(replies.clients),
            stragglers=[visit.client for visit in taken if visit.straggles],
            sent=(asked * message_bytes(broadcast), replies.bytes),
            training=training,
            scores={CLOCK: self._timetable.now, STALENESS: stale},
        )

    def _answers(self, taken: Sequence[Visit], sent: dict[int, Message]) -> Iterator[Answers]:
        """The work of a step, one version of the broadcast after the other."""
        for version in sorted({visit.version for visit in taken}):
            context = self._context(version + 1)
            tasks = [
                Task(replace(context, number=visit.draw), visit.client, visit.steps)
                for visit in taken
                if visit.version == version
            ]
            yield from self.engine.train(sent[version], tasks, self.memory.read).answers

    def _weigh(self, taken: Sequence[Visit], version: int) -> list[float]:
        """ω_i (1 + τ_i)^−a of the answers of a step."""
        size = self.job.data.clients.size
        weights = self.sampling.weigh([size(visit.client) for visit in taken])
        return [
            weight * (1 + version - visit.version) ** -self._settings.staleness
            for weight, visit in zip(weights, taken, strict=True)
        ]


def _version(vectors: State, number: int) -> Message:
    """An earlier broadcast, as it was kept; nothing for one that has not been made."""
    prefix = f"{VERSION}{number}/"
    return {name.removeprefix(prefix): vector for name, vector in vectors.items() if name.startswith(prefix)}
