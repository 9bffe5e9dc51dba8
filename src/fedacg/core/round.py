"""The context of a round: what the server and a client's parts know of it before any client is asked."""

from dataclasses import dataclass

import torch

from fedacg.core.randomness import generator, stream_seed


@dataclass(frozen=True)
class Round:
    """One round of a federation."""

    number: int
    """Counted from 1."""
    clients: int
    """N, the number of clients in the federation."""
    expected: int
    """M, the intended number of clients per round."""
    lr: float
    """η, the local learning rate that the round starts with."""
    seed: int = 0
    rounds: int = 0
    """The total number of rounds; 0 where only the server knows."""

    def random(self, purpose: str, *where: int) -> torch.Generator:
        """A stream of randomness for this purpose in this round, at the server or for one client."""
        return generator(self.seed, purpose, self.number, *where)

    def seed_of(self, purpose: str, *where: int) -> int:
        """The seed of that stream."""
        return stream_seed(self.seed, purpose, self.number, *where)
