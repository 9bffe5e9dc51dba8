"""Synthetic(α, β): made client by client, the same in any order, and spread as the paper says."""

import time

import numpy as np
import pytest
import torch

from fedacg.config.sections import DataSettings
from fedacg.core import randomness
from fedacg.data.catalogue import federate
from fedacg.data.examples import FederatedData
from fedacg.data.sources import built_in
from fedacg.data.sources.built_in import SyntheticClients
from fedacg.errors import InputError


def make(clients: int = 50, alpha: float = 1.0, beta: float = 1.0, seed: int = 0) -> FederatedData:
    settings = DataSettings(name="synthetic", clients=clients, split="natural", alpha=alpha, beta=beta)
    return federate(settings, seed)


def everything(clients: SyntheticClients, client: int) -> torch.Tensor:
    x, y = clients[client].x, clients[client].y
    return torch.cat([x, y.unsqueeze(1).float()], dim=1)


def test_a_client_is_the_same_in_any_order_and_in_any_federation() -> None:
    one, other = (SyntheticClients(count, 1, 1, 0) for count in (50, 1_000_000))
    forwards = {client: everything(one, client) for client in range(10)}
    backwards = {client: everything(other, client) for client in reversed(range(10))}
    assert all(torch.equal(forwards[client], backwards[client]) for client in range(10))
    assert not torch.equal(forwards[0][:40], forwards[1][:40])
    assert not torch.equal(forwards[0], everything(SyntheticClients(50, 1, 1, 1), 0))


def test_a_million_clients_are_made_at_once() -> None:
    start = time.perf_counter()
    data = make(1_000_000)
    data.clients[999_999].fetch(torch.tensor([0]))
    assert time.perf_counter() - start < 3  # 0.1 s on an idle machine
    assert len(data.clients) == 1_000_000


def test_a_size_is_known_without_making_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = make().clients
    sizes = [len(clients[client]) for client in range(50)]
    asked: list[str] = []
    original = randomness.numpy_generator

    def watched(seed: int, purpose: str, *where: int) -> np.random.Generator:
        asked.append(purpose)
        return original(seed, purpose, *where)

    monkeypatch.setattr(randomness, "numpy_generator", watched)
    assert [clients.size(client) for client in range(50)] == sizes
    assert set(asked) == {"synthetic size"}


def test_sizes_are_lognormal_above_fifty_and_cut_at_the_largest() -> None:
    clients = SyntheticClients(4000, 0, 0, 0)
    sizes = np.array([clients.size(client) for client in range(4000)])
    assert sizes.min() >= 45  # nine tenths of 50
    assert sizes.max() == built_in.LARGEST * 9 // 10
    # The median of 50 + lognormal(4, 2) is 50 + e⁴ = 104.6.
    assert np.median(sizes) == pytest.approx(0.9 * 104.6, rel=0.08)
    # ln(950) is 1.43 deviations above the mean of 4.
    assert (sizes == sizes.max()).mean() == pytest.approx(0.077, abs=0.015)


def test_inputs_and_labels_have_their_shapes() -> None:
    data = make()
    x, y = data.clients[3].fetch(torch.arange(10))
    assert (x.shape, x.dtype, y.dtype) == ((10, 60), torch.float32, torch.int64)
    assert (data.classes, data.shape) == (10, (60,))
    assert torch.equal(data.pipeline(x), x)
    assert 0 <= data.test.fetch(torch.arange(len(data.test)))[1].max() < 10


def test_the_variance_of_feature_j_is_j_to_the_minus_1_2() -> None:
    clients = SyntheticClients(30, 1, 1, 0)
    large = [client for client in range(30) if clients.size(client) > 200]
    variances = torch.stack([clients[client].x.var(0) for client in large]).mean(0)
    expected = torch.arange(1, 61).double() ** -1.2
    assert torch.allclose(variances.double(), expected, rtol=0.15)


def test_beta_sets_how_far_apart_the_inputs_of_clients_are() -> None:
    def spread(beta: float) -> float:
        clients = SyntheticClients(200, 0, beta, 0)
        return float(torch.stack([clients[client].x.mean() for client in range(200)]).std())

    # The mean over 60 features of v_k ~ N(B_k, 1) has variance β² + 1/60.
    assert spread(0) == pytest.approx((1 / 60) ** 0.5, rel=0.2)
    assert spread(3) == pytest.approx(3, rel=0.2)


def test_labels_follow_from_a_linear_model_of_the_client() -> None:
    clients = SyntheticClients(30, 1, 1, 0)
    client = max(range(30), key=clients.size)
    examples = clients[client]
    weight = torch.zeros(60, 10, requires_grad=True)
    bias = torch.zeros(10, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=60)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(examples.x @ weight + bias, examples.y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[arg-type]
    accuracy = ((examples.x @ weight + bias).argmax(1) == examples.y).double().mean()
    assert accuracy > 0.97


def test_the_test_set_is_what_the_first_clients_hold_out() -> None:
    few, many = make(20), make(1_000_000)
    clients = SyntheticClients(20, 1, 1, 0)
    assert len(few.test) == sum(len(clients.held_out(client)) for client in range(20))
    assert len(many.test) == sum(len(SyntheticClients(100, 1, 1, 0).held_out(client)) for client in range(100))
    trained = {tuple(row) for row in clients[0].x.tolist()}
    held_out = {tuple(row) for row in clients.held_out(0).x.tolist()}
    assert not trained & held_out
    assert len(held_out) / (len(trained) + len(held_out)) == pytest.approx(0.1, abs=0.02)


def test_there_is_no_client_beyond_the_last() -> None:
    clients = make(5).clients
    for client in (5, -1):
        with pytest.raises(IndexError):
            clients[client]


def test_no_clients_at_all_are_refused() -> None:
    with pytest.raises(InputError, match=r"data\.clients = 0: must be at least 1"):
        make(clients=0)
