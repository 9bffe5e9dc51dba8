"""What is usual among nodes: a bound that follows the federation and that no single node moves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedacg.flower.checks import Measured, MedianBound

NORM = "norm"


def judge(
    bound: MedianBound, round: int, sizes: list[float], steps: list[float] | None = None, model: float = 0.0
) -> list[int]:
    """Who is refused of nodes 0, 1, 2, … that sent vectors of these norms."""
    taken = steps or [1.0] * len(sizes)
    sent = {node: {NORM: Measured(size, taken[node])} for node, size in enumerate(sizes)}
    return sorted(bound.judge(round, sent, {NORM: model}))


def test_one_update_far_beyond_the_others_is_refused_from_the_first_round_on() -> None:
    bound = MedianBound(20, "norm-factor")
    assert judge(bound, 1, [1.0, 1000.0, 2.0]) == [1]
    assert judge(bound, 2, [1.0, 39.9, 2.0]) == []
    assert judge(bound, 3, [1.0, 1000.0]) == [1]
    assert judge(bound, 4, [1000.0]) == [0]


def test_a_round_from_which_one_was_refused_is_remembered() -> None:
    bound = MedianBound(20, "norm-factor")
    assert judge(bound, 1, [1.0, 1000.0, 2.0]) == [1]
    assert judge(bound, 2, [0.0, 1000.0, 0.0]) == [1]


def test_the_reason_has_the_number_the_usual_and_the_option() -> None:
    bound = MedianBound(20, "norm-factor")
    sent = {7: {NORM: Measured(1e30)}, 8: {NORM: Measured(1.0)}, 9: {NORM: Measured(0.5)}}
    assert bound.judge(1, sent) == {7: "norm is 1e+30, more than 20 times the usual 1; norm-factor sets the limit"}


def test_a_factor_of_0_takes_everything() -> None:
    assert judge(MedianBound(0, "norm-factor"), 1, [1.0, 1e30, 2.0]) == []


def test_of_two_in_a_first_round_the_model_says_which_is_too_long() -> None:
    assert judge(MedianBound(20, "x"), 1, [1.0, 1000.0], model=10.0) == [1]
    assert judge(MedianBound(20, "x"), 1, [1e-9, 10.0], model=10.0) == []  # a tiny one does not make another large
    assert judge(MedianBound(20, "x"), 1, [1e-9, 10.0]) == []


def test_two_replies_at_a_time_cannot_raise_the_bound_round_by_round() -> None:
    bound = MedianBound(20, "x")
    sizes = [4.9 * 10.0**round for round in range(1, 8)]
    refused = [judge(bound, round, [1.0, size], model=10.0) for round, size in enumerate(sizes, start=1)]
    assert refused == [[], *[[1]] * 6]


def test_clients_that_have_learnt_all_they_can_do_not_make_others_too_long() -> None:
    bound = MedianBound(20, "x")
    assert judge(bound, 1, [1.0, 0.9, 1.1]) == []
    for round in range(2, 6):
        assert judge(bound, round, [0.0, 0.0, 1.5]) == []


def test_when_all_updates_grow_at_once_the_bound_grows_with_them() -> None:
    bound = MedianBound(20, "x")
    assert judge(bound, 1, [1.0, 0.9, 1.1]) == []
    assert judge(bound, 2, [100.0, 90.0, 110.0]) == []


def test_more_steps_may_go_further() -> None:
    assert judge(MedianBound(20, "x"), 1, [1.0, 100.0, 1.0]) == [1]
    assert judge(MedianBound(20, "x"), 1, [1.0, 100.0, 1.0], steps=[5, 500, 5]) == []


def test_a_server_that_went_back_to_a_checkpoint_forgets_what_came_after_it() -> None:
    bound = MedianBound(20, "x")
    judge(bound, 1, [1.0, 1.0, 1.0])
    judge(bound, 2, [15.0, 15.0, 15.0])
    again = MedianBound(20, "x", bound.history)
    assert judge(again, 2, [1.0, 1.0, 25.0]) == [2]


@given(
    honest=st.lists(st.floats(0.5, 5.0), min_size=3, max_size=9),
    lies=st.lists(st.floats(0, 1e300), max_size=8),
    rounds=st.integers(1, 5),
)
@pytest.mark.parametrize("place", [0, -1])
def test_a_minority_of_liars_never_has_an_honest_node_refused_nor_gets_far(
    place: int, honest: list[float], lies: list[float], rounds: int
) -> None:
    lies = lies[: (len(honest) - 1) // 2 if len(honest) > 1 else 0]
    bound = MedianBound(20, "x")
    for round in range(1, rounds + 1):
        sizes = [*lies, *honest] if place == 0 else [*honest, *lies]
        liars = set(range(len(lies))) if place == 0 else set(range(len(honest), len(sizes)))
        refused = judge(bound, round, sizes)
        assert set(refused) <= liars
        assert all(sizes[liar] <= 20 * max(honest) for liar in liars - set(refused))
        assert all(np.isfinite(size) for _, size, _ in bound.history[NORM])
