"""Rounds and tasks of tests that need no federation."""

from fedacg.core.round import Round
from fedacg.simulation.engine import Task


def round_of(number: int = 1, *, clients: int = 10, lr: float = 0.1, seed: int = 0) -> Round:
    """A round that asks everybody."""
    return Round(number, clients, clients, lr, seed)


def task(round: int, client: int, steps: int, *, lr: float = 0.1, seed: int = 0) -> Task:
    """A client's work in a round of this number."""
    return Task(round_of(round, lr=lr, seed=seed), client, steps)
