"""Linear CKA: its invariances, and its value against formulas written out with explicit matrices in NumPy."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedacg import methods, models
from fedacg.analysis import cka
from fedacg.analysis.cka import LocalModels, layerwise, linear_cka, minibatch_cka
from fedacg.config.sections import AnalysisSettings
from fedacg.core.vector import FlatModel, clone
from fedacg.data.own_data import from_pairs
from fedacg.errors import InputError
from fedacg.models import StagedModel
from fedacg.runs.build import Ingredients
from fedacg.runs.recording import Recorded, Recorder, load
from fedacg.simulation.replies import Arrivals
from support.staged import tanh_net

Matrix = NDArray[np.float64]
SHAPES = [(30, 7, 5), (8, 40, 9), (12, 5, 300), (10, 10, 10)]
"""(n, d1, d2): more examples than features, fewer, and between the two."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def related(n: int, d1: int, d2: int) -> tuple[Tensor, Tensor]:
    """Features that have something in common, far from the origin."""
    x, mix, noise = draw(n, d1), draw(d1, d2, seed=1), draw(n, d2, seed=2)
    return x + 3, x @ mix + noise - 10


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(draw(d, d, seed=9)).Q


def gram(x: Tensor) -> Matrix:
    rows: Matrix = x.flatten(start_dim=1).double().numpy().astype(np.longdouble)
    return rows @ rows.T


def naive_hsic(k: Matrix, ell: Matrix) -> float:
    n = len(k)
    h = np.eye(n) - np.ones((n, n)) / n
    return float(np.trace(k @ h @ ell @ h)) / (n - 1) ** 2


def naive_hsic1(k: Matrix, ell: Matrix) -> float:
    """Equation 3 of Nguyen et al., as it stands; in extended precision, as its terms cancel each other."""
    n, one = len(k), np.ones(len(k))
    k, ell = k - np.diag(np.diag(k)), ell - np.diag(np.diag(ell))
    corner = (one @ k @ one) * (one @ ell @ one) / ((n - 1) * (n - 2))
    return float(np.trace(k @ ell) + corner - 2 / (n - 2) * (one @ k @ ell @ one)) / (n * (n - 3))


def naive_cka(x: Tensor, y: Tensor, hsic: Any = naive_hsic) -> float:
    k, ell = gram(x), gram(y)
    return float(hsic(k, ell)) / math.sqrt(hsic(k, k) * hsic(ell, ell))


def unbiased(x: Tensor, y: Tensor) -> float:
    return minibatch_cka(zip(x.split(10), y.split(10), strict=True))


BOTH = pytest.mark.parametrize("similarity", [linear_cka, unbiased])


# Two sets of features


@BOTH
@pytest.mark.parametrize("d", [6, 80])
def test_identical_features_have_cka_one(similarity: Any, d: int) -> None:
    x = draw(40, d)
    assert similarity(x, x) == pytest.approx(1, abs=1e-12)


@BOTH
@pytest.mark.parametrize("d", [6, 80])
def test_rotation_scale_and_shift_change_nothing(similarity: Any, d: int) -> None:
    x, y = related(40, d, d)
    expected = similarity(x, y)
    assert 0.1 < expected < 0.99
    turned = 0.003 * (y @ rotation(d)) + 5
    assert similarity(x, turned) == pytest.approx(expected, abs=1e-10)
    assert similarity(y, turned) == pytest.approx(1, abs=1e-10)


@BOTH
def test_a_stretch_along_one_axis_is_seen(similarity: Any) -> None:
    x = draw(40, 6)
    assert similarity(x, x * torch.tensor([9.0, 1, 1, 1, 1, 1])) < 0.95


@BOTH
def test_cka_is_symmetric(similarity: Any) -> None:
    x, y = related(40, 7, 30)
    assert similarity(x, y) == pytest.approx(similarity(y, x), abs=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_cka_equals_centring_matrices_written_out(shape: tuple[int, int, int]) -> None:
    x, y = related(*shape)
    assert linear_cka(x, y) == pytest.approx(naive_cka(x, y), abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_unbiased_batch_equals_its_formula_written_out(shape: tuple[int, int, int]) -> None:
    x, y = related(*shape)
    assert minibatch_cka([(x, y)]) == pytest.approx(naive_cka(x, y, naive_hsic1), abs=1e-12)


def test_batches_average_the_estimates_and_not_the_ratios() -> None:
    x, y = related(45, 6, 20)
    batches = list(zip(x.split(10), y.split(10), strict=True))
    sizes = [len(one) for one, _ in batches]
    assert sizes == [10, 10, 10, 10, 5]
    grams = [(gram(one), gram(other)) for one, other in batches]

    def average(first: int, second: int) -> float:
        return float(np.average([naive_hsic1(g[first], g[second]) for g in grams], weights=sizes))

    expected = average(0, 1) / math.sqrt(average(0, 0) * average(1, 1))
    assert minibatch_cka(iter(batches)) == pytest.approx(expected, abs=1e-12)


def test_independent_features_of_many_examples_have_cka_near_zero() -> None:
    """The exact one is d/n high at best; the unbiased one lies around zero even where d is larger than a batch."""
    x, y = draw(4000, 20), draw(4000, 20, seed=1)
    assert 0 < linear_cka(x, y) < 0.01
    x, y = draw(4000, 100), draw(4000, 100, seed=1)
    assert linear_cka(x[:50], y[:50]) > 0.5, "few examples of many features look alike to the biased one"
    estimate = minibatch_cka(zip(x.split(50), y.split(50), strict=True))
    assert abs(estimate) < 0.03


@BOTH
def test_features_of_a_convolution_are_flattened(similarity: Any) -> None:
    x, y = related(40, 24, 18)
    assert similarity(x.view(40, 2, 3, 4), y.view(40, 2, 3, 3)) == similarity(x, y)


@BOTH
def test_features_that_do_not_vary_have_no_cka(similarity: Any) -> None:
    """Not even by rounding, whatever their values."""
    for d in (7, 300):
        still = draw(1, d).expand(40, d)
        assert math.isnan(similarity(still, draw(40, 5)))
        assert math.isnan(similarity(draw(40, 5), still))


def test_many_features_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = related(10, 30, 25)
    monkeypatch.setattr(cka, "_COLUMNS", 7)
    assert linear_cka(x, y) == pytest.approx(naive_cka(x, y), abs=1e-12)


def test_float32_features_far_from_the_origin_keep_their_digits() -> None:
    x, y = related(20, 50, 60)
    near = linear_cka(x, y)
    assert linear_cka((x + 200).float(), y.float()) == pytest.approx(near, abs=1e-4)


def test_features_of_different_examples_and_tiny_batches_are_refused() -> None:
    with pytest.raises(InputError, match="of 5 examples and of 6"):
        linear_cka(draw(5, 2), draw(6, 2))
    with pytest.raises(InputError, match="a batch of 3 examples; unbiased estimates need 4 or more"):
        minibatch_cka([(draw(3, 2), draw(3, 2))])


# Layers of models


def variants(count: int) -> list[StagedModel]:
    found = []
    for number in range(count):
        model = tanh_net()
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.add_(0.5 * number * draw(*p.shape, seed=10 * number + k))
        found.append(model)
    return found


def by_layer(model: StagedModel, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        first = model.stages[0](x)
        second = model.stages[1](first)
        return [first, second, model.head(second)]


def pairs(
    nets: Sequence[StagedModel], similarity: Callable[[StagedModel, StagedModel, int], float]
) -> list[float]:
    """The mean over all pairs, for each of the three layers."""
    return [statistics.fmean(similarity(a, b, layer) for a, b in combinations(nets, 2)) for layer in range(3)]


@pytest.mark.parametrize("n", [32, 4])
def test_layers_are_compared_over_all_pairs_exactly(n: int) -> None:
    """More examples than a layer has features, and fewer."""
    nets, x = variants(3), draw(n, 3, seed=3)
    expected = pairs(nets, lambda a, b, layer: naive_cka(by_layer(a, x)[layer], by_layer(b, x)[layer]))
    assert layerwise(nets, x.split(3), exact=True) == pytest.approx(expected, abs=1e-12)


def test_layers_are_compared_over_all_pairs_in_batches() -> None:
    nets, batches = variants(3), list(draw(30, 3, seed=3).split(10))
    expected = pairs(
        nets, lambda a, b, layer: minibatch_cka((by_layer(a, x)[layer], by_layer(b, x)[layer]) for x in batches)
    )
    assert layerwise(nets, iter(batches)) == pytest.approx(expected, abs=1e-12)


def test_copies_of_one_model_are_alike_in_every_layer() -> None:
    assert layerwise([tanh_net(), tanh_net()], draw(40, 3).split(10)) == pytest.approx([1, 1, 1], abs=1e-12)


def test_one_model_alone_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="there are 1; must be 2 or more"):
        layerwise([tanh_net()], [draw(10, 3)])


# Local models of a recorded round


def record(folder: Path, vectors: Sequence[Tensor]) -> Recorded:
    recorder = Recorder(folder, AnalysisSettings(rounds=(1,)))
    phi, count = torch.zeros_like(vectors[0]), len(vectors)
    recorder.begin(1, {"phi": phi, "buffers": torch.empty(0)})
    recorder.see(Arrivals(range(count), [1 / count] * count, torch.stack(list(vectors)), torch.empty(count, 0)))
    recorder.end()
    return load(folder, 1)


def images() -> tuple[Ingredients, Tensor]:
    source = torch.Generator().manual_seed(4)
    x = torch.randint(0, 256, (45, 1, 8, 8), generator=source).byte()
    data = from_pairs([(x, torch.arange(45) % 3)], (x, torch.arange(45) % 3))
    module = models.build("cnn", classes=3, shape=(1, 8, 8))
    return Ingredients(module, True, data, methods.build("fedavg")), x


def test_recorded_models_are_compared_as_if_each_were_built(tmp_path: Path) -> None:
    ingredients, x = images()
    nets, vectors = [], []
    for number in range(3):
        flat = FlatModel(clone(ingredients.module), channels_last=True)
        flat.w.copy_(torch.randn(len(flat.w), generator=torch.Generator().manual_seed(number)))
        vectors.append(flat.canonical())
        net = flat.release()
        assert isinstance(net, StagedModel)
        nets.append(net)
    before = [p.clone() for p in ingredients.module.parameters()]
    local = LocalModels(ingredients, record(tmp_path, vectors))
    found = layerwise(local, local.inputs(ingredients.data.test, batch=100, seed=0), exact=True)
    assert found == pytest.approx(layerwise(nets, [x.float() / 255], exact=True), abs=1e-5)
    assert len(found) == 4
    assert all(torch.equal(p, was) for p, was in zip(ingredients.module.parameters(), before, strict=True))


def test_inputs_are_every_example_once_in_nearly_equal_random_batches(tmp_path: Path) -> None:
    x, y = torch.arange(45.0).repeat(3, 1).T.double(), torch.arange(45) % 4
    ingredients = Ingredients(tanh_net(), False, from_pairs([(x, y)], (x, y)), methods.build("fedavg"))
    local = LocalModels(ingredients, record(tmp_path, [draw(65), draw(65)]))

    def numbers(seed: int) -> list[list[float]]:
        return [part[:, 0].tolist() for part in local.inputs(ingredients.data.test, batch=10, seed=seed)]

    assert [len(part) for part in numbers(0)] == [9, 9, 9, 9, 9]
    assert sorted(chain.from_iterable(numbers(0))) == list(range(45))
    assert numbers(0) == numbers(0) != numbers(1)
    assert all(max(part) - min(part) > 15 for part in numbers(0)), "batches are mixed, not cut off in order"


def test_recorded_models_are_read_one_at_a_time(tmp_path: Path) -> None:
    """The network is the same object every time, with the next client's parameters in it."""
    ingredients, _ = images()
    size = sum(p.numel() for p in ingredients.module.parameters())
    local = LocalModels(ingredients, record(tmp_path, [torch.full((size,), float(i)) for i in range(3)]))

    def values(each: Iterator[StagedModel]) -> list[tuple[int, float, bool]]:
        return [(id(net), float(next(net.parameters()).mean()), net.training) for net in each]

    first = values(iter(local))
    assert [value for _, value, _ in first] == [0, 1, 2]
    assert len({net for net, _, _ in first}) == 1
    assert not any(training for _, _, training in first)
    assert values(iter(local)) == first


def test_a_network_without_stages_is_refused(tmp_path: Path) -> None:
    pair = draw(5, 3), torch.arange(5) % 2
    ingredients = Ingredients(nn.Linear(3, 2), False, from_pairs([pair], pair), methods.build("fedavg"))
    with pytest.raises(InputError, match="is a Linear, and layers are compared"):
        LocalModels(ingredients, record(tmp_path, [draw(8), draw(8)]))
