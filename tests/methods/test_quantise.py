"""Quantised uploads: unbiased, within their variance, packed into the bytes that are counted."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedacg.errors import RunError
from fedacg.methods.quantise import BITS, BUCKET, Quantise
from fedacg.methods.upload import Chain, Memory
from support.quadratics import client, states

LENGTHS = [1, 2, 3, 511, 512, 513, 1025]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sent(x: Tensor, bits: int, seed: int = 0) -> Tensor:
    """Q(x), as it arrives."""
    chain = Chain((Quantise(bits),))
    return chain.decode(chain.encode(x, Memory(), generator(seed)), x)


def grid(bits: int) -> Tensor:
    """The points of the grid over [−1, 1]: 2ᵇ − 1 of them, or ±1."""
    return torch.linspace(-1, 1, 2 if bits == 1 else 2**bits - 1, dtype=torch.float64)


def variance(x: Tensor, bits: int) -> Tensor:
    """Of each entry's Q: for x between grid points below and above, (x − below)(above − x)."""
    result = []
    for bucket in x.split(BUCKET):
        points = grid(bits) * bucket.abs().max()
        above = torch.searchsorted(points, bucket).clamp(1, len(points) - 1)
        result.append((bucket - points[above - 1]) * (points[above] - bucket))
    return torch.cat(result)


def sample() -> Tensor:
    x = torch.randn(2 * BUCKET, generator=generator(1), dtype=torch.float64)
    x[BUCKET:] *= 1e-3  # the second bucket has a scale of its own
    return x


@pytest.mark.parametrize("bits", BITS)
def test_the_expectation_is_the_vector_and_the_variance_that_of_the_grid(bits: int) -> None:
    # Buckets are independent of each other, so one long vector makes many draws.
    x, repeats = sample(), 2000
    draws = sent(x.repeat(repeats), bits).view(repeats, -1)
    exact = variance(x, bits)
    # The mean of 2000 draws has a standard deviation of √(variance/2000); six of them for a thousand entries.
    assert ((draws.mean(dim=0) - x).abs() <= 6 * (exact / repeats).sqrt() + 1e-12).all()
    squared = (draws - x).square().sum(dim=1)
    assert float(squared.mean()) == pytest.approx(float(exact.sum()), rel=0.02)
    last = len(grid(bits)) - 1
    scales = [float(bucket.abs().max()) for bucket in x.split(BUCKET)]
    bound = sum(BUCKET * s**2 / last**2 for s in scales)
    assert float(squared.mean()) <= bound, "E‖Q(x) − x‖² ≤ Σ n (s/last)², half a step squared at worst"


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.37, 1.0, 3e-7, 1e38, 1e-42])
def test_the_ends_and_zero_arrive_exactly(bits: int, dtype: torch.dtype, scale: float) -> None:
    # In every bucket s, −s and 510 zeros; in some cases many, as rounding errors show once in a million entries.
    x = torch.zeros(2000 if scale == 0.37 else 10, BUCKET, dtype=dtype)
    x[:, 0], x[:, 1] = scale, -scale
    arrived = sent(x.view(-1), bits).view(-1, BUCKET)
    assert torch.equal(arrived[:, :2], x[:, :2])
    if bits >= 2:
        assert torch.equal(arrived, x)
    else:
        assert torch.equal(arrived.abs(), x.abs().amax(dim=1, keepdim=True).expand_as(x))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_arrives_lies_on_the_grid_and_next_to_what_was_sent(bits: int, dtype: torch.dtype) -> None:
    x = sample().to(dtype)
    arrived = sent(x, bits)
    assert arrived.dtype == dtype
    for before, after in zip(x.split(BUCKET), arrived.split(BUCKET), strict=True):
        scale = float(before.abs().max())
        off_grid = (after.double()[:, None] / scale - grid(bits)).abs().amin(dim=1)
        assert float(off_grid.max()) < 1e-6
        assert float((after - before).abs().max()) <= 2 * scale / (len(grid(bits)) - 1) * (1 + 1e-6)


@settings(deadline=None)
@given(bits=st.sampled_from(BITS), places=st.lists(st.integers(0, 255), min_size=1, max_size=1100))
def test_every_code_survives_packing_at_every_length(bits: int, places: list[int]) -> None:
    # A vector of grid points, with the largest magnitude first in each bucket: Q has no choice, x must come back.
    points = grid(bits)
    x = points[torch.tensor(places) % len(points)]
    x[::BUCKET] = 1.0
    torch.testing.assert_close(sent(x, bits), x, rtol=0, atol=1e-15)


@settings(deadline=None)
@given(bits=st.sampled_from(BITS), codes=st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_codes_are_packed_without_loss(bits: int, codes: list[int]) -> None:
    whole = torch.tensor(codes, dtype=torch.uint8).repeat_interleave(8) & (2**bits - 1)
    link = Quantise(bits)
    packed = link._pack(whole)
    assert len(packed) * 8 == len(whole) * bits
    assert torch.equal(link._unpack(packed), whole)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_size_is_the_length_of_what_is_sent(bits: int, dtype: torch.dtype, length: int) -> None:
    x = torch.randn(length, generator=generator(), dtype=dtype)
    chain = Chain((Quantise(bits),))
    payload = chain.encode(x, Memory(), generator())
    assert payload.dtype == torch.uint8
    buckets = math.ceil(length / BUCKET)
    assert len(payload) == buckets * x.element_size() + buckets * BUCKET * bits // 8
    assert chain.decode(payload, x).shape == x.shape


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("length", [1, 7, 8, 1025])
@pytest.mark.parametrize("bucket", [0, 1, 3, 100, 2000])
def test_buckets_of_any_size_and_one_for_the_whole_vector(bits: int, length: int, bucket: int) -> None:
    """Grid points of a bucket whose first entry is its scale come back as they were."""
    points, size = grid(bits), bucket or length
    x = points[torch.arange(length) % len(points)]
    scales = 2.0 ** torch.arange(math.ceil(length / size), dtype=torch.float64).neg()
    x[::size] = 1.0
    x = x * scales.repeat_interleave(size)[:length]
    chain = Chain((Quantise(bits, bucket),))
    payload = chain.encode(x, Memory(), generator())
    torch.testing.assert_close(chain.decode(payload, x), x, rtol=0, atol=1e-15)
    assert len(payload) == 8 * len(scales) + math.ceil(len(scales) * size / 8) * 8 * bits // 8


@pytest.mark.parametrize("bits", BITS)
def test_with_the_euclidean_norm_the_grid_is_wider_and_still_unbiased(bits: int) -> None:
    """Of 3 and −4 the norm is 5: points are at 5 times the grid, and the mean of many draws is the vector."""
    x, repeats = torch.tensor([3.0, -4.0], dtype=torch.float64), 4000
    chain = Chain((Quantise(bits, 2, 2),))
    arrived = chain.decode(chain.encode(x.repeat(repeats), Memory(), generator()), x.repeat(repeats)).view(-1, 2)
    points = 5 * grid(bits)
    assert float((arrived.unique()[:, None] - points).abs().amin(dim=1).max()) < 1e-12
    step = float(points[1] - points[0])
    assert float((arrived.mean(dim=0) - x).abs().max()) <= 5 * step / 2 / repeats**0.5
    assert float((arrived - x).abs().max()) < step
    assert torch.equal(sent(torch.zeros(5), bits), torch.zeros(5))
    huge = torch.full((1000,), 1e30)
    assert chain.decode(chain.encode(huge, Memory(), generator()), huge).isfinite().all()


def test_one_scale_for_the_whole_vector_loses_what_is_small() -> None:
    """The second half is a thirtieth of the first: of its own grid it has 15 points, of a common one three."""
    x = sample()
    x[BUCKET:] *= 30
    for bucket, kept in ((0, 3), (BUCKET, 15)):
        chain = Chain((Quantise(4, bucket),))
        arrived = chain.decode(chain.encode(x, Memory(), generator()), x)[BUCKET:]
        assert len(arrived.unique()) == kept


@pytest.mark.parametrize("bits", BITS)
def test_odd_vectors_arrive(bits: int) -> None:
    for length in (1, 513):
        assert torch.equal(sent(torch.zeros(length), bits), torch.zeros(length))
        assert not sent(torch.zeros(length), bits).isnan().any()
    assert sent(torch.tensor([-2.5]), bits).tolist() == [-2.5]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_hidden(bits: int, bad: float) -> None:
    x = torch.ones(1200)
    x[700] = bad
    arrived = sent(x, bits)
    assert not arrived.sum().isfinite()
    assert arrived[:BUCKET].isfinite().all(), "other buckets are not concerned"


@pytest.mark.parametrize("bits", BITS)
def test_a_quantised_run_that_diverges_says_so(bits: int) -> None:
    with pytest.raises(RunError, match=r"diverged in round \d+: the update of client"):
        list(states([client((1, 1))], "fedavg+paq", {"bits": bits}, rounds=50, lr=1e30, steps=3))
