"""Participation in a round: which clients are available, asked, answer, and do only part of the work.

All of it follows from (seed, round, client), so it needs no state and resumes exactly. Costs follow the cohort;
only a changing population costs a pass over it, once per stage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedacg.config.catalogue import GIVEN
from fedacg.config.participation import CohortSettings, FailureSettings, PopulationSettings
from fedacg.core.plugins import is_plugin, load_function
from fedacg.core.randomness import numpy_generator
from fedacg.errors import InputError, SettingError
from fedacg.simulation.clock import Clock
from fedacg.simulation.metrics import RoundMetrics

_KEY = "cohort.draw"


@dataclass(frozen=True)
class Attendance:
    """A round's clients, each part in ascending order."""

    asked: tuple[int, ...]
    answered: tuple[int, ...]
    """Asked clients whose update arrives."""
    stragglers: tuple[int, ...]
    """Answering clients that do only part of their steps."""
    seconds: float = 0.0
    """The duration of the round by the clock, if there is one."""


@dataclass(frozen=True)
class Draw:
    """What a custom sampler may know when it chooses the clients of a round."""

    round: int
    """Counted from 1."""
    clients: int
    """N; clients are numbered from 0."""
    present: NDArray[np.int64] | None
    """The available clients, in ascending order; None means all."""
    count: int
    """M, the intended number of clients."""
    random: np.random.Generator
    """The round's own stream: use no other randomness, and the run resumes exactly."""
    history: Sequence[RoundMetrics]
    """The rounds so far, the same after a resume; with `evaluate.client_losses` they have each client's loss."""


Sampler = Callable[[Draw], Sequence[int]]


class Presence(Protocol):
    """The available clients, round by round."""

    @property
    def size(self) -> int:
        """The number of clients available at a time."""
        ...

    def present(self, round: int) -> NDArray[np.int64] | None:
        """The clients available in a round, in ascending order; None means all."""
        ...


class Population:
    """The presence that settings describe: all clients, or a set that changes from stage to stage."""

    def __init__(self, settings: PopulationSettings, clients: int, seed: int) -> None:
        settings.check(clients)
        self._settings, self._clients, self._seed = settings, clients, seed
        self._stage = -1
        self._members: NDArray[np.int64]

    @property
    def size(self) -> int:
        """The number of clients available at a time."""
        return self._settings.present or self._clients

    def present(self, round: int) -> NDArray[np.int64] | None:
        """The clients available in a round, in ascending order; None means all."""
        if not self._settings.present:
            return None
        stage = (round - 1) // self._settings.stage
        if self._stage > stage:
            self._stage = -1
        while self._stage < stage:
            self._stage += 1
            self._turn(numpy_generator(self._seed, "population", self._stage))
        return self._members

    def _turn(self, rng: np.random.Generator) -> None:
        """The first stage is a random choice; at every later one some leave, and as many absent ones come."""
        if self._stage == 0:
            self._members = np.sort(rng.choice(self._clients, size=self._settings.present, replace=False))
            return
        absent = np.setdiff1d(np.arange(self._clients), self._members, assume_unique=True)
        leave = np.flatnonzero(rng.random(len(self._members)) < self._settings.replace)
        leave = rng.permutation(leave)[: len(absent)]  # a client leaves only if another can replace it
        self._members[leave] = rng.choice(absent, size=len(leave), replace=False)
        self._members.sort()


class Sampling:
    """Draws the cohorts of a federation, or takes them from a list."""

    def __init__(
        self,
        cohort: CohortSettings,
        *,
        clients: int,
        seed: int,
        population: PopulationSettings | None = None,
        failures: FailureSettings | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        presence: Presence | None = None,
        sampler: Sampler | None = None,
        clock: Clock | None = None,
    ) -> None:
        population = population or PopulationSettings()
        cohort.check(population.present or clients)
        self._cohort, self._failures, self._cohorts = cohort, failures or FailureSettings(), cohorts
        self._clients, self._seed, self.clock = clients, seed, clock
        self._presence: Presence = presence or Population(population, clients, seed)
        self._sampler = load_function(_KEY, cohort.draw) if is_plugin(cohort.draw) else sampler
        if cohort.draw == GIVEN and self._sampler is None and cohorts is None:
            raise SettingError(_KEY, repr(GIVEN), "the sampler was given from Python; run that program again")

    @property
    def size(self) -> int:
        """M, the intended number of clients per round; the largest of given cohorts."""
        if self._cohorts is not None:
            return max(map(len, self._cohorts))
        return self._cohort.count(self._presence.size)

    @property
    def coin(self) -> float:
        """The probability with which each client takes part by its own coin; 1 without coins."""
        settled = isinstance(self._presence, Population)
        if self._cohorts is not None or self._cohort.draw != "coin" or (self._cohort.size and not settled):
            return 1.0
        return self.size / self._presence.size if self._cohort.size else self._cohort.fraction

    @cached_property
    def bad(self) -> frozenset[int]:
        """The bad clients, if settings have any."""
        count = round(self._failures.bad * self._clients)
        if not count:
            return frozenset()
        rng = numpy_generator(self._seed, "bad clients")
        return frozenset(rng.choice(self._clients, size=count, replace=False).tolist())

    def attendance(self, round: int, history: Sequence[RoundMetrics] = ()) -> Attendance:
        """Who is asked in a round, who answers, and who straggles; a sampler may look at the rounds before it."""
        asked = self._sample(round, history) if self._cohorts is None else list(self._cohorts[round - 1])
        fates = {client: self._fate(round, client) for client in asked} if self._fails else {}
        answered = [client for client in asked if not (client in fates and fates[client][0])]
        stragglers = [client for client, (drops, straggles) in fates.items() if straggles and not drops]
        if self.clock is None:
            return Attendance(tuple(asked), tuple(answered), tuple(stragglers))
        steps = {client: self.steps(self.clock.planned(client), client in stragglers) for client in answered}
        times = {client: self.clock.seconds(client, count) for client, count in steps.items()}
        taken, seconds = self.clock.close(times, len(asked), self._wanted(len(asked)))
        return Attendance(tuple(asked), tuple(taken), tuple(c for c in stragglers if c in taken), seconds)

    def steps(self, planned: int, straggles: bool) -> int:
        """K of a client, given its full number of steps."""
        return max(1, round(self._failures.work * planned)) if straggles else planned

    def weigh(self, examples: Sequence[int]) -> list[float]:
        """ω_i of clients with these numbers of examples; they sum to one."""
        if self._cohort.weights == "uniform":
            return [1 / len(examples) for _ in examples]
        total = sum(examples)
        return [n / total for n in examples]

    def _sample(self, round: int, history: Sequence[RoundMetrics]) -> list[int]:
        """S, without replacement, in ascending order; costs M, not N."""
        present = self._presence.present(round)
        there = self._clients if present is None else len(present)
        if there == 0:
            return []
        rng = numpy_generator(self._seed, "cohort", round)
        count = min(there, self._over_selected(self._cohort.count(there)))
        if self._sampler is not None:
            return self._chosen(self._sampler, Draw(round, self._clients, present, count, rng, history))
        if self._cohort.draw == "coin":
            # The number of heads first, then which clients: the same distribution as a coin for every client.
            chance = self._cohort.fraction * self._over if not self._cohort.size else count / there
            count = int(rng.binomial(there, min(1.0, chance)))
        if self._cohort.draw == "spaced":
            present = self._rested(round, present, history)
            there, count = len(present), min(count, len(present))
        drawn = rng.choice(there, size=count, replace=False)
        return sorted((drawn if present is None else present[drawn]).tolist())

    def _rested(
        self, round: int, present: NDArray[np.int64] | None, history: Sequence[RoundMetrics]
    ) -> NDArray[np.int64]:
        """Available clients that were not asked in the last rounds."""
        lately = [client for m in history if m.round > round - self._cohort.gap for client in m.cohort]
        everybody = np.arange(self._clients) if present is None else present
        return np.setdiff1d(everybody, np.array(lately, dtype=np.int64), assume_unique=False)

    @property
    def _over(self) -> float:
        return self.clock.settings.over_select if self.clock else 1.0

    def _over_selected(self, count: int) -> int:
        """The number of clients to ask for this many answers."""
        return round(count * self._over)

    def _wanted(self, asked: int) -> int:
        """The number of answers to wait for when this many clients were asked."""
        if self._over == 1 or self._cohorts is not None:
            return asked
        return round(asked / self._over) if self._cohort.draw == "coin" else min(asked, self.size)

    def _chosen(self, sampler: Sampler, draw: Draw) -> list[int]:
        """The choice of a custom sampler, checked."""
        said = sampler(draw)
        try:
            chosen = sorted(index(client) for client in said)
        except TypeError:
            wrong = f"returned {said!r}; must be the numbers of clients"
            raise InputError(f"{_KEY} = {self._cohort.draw}: {wrong}") from None
        there = range(self._clients) if draw.present is None else set(draw.present.tolist())
        for client in chosen:
            if client not in there:
                raise InputError(f"{_KEY} = {self._cohort.draw}: chose client {client}, which is not available")
        if len(set(chosen)) < len(chosen):
            raise InputError(f"{_KEY} = {self._cohort.draw}: chose a client twice")
        return chosen

    @property
    def _fails(self) -> bool:
        return bool(self._failures.drop or self._failures.straggle)

    def _fate(self, round: int, client: int) -> tuple[bool, bool]:
        """Whether a client's update is lost, and whether it straggles."""
        settings = self._failures
        drop, straggle = numpy_generator(self._seed, "failures", round, client).random(2)
        return bool(drop < settings.drop), bool(straggle < settings.straggle)
