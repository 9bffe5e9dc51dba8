"""Who holds which examples: each split is one function from labels to a `Split`, named in one dict.

A split knows nothing of inputs or of training; it is one array of positions with offsets, so it
costs the same whatever the number of clients, and is saved and loaded as one file.
"""

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacg.errors import InputError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Client i holds the examples order[offsets[i]:offsets[i + 1]]; both are int64."""

    order: Tensor
    offsets: Tensor

    def save(self, path: Path) -> None:
        """Write the split as an .npz file with the arrays `order` and `offsets`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                np.savez(file, order=self.order.numpy(), offsets=self.offsets.numpy())
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise


def load(path: Path, *, examples: int, clients: int) -> Split:
    """Read a saved split, and refuse it unless it deals exactly these examples to these clients."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            order, offsets = arrays["order"], arrays["offsets"]
    except FileNotFoundError:
        raise InputError(f"data.split_file = {path}: there is no such file") from None
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise _refused(path, f"must be an .npz file with the arrays order and offsets ({error})") from None
    for name, array in (("order", order), ("offsets", offsets)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise _refused(path, f"{name} must be one row of integers, not {array.dtype} {array.shape}")
    if len(offsets) - 1 != clients:
        raise _refused(path, f"has {len(offsets) - 1} clients where data.clients = {clients}")
    if len(order) != examples:
        raise _refused(path, f"deals {len(order)} examples where the data set has {examples}")
    if not np.array_equal(np.sort(order), np.arange(examples)):
        raise _refused(path, "must deal every example exactly once")
    if offsets[0] != 0 or offsets[-1] != examples or bool((np.diff(offsets.astype(np.int64)) < 1).any()):
        raise _refused(path, f"offsets must climb from 0 to {examples}, by at least one example a client")
    return _split(order, offsets)


def iid(examples: int, clients: int, rng: np.random.Generator) -> Split:
    """A random equal cut; sizes differ by one where they must."""
    return _split(rng.permutation(examples), _equal_offsets(examples, clients))


def dirichlet(labels: Tensor, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """The paper's balanced Dirichlet split: equal sizes, label ratios of each client from Dir(α).

    A client draws label after label from its ratios and takes a random example of each, without
    replacement from what is left; a class that has run out is left out of the ratios from then on.
    Clients are served in random order, so that no client number is bound to be the one left with
    the remains.
    """
    _check_alpha(alpha)
    classes, coded = np.unique(labels.numpy(), return_inverse=True)
    offsets = _equal_offsets(len(labels), clients)
    logs = _log_gammas(alpha, (clients, len(classes)), rng)
    left = np.bincount(coded, minlength=len(classes))
    counts = np.zeros((clients, len(classes)), dtype=np.int64)
    for client in rng.permutation(clients):
        counts[client] = _draw_labels(logs[client], int(offsets[client + 1] - offsets[client]), left, rng)
        left -= counts[client]
    # One shuffled pile a class; each client takes what it drew from the top of the piles.
    shuffled = rng.permutation(len(labels))
    piles = shuffled[np.argsort(coded[shuffled], kind="stable")]
    drawn = np.repeat(np.tile(np.arange(len(classes)), clients), counts.reshape(-1))
    order = np.empty(len(labels), dtype=np.int64)
    order[np.argsort(drawn, kind="stable")] = piles
    return _split(order, offsets)


Splitter = Callable[[Tensor, int, float | None, np.random.Generator], Split]
"""From (labels, clients, alpha, rng); a split that needs no alpha leaves it alone."""


def _iid(labels: Tensor, clients: int, alpha: float | None, rng: np.random.Generator) -> Split:
    return iid(len(labels), clients, rng)


def _dirichlet(labels: Tensor, clients: int, alpha: float | None, rng: np.random.Generator) -> Split:
    if alpha is None:
        raise InputError("data.alpha is missing: the split 'dirichlet' needs a number greater than 0")
    return dirichlet(labels, clients, alpha, rng)


SPLITS: dict[str, Splitter] = {"iid": _iid, "dirichlet": _dirichlet}


def _draw_labels(logs: NDArray[np.float64], size: int, left: Ints, rng: np.random.Generator) -> Ints:
    """How many of each class come out when `size` labels are drawn one by one from what is left.

    Draws come in rounds rather than one by one. Leaving a class out of the ratios once it is empty
    is the same as ignoring its draws from then on, so of one round each class keeps as many draws as
    it has examples, and the ignored ones are drawn again: the same distribution. Every round empties
    a class or is the last, so there are at most as many rounds as classes.
    """
    counts = np.zeros_like(left)
    while size:
        open_classes = np.flatnonzero(left > counts)
        ratios = np.exp(logs[open_classes] - logs[open_classes].max())
        edges = np.cumsum(ratios)
        picks = np.searchsorted(edges, rng.random(size) * edges[-1], side="right")
        picks = open_classes[np.minimum(picks, len(open_classes) - 1)]
        taken = np.minimum(counts + np.bincount(picks, minlength=len(left)), left)
        size -= int((taken - counts).sum())
        counts = taken
    return counts


def _log_gammas(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Logarithms of Gamma(α) variates: each row, exponentiated and normalised, is a draw from Dir(α).

    Kept as logarithms because with a small α all but one of the ratios underflow, and the others
    decide once the largest one's class has run out. Uses Gamma(α) = Gamma(α + 1) · U^(1/α).
    """
    alpha = max(alpha, 1e-300)  # smaller ones would overflow, and are one-hot all the same
    uniform = 1 - rng.random(shape)
    return np.asarray(np.log(rng.standard_gamma(alpha + 1, shape)) + np.log(uniform) / alpha)


def _equal_offsets(examples: int, clients: int) -> Ints:
    if clients < 1:
        raise InputError(f"data.clients = {clients}: must be at least 1")
    if clients > examples:
        raise InputError(f"data.clients = {clients}: more clients than examples ({examples})")
    share, rest = divmod(examples, clients)
    sizes = np.full(clients, share, dtype=np.int64)
    sizes[:rest] += 1
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < float("inf"):
        raise InputError(f"data.alpha = {alpha:g}: must be greater than 0 and finite")


def _split(order: Ints, offsets: Ints) -> Split:
    as_ints = (torch.from_numpy(array.astype(np.int64)) for array in (order, offsets))
    return Split(*as_ints)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"data.split_file = {path}: {why}")
