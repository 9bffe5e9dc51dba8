"""Draws from the Dirichlet distribution, and labels drawn by them from a stock that runs out.

What the draws are used for, who gets which examples, lives in splits.py.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CELLS = 4_000_000
"""Labels × classes that are looked at in one go."""


def ratios(alpha: float, parts: int, rng: np.random.Generator) -> Floats:
    """One draw from the symmetric Dir(α): so many ratios that add up to 1."""
    logs = log_gammas(alpha, (parts,), rng)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def log_gammas(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(α) variates: each row, exponentiated and normalised, is a draw from Dir(α).

    Kept as logarithms because with a small α all but one of the ratios underflow, and the others
    decide once the largest one's class has run out. Uses Gamma(α) = Gamma(α + 1) · U^(1/α).
    """
    alpha = max(alpha, 1e-300)  # smaller ones would overflow, and are one-hot all the same
    uniform = 1 - rng.random(shape)
    return np.asarray(np.log(rng.standard_gamma(alpha + 1, shape)) + np.log(uniform) / alpha)


def serve(logs: Floats, sizes: Ints, stock: Ints, rng: np.random.Generator) -> Ints:
    """How many of each class every client gets, one a row, when they are served one after the other.

    Client i draws `sizes[i]` labels by the ratios `logs[i]` from what the clients before it left of `stock`, which
    holds enough for all. Many are served at a time, as if nothing could run out; from the first at whom a class
    does, they are served again.
    """
    counts = np.zeros(logs.shape, dtype=np.int64)
    left = stock.copy()
    most = max(1, _CELLS // (int(sizes.max()) * len(stock)))
    done, block = 0, 1
    while done < len(logs):
        before = rng.bit_generator.state
        drawn = _draw_freely(logs[done : done + block], sizes[done : done + block], np.flatnonzero(left), rng)
        short = ((drawn.cumsum(axis=0) >= left) & (left > 0)).any(axis=1)
        good = int(short.argmax()) if short.any() else len(drawn)
        counts[done : done + good] = drawn[:good]
        left -= drawn[:good].sum(axis=0)
        done += good
        if good == len(drawn):
            block = min(2 * block, most)
            continue
        # Back in the stream to where the good ones leave it.
        rng.bit_generator.state = before
        rng.random(int(sizes[done - good : done].sum()))
        counts[done] = draw_labels(logs[done], int(sizes[done]), left, rng)
        left -= counts[done]
        done += 1
        block = 1
    return counts


def _draw_freely(logs: Floats, sizes: Ints, open_classes: Ints, rng: np.random.Generator) -> Ints:
    """The labels of some clients, counted, when none of the open classes can run out."""
    client = np.repeat(np.arange(len(sizes)), sizes)
    edges = _edges(logs[:, open_classes])[client]
    at = rng.random(len(client)) * edges[:, -1]
    picks = open_classes[np.minimum((edges <= at[:, None]).sum(axis=1), len(open_classes) - 1)]
    return np.bincount(client * logs.shape[1] + picks, minlength=logs.size).reshape(logs.shape)


def draw_labels(logs: Floats, size: int, left: Ints, rng: np.random.Generator) -> Ints:
    """How many of each class come out when `size` labels are drawn one by one from what is left.

    Draws come in rounds rather than one by one. Leaving a class out of the ratios once it is empty
    is the same as ignoring its draws from then on, so of one round each class keeps as many draws as
    it has examples, and the ignored ones are drawn again: the same distribution. Every round empties
    a class or is the last, so there are at most as many rounds as classes.
    """
    counts = np.zeros_like(left)
    while size:
        open_classes = np.flatnonzero(left > counts)
        edges = _edges(logs[open_classes])
        picks = np.searchsorted(edges, rng.random(size) * edges[-1], side="right")
        picks = open_classes[np.minimum(picks, len(open_classes) - 1)]
        taken = np.minimum(counts + np.bincount(picks, minlength=len(left)), left)
        size -= int((taken - counts).sum())
        counts = taken
    return counts


def _edges(logs: Floats) -> Floats:
    """Where the stretches of the classes end, on a line that is as long as their weights add up to."""
    return np.asarray(np.exp(logs - logs.max(axis=-1, keepdims=True)).cumsum(axis=-1))
