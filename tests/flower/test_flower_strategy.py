"""`FedACG` for Flower: its arithmetic, what it sends, what it leaves alone, and what it refuses to be told."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose, assert_array_equal

from fedacg.config.methods import METHODS
from fedacg.errors import InputError
from fedacg.flower import FedACG, add_penalty
from support.flower_nodes import Node, Nodes, answer, arrays, failing, packed, record, replying
from support.quadratics import Point, client, half_square, states

W = np.array([1.0, -2.0])


def moving(by: Any, examples: int = 1) -> Node:
    """A client whose training ends this far from where it began."""

    def node(message: Message) -> Message:
        ends = {name: value + by for name, value in arrays(message).items()}
        return answer(message, ends, num_examples=examples)

    return node


def train(strategy: FedAvg, grid: Nodes, start: dict[str, Any], rounds: int = 1) -> dict[str, Any]:
    strategy.fraction_evaluate = 0.0
    result = strategy.start(grid=grid, initial_arrays=record(start), num_rounds=rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}


# The arithmetic


def test_two_rounds_are_those_worked_out_by_hand() -> None:
    # θ = 1, λ = ½; client 1 has 1 example and ends 1 below where it began, client 2 has 3 and ends 3 above: Δ = 2.
    # Round 1: φ = 1, m = 2, θ = 3.  Round 2: φ = 3 + ½·2 = 4, m = 1 + 2 = 3, θ = 6.  Round 3: φ = 7.5.
    grid = Nodes([moving(-1.0), moving(3.0, examples=3)])
    strategy = FedACG(lam=0.5)
    assert train(strategy, grid, {"w": np.array([1.0])}, rounds=3)["w"] == [9.5]
    assert [grid.trained(number)["w"].item() for number in (1, 2, 3)] == [1.0, 4.0, 7.5]
    assert strategy.momentum["w"] == [3.5]


def test_the_server_learning_rate_scales_the_update_before_it_enters_the_momentum() -> None:
    # η_g = ¼, Δ = 2: m = ½, θ = 1.5; φ = 1.75, m = ¼ + ½, θ = 2.25
    strategy = FedACG(lam=0.5, server_lr=0.25)
    assert train(strategy, Nodes([moving(2.0)] * 2), {"w": np.array([1.0])}, rounds=2)["w"] == [2.25]


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_with_penalised_clients_it_goes_where_the_simulation_goes(beta: float) -> None:
    clients = [client((1, 0)), client((0, 2), (0, 2), (0, 2)), client((-3, 1), (1, 5))]

    def node(data: tuple[torch.Tensor, torch.Tensor]) -> Node:
        def train(message: Message) -> Message:
            model = Point()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            add_penalty(optimizer, beta)
            for _ in range(5):
                optimizer.zero_grad()
                half_square(model(data[0]), data[1]).backward()
                optimizer.step()
            return answer(message, {"w": model.w.detach().numpy()}, num_examples=len(data[0]))

        return train

    grid = Nodes([node(data) for data in clients])
    options = {"lam": 0.8, "beta": beta, "server_lr": 0.7}
    *_, expected = states(clients, "fedacg", options, rounds=6, start=(1, -2), lr=0.1, steps=5)
    theta = train(FedACG(lam=0.8, server_lr=0.7), grid, {"w": W}, rounds=6)["w"]
    assert_allclose(theta, expected["theta"].numpy(), rtol=0, atol=1e-13)


def test_without_lookahead_it_is_fedavg() -> None:
    nodes = [moving(np.array([0.3, -0.1])), moving(np.array([-0.2, 0.7]), examples=4)]
    ours, flowers = (train(s, Nodes(nodes), {"w": W}, rounds=4)["w"] for s in (FedACG(lam=0.0), FedAvg()))
    assert_allclose(ours, flowers, rtol=0, atol=1e-14)


def test_momentum_that_is_put_back_continues_to_the_bit() -> None:
    grid = Nodes([moving(0.1), moving(0.37, examples=2)])
    whole = train(FedACG(), grid, {"w": W}, rounds=4)
    first, second = FedACG(), FedACG()
    halfway = train(first, grid, {"w": W}, rounds=2)
    second.momentum = first.momentum
    assert_array_equal(train(second, grid, halfway, rounds=2)["w"], whole["w"])


def test_defaults_are_those_of_the_catalogue() -> None:
    strategy = FedACG()
    assert {"lam": strategy.lam, "server_lr": strategy.server_lr} == {
        name: METHODS["fedacg"].options[name].default for name in ("lam", "server_lr")
    }


# What is sent, and what is evaluated


def test_messages_are_as_long_as_those_of_fedavg() -> None:
    random = np.random.default_rng(0)
    start = {
        "layer.weight": random.standard_normal((64, 33)).astype(np.float32),
        "layer.bias": random.standard_normal(64).astype(np.float32),
    }
    sizes = {}
    for strategy in (FedAvg(), FedACG()):
        grid = Nodes([moving(np.float32(0.5)), moving(np.float32(0.25))])
        train(strategy, grid, start, rounds=3)
        sizes[type(strategy)] = [sum(map(len, packed(message).values())) for message in grid.sent]
    assert sizes[FedACG] == sizes[FedAvg]
    assert min(sizes[FedACG]) > sum(value.nbytes for value in start.values())


def test_messages_hold_nothing_but_the_arrays_and_what_fedavg_configures() -> None:
    grid = Nodes([moving(0.1)] * 2)
    train(FedACG(), grid, {"w": W}, rounds=2)
    last = grid.sent[-1].content
    assert set(last) == {"arrays", "config"}
    assert set(last["arrays"]) == {"w"}
    assert dict(last["config"]) == {"server-round": 2}


def test_evaluations_see_theta_and_training_sees_phi() -> None:
    grid = Nodes([replying({"w": W + 1}), replying({"w": W + 3})])
    at_server: list[Any] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        at_server.append(arrays["w"].numpy())
        return MetricRecord({"loss": 0.5})

    FedACG(lam=0.5).start(grid=grid, initial_arrays=record({"w": W}), num_rounds=2, evaluate_fn=evaluate)
    # Round 1: m = 2, θ = W + 2.  Round 2: φ = W + 3, Δ = −1, m = 0, θ = W + 2.
    assert_array_equal(at_server, [W, W + 2, W + 2])
    assert_array_equal(grid.trained(2)["w"], W + 3)
    evaluated = [arrays(m)["w"] for m in grid.sent if m.metadata.message_type == MessageType.EVALUATE]
    assert_array_equal(evaluated, [W + 2] * 4)


def test_the_arrays_it_is_given_stay_as_they_are() -> None:
    strategy, grid, given = FedACG(), Nodes([moving(1.0)] * 2), record({"w": W})
    for number in (1, 2):
        replies = grid.send_and_receive(strategy.configure_train(number, given, ConfigRecord(), grid))
        strategy.aggregate_train(number, replies)
    assert_array_equal(given["w"].numpy(), W)
    assert_allclose(grid.trained(2)["w"], W + 0.85)


# Types, integers, statistics


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1, 2)])
def test_floats_keep_their_type_and_shape(dtype: Any, shape: tuple[int, ...]) -> None:
    strategy, grid = FedACG(lam=0.5), Nodes([moving(dtype(1)), moving(dtype(2))])
    theta = train(strategy, grid, {"w": np.zeros(shape, dtype)}, rounds=2)["w"]
    for value in (theta, grid.trained(2)["w"], strategy.momentum["w"]):
        assert value.dtype == dtype
        assert value.shape == shape
    # Δ = 1.5: m = 1.5, θ = 1.5; m = 0.75 + 1.5, θ = 3.75
    assert_array_equal(theta, np.full(shape, 3.75, dtype))


def test_integers_and_truth_values_are_averaged_rounded_and_have_no_momentum() -> None:
    nodes = [
        replying({"n": np.array(10), "on": np.array([True, False])}, num_examples=2),
        replying({"n": np.array(15), "on": np.array([False, False])}),
    ]
    strategy, grid = FedACG(), Nodes(nodes)
    theta = train(strategy, grid, {"n": np.array(0), "on": np.array([True, True])}, rounds=3)
    # 10·⅔ + 15·⅓ = 11⅔
    assert (theta["n"].item(), theta["n"].dtype) == (12, np.int64)
    assert (theta["on"].tolist(), theta["on"].dtype) == ([True, False], np.bool_)
    assert grid.trained(3)["n"] == 12
    assert strategy.momentum == {}


def test_batch_norm_statistics_are_averaged_and_never_extrapolated() -> None:
    start = {"bn.weight": W, "bn.running_mean": W, "bn.running_var": np.array([9.0, 9.0])}
    reply = {"bn.weight": W - 1, "bn.running_mean": W - 1, "bn.running_var": np.array([0.5, 0.25])}
    strategy, grid = FedACG(), Nodes([replying(reply)] * 2)
    theta = train(strategy, grid, start, rounds=3)
    assert_array_equal(theta["bn.running_var"], [0.5, 0.25])
    assert_array_equal(grid.trained(3)["bn.running_var"], [0.5, 0.25])
    assert_array_equal(theta["bn.running_mean"], W - 1)
    assert list(strategy.momentum) == ["bn.weight"]


def test_other_statistics_can_be_named() -> None:
    strategy = FedACG(plain=["stats/*"])
    train(strategy, Nodes([moving(1.0)] * 2), {"stats/mean": W, "w": W, "running_var": W})
    assert list(strategy.momentum) == ["w", "running_var"]


def test_arrays_of_wider_floats_are_taken_in_the_type_that_was_sent() -> None:
    strategy = FedACG()
    theta = train(strategy, Nodes([replying({"w": W + 1})] * 2), {"w": W.astype(np.float32)})["w"]
    assert theta.dtype == strategy.momentum["w"].dtype == np.float32
    assert_array_equal(theta, (W + 1).astype(np.float32))


# Rounds that bring nothing


def test_a_round_without_replies_moves_nothing() -> None:
    strategy, grid = FedACG(), Nodes([moving(1.0)] * 2)
    train(strategy, grid, {"w": W})
    momentum = strategy.momentum["w"].copy()
    assert strategy.aggregate_train(2, []) == (None, None)
    assert strategy.aggregate_train(2, grid.send_and_receive([])) == (None, None)
    assert_array_equal(strategy.momentum["w"], momentum)


def test_a_node_that_fails_costs_its_update_only(caplog: pytest.LogCaptureFixture) -> None:
    theta = train(FedACG(), Nodes([moving(1.0), failing]), {"w": W})["w"]
    assert_array_equal(theta, W + 1)
    assert "error in reply from node 102: the client app raised" in caplog.text
    assert "Received 1 results and 1 failures" in caplog.text


def test_finite_replies_that_would_leave_the_range_of_the_type_move_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = {"w": np.array([0.0], np.float32)}
    strategy = FedACG(max_norm=1e300, norm_factor=0)
    strategy.fraction_evaluate = 0.0
    huge = replying({"w": np.array([3e38], np.float32)})
    result = strategy.start(grid=Nodes([huge, huge]), initial_arrays=record(start), num_rounds=2)
    assert len(result.arrays) == 0
    assert strategy.momentum == {}
    assert "round 1 would leave the range" in caplog.text


# What it is told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam": 1.0}, r"lam = 1.0: must lie in \[0, 1\)"),
        ({"lam": -0.1}, r"lam = -0.1: must lie in"),
        ({"lam": float("nan")}, r"lam = nan: must lie in"),
        ({"lam": "0.85"}, r"lam = '0.85': must be a number"),
        ({"server_lr": 0.0}, r"server_lr = 0.0: must lie in \(0, ∞\)"),
        ({"plain": "running_"}, r"plain = 'running_': must be a list"),
        ({"max_examples": 0}, r"max_examples = 0: must be a number above 0"),
        ({"max_bytes": "1 MB"}, r"max_bytes = '1 MB': must be a number above 0"),
        ({"max_norm": 0.0}, r"max_norm = 0.0: must be a number above 0"),
        ({"norm_factor": -1}, r"norm_factor = -1: must be a number above 0"),
        ({"norm_factor": float("nan")}, r"norm_factor = nan: must be a number above 0"),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_name_and_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedACG(**options)


def test_everything_that_fedavg_takes_goes_to_fedavg() -> None:
    strategy = FedACG(0.5, min_available_nodes=7, weighted_by_key="weight")
    assert (strategy.fraction_train, strategy.min_available_nodes, strategy.lam) == (0.5, 7, 0.85)
    theta = train(
        FedACG(weighted_by_key="weight"),
        Nodes([replying({"w": W}, weight=3), replying({"w": W + 4}, weight=1)]),
        {"w": W},
    )
    assert_array_equal(theta["w"], W + 1)


@pytest.mark.parametrize(
    ("start", "momentum", "plain", "message"),
    [
        ({"w": np.array([1.0, np.inf])}, {}, (), "array 'w' holds values that are not finite"),
        ({"w": W}, {"v": W}, (), "momentum: 'v' of shape"),
        ({"w": W}, {"w": W[:1]}, (), "momentum: 'w' of shape"),
        ({"w": W, "bn.running_var": W}, {"bn.running_var": W}, ("*running_var",), "momentum: 'bn.running_var'"),
        ({"w": W}, {}, ("*batch_stats*",), r"plain: no array is called '\*batch_stats\*'; there are w"),
    ],
)
def test_arrays_that_do_not_go_together_are_met_at_the_door(
    start: dict[str, Any], momentum: dict[str, Any], plain: tuple[str, ...], message: str
) -> None:
    strategy = FedACG(plain=plain)
    strategy.momentum = momentum
    with pytest.raises(InputError, match=message):
        train(strategy, Nodes([moving(1.0)] * 2), start)


# Without Flower

WITHOUT_FLOWER = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "flwr":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import fedacg
for module in pkgutil.walk_packages(fedacg.__path__, "fedacg."):
    if not module.name.startswith("fedacg.flower.") and not module.name.endswith(("__main__", "worker_process")):
        importlib.import_module(module.name)
import torch
from fedacg.flower import add_penalty
add_penalty(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
try:
    from fedacg.flower import FedACG
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_extra_the_package_works_and_the_strategy_says_how_to_install_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_FLOWER]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.stderr == ""
    assert finished.stdout == "fedacg.flower.FedACG needs Flower: pip install 'fedacg[flower]'\n"
