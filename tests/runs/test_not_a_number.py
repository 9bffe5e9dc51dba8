"""Outputs that are not numbers count as wrong, and a run that evaluates to them says so."""

import json

import torch

import fedacg as package
from fedacg.simulation.scoring import Aim, measure
from support.command import Command


def test_a_row_that_is_not_a_number_is_wrong_whatever_its_label() -> None:
    nan = torch.nan
    logits = torch.tensor([[nan, nan], [nan, 1.0], [1.0, nan], [2.0, 1.0], [torch.inf, 1.0], [-torch.inf, 0.0]])
    for rows, labels, right in ((logits, [0, 0, 1, 0, 0, 1], 3), (logits[:3], [0, 1, 0], 0)):
        y = torch.tensor(labels)
        found = measure(Aim.of(torch.nn.functional.cross_entropy, y), rows, y, loss=0.0)
        assert (found.correct, found.counted) == (right, len(labels))


class Overflowing(torch.nn.Linear):
    """Trains well, and puts out what is not a number when it is tested."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.training else super().forward(x) * torch.nan


def test_a_run_that_evaluates_to_nan_says_so() -> None:
    data = (torch.randn(12, 2), torch.zeros(12, dtype=torch.int64))
    result = package.run(model=Overflowing(2, 2), clients=[data] * 3, test=data, rounds=3, evaluate_every=2)
    assert result.summary["accuracy"] == 0
    assert result.summary["notes"] == [
        "the test loss is not a finite number in 2 of 2 evaluated rounds, first in round 2: "
        "outputs that are NaN count as wrong"
    ]


def test_a_sound_run_has_nothing_to_note(fedacg: Command) -> None:
    outcome = fedacg("run", "tiny.toml", "--set", "rounds=1", "--out", "run")
    assert "note:" not in outcome.out
    assert json.loads((fedacg.folder / "run" / "summary.json").read_text())["notes"] == []
