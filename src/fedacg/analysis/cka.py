"""Linear CKA: how similar the features are that two networks compute from the same examples.

CKA(X, Y) = HSIC(X, Y) / √(HSIC(X, X)·HSIC(Y, Y)), where HSIC is an inner product of centred Gram matrices. It is 1
for features that differ by a rotation, a shift and a scale, and near 0 for unrelated ones.

There are two estimates. The exact one is that of Kornblith et al. (ICML 2019) on one set of examples. The other,
of Nguyen, Raghu and Kornblith (ICLR 2021), averages the unbiased HSIC₁ of Song et al. (JMLR 2012) over batches, in
memory that does not depend on the number of batches.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedacg.analysis import pictures
from fedacg.analysis.pictures import over_seeds
from fedacg.analysis.plane import sample_test
from fedacg.analysis.subjects import (
    Drawing,
    Finding,
    Subject,
    Watcher,
    Words,
    by_group,
    check_fit,
    summary_column,
    to_csv,
    together,
)
from fedacg.core.randomness import numpy_generator
from fedacg.core.vector import FlatModel, Layout, clone
from fedacg.data.examples import Examples
from fedacg.errors import InputError
from fedacg.models import StagedModel
from fedacg.runs.build import Ingredients
from fedacg.runs.recording import Recorded
from fedacg.simulation.probes import stage_slices

_COLUMNS = 4096
"""Number of features held in float64 at a time, in addition to those in the network's own type."""


def linear_cka(x: Tensor, y: Tensor) -> float:
    """CKA of features of the same n examples, exactly; NaN if the features of either do not vary.

    The features of an example are flattened. Beside them this takes memory for n × min(n, d) numbers, where d is
    how many there are, the larger count if they differ.
    """
    if len(x) != len(y):
        raise InputError(f"features: of {len(x)} examples and of {len(y)}; both must have the same examples")
    small = len(x) > max(_flat(x).shape[1], _flat(y).shape[1])
    return float(_normalised(_products([_centred(x, small), _centred(y, small)]))[0, 1])


def minibatch_cka(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """CKA from batches of features (x, y), the same examples in both, by unbiased estimates of HSIC.

    Each batch must be a random choice of examples, 4 at least. Their estimates are averaged with the numbers of
    examples as weights.
    """
    sums = torch.zeros(2, 2, dtype=torch.float64)
    for x, y in batches:
        sums += _products([_unbiased(x), _unbiased(y)])
    return float(_normalised(sums)[0, 1])


class LocalModels:
    """The local models of a recorded round, one after another in the same network.

    Each is read when its turn comes, in every pass, so a cohort takes the memory of one model.
    """

    def __init__(self, ingredients: Ingredients, recorded: Recorded) -> None:
        if not isinstance(ingredients.module, StagedModel):
            raise InputError(
                f"model: is a {type(ingredients.module).__name__}, and layers are compared, so it must be a "
                "fedacg.models.StagedModel, made of stages and a head"
            )
        check_fit(recorded, ingredients.module)
        self._layout = Layout.of(ingredients.module, ingredients.channels_last)
        self._flat = FlatModel(clone(ingredients.module), channels_last=ingredients.channels_last, frozen=True)
        self._recorded, self._pipeline = recorded, ingredients.data.pipeline

    def __iter__(self) -> Iterator[StagedModel]:
        module = self._flat.module.eval()
        assert isinstance(module, StagedModel)
        for place in range(len(self._recorded.clients)):
            w, buffers = self._recorded.local(place)
            self._flat.load(self._layout.from_canonical({"w": w})["w"], buffers)
            yield module

    def inputs(self, examples: Examples, batch: int, seed: int) -> Iterator[Tensor]:
        """The examples in random order as the models take them, in nearly equal batches of at most `batch`."""
        order = numpy_generator(seed, "analysis examples").permutation(len(examples))
        # Test sets may be sorted by class or by client; batches cut from them in order would not be random.
        for part in torch.from_numpy(order).tensor_split(-(-len(order) // batch)):
            x, _ = examples.fetch(part)
            assert isinstance(x, Tensor)  # as staged models take it
            yield self._flat.prepare(self._pipeline(x))


@torch.no_grad()
def layerwise(models: Iterable[StagedModel], batches: Iterable[Tensor], *, exact: bool = False) -> list[float]:
    """CKA between models at the output of every stage and at the logits, each the mean over all pairs.

    `models` is iterated once per batch, and b × b numbers for every layer of each are kept until the next batch.
    With `exact`, all batches count as one set of n examples. `models` is iterated once; the features of all n
    are held for one model at a time, and n × min(n, d) numbers for every layer of each.
    """
    sums: list[Tensor] = []
    for group in [list(batches)] if exact else ([x] for x in batches):
        kernels = [[_whole(f) if exact else _unbiased(f) for f in _features(model, group)] for model in models]
        if len(kernels) < 2:
            raise InputError(f"CKA: compares local models, and there are {len(kernels)}; must be 2 or more")
        products = [_products(layer) for layer in zip(*kernels, strict=True)]
        sums = [a + b for a, b in zip(sums, products, strict=True)] if sums else products
    return [_mean_over_pairs(_normalised(layer)) for layer in sums]


def _features(model: StagedModel, group: Sequence[Tensor]) -> Iterator[Tensor]:
    """The outputs of every stage and of the head for the examples of a group of batches."""
    outputs = []
    for x in group:
        stages = model.stage_outputs(x)
        outputs.append([*stages, model.branch(stages[-1] if stages else x, len(model.stages))])
    return (torch.cat(layer) if len(layer) > 1 else layer[0] for layer in zip(*outputs, strict=True))


@dataclass(frozen=True)
class _Kernel:
    """A centred linear kernel of n examples: its n × n Gram matrix, or n × d features whose Gram matrix it is."""

    matrix: Tensor
    factored: bool

    def inner(self, other: "_Kernel") -> Tensor:
        """The sum over all entries of the product of the two Gram matrices."""
        if self.factored:
            return (self.matrix.T @ other.matrix).square().sum()
        return self.matrix.flatten() @ other.matrix.flatten()


def _whole(features: Tensor) -> _Kernel:
    return _centred(features, small=len(features) > _flat(features).shape[1])


def _centred(features: Tensor, small: bool) -> _Kernel:
    """Centred as the biased HSIC is: H·K·H with H = I − 11ᵀ/n."""
    if small:
        x = _shifted(features).double()
        return _Kernel(x - x.mean(dim=0), factored=True)
    gram = _gram(features)
    means = gram.mean(dim=0)
    return _Kernel(gram.sub_(means).sub_(means.unsqueeze(1)).add_(means.mean()), factored=False)


def _unbiased(features: Tensor) -> _Kernel:
    """Centred so that the inner product of two is n times Song's unbiased HSIC₁.

    HSIC₁ = (tr K̃L̃ + 1ᵀK̃1·1ᵀL̃1/((n−1)(n−2)) − 2·1ᵀK̃L̃1/(n−2)) / (n(n−3)), where K̃ and L̃ are the Gram matrices
    without their diagonals. With K̃_ij − (row sum i + column sum j)/(n−2) + total/((n−1)(n−2)) in place of K̃_ij off
    the diagonal, the first term alone is the whole. So a kernel is centred once, not once per pair.
    """
    n = len(features)
    if n < 4:
        raise InputError(f"CKA: a batch of {n} examples; unbiased estimates need 4 or more")
    gram = _gram(features).fill_diagonal_(0)
    sums = gram.sum(dim=0)
    gram.sub_(sums / (n - 2)).sub_(sums.unsqueeze(1) / (n - 2)).add_(sums.sum() / ((n - 1) * (n - 2)))
    return _Kernel(gram.fill_diagonal_(0).div_((n - 3) ** 0.5), factored=False)


def _gram(features: Tensor) -> Tensor:
    shifted = _shifted(features)
    gram = torch.zeros(len(shifted), len(shifted), dtype=torch.float64)
    for columns in torch.split(shifted, _COLUMNS, dim=1):
        wide = columns.double()
        gram.addmm_(wide, wide.T)
    return gram


def _shifted(features: Tensor) -> Tensor:
    """The first example moved to the origin: CKA does not see it, and features that do not vary become zero."""
    flat = _flat(features)
    return flat - flat[0]


def _flat(features: Tensor) -> Tensor:
    return features.flatten(start_dim=1)


def _products(kernels: Sequence[_Kernel]) -> Tensor:
    """The inner products of all with all."""
    products = torch.empty(len(kernels), len(kernels), dtype=torch.float64)
    for i, one in enumerate(kernels):
        for j, other in enumerate(kernels[: i + 1]):
            products[i, j] = products[j, i] = one.inner(other)
    return products


def _normalised(products: Tensor) -> Tensor:
    lengths = products.diagonal().sqrt()
    return products / torch.outer(lengths, lengths)


def _mean_over_pairs(similarities: Tensor) -> float:
    rows, columns = torch.tril_indices(len(similarities), len(similarities), offset=-1)
    return float(similarities[rows, columns].mean())


_BATCH = 250
"""Test examples compared at a time: more take more memory, fewer give a rougher estimate."""


def cka_of(subjects: Sequence[Subject], round: int, examples: int, exact: bool, watcher: Watcher) -> Finding:
    """CKA between all local models of a round on some test examples: the mean over pairs, for every layer."""
    found: dict[Path, list[float]] = {}
    layers: list[str] = []
    used = 0
    for ingredients, part in together(subjects):
        seed = part[0].experiment.seed
        chosen = sample_test(ingredients.data, examples, seed)
        layers, used = list(stage_slices(ingredients.module)), len(chosen)
        for subject in part:
            recorded = subject.load(round)
            models = LocalModels(ingredients, recorded)
            passes = 1 if exact else -(-used // _BATCH)
            with watcher.work(f"CKA of {subject.run.label}", len(recorded.clients) * passes) as step:
                batches = models.inputs(chosen, _BATCH, seed)
                found[subject.folder] = layerwise(_Watched(models, step), batches, exact=exact)
    lines = [over_seeds(g[0].ink, [dict(enumerate(found[s.folder])) for s in g]) for g in by_group(subjects)]
    rows = [
        [subject.ink.label, subject.run.seed, round, layer, value]
        for subject in subjects
        for layer, value in zip(layers, found[subject.folder], strict=True)
    ]
    title, caption, alt = CKA
    caption = caption.format(round=round, examples=used)
    return Finding(
        [Drawing("cka", title, caption, alt, pictures.cka(layers, lines, round))],
        {"cka.csv": to_csv(["method", "seed", "round", "layer", "cka"], rows)},
        [summary_column("CKA of outputs", subjects, [found[s.folder][-1] for s in subjects], decimals=4)],
    )


class _Watched:
    """The models in turn, each counted as a step."""

    def __init__(self, models: LocalModels, step: Callable[[], None]) -> None:
        self._models, self._step = models, step

    def __iter__(self) -> Iterator[StagedModel]:
        for model in self._models:
            yield model
            self._step()


CKA = Words(
    title="Similarity of features",
    caption=(
        "How similarly the local models of round {round} see the same {examples} test examples, after every stage "
        "and at the output of the head: linear CKA, the mean over all pairs of clients. 1 means the same features "
        "up to rotation and scale, 0 unrelated ones; the scale need not begin at 0. Lines often fall towards the "
        "end, where each client fits its own labels. High is good."
    ),
    alt=("CKA between local models along the layers of the network, a line for each method."),
)
