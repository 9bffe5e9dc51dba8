"""Splits of examples among clients: each is one function from labels to a `Split`, named in one dict.

A split knows nothing about inputs or training; it is one array of positions with offsets, so its cost does not
depend on the number of clients, and it is saved and loaded as one file.
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

from fedacg.config.sections import DataSettings
from fedacg.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CELLS = 4_000_000
"""Labels × classes that are processed at a time."""


def ratios(alpha: float, parts: int, rng: np.random.Generator) -> Floats:
    """One draw from the symmetric Dir(α): `parts` ratios that add up to 1."""
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
    """How many of each class every client gets, one client per row, if clients are served one after the other.

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
        # Rewind the stream to the end of the valid draws.
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


@dataclass(frozen=True)
class Split:
    """Client i holds the examples order[offsets[i]:offsets[i + 1]]; both are int64."""

    order: Tensor
    offsets: Tensor

    def save(self, path: Path) -> None:
        """Write the split atomically as an .npz file with the arrays `order` and `offsets`."""
        try:
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
        except OSError as error:
            raise InputError(f"{path}: the split cannot be written: {error.strerror}") from None


def load(path: Path, *, examples: int, clients: int) -> Split:
    """Read a saved split, and refuse it unless it has exactly this many examples and clients."""
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
        raise _refused(path, f"has {len(order)} examples where the data set has {examples}")
    if not np.array_equal(np.sort(order), np.arange(examples)):
        raise _refused(path, "must have every example exactly once")
    if offsets[0] != 0 or offsets[-1] != examples or bool((np.diff(offsets.astype(np.int64)) < 1).any()):
        raise _refused(path, f"offsets must rise from 0 to {examples}, by at least one example per client")
    return _split(order, offsets)


def iid(examples: int, clients: int, rng: np.random.Generator) -> Split:
    """A random equal cut; sizes differ by one where they must."""
    return _split(rng.permutation(examples), _equal_offsets(examples, clients))


def quantity(examples: int, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """Clients alike in their labels but not in their sizes, which are a draw from Dir(α) times the whole.

    A client whose size would be 0 takes one example of the client that has the most by then.
    """
    _check_alpha(alpha)
    _check_clients(examples, clients)
    sizes = _shares(examples, ratios(alpha, clients, rng))
    sizes = np.maximum(sizes - _spared(sizes), 1)
    return _split(rng.permutation(examples), _offsets(sizes))


def dirichlet(labels: Tensor, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """The paper's balanced Dirichlet split: equal sizes, label ratios of each client from Dir(α).

    A client draws label after label from its ratios and takes a random example of each, without
    replacement from what is left; a class that has run out is left out of the ratios from then on.
    Clients are served in random order, so that no client number is bound to be the one left with
    the remains.
    """
    _check_alpha(alpha)
    coded, stock = _coded(labels)
    offsets = _equal_offsets(len(labels), clients)
    logs = log_gammas(alpha, (clients, len(stock)), rng)
    turns = rng.permutation(clients)
    counts = np.empty((clients, len(stock)), dtype=np.int64)
    counts[turns] = serve(logs[turns], np.diff(offsets)[turns], stock, rng)
    # Each client takes what it drew from the top of the piles.
    drawn = np.repeat(np.tile(np.arange(len(stock)), clients), counts.reshape(-1))
    order = np.empty(len(labels), dtype=np.int64)
    order[np.argsort(drawn, kind="stable")] = _piles(coded, rng)
    return _split(order, offsets)


def dirichlet_unequal(labels: Tensor, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """The usual Dirichlet split: each class is cut among the clients by a draw from Dir(α); sizes differ.

    A client that is left with nothing takes a random example of the client that has the most by then.
    """
    _check_alpha(alpha)
    _check_clients(len(labels), clients)
    coded, stock = _coded(labels)
    everyone = np.arange(clients)
    owner = np.concatenate([np.repeat(everyone, _shares(pile, ratios(alpha, clients, rng))) for pile in stock])
    mixed = rng.permutation(len(labels))
    order, owner = _piles(coded, rng)[mixed], owner[mixed]
    # From here on a client's examples lie together in random order, and it gives the first of them.
    together = np.argsort(owner, kind="stable")
    order, owner = order[together], owner[together]
    sizes = np.bincount(owner, minlength=clients)
    rank = np.arange(len(order)) - _offsets(sizes)[owner]
    owner[rank < _spared(sizes)[owner]] = np.flatnonzero(sizes == 0)
    return _grouped(order, owner, clients)


def shards(labels: Tensor, clients: int, classes: int, rng: np.random.Generator) -> Split:
    """`classes` shards for each client, of one class each: no client has more than `classes` classes.

    After McMahan et al. (AISTATS 2017), who cut the examples, sorted by label, into shards of one size and deal
    them out at random. There a shard may have two classes. Here each class is cut by itself, into equal shards, as
    many as keep the largest shard of all smallest. So sizes are equal where the classes divide evenly, and else
    differ as the shards do. Where there are fewer examples than shards, a shard is one example.
    """
    coded, stock = _coded(labels)
    _check_clients(len(labels), clients)
    if not 1 <= classes <= len(stock):
        raise InputError(f"data.shards = {classes}: must be from 1 to the number of classes ({len(stock)})")
    if clients * classes < len(stock):
        raise InputError(
            f"data.shards = {classes}: with {clients} clients must be at least {-(-len(stock) // clients)}, "
            f"so that each of the {len(stock)} classes has a client"
        )
    count = min(clients * classes, len(labels))
    pieces = _apportion(stock, count)
    cuts = [_shares(pile, np.ones(parts)) for pile, parts in zip(stock, pieces, strict=True)]
    dealt = np.repeat(np.arange(clients), np.diff(_equal_offsets(count, clients)))
    owner = np.repeat(rng.permutation(dealt), np.concatenate(cuts))
    return _grouped(_piles(coded, rng), owner, clients)


Splitter = Callable[[Tensor, DataSettings, np.random.Generator], Split]
"""A split from labels and the [data] table; it ignores keys it does not use."""

SPLITS: dict[str, Splitter] = {
    "iid": lambda labels, data, rng: iid(len(labels), data.clients, rng),
    "dirichlet": lambda labels, data, rng: dirichlet(labels, data.clients, data.alpha, rng),
    "dirichlet-unequal": lambda labels, data, rng: dirichlet_unequal(labels, data.clients, data.alpha, rng),
    "shards": lambda labels, data, rng: shards(labels, data.clients, data.shards, rng),
    "quantity": lambda labels, data, rng: quantity(len(labels), data.clients, data.alpha, rng),
}


def _coded(labels: Tensor) -> tuple[Ints, Ints]:
    """The labels as indices of the classes present, and the number of examples of each class."""
    _, coded, stock = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    return coded, stock


def _piles(coded: Ints, rng: np.random.Generator) -> Ints:
    """The examples class by class, in random order within a class."""
    shuffled = rng.permutation(len(coded))
    return np.asarray(shuffled[np.argsort(coded[shuffled], kind="stable")])


def _grouped(order: Ints, owner: Ints, clients: int) -> Split:
    """The split in which the example order[j] belongs to the client owner[j]."""
    return _split(order[np.argsort(owner, kind="stable")], _offsets(np.bincount(owner, minlength=clients)))


def _shares(whole: int, parts: Floats) -> Ints:
    """Whole numbers in these proportions that add up to `whole`; none is off by more than one."""
    ends = np.cumsum(parts)
    return np.asarray(np.diff(np.rint(ends / ends[-1] * whole).astype(np.int64), prepend=0))


def _spared(sizes: Ints) -> Ints:
    """What each client gives up so that every empty one gets one example: the largest gives first."""
    needed = int((sizes == 0).sum())
    level, high = 1, int(sizes.max())
    while level < high:  # whoever is above the level gives down to it; the highest level that is enough
        middle = (level + high + 1) // 2
        enough = np.maximum(sizes - middle, 0).sum() >= needed
        level, high = (middle, high) if enough else (level, middle - 1)
    spared: Ints = np.maximum(sizes - level, 0)
    spared[np.flatnonzero(spared)[: spared.sum() - needed]] -= 1
    return spared


def _apportion(stock: Ints, shards: int) -> Ints:
    """How many shards each class is cut into: one by one, always for the class whose shards are the largest."""
    given: Ints = np.maximum(-(-stock * (shards - len(stock)) // stock.sum()), 1)  # a lower bound for all
    for _ in range(shards - int(given.sum())):
        given[np.argmax(stock / given)] += 1
    return given


def _equal_offsets(examples: int, clients: int) -> Ints:
    _check_clients(examples, clients)
    share, rest = divmod(examples, clients)
    sizes = np.full(clients, share, dtype=np.int64)
    sizes[:rest] += 1
    return _offsets(sizes)


def _offsets(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _check_clients(examples: int, clients: int) -> None:
    if clients < 1:
        raise InputError(f"data.clients = {clients}: must be at least 1")
    if clients > examples:
        raise InputError(f"data.clients = {clients}: more clients than examples ({examples})")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < float("inf"):
        raise InputError(f"data.alpha = {alpha:g}: must be greater than 0 and finite")


def _split(order: Ints, offsets: Ints) -> Split:
    as_ints = (torch.from_numpy(array.astype(np.int64)) for array in (order, offsets))
    return Split(*as_ints)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"data.split_file = {path}: {why}")
