"""The data sets by name, and a federation made from one: loaded, split among clients, ready to train on.

Arguments are the keys of an experiment's [data] table, and errors use those names.
File formats, splits and generators are in their own modules.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedacg import errors
from fedacg.config.sections import DataSettings
from fedacg.core.randomness import numpy_generator
from fedacg.data import files, own_data, own_tables, splits
from fedacg.data.examples import (
    Contents,
    Dataset,
    Examples,
    FederatedData,
    Origin,
    OwnedClients,
    Owners,
    Pipeline,
    SplitClients,
    ViewExamples,
    labels,
)
from fedacg.data.files import data_root
from fedacg.data.pipelines import Augment, ImagePipeline, PlainPipeline
from fedacg.data.sources import Source, built_in, celeba, cifar, femnist, idx, shakespeare, tiny_imagenet
from fedacg.errors import DataDamaged, InputError

BUILT_IN = "built in"
OWN = "your own"


@dataclass(frozen=True)
class Facts:
    """What is known about a data set without reading it, and how to read it."""

    classes: int
    shape: tuple[int, ...]
    pipeline: ImagePipeline | PlainPipeline
    """The pipeline, with the augmentation used when augmentation is requested."""
    source: Source | None
    """None for digits, which come with the package."""
    natural: bool = False
    """Whether the data come with clients."""


# Digits and clothes are not mirrored: a mirrored digit is not a digit, and all shoes point the same way.
_SHIFTED = Augment(degrees=10, padding=2, flip=False)
_PAPER = Augment(degrees=10, padding=4, flip=True)
# The custom for digits is plain scaling to [0, 1].
_DIGITS = ImagePipeline((0.0,), (1.0,), Augment(degrees=10, padding=1, flip=False), white=16)
_MNIST = ImagePipeline((0.1307,), (0.3081,), _SHIFTED)
_FASHION = ImagePipeline((0.2860,), (0.3530,), _SHIFTED)
_CIFAR10 = ImagePipeline((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _PAPER)
_CIFAR100 = ImagePipeline((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), _PAPER)
_TINY_IMAGENET = ImagePipeline((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), _PAPER)
# LEAF feeds faces as bytes; here they are centred, between -1 and 1.
_CELEBA = ImagePipeline((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_FEMNIST = ImagePipeline((0.0,), (1.0,))  # as LEAF feeds it

FACTS: dict[str, Facts] = {
    "digits": Facts(10, (1, 8, 8), _DIGITS, None),
    "mnist": Facts(10, (1, 28, 28), _MNIST, idx.MNIST),
    "fashion-mnist": Facts(10, (1, 28, 28), _FASHION, idx.FASHION_MNIST),
    "cifar10": Facts(10, (3, 32, 32), _CIFAR10, cifar.CIFAR10),
    "cifar100": Facts(100, (3, 32, 32), _CIFAR100, cifar.CIFAR100),
    "tiny-imagenet": Facts(200, (3, 64, 64), _TINY_IMAGENET, tiny_imagenet.TINY_IMAGENET),
    "femnist": Facts(62, (1, 28, 28), _FEMNIST, femnist.FEMNIST, natural=True),
    "celeba": Facts(2, (3, 84, 84), _CELEBA, celeba.CELEBA, natural=True),
    "shakespeare": Facts(80, (80,), PlainPipeline(), shakespeare.SHAKESPEARE, natural=True),
}
DIGITS = "digits"
SYNTHETIC = "synthetic"
FOLDER = "folder"
"""The user's own files, at `data.path`."""
NATURAL = "natural"
"""The split of data that come with clients."""
NAMES: tuple[str, ...] = (*FACTS, SYNTHETIC, FOLDER)
SPLITS: tuple[str, ...] = (*splits.SPLITS, NATURAL)


def where(name: str) -> Path | str | None:
    """The location of a data set: a path, "built in", "your own", or None if it must be fetched first."""
    if _is_own(name):
        return OWN
    source = FACTS[name].source if name in FACTS else None
    return BUILT_IN if source is None else source.find(data_root())


@dataclass(frozen=True)
class Survey:
    """What can be said about a data set without slow reading."""

    place: Path | str | None
    """As `where` returns it; None if it is missing or cannot be searched for."""
    origin: Origin | None = None
    """What was found when it was read; None if it was not, or cannot be."""
    problem: str = ""
    """Why it cannot be read."""


def survey(name: str) -> Survey:
    """The location and contents of a data set; one that is slow to read is not read for this."""
    try:
        place = where(name)
        if not isinstance(place, Path):
            return Survey(place, _built_in() if name == DIGITS else None)
        source = _source(name)
        records_of = (files.recall(source.listing(copy)) for copy in source.copies(data_root()))
        known = next(filter(None, records_of), None)
        if known is None and source.version is None:
            known = check(name)
        return Survey(Path(known.copy) if known else place, known)
    except InputError as error:
        return Survey(None, problem=str(error))


def check(name: str) -> Origin:
    """Read all files of a data set, ignoring what was prepared before.

    The result says how the copy differs from the published one; one that cannot be read at all is refused.
    """
    if name == DIGITS:
        return _built_in()
    try:
        return Origin.of(_read(name, partial=False, fresh=True))
    except DataDamaged as refusal:
        try:
            return Origin.of(_read(name, partial=True))
        except DataDamaged:
            raise refusal from None


def load(name: str, *, path: str = "", augment: bool = False, partial: bool = False) -> Dataset:
    """Read a data set from its files; with `augment`, its pipeline augments training batches.

    `path` is the path of the data set `folder`. A name such as `my_data:wine` is a user's function.
    A copy that is not the complete published one is refused unless `partial`.
    """
    _check_path(name, path)
    _check_partial(name, partial)
    if _is_own(name):
        whole = own_tables.read_folder(path) if name == FOLDER else own_data.from_function(name)
        return replace(whole, pipeline=_pipeline(whole.name, whole.pipeline, augment))
    if name == SYNTHETIC:
        raise InputError("data.name = synthetic: is generated client by client and cannot be loaded as one set")
    facts = FACTS[name]
    pipeline = _pipeline(name, facts.pipeline, augment)
    contents = built_in.read_digits() if facts.source is None else _read(name, partial=partial)
    origin = None if facts.source is None else Origin.of(contents)
    return Dataset(
        name, contents.train, contents.test, pipeline, facts.classes, facts.shape, contents.owners, origin
    )


def _source(name: str) -> Source:
    source = FACTS[name].source if name in FACTS else None
    if source is None:
        raise InputError(f"{name}: does not consist of published files")
    return source


def _read(name: str, *, partial: bool, fresh: bool = False) -> Contents:
    return _source(name).read(data_root(), partial=partial, fresh=fresh)


def _built_in() -> Origin:
    contents = built_in.read_digits()
    return Origin(BUILT_IN, len(contents.train), len(contents.test), None, ())


def _pipeline(name: str, pipeline: Pipeline, augment: bool) -> Pipeline:
    if not isinstance(pipeline, ImagePipeline) or pipeline.augment is None:
        if augment:
            raise InputError(f"data.augment = true: {name} is not augmented; must be false")
        return pipeline
    return pipeline if augment else replace(pipeline, augment=None)


def federate(settings: DataSettings, seed: int) -> FederatedData:
    """A data set split among clients, by a drawn split or a saved one.

    A split file replaces `split` and its options. Options that the split does not use are ignored, so that one
    recipe can be run with several splits.
    """
    if settings.name == SYNTHETIC:
        return _synthetic(settings, seed)
    whole = load(settings.name, path=settings.path, augment=settings.augment, partial=settings.partial)
    if settings.split == NATURAL and not settings.split_file:
        return _natural(whole, settings.clients, seed)
    if settings.split_file:
        dealt = splits.load(Path(settings.split_file), examples=len(whole.train), clients=settings.clients)
    else:
        dealt = deal(whole, settings, seed)
    view = SplitClients(whole.train, dealt.order, dealt.offsets)
    return FederatedData(whole.name, view, whole.test, whole.pipeline, whole.classes, whole.shape, whole.origin)


def deal(whole: Dataset, settings: DataSettings, seed: int) -> splits.Split:
    """The split that a run with these settings and this seed draws."""
    if settings.split not in splits.SPLITS:
        raise errors.unknown("split", settings.split, splits.SPLITS)
    if settings.clients < 1:
        raise InputError(f"data.clients = {settings.clients}: must be at least 1")
    return splits.SPLITS[settings.split](labels(whole.train), settings, numpy_generator(seed, "split"))


def _natural(whole: Dataset, clients: int, seed: int) -> FederatedData:
    """The clients that the data come with: all of them, or a random choice and their test examples."""
    owners = whole.owners
    if owners is None:
        choices = ", ".join(splits.SPLITS)
        raise InputError(f"data.split = natural: {whole.name} does not come with clients; choose from {choices}")
    there = len(owners.names)
    if clients > there:
        raise InputError(f"data.clients = {clients}: {whole.name} comes with {there}; 0 takes all")
    if clients in (0, there):
        chosen, test = torch.arange(there), whole.test
    else:
        picked = numpy_generator(seed, "natural clients").choice(there, size=clients, replace=False)
        chosen = torch.from_numpy(picked).sort().values
        test = _tests_of(whole, owners, chosen)
    if len(test) == 0:
        raise InputError(f"data.clients = {clients}: none of the chosen clients of {whole.name} has test examples")
    view = OwnedClients(whole.train, owners.train, chosen)
    names = tuple(owners.names[owner] for owner in chosen.tolist())
    # Test examples without owners are shared by all.
    own = OwnedClients(whole.test, owners.test, chosen) if owners.test[-1] else None
    facts = whole.pipeline, whole.classes, whole.shape, whole.origin
    return FederatedData(whole.name, view, test, *facts, names=names, own_tests=own)


def _tests_of(whole: Dataset, owners: Owners, chosen: torch.Tensor) -> Examples:
    """The chosen owners' test examples; all of them if they have no owners."""
    if owners.test[-1] == 0:
        return whole.test
    bounds = ((int(owners.test[owner]), int(owners.test[owner + 1])) for owner in chosen.tolist())
    return ViewExamples(whole.test, torch.cat([torch.arange(first, last) for first, last in bounds]))


def _synthetic(settings: DataSettings, seed: int) -> FederatedData:
    if settings.split != NATURAL:
        raise InputError(f"data.split = {settings.split}: synthetic comes with its clients; must be natural")
    if settings.split_file:
        raise InputError(
            f"data.split_file = {settings.split_file}: synthetic comes with its clients; leave it out"
        )
    if settings.augment:
        raise InputError("data.augment = true: synthetic is not augmented; must be false")
    _check_path(settings.name, settings.path)
    _check_partial(settings.name, settings.partial)
    return built_in.federate_synthetic(settings.clients, settings.alpha, settings.beta, seed)


def _check_path(name: str, path: str) -> None:
    if path and name != FOLDER:
        raise InputError(f"data.path = {path}: is for data.name = {FOLDER}, not for {name}; leave it out")


def _check_partial(name: str, partial: bool) -> None:
    if partial and (name not in FACTS or FACTS[name].source is None):
        raise InputError(f"data.partial = true: {name} does not consist of published files; leave it out")


def _is_own(name: str) -> bool:
    """Whether a name means user data; an unknown name is refused."""
    if name not in NAMES and ":" not in name:
        known = errors.unknown("data set", name, NAMES)
        raise InputError(f"{known}, or module:function for one of your own")
    return name == FOLDER or name not in NAMES


def there(name: str) -> Origin | None:
    """The copy of a data set in one of the searched places, read now if it was not before."""
    if name not in FACTS:
        return None
    found = survey(name)
    if found.problem or not isinstance(found.place, Path):
        return None
    return found.origin or check(name)
