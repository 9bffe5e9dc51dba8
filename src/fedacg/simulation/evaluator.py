"""Evaluation of a model: on test and validation data, on single clients, and without a common model."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from fedacg.config.sections import EvaluateSettings
from fedacg.core.round import Message, Round
from fedacg.methods.rules import State, released
from fedacg.simulation import clients
from fedacg.simulation.clients import ClientFigures
from fedacg.simulation.engine import ClientMemory, Engine, Held, Job, Task, Training, nothing_kept
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.scoring import Evaluation, Metric, Scorer, total


class Evaluator:
    """Decides what each round evaluates, and evaluates it."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        settings: EvaluateSettings,
        rounds: int,
        kept: ClientMemory,
        metrics: Mapping[str, Metric],
    ) -> None:
        self._job, self._engine, self._settings, self._rounds = job, engine, settings, rounds
        self._kept, self._metrics = kept, metrics
        self._alone = _Alone()
        self.clients: tuple[ClientFigures, ...] = ()
        """The results of single clients in their last evaluation."""

    def due(self, state: State, round: Round, history: Sequence[RoundMetrics], trained: Sequence[int]) -> "Tested":
        """What a round is to be evaluated on, after these clients have trained in it."""
        self._alone.changed(set(trained))
        tested = self._look(state, self._due(round.number), round, history)
        if self._settings.measures_clients(round.number, self._rounds):
            tested.scores.update(self._measure(state, round))
        return tested

    def lacks(self, number: int) -> bool:
        """Whether a round lacks evaluations that the last round of a run has."""
        return bool(self._parts() - self._due(number)) or self._unmeasured(number)

    def rest(self, state: State, round: Round, history: Sequence[RoundMetrics]) -> "Tested":
        """The missing evaluations."""
        tested = self._look(state, self._parts() - self._due(round.number), round, history)
        if self._unmeasured(round.number):
            tested.scores.update(self._measure(state, round))
        return tested

    def _unmeasured(self, number: int) -> bool:
        return self._job.measured is not None and not self._settings.measures_clients(number, self._rounds)

    def _parts(self) -> set[Held]:
        return {"test", "validation"} if self._job.data.validation is not None else {"test"}

    def _due(self, number: int) -> set[Held]:
        """What a round evaluates: nothing between evaluations; the test set perhaps only at the end."""
        if number == self._rounds:
            return self._parts()
        if number % self._settings.every:
            return set()
        return self._parts() if self._settings.test == "every" else self._parts() - {"test"}

    def _look(self, state: State, parts: set[Held], round: Round, history: Sequence[RoundMetrics]) -> "Tested":
        """Evaluate the server's model on these parts of the data; without one, the clients' models."""
        model = {"theta": released(state), "buffers": state["buffers"]}
        found = Tested()
        for part in sorted(parts):
            scorer = Scorer(self._metrics if self._job.method.rule.common else {})
            if self._job.method.rule.common:
                sums = self._engine.evaluate(model, part, scorer.see)
            else:
                sums = self._look_alone(model, part, round, history)
            if sums.examples:
                found.add(part, sums, scorer)
        return found

    def _look_alone(self, model: Message, part: Held, round: Round, history: Sequence[RoundMetrics]) -> Evaluation:
        """Evaluate the clients' own models on a part of the data, summed over all clients."""
        visited = {client for metrics in history for client in metrics.arrived} | self._alone.trained
        tasks = [
            Task(round, client, 0, part) for client in sorted(visited) if (part, client) not in self._alone.known
        ]
        point = {"phi": model["theta"], "buffers": model["buffers"]}
        for client, row in self._rows(self._engine.train(point, tasks, self._kept)):
            examples, loss, correct, counted, *_ = row.tolist()
            self._alone.known[part, client] = Evaluation(int(examples), loss, int(correct), int(counted))
        everybody = range(len(self._job.data.clients))
        if len(visited) < len(everybody) and (part, None) not in self._alone.known:
            self._alone.known[part, None] = self._engine.evaluate(model, part)
        known = self._alone.known
        return total([known[part, client if client in visited else None] for client in everybody])

    def _measure(self, state: State, round: Round) -> dict[str, float]:
        """Evaluate single clients; the table is kept until the next time."""
        measured, steps = self._job.measured, self._settings.client_steps
        assert measured is not None
        tested = [client for client in range(len(measured.test)) if measured.test.size(client)]
        tasks = [Task(round, client, steps, "client") for client in tested]
        point = {"phi": released(state), "buffers": state["buffers"]}
        kept = nothing_kept if self._job.method.rule.common else self._kept
        self.clients = tuple(
            ClientFigures.of(row, client, self._job.data.name_of(client), measured.train.size(client), steps > 0)
            for client, row in self._rows(self._engine.train(point, tasks, kept))
        )
        return clients.scores(self.clients)

    def _rows(self, training: Training) -> Iterator[tuple[int, Tensor]]:
        """The figures of each client that was measured."""
        for answers in training.answers:
            for task, row in zip(answers.tasks, answers.upload["figures"], strict=True):
                yield task.client, row.clone()


class _Alone:
    """Without a common model: results of clients' own models on a part since they last changed; None for none."""

    def __init__(self) -> None:
        self.known: dict[tuple[Held, int | None], Evaluation] = {}
        self.trained: set[int] = set()

    def changed(self, trained: set[int]) -> None:
        self.trained |= trained
        self.known = {place: each for place, each in self.known.items() if place[1] not in trained}


class Tested:
    """The results of a round's evaluation."""

    def __init__(self) -> None:
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.scores: dict[str, float] = {}

    def add(self, part: Held, sums: Evaluation, scorer: Scorer) -> None:
        if part == "test":
            self.accuracy, self.loss = sums.accuracy, sums.mean_loss
        else:
            if sums.accuracy is not None:
                self.scores[f"{part}/accuracy"] = sums.accuracy
            self.scores[f"{part}/loss"] = sums.mean_loss
        for name, value in {**sums.figures(), **scorer.figures()}.items():
            self.scores[f"{part}/{name}"] = value
