"""Schedules of the learning rate: by hand over rounds and within one, of one's own, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest

import fedacg
from fedacg.config.experiment import Experiment
from fedacg.config.sections import LocalSettings
from fedacg.errors import InputError
from fedacg.simulation.schedule import rate_of_round, rates_of_steps, total_rate
from support.quadratics import Point, client, half_square, states

ROOT_HALF = math.sqrt(0.5)
OVER_ROUNDS: dict[str, tuple[dict[str, Any], list[float]]] = {
    # η₀ = 8, four rounds
    "by default": ({}, [8, 8, 8, 8]),
    "constant": ({"schedule": "constant"}, [8, 8, 8, 8]),
    "exponential": ({"schedule": "exponential", "lr_decay": 0.5}, [8, 4, 2, 1]),
    "cosine": ({"schedule": "cosine"}, [8, 4 + 4 * ROOT_HALF, 4, 4 - 4 * ROOT_HALF]),
    "step": ({"schedule": "step", "lr_decay": 0.5, "milestones": [1, 3]}, [8, 4, 4, 2]),
    "step without milestones yet": ({"schedule": "step", "lr_decay": 0.5, "milestones": [4]}, [8, 8, 8, 8]),
    "warm-up": ({"schedule": "constant", "warmup": 3}, [2, 4, 6, 8]),
    "warm-up of a decay": ({"schedule": "exponential", "lr_decay": 0.5, "warmup": 1}, [4, 4, 2, 1]),
    "own": ({"schedule": "own_schedule:left"}, [8 * 4 / 4, 8 * 3 / 4, 8 * 2 / 4, 8 * 1 / 4]),
    "warm-up of one's own": ({"schedule": "own_schedule:left", "warmup": 1}, [4, 6, 4, 2]),
}
WITHIN: dict[str, tuple[dict[str, Any], list[float]]] = {
    # A round that starts with η = 8 has four steps; an epoch is three.
    "by default": ({}, [8, 8, 8, 8]),
    "linear": ({"within": "linear"}, [8, 6, 4, 2]),
    "cosine": ({"within": "cosine"}, [8, 4 + 4 * ROOT_HALF, 4, 4 - 4 * ROOT_HALF]),
    "own": ({"within": "own_schedule:alternate"}, [8, 0, 8, 0]),
    "every epoch": ({"lr_decay": 0.5, "epoch_decay": True}, [8, 8, 8, 4]),
    "every epoch, linear": ({"lr_decay": 0.5, "epoch_decay": True, "within": "linear"}, [8, 6, 4, 1]),
}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own."""
    (tmp_path / "own_schedule.py").write_text(
        "def left(round, rounds): return (rounds - round + 1) / rounds\n"
        "def alternate(step, steps): return 1 - step % 2\n"
        "def negative(place, last): return -0.5\n"
        "def endless(place, last): return float('inf')\n"
        "def nothing(place, last): return None\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def local(**settings: Any) -> LocalSettings:
    return LocalSettings.model_validate({"lr": 8.0, **settings})


@pytest.mark.parametrize(("settings", "rates"), OVER_ROUNDS.values(), ids=OVER_ROUNDS)
def test_the_rate_of_every_round_is_that_worked_out_by_hand(settings: dict[str, Any], rates: list[float]) -> None:
    assert [rate_of_round(local(**settings), round, 4) for round in (1, 2, 3, 4)] == pytest.approx(rates)


@pytest.mark.parametrize(("settings", "rates"), WITHIN.values(), ids=WITHIN)
def test_the_rate_of_every_step_is_that_worked_out_by_hand(settings: dict[str, Any], rates: list[float]) -> None:
    found = rates_of_steps(local(**settings), lr=8.0, steps=4, epoch=3)
    assert found == pytest.approx(rates)
    assert total_rate(found) == pytest.approx(sum(rates))


def test_the_sum_of_a_constant_rate_is_k_times_the_rate_to_the_bit() -> None:
    assert total_rate((0.1,) * 10) == 10 * 0.1 != sum([0.1] * 10)


def test_a_run_takes_its_steps_at_the_rates_of_its_schedules() -> None:
    """One client at (1, 0): a step of rate η leaves the part 1 − η of the way.

    Rounds start with ½ and ¼, and the two steps of each take all and half of that.
    """
    settings = {"lr": 0.5, "lr_decay": 0.5, "within": "linear", "steps": 2}
    first, second = (state["theta"] for state in states([client((1, 0))], "fedavg", rounds=2, **settings))
    assert first.tolist() == pytest.approx([1 - 0.5 * 0.75, 0])
    assert second.tolist() == pytest.approx([1 - 0.5 * 0.75 * 0.75 * 0.875, 0])


def test_what_a_method_divides_by_is_the_sum_of_the_rates_really_used() -> None:
    """FedCM's D is minus the update over that sum.

    From 0 towards (1, 0) with rates ½ and ¼: Δ = 1 − ½·¾ = 0.625, and D = −0.625/0.75.
    """
    (state,) = states([client((1, 0))], "fedcm", {"alpha": 1.0}, lr=0.5, within="linear", steps=2)
    assert state["direction"].tolist() == pytest.approx([-0.625 / 0.75, 0])


def test_histories_have_the_rate_that_a_round_starts_with() -> None:
    clients = [client((1, 0))]
    result = fedacg.run(
        model=Point(), clients=clients, test=clients[0], loss=half_square, rounds=3, lr=0.4, lr_decay=0.5
    )
    assert [metrics.lr for metrics in result.history] == pytest.approx([0.4, 0.2, 0.1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedule": "constant", "lr_decay": 0.9},
            r"local\.lr_decay = 0\.9: has no effect, as the schedule is",
        ),
        ({"schedule": "own_schedule:left", "lr_decay": 0.9}, r"local\.lr_decay = 0\.9: has no effect"),
        (
            {"milestones": [3]},
            r"local\.milestones = \(3,\): has no effect, as .* exponential, not step",
        ),
        ({"nesterov": True}, r"local\.nesterov = True: has no effect, as local\.momentum is 0"),
        (
            {"optimiser": "adam", "momentum": 0.9},
            r"local\.momentum = 0\.9: has no effect, .* is adam, not sgd",
        ),
        ({"epoch_decay": True}, r"local\.epoch_decay = True: has no effect, as local\.lr_decay is 1"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'.*or module:function"),
        ({"within": "linea"}, "unknown schedule within a round 'linea': did you mean 'linear'.*module:function"),
    ],
)
def test_what_has_no_effect_or_is_unknown_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment.parse({"local": settings})


@pytest.mark.parametrize("key", ["schedule", "within"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("negative", r"for \(\d, 2\) it gives -0\.5; must be a finite number of at least 0"),
        ("endless", r"for \(\d, 2\) it gives inf; must be"),
        ("nothing", r"for \(\d, 2\) it gives None; must be"),
        ("number", "names a value of type int; must name a function"),
        ("missing", "missing"),
    ],
)
def test_a_function_of_ones_own_that_gives_no_rate_is_refused(key: str, name: str, message: str) -> None:
    settings = local(**{key: f"own_schedule:{name}"})
    with pytest.raises(InputError, match=rf"local\.{key}.*{message}"):
        _ = rate_of_round(settings, 1, 2), rates_of_steps(settings, 1.0, 2, 2)
