"""Runs with quantised uploads: what arrives is what is counted, what the server uses and what clients go by."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import methods
from fedacg.config.sections import LocalSettings
from fedacg.core.randomness import generator
from fedacg.data.own_data import from_pairs
from fedacg.methods.quantise import BITS, Quantise
from fedacg.methods.upload import Chain, Memory
from fedacg.simulation.engine import Job
from fedacg.simulation.worker import Worker
from support.quadratics import client, kept, states
from support.tasks import task

PARAMETERS, BUFFERS = (5 * 8 + 8) + 2 * 8 + (8 * 3 + 3), 2 * 8 + 1


def problem() -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    sizes = (6, 12, 3, 20, 10)
    return [(torch.randn(n, 5, generator=source), torch.randint(3, (n,), generator=source)) for n in sizes]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def play(method: str, bits: int | None = None, *, rounds: int = 3, workers: int = 0) -> fedacg.Result:
    clients = problem()
    return fedacg.run(
        model=network(),
        clients=clients,
        test=clients[0],
        method=method,
        options={"bits": bits} if bits else {},
        rounds=rounds,
        participation=0.6,
        local_epochs=2,
        batch_size=4,
        workers=workers,
    )


@pytest.mark.parametrize("bits", BITS)
def test_the_history_counts_what_was_sent(bits: int) -> None:
    # 91 parameters are one bucket: its scale and 512 entries of so many bits. Buffers go as they are.
    upload = 4 + 512 * bits // 8 + 4 * BUFFERS
    history = play("fedavg+paq", bits).history
    assert [m.bytes_up for m in history] == [3 * upload] * 3
    assert [m.bytes_down for m in history] == [3 * 4 * (PARAMETERS + BUFFERS)] * 3
    assert history.bytes_up == 9 * upload


def test_two_vectors_take_twice_the_bytes() -> None:
    assert play("feddc+paq", 8).history.bytes_up == 9 * (2 * (4 + 512) + 4 * BUFFERS)


def test_more_bits_come_closer_to_the_plain_method() -> None:
    base = play("fedacg").vector
    distances = [float((play("fedacg+paq", bits).vector - base).norm()) for bits in (1, 2, 4, 8)]
    for fewer, more in pairwise(distances):
        assert more < 0.7 * fewer
    assert distances[-1] > 0


def test_buffers_are_not_quantised() -> None:
    plain, coarse = (play(method, rounds=1).model for method in ("fedavg", "fedavg+paq"))
    for one, other in zip(plain.buffers(), coarse.buffers(), strict=True):
        assert torch.equal(one, other)
    assert not all(torch.equal(*pair) for pair in zip(plain.parameters(), coarse.parameters(), strict=True))


def test_any_number_of_workers_quantises_alike() -> None:
    vectors = [play("feddc+paq", 2, rounds=2, workers=workers).vector for workers in (0, 1, 2)]
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])


class Wide(nn.Module):
    """A point of many coordinates, so that two draws of the noise never look alike by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2000))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def payload(seed: int, round: int, client: int) -> Tensor:
    """What a client sends; all clients have the same example, so only the quantiser's noise can differ."""
    x = torch.randn(1, 2000, generator=torch.Generator().manual_seed(0))
    method = methods.build("fedavg+paq", {"bits": 4}).with_loss(lambda outputs, _: outputs.square().mean())
    job = Job(
        module=Wide(),
        channels_last=False,
        data=from_pairs([(x, torch.zeros(1))] * 3, (x, torch.zeros(1))),
        method=method,
        local=LocalSettings(epochs=1),
        seed=seed,
        evaluate_batch=1,
    )
    broadcast = {"phi": torch.zeros(2000), "buffers": torch.zeros(0)}
    return Worker(job).train(task(round, client, 1, seed=seed), broadcast, {}).upload["delta"].clone()


def test_the_noise_belongs_to_seed_round_and_client() -> None:
    first = payload(seed=0, round=1, client=0)
    assert torch.equal(first, payload(seed=0, round=1, client=0))
    for other in (payload(1, 1, 0), payload(0, 2, 0), payload(0, 1, 1)):
        assert len(other) == len(first)
        assert not torch.equal(first, other)


def arrived(delta: Tensor, bits: int, round: int, client: int) -> Tensor:
    """Q(Δ_i) of a client's visit in a run with seed 0."""
    chain = Chain((Quantise(bits),))
    return chain.decode(chain.encode(delta, Memory(), generator(0, "link", round, client)), delta)


def test_momentum_is_fed_what_arrived() -> None:
    # λ = ½, β = 0, η = ½, one step: client i's Δ_i = ½(c_i − φ), and what counts is Q(Δ_i) at one bit, which
    # makes every entry ±(the largest). Round 1, client 0 at (8, 2) alone: Δ = (4, 1), so m = θ = (4, ±4).
    centres = torch.tensor([[8, 2], [-2, 6], [4, -6]], dtype=torch.float64)
    clients = [client(tuple(centre.tolist())) for centre in centres]
    cohorts = [[0], [1, 2], [0, 1, 2], [2]]
    theta = m = torch.zeros(2, dtype=torch.float64)
    played = states(
        clients, "fedacg+paq", {"lam": 0.5, "beta": 0.0, "bits": 1}, cohorts=cohorts, rounds=4, lr=0.5, steps=1
    )
    for round, (cohort, state) in enumerate(zip(cohorts, played, strict=True), start=1):
        phi = theta + 0.5 * m
        sent = [arrived(0.5 * (centres[i] - phi), 1, round, i) for i in cohort]
        m = 0.5 * m + torch.stack(sent).mean(dim=0)
        torch.testing.assert_close(state["m"], m, rtol=0, atol=1e-12)
        torch.testing.assert_close(state["theta"] - theta, m, rtol=0, atol=1e-12)
        if round == 1:
            assert state["m"].abs().tolist() == [4, 4]
        theta = state["theta"]


@pytest.mark.parametrize(
    ("method", "server", "own"), [("feddyn", "h", "g"), ("feddc", "g", "g"), ("feddc", "h", "h")]
)
@pytest.mark.parametrize("bits", BITS)
def test_clients_keep_in_step_with_what_the_server_got(
    method: str, server: str, own: str, bits: int, tmp_path: Path
) -> None:
    # Server and clients add up the same Q(·): so h (FedDyn), g and h (FedDC) stay means over all N clients.
    clients = [client((1, 0), (3, 1)), client((0, 2)), client((-1, 4), (2, 2), (0, 0)), client((5, -3))]
    cohorts = [[0, 1], [1, 2], [0, 2], [1]]
    options = {"alpha": 0.3, "bits": bits}
    zero = torch.zeros(2, dtype=torch.float64)
    for state in states(
        clients, f"{method}+paq", options, cohorts=cohorts, rounds=4, lr=0.2, batch=1, memory=tmp_path
    ):
        mean = torch.stack([found.get(own, zero) for found in kept(tmp_path, 4)]).mean(dim=0)
        torch.testing.assert_close(state[server], mean, rtol=0, atol=1e-12)
