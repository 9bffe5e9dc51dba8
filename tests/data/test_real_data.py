"""Real data from the command line; skipped with a message where the published files are not available."""

import json
from typing import Any

import pytest

from fedacg.data import catalogue
from fedacg.data.files import data_root
from support.command import Command


@pytest.mark.slow
@pytest.mark.skipif(
    catalogue.where("cifar10") is None,
    reason=f"CIFAR-10 is not in {data_root()}: set FEDACG_DATA, or run `fedacg data get cifar10`",
)
def test_fedacg_learns_something_of_real_cifar10_in_five_rounds(fedacg: Command) -> None:
    settings = ["rounds=5", "cohort.size=4", "evaluate.every=5", "local.steps=20"]
    words = [word for setting in settings for word in ("--set", setting)]
    outcome = fedacg("run", "cifar10-large-small", "--out", "run", *words)
    assert outcome.code == 0, outcome.err
    summary = json.loads((fedacg.folder / "run" / "summary.json").read_text())
    assert summary["accuracy"] > 0.12, "no better than guessing among ten classes"
    assert summary["parameters"] == 33_946


def set_(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def last(fedacg: Command) -> dict[str, Any]:
    line: dict[str, Any] = json.loads((fedacg.folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    return line


@pytest.mark.slow
@pytest.mark.skipif(catalogue.where("femnist") is None, reason=f"LEAF's FEMNIST is not in {data_root()}")
def test_fedacg_learns_something_of_real_femnist_in_eight_rounds(fedacg: Command) -> None:
    outcome = fedacg(
        "run", "femnist-small", "--out", "run", *set_("rounds=8", "evaluate.every=8", "data.partial=true")
    )
    assert outcome.code == 0, outcome.err
    assert last(fedacg)["test_accuracy"] > 0.3, "the most frequent of 62 classes is 6 % of the test images"


@pytest.mark.slow
@pytest.mark.skipif(catalogue.where("shakespeare") is None, reason=f"shakespeare/100.txt is not in {data_root()}")
def test_fedacg_learns_something_of_real_shakespeare_in_three_rounds(fedacg: Command) -> None:
    small = set_("rounds=3", "evaluate.every=3", "evaluate.examples=500", "model.hidden=16", "cohort.size=4")
    outcome = fedacg("run", "shakespeare-small", "--out", "run", *small)
    assert outcome.code == 0, outcome.err
    assert last(fedacg)["test_loss"] < 3.6, "knowing nothing of 80 symbols is log 80 = 4.38"
