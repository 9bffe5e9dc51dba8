"""`+secure`: sums modulo 2^b are the plain ones within the rounding, and their bytes are counted."""

import math

import pytest
import torch
from torch import Tensor, nn

import fedacg
from fedacg import methods
from fedacg.core.round import Round
from fedacg.errors import InputError
from fedacg.methods.reply import Reply
from fedacg.methods.rules import Totals
from fedacg.methods.secure import FixedPoint, Sealed, key_bytes
from fedacg.methods.upload import Chain, Memory
from support.quadratics import client, states


def sealed_mean(uploads: list[Tensor], bits: int, clip: float) -> tuple[Tensor, float]:
    """What the server finds of these uploads, and the step of the numbers that were sent."""
    rule = methods.build("fedavg+secure", {"clip": clip, "bits": bits}).rule
    assert isinstance(rule, Sealed)
    state, round = (
        {"theta": torch.zeros(len(uploads[0]), dtype=torch.float64), "buffers": torch.empty(0)},
        Round(1, len(uploads), len(uploads), 0.1),
    )
    step = float(rule.broadcast(state, round)["step"])
    link, totals = FixedPoint(bits, step), Totals(rule)
    for vector in uploads:
        payload = Chain((link,)).encode(vector, Memory(), torch.Generator())
        assert len(payload) == bits // 8 * len(vector)
        totals.add(
            Reply(0, 1.0, 1.0, 1, 1, 0.1, 0.0, torch.full_like(vector, math.nan), payloads={"delta": payload})
        )
    return rule.step(state, totals, round)["theta"], step


@pytest.mark.parametrize("bits", [16, 24, 32, 40, 48])
def test_the_sum_is_the_plain_one_within_a_step_for_each_client(bits: int) -> None:
    """The decoded updates are not numbers: nothing but the sealed sum can have been used."""
    source = torch.Generator().manual_seed(0)
    uploads = [torch.randn(50, generator=source, dtype=torch.float64).clamp(-3, 3) for _ in range(20)]
    found, step = sealed_mean(uploads, bits, clip=3.0)
    assert step == 3.0 * 20 / (2 ** (bits - 1) - 1)
    assert float((found - torch.stack(uploads).mean(dim=0)).abs().max()) <= step


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sum_that_there_can_be_does_not_wrap_around(sign: int) -> None:
    uploads = [torch.full((3,), sign * 3.0, dtype=torch.float64) for _ in range(20)]
    found, step = sealed_mean(uploads, 16, clip=3.0)
    torch.testing.assert_close(found, uploads[0], rtol=0, atol=step)


def test_no_update_gets_longer_by_rounding() -> None:
    source = torch.Generator().manual_seed(0)
    link = FixedPoint(16, 0.01)
    for _ in range(20):
        vector = torch.randn(50, generator=source)
        arrived = Chain((link,)).decode(Chain((link,)).encode(vector, Memory(), source), vector)
        assert bool((arrived.abs() <= vector.abs() + 1e-6).all())
        assert float((arrived - vector).abs().max()) <= 0.01 + 1e-6


def test_a_run_ends_where_the_plain_one_does_within_the_rounding() -> None:
    clients = [client((32, 1)), client((-7, 5), (3, 3)), client((0, 2))]
    for method in ("fedavg", "fedacg", "feddyn", "scaffold"):
        plain = states(clients, method, lr=0.1, steps=3, rounds=4, weights="uniform")
        for one, other in zip(
            states(
                clients,
                f"{method}+secure",
                {"clip": 200, "bits": 48},
                lr=0.1,
                steps=3,
                rounds=4,
                weights="uniform",
            ),
            plain,
            strict=True,
        ):
            torch.testing.assert_close(one["theta"], other["theta"], rtol=0, atol=1e-9)


def test_updates_are_clipped_together() -> None:
    (after,) = states(
        [client((32, 0))], "scaffold+secure", {"clip": 4 * math.sqrt(5), "bits": 48}, lr=0.5, weights="uniform"
    )
    torch.testing.assert_close(after["theta"], torch.tensor([4.0, 0.0]).double(), rtol=0, atol=1e-9)


def test_bytes_are_the_packed_bits_and_the_keys_by_their_formula() -> None:
    # Of 10 clients each has 8 neighbours. Up: 2·32 + 8·(2·33 + 40) + 8·33; down: 8·(2·32 + 106) + 8·4.
    assert key_bytes(10, 10) == (10 * (8 * 170 + 32), 10 * (64 + 8 * 106 + 8 * 33))
    assert key_bytes(10, 7)[1] == key_bytes(10, 10)[1] - 3 * 8 * 33
    assert key_bytes(1, 1) == (0, 0)
    data = [(torch.randn(4, 5), torch.randint(2, (4,))) for _ in range(10)]
    result = fedacg.run(
        model=nn.Linear(5, 2),
        clients=data,
        test=data[0],
        method="fedavg+secure",
        options={"bits": 24},
        rounds=1,
        participation=1.0,
        weights="uniform",
    )
    down, up = key_bytes(10, 10)
    assert result.history[0].bytes_up == 10 * 3 * 12 + up
    assert result.history[0].bytes_down == 10 * (4 * 12 + 8) + down


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedavg+median+secure", "must see the update of each client"),
        ("fedavg+secure+krum", "must see the update of each client"),
        ("fedexp+secure", "needs more of each update than a sum"),
        ("mime+secure", "clients first send full gradients"),
        ("fedavg+paq+secure", "cannot be added up"),
        ("fedavg+secure+paq", "no link can follow"),
        ("fedavg+topk+secure", "longer than the bound"),
        ("fedavg+local-dp+secure", "is unbounded"),
    ],
)
def test_what_the_server_could_not_do_with_a_sum_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        methods.build(name)


def test_weights_by_examples_are_refused() -> None:
    data = [(torch.randn(4, 5), torch.randint(2, (4,)))]
    with pytest.raises(InputError, match=r"needs cohort.weights = 'uniform'"):
        fedacg.run(model=nn.Linear(5, 2), clients=data, test=data[0], method="fedavg+secure", rounds=1)
