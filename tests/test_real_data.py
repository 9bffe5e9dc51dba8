"""Real data from the command line; skipped, and said so, where the published files are not at hand."""

import json

import pytest

from command import Command
from fedacg.data import catalogue
from fedacg.data.files import data_root


@pytest.mark.slow
@pytest.mark.skipif(
    catalogue.where("cifar10") is None,
    reason=f"CIFAR-10 is not in {data_root()}: set FEDACG_DATA, or run `fedacg data get cifar10`",
)
def test_fedacg_learns_something_of_real_cifar10_in_five_rounds(fedacg: Command) -> None:
    settings = ["rounds=5", "cohort.size=4", "evaluate.every=5", "local.steps=20"]
    words = [word for setting in settings for word in ("--set", setting)]
    outcome = fedacg("run", "cifar10-large-desk", "--out", "run", *words)
    assert outcome.code == 0, outcome.err
    summary = json.loads((fedacg.folder / "run" / "summary.json").read_text())
    assert summary["accuracy"] > 0.12, "no better than guessing among ten classes"
    assert summary["parameters"] == 33_946
