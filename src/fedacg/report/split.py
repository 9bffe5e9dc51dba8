"""Who holds which labels in a run: its split dealt anew from its settings and seed, if its data are at hand.

Counting is in `labels`. Data that a run was given from Python, or that a function of the user's makes, are not
asked for: a report must not run code because a run folder names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedacg.config.experiment import show
from fedacg.config.sections import DataSettings
from fedacg.core import plugins
from fedacg.core.randomness import numpy_generator
from fedacg.data import catalogue, origins
from fedacg.errors import InputError
from fedacg.report import labels
from fedacg.report.labels import Figures, LabelCounts
from fedacg.report.runs import Run
from fedacg.report.settings import identity

MOST = 4
"""A report draws no more splits than this."""


@dataclass(frozen=True)
class Split:
    """A split, counted."""

    title: str
    held: LabelCounts
    figures: Figures


def look(settings: DataSettings, seed: int) -> Split:
    """Deal a split and count it."""
    rng = numpy_generator(seed, "show")
    held = labels.count(catalogue.federate(settings, seed), rng)
    read = len(held.clients)
    of_all = f" of {held.population}" if read < held.population else ""
    title = f"{settings.name}: {_described(settings)}, {read}{of_all} clients"
    return Split(title, held, labels.figures(held.counts, rng))


def _described(settings: DataSettings) -> str:
    """The split in words, with the options that matter for it."""
    if settings.split_file:
        return f"split of {Path(settings.split_file).name}"
    if settings.name == catalogue.SYNTHETIC:
        return f"natural (α = {settings.alpha:g}, β = {settings.beta:g})"
    options = {"iid": "", "natural": "", "shards": f" ({settings.shards} a client)"}
    return settings.split + options.get(settings.split, f" (α = {settings.alpha:g})")


def splits_of(runs: Sequence[Run]) -> tuple[list[Split], list[str]]:
    """The split of each kind of data among the runs, under the first of its seeds; and why one is missing."""
    firsts: dict[tuple[str, ...], Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
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
        raise InputError(f"{name}: not a data set of the catalogue, so its split is not dealt anew here")
    if catalogue.where(name) is None:
        raise InputError(f"{name}: not available, so its split cannot be shown{origins.or_get(name)}")
    try:
        settings = DataSettings.model_validate(run.experiment["data"])
    except ValidationError:
        raise InputError(f"{run.folder}: its [data] is of another version, so its split is not shown") from None
    with plugins.reading(run.folder, trust=False, allow="fedacg data show draws its split"):
        split = look(settings, run.seed)
    return Split(f"{split.title}, seed {run.seed}", split.held, split.figures)
