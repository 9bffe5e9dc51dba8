"""Splits: what holds for all of them, and the paper's own. test_splits_skewed.py has the others."""

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedacg.config.sections import DataSettings
from fedacg.data import splits
from fedacg.errors import InputError

EQUAL = {"iid", "dirichlet"}
"""Splits that promise sizes that differ by at most one."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(classes: int, each: int) -> torch.Tensor:
    return torch.arange(classes).repeat(each)


def histograms(split: splits.Split, labels: torch.Tensor, classes: int) -> np.ndarray:
    """Label counts, one row a client."""
    owner = torch.repeat_interleave(torch.arange(len(split.offsets) - 1), split.offsets.diff())
    cells = owner * classes + labels[split.order]
    return torch.bincount(cells, minlength=(len(split.offsets) - 1) * classes).view(-1, classes).numpy()


def deal(name: str, labels: torch.Tensor, seed: int, **keys: Any) -> splits.Split:
    return splits.SPLITS[name](labels, DataSettings(split=name, **keys), rng(seed))


def assert_deals_everything_once(split: splits.Split, examples: int, clients: int, equal: bool = True) -> None:
    assert split.order.dtype == split.offsets.dtype == torch.int64
    assert torch.equal(split.order.sort().values, torch.arange(examples))
    sizes = split.offsets.diff()
    assert len(sizes) == clients
    assert split.offsets[0] == 0
    assert split.offsets[-1] == examples
    assert sizes.min() >= 1
    if equal:
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("name", splits.SPLITS)
@settings(deadline=None)
@given(
    labels=st.lists(st.integers(-3, 12), min_size=1, max_size=60),
    part=st.floats(0, 1),
    alpha=st.one_of(st.floats(1e-308, 1e308), st.sampled_from([5e-324, 1e-3, 0.3, 1e300])),
    seed=st.integers(0, 9),
)
def test_every_example_is_dealt_exactly_once_and_every_client_has_one(
    name: str, labels: list[int], part: float, alpha: float, seed: int
) -> None:
    clients = 1 + int(part * (len(labels) - 1))
    shards = -(-len(set(labels)) // clients)
    split = deal(name, torch.tensor(labels), seed, clients=clients, alpha=alpha, shards=shards)
    assert_deals_everything_once(split, len(labels), clients, equal=name in EQUAL)


@pytest.mark.parametrize("name", splits.SPLITS)
def test_the_same_generator_gives_the_same_split_and_another_one_another(name: str) -> None:
    labels = labels_of(10, 100)
    first, again, other = (deal(name, labels, seed, clients=20) for seed in (1, 1, 2))
    assert torch.equal(first.order, again.order)
    assert torch.equal(first.offsets, again.offsets)
    assert not torch.equal(first.order, other.order)


def test_an_iid_client_holds_every_class_in_nearly_equal_parts() -> None:
    labels = labels_of(10, 5000)
    counts = histograms(splits.iid(50_000, 100, rng()), labels, 10)
    expected = 50
    # The hypergeometric variance of a cell is 500 · 0.1 · 0.9 · (1 − 0.01) = 44.6.
    assert counts.mean() == expected
    assert 40 < counts.var() < 49


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6, 3.0])
def test_label_histograms_have_the_spread_of_the_dirichlet(alpha: float) -> None:
    labels = labels_of(10, 10_000)  # many small clients, so that few of them meet an empty class
    counts = histograms(splits.dirichlet(labels, 20_000, alpha, rng(3)), labels, 10).astype(float)
    # Chance that two examples of a client share their label: Σ E[p²] = (α + 1) / (10 α + 1).
    together = (counts * (counts - 1)).sum(axis=1).mean() / (5 * 4)
    assert together == pytest.approx((alpha + 1) / (10 * alpha + 1), rel=0.03)


def test_a_client_holds_what_its_drawn_ratios_say_as_long_as_nothing_runs_out() -> None:
    labels, alpha, clients, size = labels_of(10, 20_000), 0.3, 400, 500
    counts = histograms(splits.dirichlet(labels, clients, alpha, rng(4)), labels, 10)
    source = rng(4)  # the ratios are what a split draws first, the turns come next
    logs = splits.log_gammas(alpha, (clients, 10), source)
    ratios = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    turns = source.permutation(clients)
    served = turns[(counts[turns].cumsum(axis=0) < 20_000).all(axis=1)]
    assert len(served) > 300
    expected = size * ratios[served]
    cells = (expected >= 5) & (ratios[served] < 0.95)  # where a count is about normal
    z = (counts[served] - expected)[cells] / np.sqrt(expected * (1 - ratios[served]))[cells]
    assert z.size > 1000
    assert abs(z.mean()) < 3 / np.sqrt(z.size)
    assert z.var() == pytest.approx(1, abs=3 * np.sqrt(2 / z.size))


@pytest.mark.parametrize("alpha", [0.05, 0.3, 5.0])
def test_ratios_have_the_moments_of_the_dirichlet(alpha: float) -> None:
    source, parts = rng(6), 8
    drawn = np.stack([splits.ratios(alpha, parts, source) for _ in range(4000)])
    assert drawn.sum(axis=1) == pytest.approx(1)
    variance = (parts - 1) / parts**2 / (parts * alpha + 1)
    assert drawn.mean(axis=0) == pytest.approx(np.full(parts, 1 / parts), abs=4 * np.sqrt(variance / 4000))
    assert drawn.var(axis=0).mean() == pytest.approx(variance, rel=0.03)
    assert np.cov(drawn[:, 0], drawn[:, 1])[0, 1] == pytest.approx(-variance / (parts - 1), rel=0.35)


@settings(deadline=None, max_examples=300)
@given(
    stock=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    clients=st.integers(1, 40),
    alpha=st.sampled_from([0.01, 0.3, 10.0]),
    seed=st.integers(0, 99),
)
def test_serving_many_at_a_time_is_serving_one_after_the_other_to_the_bit(
    stock: list[int], clients: int, alpha: float, seed: int
) -> None:
    clients = min(clients, sum(stock))
    sizes = np.full(clients, sum(stock) // clients)
    logs = splits.log_gammas(alpha, (clients, len(stock)), rng(seed))
    one, many = rng(seed), rng(seed)
    left, expected = np.array(stock), []
    for row, size in zip(logs, sizes, strict=True):
        expected.append(splits.draw_labels(row, int(size), left, one))
        left = left - expected[-1]
    assert np.array_equal(splits.serve(logs, sizes, np.array(stock), many), expected)
    assert many.random() == one.random(), "both leave the stream at the same place"


def test_a_tiny_alpha_gives_a_client_a_single_class_while_there_is_enough_of_it() -> None:
    labels = labels_of(10, 5000)
    counts = histograms(splits.dirichlet(labels, 500, 1e-3, rng()), labels, 10)
    assert (counts.max(axis=1) == 100).mean() > 0.85


def test_a_huge_alpha_gives_nearly_equal_ratios() -> None:
    labels = labels_of(10, 5000)
    counts = histograms(splits.dirichlet(labels, 50, 1e9, rng()), labels, 10)
    # Those served last have to take what is left; of the others every class is near 100 ± 9.5.
    assert 80 < np.quantile(counts, 0.05) < 90
    assert 110 < np.quantile(counts, 0.95) < 125


def test_when_classes_run_out_the_rest_is_dealt_from_the_others() -> None:
    labels = torch.cat([torch.zeros(2, dtype=torch.int64), torch.full((98,), 7)])
    split = splits.dirichlet(labels, 2, 1e-3, rng(0))
    assert_deals_everything_once(split, 100, 2)


def drawn_one_by_one(
    labels: list[int], clients: int, alpha: float, source: np.random.Generator
) -> tuple[int, ...]:
    """The protocol to the letter: example after example; the label counts of the client served first."""
    left = np.bincount(labels)
    first: tuple[int, ...] | None = None
    for _ in range(clients):
        ratios, counts = source.dirichlet([alpha] * len(left)), np.zeros(len(left), dtype=int)
        for _ in range(len(labels) // clients):
            allowed = np.where(left > 0, ratios, 0)
            pick = source.choice(len(left), p=allowed / allowed.sum())
            counts[pick] += 1
            left[pick] -= 1
        first = first or tuple(counts.tolist())
    assert first is not None
    return first


def test_drawing_in_rounds_has_the_distribution_of_drawing_one_by_one() -> None:
    labels, alpha, runs = [0, 1, 1, 2, 2, 2, 2, 2], 0.7, 3000
    source = rng(5)
    slow = Counter(drawn_one_by_one(labels, 2, alpha, source) for _ in range(runs))
    fast: Counter[tuple[int, ...]] = Counter()
    left = np.bincount(labels)
    for _ in range(runs):
        logs = splits.log_gammas(alpha, (3,), source)
        fast[tuple(splits.draw_labels(logs, 4, left, source).tolist())] += 1
    assert slow.keys() == fast.keys()
    distance = sum((slow[key] - fast[key]) ** 2 / (slow[key] + fast[key]) for key in slow)
    assert distance < 2.5 * len(slow)  # a χ² variable with about len(slow) degrees of freedom


def test_no_client_number_is_always_left_with_the_remains() -> None:
    labels = labels_of(10, 100)
    strangest = set()
    for seed in range(40):
        counts = histograms(splits.dirichlet(labels, 5, 1e9, rng(seed)), labels, 10)
        strangest.add(int(counts.std(axis=1).argmax()))
    assert strangest == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", splits.SPLITS)
def test_a_hundred_thousand_clients_take_seconds(name: str) -> None:
    labels = torch.from_numpy(rng().integers(0, 10, 1_000_000))
    start = time.perf_counter()
    split = deal(name, labels, 0, clients=100_000)
    assert time.perf_counter() - start < 10  # the slowest takes 1 s on one core
    assert_deals_everything_once(split, 1_000_000, 100_000, equal=name in EQUAL)


@pytest.mark.parametrize(
    ("clients", "alpha", "message"),
    [
        (0, 0.3, "data.clients = 0: must be at least 1"),
        (31, 0.3, r"data.clients = 31: more clients than examples \(30\)"),
        (3, 0.0, "data.alpha = 0: must be greater than 0"),
        (3, -1.0, "data.alpha = -1: must be greater than 0"),
        (3, float("nan"), "data.alpha = nan: must be greater than 0"),
        (3, float("inf"), "data.alpha = inf: must be greater than 0 and finite"),
    ],
)
def test_impossible_splits_are_refused_by_name_and_value(clients: int, alpha: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        splits.dirichlet(labels_of(3, 10), clients, alpha, rng())


@pytest.mark.parametrize("name", splits.SPLITS)
def test_no_split_deals_to_more_clients_than_there_are_examples(name: str) -> None:
    with pytest.raises(InputError, match=r"data.clients = 31: more clients than examples \(30\)"):
        deal(name, labels_of(3, 10), 0, clients=31)


@pytest.mark.parametrize("name", splits.SPLITS)
def test_an_alpha_of_zero_is_refused_by_those_that_use_it(name: str) -> None:
    if name in ("iid", "shards"):
        deal(name, labels_of(3, 10), 0, clients=3, alpha=0.0)
        return
    with pytest.raises(InputError, match=r"data.alpha = 0: must be greater than 0 and finite"):
        deal(name, labels_of(3, 10), 0, clients=3, alpha=0.0)
