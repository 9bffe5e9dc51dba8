"""FedPara: the factors' ranks and counts, what stays dense, and runs on factors."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from fedacg import models
from fedacg.errors import InputError
from fedacg.models import parameters
from fedacg.models.factorised import FactorisedConv2d, FactorisedLinear, factorise
from fedacg.runs.build import prepare
from fedacg.runs.model_file import load_model
from fedacg.runs.runner import play
from support.runs import digest, tiny


@pytest.mark.parametrize(("rank", "reached"), [(1, 1), (2, 4), (3, 9), (4, 12), (5, 12)])
def test_a_product_of_two_matrices_of_rank_r_can_have_rank_r_squared(rank: int, reached: int) -> None:
    torch.manual_seed(0)
    layer = FactorisedLinear(nn.Linear(15, 12).double(), rank)
    assert int(torch.linalg.matrix_rank(layer.weight)) == reached
    # The mistake of adding the two products, or of one product alone, stays below 2r.
    assert int(torch.linalg.matrix_rank(layer.x1 @ layer.y1.T + layer.x2 @ layer.y2.T)) == min(2 * rank, 12)


def test_a_convolutions_unfoldings_can_have_rank_r_squared() -> None:
    torch.manual_seed(0)
    weight = FactorisedConv2d(nn.Conv2d(10, 9, 3).double(), 3).weight
    assert weight.shape == (9, 10, 3, 3)
    assert int(torch.linalg.matrix_rank(weight.reshape(9, -1))) == 9
    assert int(torch.linalg.matrix_rank(weight.transpose(0, 1).reshape(10, -1))) == 9


def test_factors_are_as_many_as_the_formulas_say() -> None:
    linear, convolution = FactorisedLinear(nn.Linear(15, 12), 3), FactorisedConv2d(nn.Conv2d(10, 9, 5), 2)
    assert sum(p.numel() for p in linear.parameters()) == 2 * 3 * (12 + 15) + 12
    assert sum(p.numel() for p in convolution.parameters()) == 2 * 2 * (9 + 10 + 2 * 25) + 9


def test_a_layer_computes_what_its_dense_weight_computes() -> None:
    torch.manual_seed(0)
    dense = nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2).double()
    layer, x = FactorisedConv2d(dense, 2), torch.randn(2, 4, 7, 7, dtype=torch.float64)
    with torch.no_grad():
        dense.weight.copy_(layer.weight)
    torch.testing.assert_close(layer(x), dense(x))
    flat = nn.Linear(8, 5).double()
    factors, z = FactorisedLinear(flat, 2), torch.randn(3, 8, dtype=torch.float64)
    with torch.no_grad():
        flat.weight.copy_(factors.weight)
    torch.testing.assert_close(factors(z), flat(z))


def test_weights_begin_as_widely_spread_as_the_dense_ones() -> None:
    torch.manual_seed(0)
    for dense, factors in (
        (nn.Linear(400, 300), FactorisedLinear(nn.Linear(400, 300), 18)),
        (nn.Conv2d(64, 64, 5), FactorisedConv2d(nn.Conv2d(64, 64, 5), 8)),
    ):
        assert float(factors.weight.detach().std() / dense.weight.detach().std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet", "resnet18"])
def test_networks_stay_staged_and_head_biases_and_norms_stay_dense(name: str) -> None:
    shape = (3, 32, 32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = models.build(name, classes=5, shape=shape, factorise=0.1)
    assert isinstance(module, models.StagedModel)
    assert type(module.head) is nn.Linear
    kinds = {type(each) for each in module.modules()}
    assert kinds & {FactorisedLinear, FactorisedConv2d}
    assert module(torch.randn(2, *shape)).shape == (2, 5)
    count = sum(p.numel() for p in module.parameters())
    assert count == parameters(name, classes=5, shape=shape, factorise=0.1)
    assert count < parameters(name, classes=5, shape=shape)


def test_a_fraction_goes_from_full_rank_to_where_nothing_is_saved() -> None:
    # 64 × 64: r_min = 8; 2r·128 < 4096 up to r = 15.
    def rank(fraction: float) -> int:
        module = models.build("mlp", classes=3, shape=(64,), factorise=fraction)
        return next(each.x1.shape[1] for each in module.modules() if isinstance(each, FactorisedLinear))

    assert [rank(each) for each in (0.001, 0.5, 0.999)] == [8, 12, 15]
    assert rank(5) == 5


def test_what_cannot_be_made_smaller_is_refused() -> None:
    with pytest.raises(InputError, match=r"model.factorise = 3: makes no layer of StagedModel smaller"):
        models.build("logistic", classes=3, shape=(8,), factorise=3)
    with pytest.raises(InputError, match=r"model.factorise = 2.5: must be a whole number"):
        factorise(nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 3)), 2.5)


def test_the_last_linear_layer_of_any_other_module_is_its_head() -> None:
    module = factorise(nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 30)), 3)
    assert [type(each) for each in module] == [FactorisedLinear, nn.ReLU, nn.Linear]  # type: ignore[arg-type]


def test_a_run_on_factors_sends_fewer_bytes_and_its_model_is_built_again(tmp_path: Path) -> None:
    dense, small = (tiny(tmp_path, "rounds=2", f"model.factorise={rank}") for rank in (0, 2))
    wide, narrow = (
        play(each, prepare(each), folder=tmp_path / each.model.factorise.hex()) for each in (dense, small)
    )
    assert narrow.summary["bytes_up"] < 0.5 * wide.summary["bytes_up"]
    folder = tmp_path / (2.0).hex()
    assert json.loads((folder / "model.json").read_text())["factorise"] == 2
    assert torch.equal(parameters_to_vector(load_model(folder).parameters()), narrow.vector)


@pytest.mark.parametrize("method", ["fedacg", "feddyn+paq", "moon+acg", "fedmlb"])
def test_methods_train_factors_and_fusing_changes_rounding_only(method: str, tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "rounds=3", "model.factorise=3", f"method.name={method}")
    result = play(experiment, prepare(experiment))
    assert bool(result.vector.isfinite().all())
    assert digest(play(experiment, prepare(experiment))) == digest(result)
    if method == "fedacg":
        fused = tiny(tmp_path, "rounds=3", "model.factorise=3", "method.name=fedacg", "engine.fuse=on")
        torch.testing.assert_close(play(fused, prepare(fused)).vector, result.vector, rtol=1e-3, atol=1e-4)
