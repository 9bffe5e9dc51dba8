"""All randomness of a run, derived from (seed, purpose, where) and never from a global generator.

A stream is a pure function of its name, so the round number alone determines the position in the randomness:
a resumed run, another engine or another number of workers draws the same numbers.
"""

import hashlib

import numpy as np
import torch


def stream_seed(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for the stream called (seed, purpose, *where)."""
    name = f"{seed}/{purpose}/{'/'.join(map(str, where))}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A PyTorch generator at the start of its stream."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, *where))


def numpy_generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A NumPy generator at the start of its stream."""
    return np.random.default_rng(stream_seed(seed, purpose, *where))
