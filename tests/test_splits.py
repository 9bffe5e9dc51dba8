"""Splits: who holds which examples, how labels are spread, and what a saved split must satisfy."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedacg.data import splits
from fedacg.errors import InputError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(classes: int, each: int) -> torch.Tensor:
    return torch.arange(classes).repeat(each)


def histograms(split: splits.Split, labels: torch.Tensor, classes: int) -> np.ndarray:
    """Label counts, one row a client."""
    owner = torch.repeat_interleave(torch.arange(len(split.offsets) - 1), split.offsets.diff())
    cells = owner * classes + labels[split.order]
    return torch.bincount(cells, minlength=(len(split.offsets) - 1) * classes).view(-1, classes).numpy()


def assert_deals_everything_once(split: splits.Split, examples: int, clients: int) -> None:
    assert split.order.dtype == split.offsets.dtype == torch.int64
    assert torch.equal(split.order.sort().values, torch.arange(examples))
    sizes = split.offsets.diff()
    assert len(sizes) == clients
    assert split.offsets[0] == 0
    assert split.offsets[-1] == examples
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(-3, 12), min_size=1, max_size=60),
    part=st.floats(0, 1),
    alpha=st.one_of(st.floats(1e-308, 1e308), st.sampled_from([5e-324, 1e-3, 0.3, 1e300])),
    seed=st.integers(0, 9),
)
def test_every_example_is_dealt_exactly_once(labels: list[int], part: float, alpha: float, seed: int) -> None:
    clients = 1 + int(part * (len(labels) - 1))
    split = splits.dirichlet(torch.tensor(labels), clients, alpha, rng(seed))
    assert_deals_everything_once(split, len(labels), clients)
    assert_deals_everything_once(splits.iid(len(labels), clients, rng(seed)), len(labels), clients)


def test_the_same_generator_gives_the_same_split_and_another_one_another() -> None:
    labels = labels_of(10, 100)
    first, again, other = (splits.dirichlet(labels, 20, 0.3, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.order, again.order)
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
    labels, alpha, runs = [0, 1, 1, 2, 2, 2, 2, 2], 0.7, 6000
    source = rng(5)
    slow = Counter(drawn_one_by_one(labels, 2, alpha, source) for _ in range(runs))
    fast: Counter[tuple[int, ...]] = Counter()
    left = np.bincount(labels)
    for _ in range(runs):
        logs = splits._log_gammas(alpha, (1, 3), source)[0]
        fast[tuple(splits._draw_labels(logs, 4, left, source).tolist())] += 1
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


def test_a_hundred_thousand_clients_take_seconds() -> None:
    labels = torch.from_numpy(rng().integers(0, 10, 300_000))
    start = time.perf_counter()
    split = splits.dirichlet(labels, 100_000, 0.3, rng())
    assert time.perf_counter() - start < 20  # 3 s on two idle cores
    assert_deals_everything_once(split, 300_000, 100_000)


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


def test_a_dirichlet_split_without_alpha_is_refused() -> None:
    with pytest.raises(InputError, match=r"data\.alpha is missing"):
        splits.SPLITS["dirichlet"](labels_of(3, 10), 3, None, rng())


def test_a_saved_split_is_read_back_as_it_was(tmp_path: Path) -> None:
    split = splits.dirichlet(labels_of(10, 30), 7, 0.3, rng())
    path = tmp_path / "new" / "split"
    split.save(path)
    loaded = splits.load(path, examples=300, clients=7)
    assert torch.equal(loaded.order, split.order)
    assert torch.equal(loaded.offsets, split.offsets)
    assert [file.name for file in path.parent.iterdir()] == ["split"]


@pytest.mark.parametrize(
    ("order", "offsets", "message"),
    [
        ([0, 1, 2, 3], [0, 2, 4], "deals 4 examples where the data set has 5"),
        ([0, 1, 2, 3, 4], [0, 2, 3, 5], "has 3 clients where data.clients = 2"),
        ([0, 1, 2, 3, 3], [0, 2, 5], "every example exactly once"),
        ([0, 1, 2, 3, 5], [0, 2, 5], "every example exactly once"),
        ([-1, 1, 2, 3, 4], [0, 2, 5], "every example exactly once"),
        ([0, 1, 2, 3, 4], [0, 5, 5], "offsets must climb from 0 to 5"),
        ([0, 1, 2, 3, 4], [1, 2, 5], "offsets must climb from 0 to 5"),
        ([0, 1, 2, 3, 4], [0, 2, 4], "offsets must climb from 0 to 5"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0, 2, 5], "order must be one row of integers, not float64"),
        ([[0, 1, 2, 3, 4]], [0, 2, 5], "order must be one row of integers"),
    ],
)
def test_a_wrong_split_file_is_refused(tmp_path: Path, order: list[int], offsets: list[int], message: str) -> None:
    path = tmp_path / "split.npz"
    np.savez(path, order=np.array(order), offsets=np.array(offsets))
    with pytest.raises(InputError, match=message) as refusal:
        splits.load(path, examples=5, clients=2)
    assert str(refusal.value).startswith(f"data.split_file = {path}: ")


def test_what_is_no_split_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    with pytest.raises(InputError, match="there is no such file"):
        splits.load(path, examples=5, clients=2)
    whole = tmp_path / "whole.npz"
    splits.iid(5, 2, rng()).save(whole)
    plain = tmp_path / "plain.npy"
    np.save(plain, np.arange(5))
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, order=np.array([{}], dtype=object), offsets=np.arange(3))
    lacking = tmp_path / "lacking.npz"
    np.savez(lacking, order=np.arange(5))
    for contents in (
        b"",
        b"not an archive",
        whole.read_bytes()[:100],
        plain.read_bytes(),
        pickled.read_bytes(),
        lacking.read_bytes(),
    ):
        path.write_bytes(contents)
        with pytest.raises(InputError, match=r"must be an \.npz file with the arrays order and offsets"):
            splits.load(path, examples=5, clients=2)
    with pytest.raises(InputError, match=r"must be an \.npz file"):
        splits.load(tmp_path, examples=5, clients=2)
