"""Clients that are trained at once: the same as one by one up to rounding, and the same bits on any engine."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import methods, models
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override
from fedacg.config.sections import LocalSettings
from fedacg.core.randomness import generator
from fedacg.core.tensors import IGNORED
from fedacg.core.vector import FlatModel
from fedacg.data.examples import (
    FederatedData,
    Pipeline,
    SpanExamples,
    TensorExamples,
    ViewExamples,
    joined,
)
from fedacg.data.own_data import from_pairs
from fedacg.data.pipelines import Augment, ImagePipeline
from fedacg.engines import Engine
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError, RunError
from fedacg.methods.feddyn import DynamicServer
from fedacg.methods.parts import Empirical
from fedacg.methods.quantise import Quantise
from fedacg.methods.reply import Reply, ReplyRows, Term
from fedacg.methods.rules import Average, ServerRule, Totals
from fedacg.methods.scaffold import Controls
from fedacg.methods.upload import Chain, Memory
from fedacg.models.row_gradients import LayerChain, cross_entropy
from fedacg.models.rows import RowLayers
from fedacg.runs.build import Ingredients, plan, prepare
from fedacg.runs.runner import Result, play
from fedacg.simulation import fused
from fedacg.simulation.engine import Job, groups
from fedacg.simulation.local import clip
from support.runs import StopAfter, digest, tiny
from support.tasks import task

UNEQUAL = (7, 1, 23, 12, 5, 18, 3, 9, 31, 2)
FUSABLE = [
    "fedavg",
    "fedprox:mu=0.3",
    "fedavgm",
    "fedadam",
    "fedcm",
    "fedacg:beta=0.2",
    "fedavg+acg",
    "fedavgm+prox",
    "fedcm+prox:mu=0.4",
    "fedprox+acg",
    "feddyn:alpha=0.3",
    "feddc:alpha=0.3",
    "fedacg+paq",
    "feddyn+paq",
    "feddc+paq",
    "fedavg+acg+prox+paq",
    "fedsam",
    "fedasam",
    "mofedsam",
    "fedspeed",
    "fedgamma:option=1",
    "fednsam",
    "fedanta",
    "fedlesam",
    "fedinit:beta=0.5",
    "fedadc",
    "ghbm",
    "mime",
    "mimelite",
    "fedgloss",
    "scaffold",
    "scaffold+acg",
    "fedmoswa",
    "feddane:mu=0.3",
    "fednova:mu=0.3",
    "fedexp",
    "fedams",
    "fedcams",
    "fedavg+topk",
    "fedyogi",
    "fedadagrad",
    "slowmo",
    "stem",
    "fedsmoo",
    "fedgate",
    "fedcomgate",
    "fedlc",
    "fedntd:beta=0.4",
    "feddecorr:beta=0.3",
]
PLAIN = {"epochs": 2, "batch": 4, "lr": 0.2}
LOCAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "many epochs": {"epochs": 6},
    "part of an epoch": {"steps": 2},
    "more steps than an epoch": {"steps": 21},
    "one example a step": {"batch": 1, "steps": 9},
    "a batch larger than any client": {"batch": 100},
    "clip": {"clip": 0.5},
    "clip that some never reach": {"clip": 1.5},
    "weight decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "decay of the rate": {"lr_decay": 0.7},
    "decay in every epoch": {"lr_decay": 0.7, "epoch_decay": True, "epochs": 3},
    "all of it": {"clip": 0.5, "weight_decay": 0.1, "momentum": 0.5, "lr_decay": 0.9, "epoch_decay": True},
}


def network(*layers: nn.Module, features: int = 6) -> nn.Module:
    """A small network that starts the same every time; layers come between its two linear ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(features, 8), *layers, nn.Tanh(), nn.Linear(8, 4))


def staged() -> nn.Module:
    """The same made of a stage and a head."""
    first, tanh, last = network().children()
    return models.StagedModel([nn.Sequential(first, tanh)], last)


def data(sizes: tuple[int, ...] = UNEQUAL, shape: tuple[int, ...] = (6,)) -> FederatedData:
    source = torch.Generator().manual_seed(1)
    pairs = [
        (torch.randn(n, *shape, generator=source).double(), torch.randint(4, (n,), generator=source))
        for n in (*sizes, 40)
    ]
    return from_pairs(pairs[:-1], pairs[-1])


def described(
    method: str = "fedavg", fuse: str = "on", local: Mapping[str, Any] | None = None, **tables: Any
) -> Experiment:
    name, *options = method.split(":")
    tree = {
        "rounds": 3,
        "method": {"name": name},
        "data": {"name": "python"},
        "model": {"name": "python:Sequential"},
        "cohort": {"fraction": 0.8},
        "local": {**PLAIN, **(local or {})},
        "evaluate": {"client_losses": True},
        "engine": {"name": "serial", "fuse": fuse},
        **tables,
    }
    return Experiment.parse(override(tree, [f"method.{option}" for option in options]))


def played(
    experiment: Experiment, module: nn.Module, federated: FederatedData, engine: Engine | None = None
) -> Result:
    method = methods.build(experiment.method.name, experiment.method.options)
    return play(experiment, Ingredients(module, False, federated, method), engine=engine or SerialEngine())


def group(experiment: Experiment, ingredients: Ingredients, cohorts: Sequence[Sequence[int]] | None = None) -> int:
    """How many clients are trained at once, at most."""
    return plan(experiment, ingredients, cohorts).job.group


def assert_same(one: Result, other: Result, tolerance: float) -> None:
    assert torch.allclose(one.vector, other.vector, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert mine.client_losses == pytest.approx(theirs.client_losses, rel=tolerance, abs=tolerance)
        assert (mine.answered, mine.examples) == (theirs.answered, theirs.examples)
        assert (mine.bytes_down, mine.bytes_up) == (theirs.bytes_down, theirs.bytes_up)


# The same as one by one


def test_every_method_that_can_be_fused_is_among_those_compared_with_one_by_one() -> None:
    compared = {name.partition(":")[0] for name in FUSABLE}
    for name in methods.METHODS:
        fuses = all(part.fuses for part in methods.build(name).parts)
        assert (name in compared) == fuses, name


@pytest.mark.parametrize("sizes", [UNEQUAL, (8,) * 10], ids=["unequal", "equal"])
@pytest.mark.parametrize("method", FUSABLE)
def test_a_method_gives_the_same_fused_and_one_by_one(method: str, sizes: tuple[int, ...]) -> None:
    local = {"clip": 1.0, "weight_decay": 0.01, "momentum": 0.5}
    everybody = "full participation" in methods.build(method.partition(":")[0]).needs
    cohort = {"fraction": 1.0 if everybody else 0.8}
    one, other = (
        played(described(method, fuse, local, cohort=cohort), staged().double(), data(sizes))
        for fuse in ("on", "off")
    )
    assert_same(one, other, 1e-12)


@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
def test_local_settings_mean_the_same_fused_and_one_by_one(local: dict[str, Any]) -> None:
    one, other = (
        played(described("fedacg:beta=0.2", fuse, local), network().double(), data()) for fuse in ("on", "off")
    )
    assert_same(one, other, 1e-12)


def test_stragglers_do_their_own_part_of_the_steps() -> None:
    failures = {"straggle": 0.5, "work": 0.4, "drop": 0.2}
    one, other = (
        played(described("fedcm", fuse, {"epochs": 4}, failures=failures), network().double(), data())
        for fuse in ("on", "off")
    )
    assert any(m.stragglers for m in one.history)
    assert_same(one, other, 1e-12)


def test_float32_agrees_to_its_own_precision() -> None:
    one, other = (played(described("fedacg", fuse, {"clip": 1.0}), network(), data()) for fuse in ("on", "off"))
    assert one.vector.dtype == torch.float32
    assert not torch.equal(one.vector, other.vector), "another order of sums rounds otherwise"
    assert_same(one, other, 1e-5)


def test_a_client_that_diverges_is_named_and_leaves_the_others_alone() -> None:
    pairs = [(torch.ones(4, 6) * (torch.inf if client == 2 else 1), torch.arange(4)) for client in range(4)]
    with pytest.raises(RunError, match="the update of client 2 is not finite"):
        played(described(cohort={"fraction": 1.0}), network(), from_pairs(pairs, pairs[0]))


class Tied(nn.Module):
    """A forward of one's own, a weight that is used twice and one that does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(6, 6).requires_grad_(False)
        self.inner = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.inner.weight
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.out(self.again(torch.relu(self.inner(self.fixed(x)))).sin())
        return hidden


def chain_of_layers() -> nn.Module:
    """Layers that all rows take at once and others, among them one that does not train and one with a hook."""
    fixed, watched = nn.Linear(6, 6).requires_grad_(False), nn.Linear(8, 8)
    watched.register_forward_hook(lambda layer, given, found: found.cos())
    last = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4))
    middle = nn.Linear(6, 8, bias=False), nn.GELU(), watched, nn.LayerNorm(8)
    return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), fixed, *middle, last)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Tied, (6,)),
        (chain_of_layers, (6,)),
        (lambda: models.build("cnn", classes=4, shape=(1, 8, 8)), (1, 8, 8)),
    ],
    ids=["own", "chain", "cnn"],
)
def test_other_networks_fuse_too(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    results = []
    for fuse in ("on", "off"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            ingredients = Ingredients(make().double(), False, data(shape=shape), methods.build("fedacg"))
        results.append(play(described("fedacg", fuse, rounds=2), ingredients, engine=SerialEngine()))
    assert_same(*results, 1e-11)


class Noise:
    """A pipeline of one's own that draws for every example."""

    def __call__(self, x: Tensor, augment: torch.Generator | None = None) -> Tensor:
        return x if augment is None else x + torch.randn(x.shape, generator=augment, dtype=x.dtype)


@pytest.mark.parametrize("pipeline", [ImagePipeline((0.5,), (0.5,), augment=Augment()), Noise()])
def test_augmentation_is_each_clients_own(pipeline: Pipeline) -> None:
    source = torch.Generator().manual_seed(1)
    images = [torch.randint(256, (n, 1, 6, 6), generator=source, dtype=torch.uint8) for n in UNEQUAL]
    inputs = images if isinstance(pipeline, ImagePipeline) else [each.double() / 255 for each in images]
    pairs = [(each, torch.randint(4, (len(each),), generator=source)) for each in inputs]
    one, other = (
        played(
            described("fedacg", fuse, {"epochs": 5, "lr": 0.01}),
            nn.Sequential(nn.Flatten(), network(features=36)).double(),
            from_pairs(pairs, pairs[0], pipeline=pipeline),
        )
        for fuse in ("on", "off")
    )
    assert_same(one, other, 1e-11)


class Centred(nn.Module):
    """A layer with a buffer of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


class Mixing(nn.Module):
    """Examples less the mean of their batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Dropping(nn.Module):
    """A layer such as dropout where only the forward says when."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.drop, self.out = nn.Linear(6, 8), layer or nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.drop(self.inner(x)))
        return outputs


@pytest.mark.parametrize("method", ["fedacg", "fedsam", "scaffold:option=1", "fedntd"])
def test_dropout_draws_the_masks_that_each_client_alone_would(method: str) -> None:
    make = (network(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2)).double() for _ in range(2))
    one, other = (
        played(described(method, fuse, {"epochs": 3}, failures={"straggle": 0.3}), module, data())
        for fuse, module in zip(("on", "off"), make, strict=True)
    )
    assert_same(one, other, 1e-12)
    still = played(described(method, "on", {"epochs": 3}, failures={"straggle": 0.3}), network().double(), data())
    assert not torch.allclose(one.vector, still.vector, atol=1e-6)


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "usual": (lambda: network(nn.BatchNorm1d(8)), (6,)),
    "cumulative": (lambda: network(nn.BatchNorm1d(8, momentum=None), nn.Dropout(0.3)), (6,)),
    "not affine": (lambda: network(nn.BatchNorm1d(8, affine=False)), (6,)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), network()
        ),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize(("make", "shape"), NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("method", ["fedacg", "fedsam", "scaffold:option=1", "fedntd"])
def test_statistics_of_batchnorm_are_those_of_each_client_alone(
    method: str, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    sizes = (7, 2, 23, 12, 6, 18, 3, 8, 31, 4)  # no batch of one example, which BatchNorm refuses
    results = []
    for fuse in ("on", "off"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = make().double()
        results.append(played(described(method, fuse, {"epochs": 3}), module, data(sizes, shape)))
    assert_same(*results, 1e-11)
    assert [m.test_loss for m in results[0].history] == pytest.approx(
        [m.test_loss for m in results[1].history], rel=1e-10
    )


def test_batchnorm_refuses_a_batch_of_one_example_fused_and_alone() -> None:
    for fuse in ("on", "off"):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            played(described("fedavg", fuse), network(nn.BatchNorm1d(8)), data((5, 9, 8, 8)))


@pytest.mark.parametrize("layers", [(), (nn.ReLU(), nn.Linear(8, 8, bias=False))], ids=["linear", "deep"])
def test_a_chain_differentiated_by_hand_has_the_bits_of_autograd(layers: tuple[nn.Module, ...]) -> None:
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 4)))
    source = torch.Generator().manual_seed(2)
    w = flat.w + torch.randn(5, len(flat.w), generator=source)
    x, y = torch.randn(5, 7, 2, 3, generator=source), torch.randint(4, (5, 7), generator=source)
    y[1, 3:] = y[4, 1:] = IGNORED
    chain = LayerChain.of(flat, x)
    assert chain is not None
    losses, slope = cross_entropy(chain.forward(w, x), y)
    expected, g = fused._differentiate(flat, [Empirical()], w, x, y, RowLayers((), {}))
    assert torch.equal(losses, expected)
    assert torch.equal(chain.backward(slope, torch.empty_like(w)), g)
    for row in range(5):
        outputs = torch.func.functional_call(flat.module, flat.unfold(w[row]), (x[row],))
        assert torch.allclose(losses[row], nn.functional.cross_entropy(outputs, y[row]))


@pytest.mark.parametrize(
    "module", [Tied(), network(), nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)), nn.Linear(6, 4).double()]
)
def test_only_chains_are_differentiated_by_hand(module: nn.Module) -> None:
    assert (LayerChain.of(FlatModel(module), torch.zeros(2, 3, 6)) is not None) == isinstance(module, nn.Linear)
    assert LayerChain.of(FlatModel(nn.Linear(6, 4)), torch.zeros(2, 3, 5, 6)) is None


def replied(weights: list[float], deltas: Tensor, extras: dict[str, Tensor]) -> ReplyRows:
    count = len(weights)
    ones, none = [1] * count, deltas[:, :0]
    return ReplyRows(ones, weights, 1 / count, ones, ones, float, [0.0] * count, deltas, extras, none, {})


@pytest.mark.parametrize("weights", [[0.1] * 5, [0.1, 0.3, 0.2, 0.15, 0.25]], ids=["equal", "unequal"])
@pytest.mark.parametrize("rule", [Average(), DynamicServer(0.1), Controls(Average())])
def test_replies_are_summed_by_group_with_the_bits_of_one_by_one(rule: ServerRule, weights: list[float]) -> None:
    source = torch.Generator().manual_seed(3)
    by_group, one_by_one = Totals(rule), Totals(rule)
    for _ in range(2):
        rows = torch.randn(2, 5, 700, generator=source)
        group = ReplyRows(
            list(range(5)),
            weights,
            0.2,
            [1] * 5,
            [1] * 5,
            float,
            [0.0] * 5,
            rows[0],
            {"c": rows[1]},
            rows[0, :, :0],
            {},
        )
        by_group.add_rows(group)
        for reply in group:
            one_by_one.add(reply)
    assert by_group.count == one_by_one.count == 10
    for name in ("delta", "c") if isinstance(rule, Controls) else ("delta",):
        assert torch.equal(by_group[name], one_by_one[name])


def test_a_rule_that_collects_in_its_own_way_sees_single_replies() -> None:
    class Halved(DynamicServer):
        def collect(self, reply: Reply) -> Mapping[str, Term]:
            return {"delta": (reply.delta, 0.5)}

    totals, rows = Totals(Halved(0.1)), torch.ones(2, 3)
    totals.add_rows(
        ReplyRows([0, 1], [0.5] * 2, 0.5, [1] * 2, [1] * 2, float, [0.0] * 2, rows, {}, rows[:, :0], {})
    )
    assert totals["delta"].tolist() == [1.0, 1.0, 1.0]


def test_rows_are_clipped_by_their_own_norms() -> None:
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    clip(g, 1.0)
    assert torch.allclose(g, torch.tensor([[0.6, 0.8], [0.3, 0.4]], dtype=torch.float64), atol=1e-6)
    assert g[1].tolist() == [0.3, 0.4]


def test_rows_are_rounded_as_the_vectors_they_are() -> None:
    link, rows = Chain((Quantise(4),)), torch.randn(3, 700, generator=generator(0, "test"))
    randoms = (generator(0, "test", client) for client in range(3))
    together = link.encode_rows(rows, [Memory() for _ in range(3)], randoms)
    alone = [link.encode(row, Memory(), generator(0, "test", client)) for client, row in enumerate(rows)]
    assert torch.equal(together, torch.stack(alone))
    apart = [link.decode(payload, row) for payload, row in zip(alone, rows, strict=True)]
    assert torch.equal(link.decode_rows(together, rows[0]), torch.stack(apart))


def test_parts_of_one_base_are_fetched_as_each_would_be() -> None:
    base, other = (TensorExamples(torch.arange(20.0) + shift, torch.arange(20) + shift) for shift in (0, 100))
    one, two, three = (
        ViewExamples(where, torch.tensor(index))
        for where, index in ((base, [7, 3, 5]), (base, [4, 9, 8]), (other, [4, 9, 8]))
    )
    index = torch.tensor([1, 5, 0, 2, 3])  # in the first, the second, the first, the first, the second
    x, y = joined([one, two]).fetch(index)
    assert (x.tolist(), y.tolist()) == ([3, 8, 7, 5, 4], [3, 8, 7, 5, 4])
    assert joined([one, three]).fetch(index)[0].tolist() == [3, 108, 7, 5, 104]
    assert joined([one, SpanExamples(base, 10, 14)]).fetch(index)[1].tolist() == [3, 12, 7, 5, 10]
    assert joined([base, other]).fetch(torch.tensor([21, 0, 39]))[1].tolist() == [101, 0, 119]
    assert [len(joined(parts)) for parts in ([one, two], [one, three], [base, other])] == [6, 6, 40]


# The same bits whoever does the work


@pytest.fixture(scope="module", params=[2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3))])
def pool(request: pytest.FixtureRequest) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(request.param)
    yield engine
    engine.close()


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedacg.simulation.fused._GROUP", 3)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("method", ["fedacg", "fedcm+paq", "feddyn", "feddc+paq"])
def test_the_bits_do_not_depend_on_the_workers(method: str, pool: ProcessEngine) -> None:
    experiment = described(method, failures={"straggle": 0.3})
    serial = played(experiment, network(), data())
    parallel = played(experiment, network(), data(), pool)
    assert digest(parallel) == digest(serial)
    assert [m.client_losses for m in parallel.history] == [m.client_losses for m in serial.history]


@pytest.mark.usefixtures("small_groups")
def test_masks_and_statistics_do_not_depend_on_the_workers(pool: ProcessEngine) -> None:
    federated = data((7, 2, 23, 12, 6, 18, 3, 8, 31, 4))
    serial, parallel = (
        played(described("feddyn"), network(nn.BatchNorm1d(8), nn.Dropout(0.5)), federated, engine)
        for engine in (None, pool)
    )
    assert digest(parallel) == digest(serial)
    assert [m.test_loss for m in parallel.history] == [m.test_loss for m in serial.history]


def test_groups_follow_from_the_places_in_the_cohort() -> None:
    tasks = [task(1, client, 1) for client in range(11)]
    assert [[one.client for one in part] for part in groups(tasks, 4)] == [
        [0, 1, 2],
        [3, 4, 5, 6],
        [7, 8, 9, 10],
    ]
    assert [len(part) for part in groups(tasks, 1)] == [1] * 11
    assert groups([], 4) == []


@pytest.mark.usefixtures("small_groups")
def test_a_cohort_of_eight_is_trained_in_three_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    train = fused.train

    def counted(flat: Any, w: Tensor, *rest: Any) -> list[float]:
        calls.append(len(w))
        return train(flat, w, *rest)

    monkeypatch.setattr("fedacg.simulation.fused.train", counted)
    played(described(rounds=1), network(), data())
    assert calls == [2, 3, 3]


def fused_job(module: nn.Module | None = None) -> Job:
    return Job(
        module=module or network(),
        channels_last=False,
        data=data(),
        method=methods.build("fedavg"),
        local=LocalSettings(epochs=2, batch=4),
        seed=0,
        evaluate_batch=100,
        group=3,
    )


def deltas(engine: Engine, job: Job, between: Callable[[], None] = lambda: None) -> list[Tensor]:
    engine.setup(job)
    phi = torch.nn.utils.parameters_to_vector(job.module.parameters()).detach()
    tasks = [task(1, client, 1 + client % 4) for client in range(10)] * 3
    training = engine.train({"phi": phi, "buffers": torch.empty(0)}, tasks, lambda client: {})
    answers = chain.from_iterable(training.answers)
    found = [next(answers)]
    assert found[0].client == 0
    vectors = [found[0].upload["delta"].clone()]
    between()
    for answer, asked in zip(answers, tasks[1:], strict=True):
        assert (answer.client, answer.steps) == (asked.client, asked.steps)
        vectors.append(answer.upload["delta"].clone())
    return vectors


def test_few_slots_and_dead_workers_change_nothing(pool: ProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedacg.engines.supervisor._REPLY_MEMORY", 0)
    with fedacg.engines.one_thread():
        expected = deltas(SerialEngine(), fused_job())
    found = deltas(pool, fused_job(), between=lambda: os.kill(pool.pids[0], signal.SIGKILL))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.slow
def test_a_group_that_kills_its_workers_is_named() -> None:
    here = os.getpid()  # where a step is rehearsed

    class Deadly(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(x)

    told = r"training clients 3, 4, 5 in round 1 ended its worker 3 times"
    with closing(ProcessEngine(1)) as engine, pytest.raises(RunError, match=told):
        deltas(engine, fused_job(Deadly(6, 4)))


SIXTEEN = ("cohort.size=16", "rounds=6")


def test_a_resumed_run_gives_the_same_bits(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, *SIXTEEN)
    ingredients = prepare(experiment)
    assert group(experiment, ingredients) > 1, "auto has it fused"
    whole = play(experiment, ingredients)
    with pytest.raises(KeyboardInterrupt):
        play(experiment, ingredients, folder=tmp_path / "run", callbacks=[StopAfter(3)])
    resumed = play(experiment, ingredients, folder=tmp_path / "run", resume=True)
    assert digest(resumed) == digest(whole)
    off = tiny(tmp_path, *SIXTEEN, "engine.fuse=off")
    assert digest(play(off, prepare(off))) != digest(whole)


def test_a_run_is_not_gone_on_with_another_way_of_rounding(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, *SIXTEEN)
    play(experiment, prepare(experiment), folder=tmp_path / "run")
    other = tiny(tmp_path, *SIXTEEN, "engine.fuse=off")
    with pytest.raises(InputError, match=r'engine\.fuse is "auto" there and "off" here'):
        play(other, prepare(other), folder=tmp_path / "run", resume=True)
    workers = tiny(tmp_path, *SIXTEEN, "engine.workers=3")
    assert workers.difference(experiment) == []


# When


def ingredients(
    module: nn.Module | None = None,
    method: str = "fedavg",
    federated: FederatedData | None = None,
    layout: bool = False,
) -> Ingredients:
    return Ingredients(module or network(), layout, federated or data((8,) * 20), methods.build(method))


def regression() -> FederatedData:
    pairs = [(torch.zeros(4, 6), torch.zeros(4, 4))] * 20
    return from_pairs(pairs, pairs[0])


OBSTACLES: dict[str, tuple[Callable[[], Ingredients], str]] = {
    "draws of layers": (lambda: ingredients(network(nn.AlphaDropout(0.5))), "model: Sequential .* random"),
    "dropout in a forward of one's own": (lambda: ingredients(Dropping()), "model: Dropping .* random"),
    "buffers": (lambda: ingredients(network(Centred(8))), "model: has a buffer, 1.mean, which may change"),
    "mixed examples": (lambda: ingredients(network(Mixing())), "model: Sequential mixes the examples of a batch"),
    "BatchNorm in a forward of one's own": (lambda: ingredients(Dropping(nn.BatchNorm1d(8))), "model: Dropping "),
    "no batched form": (
        lambda: ingredients(
            models.build("lstm", classes=4, shape=(5,), hidden=4),
            federated=from_pairs(
                [(torch.zeros(4, 5, dtype=torch.int64), torch.arange(4))] * 20,
                (torch.zeros(4, 5, dtype=torch.int64), torch.arange(4)),
            ),
        ),
        "model: StagedModel .*lstm",
    ),
    "layout": (lambda: ingredients(layout=True), "model: its layout is channels-last"),
    "labels that are no classes": (lambda: ingredients(federated=regression()), "data: the labels"),
    "MOON": (lambda: ingredients(models.build("mlp", classes=4, shape=(6,)), "moon"), "method: .*Contrastive"),
    "FedMLB": (lambda: ingredients(models.build("mlp", classes=4, shape=(6,)), "fedmlb"), "method: .*Branches"),
}


@pytest.mark.parametrize(("make", "reason"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_cannot_be_fused_is_named_and_left_alone(make: Callable[[], Ingredients], reason: str) -> None:
    found = make()
    assert group(described(fuse="auto"), found) == 1
    with pytest.raises(InputError, match=f"engine.fuse = 'on': {reason}"):
        group(described(fuse="on"), found)


def test_a_refusal_comes_before_a_folder_is_begun(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Contrastive"):
        play(described("moon"), ingredients(staged(), "moon"), folder=tmp_path / "run", engine=SerialEngine())
    assert not (tmp_path / "run").exists()


def test_a_loss_of_ones_own_is_not_fused() -> None:
    def unknown(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y)

    own = ingredients()
    changed = Ingredients(own.module, False, own.data, own.method.with_loss(unknown))
    assert group(described(fuse="auto"), own) > 1
    assert group(described(fuse="auto"), changed) == 1
    same = own.method.with_loss(nn.functional.cross_entropy)
    assert group(described(fuse="auto"), Ingredients(own.module, False, own.data, same)) > 1


@pytest.mark.parametrize(
    ("width", "cohort", "fuses"),
    [(100, {"size": 16}, True), (100, {"size": 15}, False), (5000, {"size": 16}, False), (100, {}, False)],
)
def test_auto_fuses_small_models_and_large_cohorts(width: int, cohort: dict[str, Any], fuses: bool) -> None:
    module = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4))
    found = group(described(fuse="auto", cohort=cohort), ingredients(module))
    assert (found > 1) is fuses
    assert group(described(fuse="off", cohort=cohort), ingredients(module)) == 1
    assert group(described(fuse="on", cohort=cohort), ingredients(module)) > 1


def test_auto_counts_given_cohorts() -> None:
    for size, fuses in ((16, True), (15, False)):
        assert (group(described(fuse="auto"), ingredients(), [range(size)] * 3) > 1) is fuses


def test_the_quickstart_is_not_fused() -> None:
    experiment = Experiment.parse(find("quickstart"))
    assert group(experiment, prepare(experiment)) == 1


def test_large_models_have_small_groups() -> None:
    assert [fused.group_size(parameters) for parameters in (10, 650, 2**14, 2**30)] == [64, 64, 32, 2]


def test_fuse_is_a_parameter_of_run() -> None:
    clients = [(torch.randn(5, 6), torch.arange(5) % 4)] * 4
    results = {
        fuse: fedacg.run(
            model=network(), clients=clients, test=clients[0], rounds=1, participation=1.0, fuse=fuse
        ).vector
        for fuse in ("auto", "on", "off")
    }
    assert torch.equal(results["auto"], results["off"])
    assert not torch.equal(results["on"], results["off"])
    assert torch.allclose(results["on"], results["off"], atol=1e-6)
    with pytest.raises(InputError, match=r"^fuse = 'maybe'"):
        fedacg.run(model=network(), clients=clients, test=clients[0], fuse="maybe")
