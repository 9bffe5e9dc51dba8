"""The engine that `auto` stands for: by the work, and written into the run folder."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, read_toml
from fedacg.runs.build import Ingredients, prepare
from fedacg.runs.choices import choose_engine, multiplications
from fedacg.runs.runner import play
from fedacg.runs.session import Session


def quickstart(*settings: str) -> Experiment:
    return Experiment.parse(override(find("quickstart"), settings))


def test_the_work_is_counted() -> None:
    """One client of 8 examples on 4 → 3 weights: 5 epochs of 2 batches, and 6 tests every other round."""
    from fedacg.data.own_data import from_pairs
    from fedacg.methods import build

    settings = [
        "data.clients=1",
        "cohort.size=1",
        "local.batch=4",
        "local.epochs=5",
        "rounds=10",
        "evaluate.every=2",
    ]
    pair, test = (torch.zeros(8, 4), torch.zeros(8).long()), (torch.zeros(6, 4), torch.zeros(6).long())
    ingredients = Ingredients(nn.Linear(4, 3), False, from_pairs([pair], test), build("fedavg"))
    a_visit = 10 * 3_000_000 + 3 * 40 * 15
    assert multiplications(quickstart(*settings), ingredients) == 10 * a_visit + 5 * 6 * 15
    steps = quickstart(*settings, "local.steps=3")
    assert multiplications(steps, ingredients) == 10 * (3 * 3_000_000 + 3 * 12 * 15) + 5 * 6 * 15


def test_a_convolution_counts_at_every_place_that_it_is_applied_to() -> None:
    from fedacg.data.own_data import from_pairs
    from fedacg.methods import build
    from fedacg.runs.choices import _example_cost

    x, y = torch.zeros(2, 1, 6, 6), torch.zeros(2).long()
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    ingredients = Ingredients(network, False, from_pairs([(x, y)], (x, y)), build("fedavg"))
    assert _example_cost(ingredients) == 16 * 20 + 99


@pytest.mark.parametrize(
    ("settings", "runs", "name"),
    [
        ([], 1, "serial"),
        (["rounds=20"], 1, "serial"),
        ([], 30, "processes"),
        (["rounds=2000"], 1, "processes"),
        (["engine.workers=2"], 1, "processes"),
        (["engine.name=processes"], 1, "processes"),
        (["engine.name=serial", "rounds=2000"], 1, "serial"),
    ],
)
def test_little_work_starts_no_workers(settings: list[str], runs: int, name: str) -> None:
    experiment = quickstart(*settings)
    assert choose_engine(experiment, prepare(experiment), runs).engine.name == name


def test_the_choice_is_written_into_the_run_folder(tmp_path: Path) -> None:
    experiment = quickstart("rounds=1")
    assert experiment.engine.name == "auto"
    play(experiment, prepare(experiment), folder=tmp_path / "one")
    assert read_toml(tmp_path / "one" / "experiment.toml")["engine"]["name"] == "serial"
    # What was chosen changes no bits, so the run can be resumed with the description that chose nothing.
    play(experiment, prepare(experiment), folder=tmp_path / "one", resume=True)


def test_all_runs_of_a_session_share_the_engine_that_suits_them_together(tmp_path: Path) -> None:
    one, many = quickstart("rounds=1"), quickstart("rounds=3000")
    for first, name in ((one, "serial"), (many, "processes")):
        with Session(first.engine) as session:
            ingredients = session.prepare(first)
            assert session.settle(first, ingredients).engine.name == name
            assert session.settle(one, ingredients).engine.name == name
