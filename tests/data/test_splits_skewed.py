"""Splits that are skewed otherwise than the paper's: unequal Dirichlet, shards of classes, sizes alone."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_splits import assert_deals_everything_once, histograms, labels_of, rng

from fedacg.data import splits
from fedacg.errors import InputError

# Unequal Dirichlet


def test_a_class_is_cut_by_the_drawn_ratios_to_within_one_example() -> None:
    labels, alpha, clients = labels_of(10, 3000), 0.3, 30
    counts = histograms(splits.dirichlet_unequal(labels, clients, alpha, rng(2)), labels, 10)
    source = rng(2)  # the ratios are what the split draws first, class by class
    ratios = np.stack([splits.ratios(alpha, clients, source) for _ in range(10)])
    assert np.abs(counts - 3000 * ratios.T).max() <= 1


def test_class_shares_have_the_mean_and_variance_of_the_dirichlet() -> None:
    labels, alpha, clients = labels_of(400, 500), 0.5, 20
    shares = histograms(splits.dirichlet_unequal(labels, clients, alpha, rng(3)), labels, 400) / 500
    assert shares.mean(axis=1) == pytest.approx(np.full(clients, 1 / clients), abs=0.015)
    variance = (clients - 1) / clients**2 / (clients * alpha + 1)
    assert shares.var(axis=1).mean() == pytest.approx(variance, rel=0.08)


def test_classes_are_cut_independently_so_that_sizes_differ() -> None:
    labels = labels_of(10, 1000)
    sizes = splits.dirichlet_unequal(labels, 20, 0.3, rng()).offsets.diff()
    # Sum of ten independent shares of 1000: mean 500, deviation 1000 √(10 · 0.0475 / 7) = 260.
    assert sizes.float().mean() == 500
    assert 150 < sizes.float().std() < 400


def test_the_examples_of_a_class_are_not_dealt_in_their_order() -> None:
    split = splits.dirichlet_unequal(torch.zeros(1000, dtype=torch.int64), 2, 50.0, rng())
    first = split.order[: split.offsets[1]].sort().values
    assert not torch.equal(first, torch.arange(len(first)))
    assert first.float().mean() == pytest.approx(500, abs=50)


@pytest.mark.parametrize(("seed", "rich"), [(1, 2), (213, 1)])
def test_clients_that_got_nothing_have_a_random_example_of_the_largest(seed: int, rich: int) -> None:
    labels = labels_of(2, 500)
    split = splits.dirichlet_unequal(labels, 40, 1e-3, rng(seed))
    assert_deals_everything_once(split, 1000, 40, equal=False)
    counts = histograms(split, labels, 2)
    poor = counts[counts.sum(axis=1) == 1]
    assert len(poor) == 40 - rich, "with such an alpha each class goes to one client, by chance to the same"
    assert poor.sum(axis=0).min() >= 10, "they have examples of both classes"


def one_by_one(sizes: list[int]) -> list[int]:
    filled = list(sizes)
    while 0 in filled:
        filled[filled.index(max(filled))] -= 1
        filled[filled.index(0)] += 1
    return sorted(filled)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) >= len(sizes)))
def test_always_the_largest_gives(sizes: list[int]) -> None:
    held = np.array(sizes)
    spared = splits._spared(held)
    assert spared.sum() == (held == 0).sum()
    assert sorted(np.maximum(held - spared, 1).tolist()) == one_by_one(sizes)


# Sizes alone


@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_sizes_are_the_drawn_ratios_to_within_one_example(alpha: float) -> None:
    split = splits.quantity(100_000, 50, alpha, rng(8))
    expected = 100_000 * splits.ratios(alpha, 50, rng(8))
    assert expected.min() > 1, "else a client would have been given one"
    assert np.abs(split.offsets.diff().numpy() - expected).max() <= 1


def test_a_small_alpha_leaves_most_clients_with_one_example() -> None:
    split = splits.quantity(1000, 100, 1e-6, rng())
    assert np.sort(split.offsets.diff().numpy()).tolist() == [1] * 99 + [901]


def test_labels_are_spread_as_by_chance_whatever_the_sizes() -> None:
    labels = labels_of(10, 2000)
    counts = histograms(splits.quantity(20_000, 60, 1.0, rng(5)), labels, 10)
    sizes = counts.sum(axis=1, keepdims=True)
    large = (sizes > 50)[:, 0]
    chance = sizes * 0.1 * 0.9 * (1 - sizes / 20_000)
    z = ((counts - 0.1 * sizes) / np.sqrt(chance))[large]
    assert z.var() == pytest.approx(1, abs=3 * np.sqrt(2 / z.size))


# Shards


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 7), min_size=1, max_size=80),
    part=st.floats(0, 1),
    classes=st.integers(1, 8),
    seed=st.integers(0, 9),
)
def test_no_client_has_more_classes_than_shards(labels: list[int], part: float, classes: int, seed: int) -> None:
    there = len(set(labels))
    clients = 1 + int(part * (len(labels) - 1))
    classes = min(max(classes, -(-there // clients)), there)
    split = splits.shards(torch.tensor(labels), clients, classes, rng(seed))
    assert_deals_everything_once(split, len(labels), clients, equal=False)
    counts = histograms(split, torch.tensor(labels), 8)
    assert (counts > 0).sum(axis=1).max() <= classes


def test_sizes_are_equal_where_classes_divide_evenly() -> None:
    labels = labels_of(10, 500)
    counts = histograms(splits.shards(labels, 100, 2, rng()), labels, 10)
    assert (counts.sum(axis=1) == 50).all()
    assert set(np.unique(counts)) == {0, 25, 50}


def test_shards_are_dealt_at_random_across_classes_and_within_them() -> None:
    labels = labels_of(10, 5000)
    split = splits.shards(labels, 5000, 2, rng(3))
    counts = histograms(split, labels, 10)
    # The second shard of a client is one of 999 of the same class among the other 9999.
    assert ((counts > 0).sum(axis=1) == 1).mean() == pytest.approx(999 / 9999, abs=0.012)
    pairs = {tuple(np.flatnonzero(row)) for row in counts if (row > 0).sum() == 2}
    assert len(pairs) == 45, "every two classes meet somewhere"
    neighbours = split.order.view(-1, 5).sort(dim=1).values.diff(dim=1)
    assert (neighbours == 10).float().mean() < 0.05, "labels lie in tens: a shard is no stretch of the data"


def test_unequal_classes_get_shards_by_their_size() -> None:
    labels = torch.cat([torch.zeros(900), torch.ones(100)]).long()
    counts = histograms(splits.shards(labels, 10, 1, rng()), labels, 2)
    assert sorted(counts.tolist()) == [[0, 100]] + 9 * [[100, 0]]


@given(stock=st.lists(st.integers(1, 40), min_size=1, max_size=4), more=st.integers(0, 4))
def test_the_largest_shard_is_as_small_as_can_be(stock: list[int], more: int) -> None:
    count = min(len(stock) + more, sum(stock))
    held = np.array(stock)
    given_ = splits._apportion(held, count)
    assert given_.sum() == count
    assert given_.min() >= 1
    assert (given_ <= held).all(), "no shard is empty"
    choices = (c for c in product(range(1, count + 1), repeat=len(stock)) if sum(c) == count)
    assert (held / given_).max() == min((held / np.array(c)).max() for c in choices)


def test_more_shards_than_examples_become_single_examples() -> None:
    labels = labels_of(3, 5)
    sizes = splits.shards(labels, 10, 3, rng()).offsets.diff().tolist()
    assert sorted(sizes) == 5 * [1] + 5 * [2]


@pytest.mark.parametrize(
    ("clients", "classes", "message"),
    [
        (10, 4, r"data.shards = 4: must be from 1 to the number of classes \(3\)"),
        (10, 0, r"data.shards = 0: must be from 1 to the number of classes \(3\)"),
        (2, 1, "data.shards = 1: with 2 clients must be at least 2, so that each of the 3 classes has a client"),
        (0, 1, "data.clients = 0: must be at least 1"),
    ],
)
def test_impossible_shards_are_refused_by_name_and_value(clients: int, classes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        splits.shards(labels_of(3, 10), clients, classes, rng())
