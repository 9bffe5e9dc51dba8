"""The networks of the catalogue: their sizes worked out by hand, their stages, and what they refuse.

What is LEAF's own, and the network for text in every respect, is tested in test_models_leaf.py.
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedacg.errors import InputError
from fedacg.models import NAMES, StagedModel, build

DIGITS, GREY, CIFAR, TINY = (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)
NETWORKS = [name for name in NAMES if name != "lstm"]
SHAPES = [
    (name, shape)
    for name in NETWORKS
    for shape in (DIGITS, GREY, CIFAR, TINY)
    if not (name in ("lenet", "celeba-cnn") and shape == DIGITS)
]
# The smallest image that every network takes keeps the tests quick.
SMALL = [(name, (3, 16, 16)) for name in NETWORKS]
RELU_STAGES = [(name, shape) for name, shape in SMALL if name != "logistic"]


def make(name: str, shape: tuple[int, ...] = CIFAR, classes: int = 10, **options: object) -> StagedModel:
    torch.manual_seed(1)
    return build(name, classes=classes, shape=shape, **options)


def batch(shape: tuple[int, ...], size: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, *shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


# Sizes


def test_logistic_has_one_weight_per_input_and_class() -> None:
    assert count(make("logistic", DIGITS)) == 64 * 10 + 10


def test_mlp_for_digits_is_64_64_10() -> None:
    assert count(make("mlp", DIGITS)) == linear(64, 64) + linear(64, 10) == 4810


def test_mlp_has_the_hidden_widths_asked_for() -> None:
    for hidden in ((32, 16), [32, 16]):
        model = make("mlp", DIGITS, hidden=hidden)
        assert count(model) == linear(64, 32) + linear(32, 16) + linear(16, 10)
        assert [y.shape[1] for y in model.stage_outputs(batch(DIGITS))] == [32, 16]


@pytest.mark.parametrize(("shape", "pixels"), [(DIGITS, 1), (GREY, 9), (CIFAR, 16), (TINY, 64)])
def test_cnn_size(shape: tuple[int, ...], pixels: int) -> None:
    convolutions = 9 * (shape[0] * 16 + 16 * 32 + 32 * 64)
    norms = 2 * (16 + 32 + 64)
    assert count(make("cnn", shape)) == convolutions + norms + linear(64 * pixels, 10)


@pytest.mark.parametrize(("shape", "flat"), [(GREY, 1024), (CIFAR, 1600), (TINY, 64 * 13 * 13)])
def test_lenet_size(shape: tuple[int, ...], flat: int) -> None:
    convolutions = (25 * shape[0] * 64 + 64) + (25 * 64 * 64 + 64)
    assert count(make("lenet", shape)) == convolutions + linear(flat, 384) + linear(384, 192) + linear(192, 10)


def test_resnet18_has_11_173_962_parameters() -> None:
    def norm(channels: int) -> int:
        return 2 * channels

    def block(i: int, o: int) -> int:
        shortcut = i * o + norm(o) if i != o else 0
        return 9 * i * o + norm(o) + 9 * o * o + norm(o) + shortcut

    stem = 9 * 3 * 64 + norm(64)
    stages = sum(block(i, o) + block(o, o) for i, o in pairwise((64, 64, 128, 256, 512)))
    assert count(make("resnet18")) == stem + stages + linear(512, 10) == 11_173_962
    assert count(make("resnet18", TINY, classes=200)) == stem + stages + linear(512, 200)


# Shapes


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_output_is_logits_and_features_are_what_the_head_eats(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape, classes=7)
    with torch.no_grad():
        x = batch(shape, size=2)
        features = model.features(x)
        assert isinstance(model.head, nn.Linear)
        assert features.shape == (2, model.head.in_features)
        assert model(x).shape == (2, 7)
        assert torch.equal(model.head(features), model(x))


def test_shape_is_cifar_unless_said_otherwise() -> None:
    assert build("logistic", classes=10)(batch(CIFAR)).shape == (3, 10)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("logistic", 1),
        ("mlp", 1),
        ("cnn", 3),
        ("lenet", 4),
        ("resnet18", 5),
        ("femnist-cnn", 3),
        ("celeba-cnn", 4),
    ],
)
def test_number_of_stages(name: str, stages: int) -> None:
    assert len(make(name).stages) == stages


def test_networks_take_images_that_are_not_square() -> None:
    for name in NETWORKS:
        assert make(name, (2, 16, 21))(batch((2, 16, 21))).shape == (3, 10)


# Stages and branches


@pytest.mark.parametrize(("name", "shape"), SMALL)
def test_branch_from_every_stage_equals_forward(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape)
    x = batch(shape)
    outputs = model.stage_outputs(x)
    assert len(outputs) == len(model.stages)
    assert torch.equal(outputs[-1], model.features(x))
    logits = model(x)
    for first, entering in enumerate([x, *outputs]):
        assert torch.equal(model.branch(entering, first), logits)


@pytest.mark.parametrize(("name", "shape"), RELU_STAGES)
def test_stages_end_after_their_activation_and_do_not_begin_with_one(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape)
    for output in model.stage_outputs(batch(shape)):
        assert output.min() >= 0
        assert output.max() > 0
    for stage in model.stages:
        assert not isinstance(next(m for m in stage.modules() if not list(m.children())), nn.ReLU)


@pytest.mark.parametrize(("name", "shape"), SMALL)
def test_no_stage_writes_into_what_it_is_given(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape)
    x = batch(shape)
    with torch.no_grad():
        for stage in model.stages:
            before = x.clone()
            y = stage(x)
            assert torch.equal(x, before)
            x = y


@pytest.mark.parametrize(("name", "shape"), SMALL)
def test_gradients_flow_through_frozen_stages_into_local_ones(name: str, shape: tuple[int, ...]) -> None:
    local, frozen = make(name, shape), make(name, shape).requires_grad_(False)
    outputs = local.stage_outputs(batch(shape))
    logits = [frozen.branch(output, first) for first, output in enumerate(outputs, start=1)]
    if name == "logistic":  # its only stage has nothing to train
        assert not logits[0].requires_grad
        return
    torch.stack(logits).square().sum().backward()
    assert all(p.grad is not None for p in local.stages.parameters())
    assert all(p.grad is None for p in [*local.head.parameters(), *frozen.parameters()])


# Networks


def test_resnet18_has_two_groups_everywhere_and_no_batch_norm() -> None:
    modules = list(make("resnet18").modules())
    norms = [m for m in modules if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 1 + 4 * 4 + 3
    assert all(norm.num_groups == 2 for norm in norms)
    assert not any(isinstance(m, (nn.modules.batchnorm._BatchNorm, nn.MaxPool2d)) for m in modules)


def test_resnet18_stem_keeps_the_resolution() -> None:
    sides = [y.shape[-1] for y in make("resnet18").stage_outputs(batch(CIFAR, size=1))]
    assert sides == [32, 32, 16, 8, 512]


def test_resnet18_convolutions_start_kaiming_fan_out() -> None:
    for module in make("resnet18").modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


@pytest.mark.parametrize("name", ["cnn", "lenet", "femnist-cnn", "celeba-cnn"])
def test_pooling_before_relu_changes_neither_values_nor_gradients(name: str) -> None:
    first = make(name).double().stages[0]
    assert isinstance(first, nn.Sequential)
    *inner, pool, relu = first
    assert isinstance(pool, nn.MaxPool2d)
    assert isinstance(relu, nn.ReLU)
    as_named = nn.Sequential(*inner, nn.ReLU(), pool)
    x = batch(CIFAR, dtype=torch.float64)
    results = []
    for stage in (first, as_named):
        first.zero_grad()
        y = stage(x)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in first.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("name", "shape"), SMALL)
def test_gradients_reach_every_parameter_in_double(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape).double()
    logits = model(batch(shape, dtype=torch.float64))
    assert logits.dtype == torch.float64
    nn.functional.cross_entropy(logits, torch.arange(3)).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float64
        assert parameter.grad.abs().max() > 0


@pytest.mark.parametrize(("name", "shape"), SMALL)
def test_channels_last_gives_the_same_output_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = make(name, shape).double().to(memory_format=layout)
        logits = model(batch(shape, dtype=torch.float64).contiguous(memory_format=layout))
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_layout_wishes_are_those_measured() -> None:
    assert {name: make(name).channels_last for name in NETWORKS} == {
        "logistic": None,
        "mlp": None,
        "cnn": True,
        "lenet": True,
        "resnet18": False,
        "femnist-cnn": True,
        "celeba-cnn": True,
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_the_global_generator_decides_the_start(name: str) -> None:
    one, same = make(name), make(name)
    other = build(name, classes=10)  # the generator has moved on
    pairs = list(zip(one.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(one.head.parameters()), next(other.head.parameters()))


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet"}, "unknown model 'resnet': did you mean 'resnet18'?"),
        (
            {"name": "lenet", "shape": DIGITS},
            r"model.shape = \(1, 8, 8\): lenet takes images.* at least 16×16",
        ),
        ({"name": "lenet", "shape": (3, 32, 15)}, "model.shape = .*16×16"),
        ({"name": "cnn", "shape": (1, 7, 8)}, r"model.shape = \(1, 7, 8\): cnn .* 8×8"),
        ({"name": "resnet18", "shape": (64,)}, r"model.shape = \(64,\): resnet18 takes images"),
        ({"name": "resnet18", "shape": (0, 8, 8)}, r"model.shape = \(0, 8, 8\)"),
        ({"name": "cnn", "shape": 32}, "model.shape = 32: cnn takes images"),
        ({"name": "logistic", "shape": ()}, r"model.shape = \(\): logistic takes"),
        ({"name": "mlp", "shape": (8, -1)}, r"model.shape = \(8, -1\): mlp takes"),
        ({"name": "mlp", "classes": 1}, "model.classes = 1: .* 2 or more"),
        ({"name": "mlp", "classes": 2.0}, "model.classes = 2.0"),
        ({"name": "mlp", "classes": True}, "model.classes = True"),
        ({"name": "lenet", "hidden": (3,)}, r"model.hidden = \(3,\): lenet takes no options"),
        ({"name": "mlp", "widths": [3]}, r"model.widths = \[3\]: mlp takes only hidden"),
        ({"name": "mlp", "hidden": ()}, r"model.hidden = \(\): .* positive whole numbers"),
        ({"name": "mlp", "hidden": 64}, "model.hidden = 64: "),
        ({"name": "mlp", "hidden": "64"}, "model.hidden = '64': "),
        ({"name": "mlp", "hidden": [64, 0]}, r"model.hidden = \[64, 0\]: "),
        ({"name": "mlp", "hidden": [64.0]}, r"model.hidden = \[64.0\]: "),
        ({"name": "mlp", "hidden": [True]}, r"model.hidden = \[True\]: "),
    ],
)
def test_bad_requests_name_the_option_its_value_and_what_is_allowed(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(**({"classes": 10} | arguments))  # type: ignore[arg-type]
