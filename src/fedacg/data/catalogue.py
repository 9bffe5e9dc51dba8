"""The data sets by name, and a federation made of one: loaded, split among clients, ready to train on.

Everything here is addressed by the keys of an experiment's [data] table, and errors name them so.
File formats, splits and generators live in their own modules.
"""

from dataclasses import dataclass
from pathlib import Path

from fedacg import errors, randomness
from fedacg.data import cifar, digits, idx, splits, synthetic
from fedacg.data.augment import Augment
from fedacg.data.examples import FederatedData, Pipeline, SplitClients, TensorExamples
from fedacg.data.files import data_root
from fedacg.data.pipelines import ImagePipeline
from fedacg.errors import InputError

BUILT_IN = "built in"


@dataclass(frozen=True)
class Dataset:
    """A data set before it is split."""

    name: str
    train: TensorExamples
    test: TensorExamples
    pipeline: Pipeline
    classes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """What is known of an image data set without reading it, and how to read it."""

    examples: tuple[int, int]
    """For training and for testing."""
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    source: cifar.CifarSource | idx.IdxSource | None
    """None for digits, which come with the package."""
    white: int = 255


# Figures and clothes are not mirrored: a mirrored digit is no digit, and all shoes point the same way.
_SHIFTED = Augment(degrees=10, padding=2, flip=False)
_PAPER = Augment(degrees=10, padding=4, flip=True)

IMAGES: dict[str, Facts] = {
    # The custom for digits is plain scaling to [0, 1].
    "digits": Facts(
        (1438, 359), 10, (1, 8, 8), (0.0,), (1.0,), Augment(degrees=10, padding=1, flip=False), None, 16
    ),
    "mnist": Facts((60_000, 10_000), 10, (1, 28, 28), (0.1307,), (0.3081,), _SHIFTED, idx.MNIST),
    "fashion-mnist": Facts((60_000, 10_000), 10, (1, 28, 28), (0.2860,), (0.3530,), _SHIFTED, idx.FASHION_MNIST),
    "cifar10": Facts(
        (50_000, 10_000),
        10,
        (3, 32, 32),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        _PAPER,
        cifar.CIFAR10,
    ),
    "cifar100": Facts(
        (50_000, 10_000),
        100,
        (3, 32, 32),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        _PAPER,
        cifar.CIFAR100,
    ),
}
SYNTHETIC = "synthetic"
NATURAL = "natural"
"""The split of data that come with their clients."""
NAMES: tuple[str, ...] = (*IMAGES, SYNTHETIC)
SPLITS: tuple[str, ...] = (*splits.SPLITS, NATURAL)


def where(name: str) -> Path | str | None:
    """Where a data set lies: a path, "built in", or None when it has to be fetched first."""
    _known(name)
    source = IMAGES[name].source if name in IMAGES else None
    return BUILT_IN if source is None else source.find(data_root())


def load(name: str, *, augment: bool = False) -> Dataset:
    """Read a data set from its files; its pipeline augments training batches if it is asked to."""
    _known(name)
    if name == SYNTHETIC:
        raise InputError("data.name = synthetic: is made client by client, and cannot be loaded as one set")
    facts = IMAGES[name]
    train, test = digits.read() if facts.source is None else facts.source.read(data_root())
    pipeline = ImagePipeline(facts.mean, facts.std, facts.augment if augment else None, facts.white)
    return Dataset(name, train, test, pipeline, facts.classes, facts.shape)


def federate(
    name: str,
    *,
    clients: int,
    split: str,
    alpha: float | None,
    beta: float | None,
    seed: int,
    split_file: Path | None = None,
    augment: bool = False,
) -> FederatedData:
    """A data set dealt to clients by a split, or as a saved split has it.

    A split file takes the place of `split` and `alpha`. Options that the split has no use for are left
    alone, so that one recipe can be run with several splits.
    """
    _known(name)
    if split not in SPLITS:
        raise errors.unknown("split", split, SPLITS)
    if name == SYNTHETIC:
        return _synthetic(clients, split, alpha, beta, seed, split_file, augment)
    if split == NATURAL:
        raise InputError(f"data.split = natural: {name} does not come with clients; choose iid or dirichlet")
    whole = load(name, augment=augment)
    if split_file is None:
        dealt = deal(whole, clients=clients, split=split, alpha=alpha, seed=seed)
    else:
        dealt = splits.load(split_file, examples=len(whole.train), clients=clients)
    view = SplitClients(whole.train, dealt.order, dealt.offsets)
    return FederatedData(name, view, whole.test, whole.pipeline, whole.classes, whole.shape)


def deal(whole: Dataset, *, clients: int, split: str, alpha: float | None, seed: int) -> splits.Split:
    """The split that a run with this seed draws."""
    if split not in splits.SPLITS:
        raise errors.unknown("split", split, splits.SPLITS)
    return splits.SPLITS[split](whole.train.y, clients, alpha, randomness.numpy_generator(seed, "split"))


def _synthetic(
    clients: int,
    split: str,
    alpha: float | None,
    beta: float | None,
    seed: int,
    split_file: Path | None,
    augment: bool,
) -> FederatedData:
    if split != NATURAL:
        raise InputError(f"data.split = {split}: synthetic comes with its clients; must be natural")
    if split_file is not None:
        raise InputError(f"data.split_file = {split_file}: synthetic comes with its clients; leave it out")
    if augment:
        raise InputError("data.augment = true: synthetic has no images to augment; must be false")
    return synthetic.federate(clients, alpha, beta, seed)


def _known(name: str) -> None:
    if name not in NAMES:
        raise errors.unknown("data set", name, NAMES)
