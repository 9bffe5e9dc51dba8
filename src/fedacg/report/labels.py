"""The distribution of labels over clients: counts, figures, and rows of shaded cells for a terminal.

`pictures` draws it; `fedacg.data` decides which client holds which examples, and repeats a run's split from
its settings and seed if its data are available.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedacg.config.experiment import show
from fedacg.config.sections import DataSettings
from fedacg.core import plugins
from fedacg.core.randomness import numpy_generator
from fedacg.data import catalogue, origins
from fedacg.data.examples import FederatedData, labels
from fedacg.errors import InputError
from fedacg.report.runs import Run, identity

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

READ = 4000
"""Most clients whose labels are read; of more, a random choice represents all. FEMNIST has about 3600."""
MOST_IN_ORDER = 60
"""Most clients that a picture shows by number; more are sorted by what they hold."""
SHADES = ((4.0, "█"), (2.0, "▓"), (0.5, "▒"), (0.0, "░"))
"""Shades for a client's share of a class, relative to the class's share of all data; 0 is a dot."""
LEGEND = "share of a class, relative to its overall share: · 0  ░ <½  ▒ ½–2  ▓ 2–4  █ ≥4"


@dataclass(frozen=True)
class LabelCounts:
    """How many examples of each class the clients hold."""

    clients: Ints
    """Their numbers."""
    counts: Ints
    """One row per client, one column per class."""
    population: int
    """The number of clients, whether or not they were read."""

    @property
    def sizes(self) -> Ints:
        return np.asarray(self.counts.sum(axis=1))

    @property
    def shares(self) -> Floats:
        """What part of a client's examples each class is: rows that add up to 1."""
        return np.asarray(self.counts / self.sizes[:, None])

    @property
    def in_order(self) -> bool:
        """Whether a picture shows the clients by their numbers."""
        return len(self.clients) <= MOST_IN_ORDER

    @property
    def order(self) -> Ints:
        """The places of the clients in a picture: as they are, or by their most frequent class, those that have
        most of it first."""
        if self.in_order:
            return np.arange(len(self.clients))
        return np.lexsort((-self.shares.max(axis=1), self.shares.argmax(axis=1)))


def count(data: FederatedData, rng: np.random.Generator, most: int = READ) -> LabelCounts:
    """Read the labels of all clients, or of `most` chosen at random."""
    population = len(data.clients)
    chosen = np.arange(population)
    if population > most:
        chosen = np.sort(rng.choice(population, size=most, replace=False))
    held = [labels(data.clients[client]).bincount(minlength=data.classes) for client in chosen.tolist()]
    return LabelCounts(chosen, np.stack([row.numpy() for row in held]), population)


@dataclass(frozen=True)
class Figures:
    """Figures of the counts. Means are over clients with equal weight."""

    smallest: int
    median: float
    mean: float
    largest: int
    entropy: float
    """Mean entropy of a client's labels, in bits."""
    entropy_of_all: float
    """Entropy of all labels together, in bits."""
    distance: float
    """Mean total variation distance between a client's label distribution p and that of all, q: ½ Σ |p − q|.
    It is the part of a client's examples that would have to be exchanged to make it like the whole."""
    distance_by_chance: float
    """The same when clients of these sizes are filled at random with the same examples, once."""


def figures(counts: Ints, rng: np.random.Generator) -> Figures:
    """Sizes, entropy and distance from i.i.d. of a table of counts: one row per client, one column per class."""
    sizes = counts.sum(axis=1)
    return Figures(
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        mean=float(sizes.mean()),
        largest=int(sizes.max()),
        entropy=float(_entropy(counts).mean()),
        entropy_of_all=float(_entropy(counts.sum(axis=0))),
        distance=_distance(counts),
        distance_by_chance=_distance(_at_random(counts, rng)),
    )


def _entropy(counts: Ints) -> Floats:
    """In bits, of each row."""
    p = counts / counts.sum(axis=-1, keepdims=True)
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    return np.asarray(-(p * logs).sum(axis=-1) + 0.0)


def _distance(counts: Ints) -> float:
    p = counts / counts.sum(axis=1, keepdims=True)
    q = counts.sum(axis=0) / counts.sum()
    return float(np.abs(p - q).sum(axis=1).mean() / 2)


def _at_random(counts: Ints, rng: np.random.Generator) -> Ints:
    """The same labels dealt again at random, to clients of the same sizes."""
    clients, classes = counts.shape
    dealt = rng.permutation(np.repeat(np.arange(classes), counts.sum(axis=0)))
    client = np.repeat(np.arange(clients), counts.sum(axis=1))
    return np.bincount(client * classes + dealt, minlength=counts.size).reshape(counts.shape)


def rows(held: LabelCounts, most: int, width: int) -> Iterator[tuple[str, str]]:
    """A heading and a line for each of the first clients, at most `width` wide: words, and shaded cells.

    A cell is a class, or as many neighbouring classes as it takes for all to fit.
    """
    number, size = (max(4, len(str(largest.max()))) for largest in (held.clients, held.sizes))
    words = f"{{:>{number + 2}}}  {{:>{size}}}  {{:>7}}  "
    room = width - len(words.format("", "", ""))
    classes = held.counts.shape[1]
    a_cell = -(-classes // room)
    cells = -(-classes // a_cell)
    wide = min(room // cells, 6)
    yield words.format("client", "size", "classes"), _scale(classes, a_cell, wide)
    starts = np.arange(0, classes, a_cell)
    whole = np.add.reduceat(held.counts.sum(axis=0), starts) / held.counts.sum()
    for client, counts in zip(held.clients[:most], held.counts, strict=False):
        shares = np.add.reduceat(counts, starts) / counts.sum()
        times = np.divide(shares, whole, out=np.zeros_like(whole), where=whole > 0)
        bar = "".join(wide * _shade(float(multiple)) for multiple in times)
        yield words.format(client, counts.sum(), (counts > 0).sum()), bar


def _shade(multiple: float) -> str:
    return next(sign for least, sign in SHADES if multiple >= least) if multiple > 0 else "·"


def _scale(classes: int, a_cell: int, wide: int) -> str:
    """The numbers of the classes above their cells, or above some where cells are narrow."""
    step = 1 if wide > 2 else 10 // wide
    return "".join(str(first).ljust(step * wide) for first in range(0, classes, step * a_cell)).rstrip()


MOST = 4
"""A report draws no more splits than this."""


@dataclass(frozen=True)
class Split:
    """A split, counted."""

    title: str
    held: LabelCounts
    figures: Figures


def look(settings: DataSettings, seed: int) -> Split:
    """Draw a split and count it."""
    rng = numpy_generator(seed, "show")
    held = count(catalogue.federate(settings, seed), rng)
    read = len(held.clients)
    of_all = f" of {held.population}" if read < held.population else ""
    title = f"{settings.name}: {_described(settings)}, {read}{of_all} clients"
    return Split(title, held, figures(held.counts, rng))


def _described(settings: DataSettings) -> str:
    """The split in words, with the options that matter for it."""
    if settings.split_file:
        return f"split of {Path(settings.split_file).name}"
    if settings.name == catalogue.SYNTHETIC:
        return f"natural (α = {settings.alpha:g}, β = {settings.beta:g})"
    options = {"iid": "", "natural": "", "shards": f" ({settings.shards} per client)"}
    return settings.split + options.get(settings.split, f" (α = {settings.alpha:g})")


def splits_of(runs: Sequence[Run]) -> tuple[list[Split], list[str]]:
    """The split of each kind of data among the runs, under the first of its seeds; and why one is missing."""
    firsts: dict[tuple[str, ...], Run] = {}
    for run in sorted(runs, key=lambda run: run.seed_of("split")):
        keys = sorted(key for key in run.settings if key.startswith("data."))
        firsts.setdefault((*keys, *identity(run.settings, keys)), run)
    found: list[Split] = []
    missing: list[str] = []
    for run in list(firsts.values())[:MOST]:
        try:
            found.append(_split_of(run))
        except InputError as error:
            missing.append(str(error))
    if len(firsts) > MOST:
        missing.append(f"{len(firsts) - MOST} other splits are not shown")
    return found, list(dict.fromkeys(missing))


def _split_of(run: Run) -> Split:
    name = show(run.settings.get("data.name"))
    if name not in catalogue.NAMES:
        raise InputError(f"{name}: not a data set of the catalogue, so its split cannot be drawn again")
    if catalogue.where(name) is None:
        raise InputError(f"{name}: not available, so its split cannot be shown{origins.or_get(name)}")
    try:
        settings = DataSettings.model_validate(run.experiment["data"])
    except ValidationError:
        raise InputError(f"{run.folder}: its [data] is from another version, so its split is not shown") from None
    with plugins.reading(run.folder, trust=False, allow="fedacg data show draws its split"):
        split = look(settings, run.seed_of("split"))
    return Split(f"{split.title}, seed {run.seed_of('split')}", split.held, split.figures)
