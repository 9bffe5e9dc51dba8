"""LEAF's networks: sizes by hand, plain re-implementations, every method, and one process or several."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d

import fedacg
from fedacg.config.catalogue import GIVEN
from fedacg.config.experiment import Experiment
from fedacg.core.vector import FlatModel, clone
from fedacg.data.own_data import from_pairs
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.engines.shared_memory import freeze, thaw
from fedacg.errors import InputError
from fedacg.methods import METHODS
from fedacg.methods import build as build_method
from fedacg.models import StagedModel, build
from fedacg.runs.build import Ingredients
from fedacg.runs.runner import Result, play

ORIGINAL: dict[str, tuple[tuple[int, ...], int]] = {
    "femnist-cnn": ((1, 28, 28), 62),
    "celeba-cnn": ((3, 84, 84), 2),
    "lstm": ((80,), 80),
}
"""What LEAF feeds them, and the classes."""
TINY: dict[str, tuple[int, ...]] = {"femnist-cnn": (1, 5, 4), "celeba-cnn": (2, 16, 17), "lstm": (6,)}
SMALL = {"embedding": 3, "hidden": 5, "symbols": 7}


def make(name: str, dtype: torch.dtype = torch.float32, **options: object) -> StagedModel:
    """A tiny one with four classes, the same every time."""
    if name == "lstm":
        options = {**SMALL, **options}
    torch.manual_seed(1)
    return build(name, classes=4, shape=TINY[name], **options).to(dtype)


def batch(name: str, size: int = 3, dtype: torch.dtype = torch.float32, seed: int = 2) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (size,), generator=source)
    if name == "lstm":
        return torch.randint(SMALL["symbols"], (size, *TINY[name]), generator=source), y
    return torch.randn(size, *TINY[name], generator=source, dtype=dtype), y


# Sizes


def test_femnist_cnn_has_6_603_710_parameters() -> None:
    convolutions = (25 * 1 * 32 + 32) + (25 * 32 * 64 + 64)
    hidden = 7 * 7 * 64 * 2048 + 2048
    assert size("femnist-cnn") == convolutions + hidden + 2048 * 62 + 62 == 6_603_710


def test_celeba_cnn_has_30_498_parameters() -> None:
    convolutions = (9 * 3 * 32 + 32) + 3 * (9 * 32 * 32 + 32)
    norms = 4 * 2 * 32
    assert size("celeba-cnn") == convolutions + norms + 5 * 5 * 32 * 2 + 2 == 30_498


def test_lstm_has_819_920_parameters() -> None:
    def layer(inputs: int, hidden: int) -> int:
        return 4 * (inputs * hidden + hidden * hidden + hidden + hidden)

    assert size("lstm") == 80 * 8 + layer(8, 256) + layer(256, 256) + 256 * 80 + 80 == 819_920
    assert size("lstm", embedding=5, hidden=9, layers=3, symbols=11) == (
        11 * 5 + layer(5, 9) + 2 * layer(9, 9) + 9 * 80 + 80
    )


def size(name: str, **options: object) -> int:
    shape, classes = ORIGINAL[name]
    return sum(p.numel() for p in build(name, classes=classes, shape=shape, **options).parameters())


# Plain re-implementations


def plain_femnist(x: Tensor, *p: Tensor) -> list[Tensor]:
    one = max_pool2d(conv2d(x, p[0], p[1], padding=2).relu(), 2)
    two = max_pool2d(conv2d(one, p[2], p[3], padding=2).relu(), 2).flatten(1)
    three = linear(two, p[4], p[5]).relu()
    return [one, two, three, linear(three, p[6], p[7])]


def plain_celeba(x: Tensor, *p: Tensor) -> list[Tensor]:
    outputs = []
    for w, b, scale, shift in zip(p[0:16:4], p[1:16:4], p[2:16:4], p[3:16:4], strict=True):
        y = conv2d(x, w, b, padding=1)
        halves = y.view(len(y), 2, -1)
        mean, variance = halves.mean(2, keepdim=True), halves.var(2, keepdim=True, correction=0)
        y = ((halves - mean) / (variance + 1e-5).sqrt()).view_as(y)
        x = max_pool2d(y * scale.view(-1, 1, 1) + shift.view(-1, 1, 1), 2).relu()
        outputs.append(x)
    outputs[-1] = x.flatten(1)
    return [*outputs, linear(outputs[-1], p[16], p[17])]


def plain_lstm(x: Tensor, table: Tensor, *p: Tensor) -> list[Tensor]:
    """Hochreiter and Schmidhuber's cell with a forget gate, step by step."""
    sequence = [table[ids] for ids in x.T]
    outputs = []
    *layers, (w, b) = [p[:4], p[4:8], p[8:]]
    for w_in, w_back, b_in, b_back in layers:
        h = c = torch.zeros(len(x), w_back.shape[1], dtype=table.dtype)
        for step, entering in enumerate(sequence):
            i, f, g, o = (entering @ w_in.T + b_in + h @ w_back.T + b_back).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            sequence[step] = h
        outputs.append(torch.stack(sequence, dim=1))
    outputs[-1] = outputs[-1][:, -1]
    return [*outputs, outputs[-1] @ w.T + b]


PLAIN: dict[str, Callable[..., list[Tensor]]] = {
    "femnist-cnn": plain_femnist,
    "celeba-cnn": plain_celeba,
    "lstm": plain_lstm,
}


@pytest.mark.parametrize("name", PLAIN)
def test_stages_logits_and_flat_gradient_are_those_of_a_plain_implementation(name: str) -> None:
    flat = FlatModel(make(name, torch.float64))
    x, y = batch(name, dtype=torch.float64)
    # Norms start as the identity, where a wrong scale or shift would not show.
    flat.w.add_(0.1 * torch.randn(flat.w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
    model = flat.module
    assert isinstance(model, StagedModel)
    parameters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    expected = PLAIN[name](x, *parameters)
    cross_entropy(expected[-1], y).backward()

    logits = model(x)
    cross_entropy(logits, y).backward()
    for found, wanted in zip([*model.stage_outputs(x), logits], expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    gradient = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    torch.testing.assert_close(flat.g, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_the_flat_vector_is_what_a_copy_computes_with(name: str) -> None:
    model = make(name)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    x, y = batch(name)
    copies: list[Any] = [clone(model), thaw(*freeze(model))]
    for copy in copies:
        assert torch.equal(copy(x), model(x))
        flat = FlatModel(copy, channels_last=model.channels_last)
        cross_entropy(copy(flat.prepare(x)), y).backward()
        assert flat.g.abs().max() > 0
        flat.w.zero_()
        assert torch.equal(copy(flat.prepare(x)), torch.zeros(3, 4))
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)


# Stages of the LSTM


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_each_lstm_layer_is_a_stage_and_only_the_last_puts_out_one_step(layers: int) -> None:
    model = make("lstm", layers=layers)
    x, _ = batch("lstm")
    outputs = model.stage_outputs(x)
    assert [output.shape for output in outputs] == [(3, 6, 5)] * (layers - 1) + [(3, 5)]
    logits = model(x)
    for first, entering in enumerate([x, *outputs]):
        kept = entering.clone()
        assert torch.equal(model.branch(entering, first), logits)
        assert torch.equal(entering, kept)


def test_gradients_flow_through_frozen_lstm_stages_into_local_ones() -> None:
    local, frozen = make("lstm"), make("lstm").requires_grad_(False)
    outputs = local.stage_outputs(batch("lstm")[0])
    logits = [frozen.branch(output, first) for first, output in enumerate(outputs, start=1)]
    torch.stack(logits).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in local.stages.parameters())
    assert all(p.grad is None for p in [*local.head.parameters(), *frozen.parameters()])


def test_the_order_of_symbols_matters_and_the_alphabet_is_as_large_as_the_classes() -> None:
    torch.manual_seed(0)
    model = build("lstm", classes=9, shape=(4,), hidden=8)
    x = torch.tensor([[0, 8, 3, 3], [8, 0, 3, 3]])
    logits = model(x)
    assert logits.shape == (2, 9)
    assert not torch.allclose(logits[0], logits[1])
    assert torch.equal(model(x.to(torch.int16)), logits)
    assert not model.channels_last
    with pytest.raises(InputError, match=r"must be from 0 to 8 \(model.symbols = 9\)"):
        model(x + 1)


def test_what_is_no_symbol_of_the_alphabet_is_told_in_words() -> None:
    model = make("lstm")
    for ids in ([[0, 7]], [[-1, 7]]):
        allowed = r"must be from 0 to 6 \(model.symbols = 7\)"
        with pytest.raises(InputError, match=rf"x has ids from {ids[0][0]} to 7; {allowed}"):
            model(torch.tensor(ids))
    with pytest.raises(InputError, match=r"x holds torch.float32; lstm takes whole numbers, the ids of symbols"):
        model(torch.zeros(1, 6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "lstm", "shape": (1, 8, 8)},
            r"model.shape = \(1, 8, 8\): lstm takes sequences of ids, \(length,\)",
        ),
        ({"name": "lstm", "shape": (0,)}, r"model.shape = \(0,\): lstm takes sequences"),
        (
            {"name": "lstm", "shape": (8,), "hidden": [256]},
            r"model.hidden = \[256\]: must be a whole number, 1 or more",
        ),
        ({"name": "lstm", "shape": (8,), "layers": 0}, "model.layers = 0: must be a whole number, 1 or more"),
        ({"name": "lstm", "shape": (8,), "embedding": 8.0}, "model.embedding = 8.0: must be a whole number"),
        ({"name": "lstm", "shape": (8,), "symbols": True}, "model.symbols = True: must be a whole number"),
        (
            {"name": "lstm", "shape": (8,), "width": 3},
            "model.width = 3: lstm takes only embedding, hidden, layers, s",
        ),
        ({"name": "femnist-cnn", "shape": (1, 3, 28)}, r"model.shape = \(1, 3, 28\): femnist-cnn .* 4×4"),
        ({"name": "celeba-cnn", "shape": (3, 84, 15)}, r"model.shape = \(3, 84, 15\): celeba-cnn .* 16×16"),
        ({"name": "celeba-cnn", "shape": (80,)}, r"model.shape = \(80,\): celeba-cnn takes images"),
    ],
)
def test_bad_requests_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(classes=10, **arguments)


# Training


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("name", PLAIN)
def test_every_method_takes_steps_on_it(name: str, method: str) -> None:
    clients = [batch(name, size=4, seed=seed) for seed in range(3)]
    model = make(name)
    cohorts = [[0, 1, 2]] * 2 if "full participation" in build_method(method).needs else [[0, 1], [1, 2]]
    result = fedacg.run(
        model=model, clients=clients, test=clients[0], method=method, rounds=2, cohorts=cohorts, local_steps=1
    )
    moved = result.vector - nn.utils.parameters_to_vector(model.parameters())
    assert bool(moved.isfinite().all())
    for part in moved.split([p.numel() for p in model.parameters()]):
        assert part.abs().max() > 0


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(2)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("name", "method"),
    [("femnist-cnn", "fedacg"), ("celeba-cnn", "moon"), ("lstm", "moon"), ("lstm", "fedmlb+acg")],
)
def test_workers_give_the_same_bits_as_one_process(name: str, method: str, pool: ProcessEngine) -> None:
    def played(engine: ProcessEngine | SerialEngine) -> Result:
        clients = [batch(name, size=5, seed=seed) for seed in range(4)]
        experiment = Experiment.parse(
            {
                "rounds": 3,
                "data": {"name": GIVEN, "clients": 4, "split": "natural"},
                "cohort": {"size": 3},
                "local": {"epochs": 2, "batch": 2},
            }
        )
        model = make(name)
        ingredients = Ingredients(
            model, model.channels_last, from_pairs(clients, batch(name, size=9)), build_method(method)
        )
        return play(experiment, ingredients, engine=engine)

    one, several = played(SerialEngine()), played(pool)
    assert torch.equal(one.vector, several.vector)
    assert [m.test_loss for m in one.history] == [m.test_loss for m in several.history]
