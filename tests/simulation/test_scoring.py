"""What an evaluation measures: the figures that suit a task, and metrics of one's own."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedacg
from fedacg import InputError
from fedacg.methods.parts import LossFunction
from fedacg.simulation.scoring import Aim, Evaluation, measure, total

NAN = math.nan


def tally(loss: LossFunction, outputs: Tensor, y: Tensor, chunk: int = 2) -> Evaluation:
    """The sums of all chunks of a set."""
    aim = Aim.of(loss, y)
    parts = zip(outputs.split(chunk), y.split(chunk), strict=True)
    return total([measure(aim, out, labels, 0.0) for out, labels in parts])


def own(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss that nothing is known of."""
    return (outputs - y).square().mean()


def test_sequences_have_the_accuracy_of_all_positions_in_either_layout() -> None:
    # Two sequences of three positions over two classes; 4 of the 5 labels that count are right.
    logits = torch.tensor([[[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]], [[0.0, 5.0], [1.0, 0.0], [1.0, 0.0]]])
    y = torch.tensor([[0, 1, 0], [1, 1, -100]])
    for outputs in (logits, logits.transpose(1, 2)):
        found = tally(functional.cross_entropy, outputs, y, chunk=1)
        assert (found.correct, found.counted, found.examples) == (4, 5, 2)
        assert found.accuracy == 0.8


def test_where_both_layouts_fit_the_classes_are_where_cross_entropy_has_them() -> None:
    y = torch.tensor([[0, 0]])
    outputs = torch.tensor(
        [[[1.0, 1.0], [0.0, 2.0]]]
    )  # by class: position 0 is 0 (1 > 0), position 1 is 1 (2 > 1)
    assert tally(functional.cross_entropy, outputs, y).accuracy == 0.5


def test_soft_labels_are_right_where_the_largest_is() -> None:
    y = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])
    outputs = torch.tensor([[2.0, 1.0], [3.0, 1.0], [NAN, 0.0]])
    assert tally(functional.cross_entropy, outputs, y).accuracy == 1 / 3


def test_several_yes_or_no_labels_have_f1_and_exact_match() -> None:
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    logits = torch.tensor([[3.0, -1.0, 2.0], [1.0, -1.0, 1.0], [2.0, -2.0, -1.0], [-1.0, NAN, 4.0]])
    # Right yes: 2 + 1 + 1 + 1 = 5; wrongly yes: 1; wrongly no: 1, and the output that is no number.
    for loss in (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss(), own):
        found = tally(loss, logits, y)
        assert found.accuracy is None
        assert found.figures() == {"f1": 10 / (10 + 1 + 2), "exact_match": 1 / 4}
    probabilities = torch.sigmoid(logits)
    assert tally(nn.BCELoss(), probabilities, y).figures() == found.figures()


def test_one_yes_or_no_label_has_an_accuracy() -> None:
    y, logits = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.3, 0.2, -1.0, -2.0])
    for labels in (y, y.long(), y.unsqueeze(1)):
        for outputs in (logits, logits.unsqueeze(1)):
            assert tally(own, outputs, labels).accuracy == 0.5
    assert tally(functional.binary_cross_entropy, torch.tensor([0.7, 0.6, 0.4, 0.2]), y).accuracy == 0.5


def test_a_regression_has_rmse_and_r2_however_it_is_cut_and_wherever_it_lies() -> None:
    source = torch.Generator().manual_seed(1)
    y = torch.randn(23, 2, dtype=torch.float64, generator=source) + 1e7
    outputs = y + torch.randn(23, 2, dtype=torch.float64, generator=source) * torch.tensor([0.1, 0.5])
    squares = (outputs - y).square()
    r2 = (1 - squares.sum(0) / (y - y.mean(0)).square().sum(0)).mean()
    for chunk in (1, 4, 23):
        found = tally(nn.MSELoss(), outputs, y, chunk).figures()
        assert found["rmse"] == pytest.approx(float(squares.mean().sqrt()), rel=1e-12)
        assert found["r2"] == pytest.approx(float(r2), rel=1e-7)
    assert tally(nn.MSELoss(), y[:, :1], y[:, 0], 4).figures() == {"rmse": 0.0, "r2": 1.0}


def test_labels_that_are_0_and_1_are_numbers_where_the_loss_is_a_squared_error() -> None:
    y = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert set(tally(functional.mse_loss, y + 1, y).figures()) == {"rmse", "r2"}


def test_what_has_no_figures_has_its_loss() -> None:
    found = measure(Aim.of(own, torch.zeros(2)), torch.zeros(2, 7), torch.zeros(2), 3.0)
    assert (found.examples, found.loss, found.accuracy, found.figures()) == (2, 3.0, None, {})


# In a run.


def problem(outputs: int = 3) -> dict[str, Any]:
    source = torch.Generator().manual_seed(5)
    inputs = [torch.randn(n, 4, generator=source) for n in (8, 9, 10, 11, 53)]
    pairs = [(x, x[:, :outputs].argmax(dim=1)) for x in inputs]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(4, outputs)
    return {
        "model": net,
        "clients": pairs[:-1],
        "test": pairs[-1],
        "rounds": 3,
        "local_steps": 2,
        "evaluate": {"batch": 10, "every": 2},
    }


def macro_recall(outputs: Tensor, y: Tensor) -> float:
    hit = outputs.argmax(dim=1) == y
    return float(torch.stack([hit[y == label].double().mean() for label in y.unique()]).mean())


class Hits:
    """An accumulating metric, as torchmetrics has them."""

    def __init__(self) -> None:
        self.parts: list[int] = []
        self.right = 0

    def reset(self) -> None:
        self.parts, self.right = [], 0

    def update(self, outputs: Tensor, y: Tensor) -> None:
        self.parts.append(len(y))
        self.right += int((outputs.argmax(dim=1) == y).sum())

    def compute(self) -> Tensor:
        return torch.tensor(self.right / sum(self.parts))


def test_metrics_see_the_whole_test_set_and_are_in_the_history() -> None:
    seen = []

    def look(outputs: Tensor, y: Tensor) -> float:
        seen.append((outputs.shape, y))
        return macro_recall(outputs, y)

    hits, data = Hits(), problem()
    result = fedacg.run(**data, metrics={"recall": look, "hits": hits})
    assert [shape for shape, _ in seen] == [(53, 3)] * 2
    assert torch.equal(seen[0][1], data["test"][1]), "in the order of the examples"
    assert hits.parts == [10, 10, 10, 10, 10, 3], "one part after the other, from the start in every evaluation"
    assert [set(m.scores or {}) for m in result.history] == [
        set(),
        {"test/recall", "test/hits"},
        {"test/recall", "test/hits"},
    ]
    with torch.no_grad():
        assert result.history[-1].score("test/recall") == macro_recall(
            result.model(data["test"][0]), data["test"][1]
        )
    assert result.history[-1].score("test/hits") == pytest.approx(result.history.accuracy[-1])


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_metrics_the_same_outputs_in_the_same_order(workers: int) -> None:
    def fingerprint(outputs: Tensor, y: Tensor) -> float:
        weights = torch.arange(outputs.numel(), dtype=torch.float64).view(outputs.shape)
        return float((outputs.double() * weights).sum() + (y * torch.arange(len(y))).sum())

    alone = fedacg.run(**problem(), metrics={"order": fingerprint})
    many = fedacg.run(**problem(), metrics={"order": fingerprint}, workers=workers)
    assert [m.scores for m in many.history] == [m.scores for m in alone.history]
    assert torch.equal(many.vector, alone.vector)


def test_a_run_without_metrics_sends_no_outputs_and_keeps_its_lines() -> None:
    result = fedacg.run(**problem())
    assert all(m.scores is None for m in result.history)
    assert "scores" not in result.history[-1].to_json()


MODULE = """
import torch


def recall(outputs, labels):
    return (outputs.argmax(1) == labels)[labels == 1].double().mean()


class Count:
    def __init__(self): self.reset()
    def reset(self): self.n = 0
    def update(self, outputs, labels): self.n += len(labels)
    def compute(self): return self.n


four = 4
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_metrics.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)
    return "my_metrics"


def test_metrics_have_names_in_files(module: str) -> None:
    data = problem()
    data["evaluate"] = {"metrics": [f"{module}:recall", f"{module}:Count"], "batch": 20}
    last = fedacg.run(**data, workers=2).history[-1]
    assert last.score("test/Count") == 53
    assert 0 < (last.score("test/recall") or 0) <= 1


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["my_metrics:four"], "four is a int"),
        (["my_metrics:recall", "my_metrics:recall"], "there is already a metric called recall"),
        (["my_metrics:missing"], "has no missing"),
        (["accuracy"], "unknown metric"),
    ],
)
def test_names_that_are_no_metrics_are_refused_before_the_first_round(
    module: str, names: list[str], error: str
) -> None:
    with pytest.raises(InputError, match=error):
        fedacg.run(**problem() | {"evaluate": {"metrics": names}}, on_round=never)


@pytest.mark.parametrize(
    ("metrics", "error"),
    [
        ({"loss": macro_recall}, "'loss' is a built-in metric"),
        ({"a/b": macro_recall}, "not a valid name"),
        ({"f1": 3}, "f1 is a int"),
        ([macro_recall], "must be a dict"),
    ],
)
def test_what_is_no_metric_is_refused_before_the_first_round(metrics: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        fedacg.run(**problem(), metrics=metrics, on_round=never)


def never(_: object) -> None:
    raise AssertionError("a round was played")


def test_a_metric_that_gives_no_number_is_told_by_name() -> None:
    with pytest.raises(InputError, match=r"metrics: shape gives torch.Size\(\[53, 3\]\); must be one number"):
        fedacg.run(**problem(), metrics={"shape": lambda outputs, y: outputs.shape})


def test_an_error_of_a_metric_is_the_users_own() -> None:
    def broken(outputs: Tensor, y: Tensor) -> float:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fedacg.run(**problem(), metrics={"broken": broken}, workers=1)


@pytest.mark.parametrize(
    ("loss", "labels", "figure"),
    [
        (functional.mse_loss, lambda x: x.sum(dim=1, keepdim=True), "test/r2"),
        (functional.binary_cross_entropy_with_logits, lambda x: (x[:, :2] > 0).float(), "test/f1"),
    ],
)
def test_a_run_has_the_figures_that_suit_its_task(
    loss: LossFunction, labels: Callable[[Tensor], Tensor], figure: str
) -> None:
    source = torch.Generator().manual_seed(7)
    pairs = [(x := torch.randn(40, 4, generator=source), labels(x)) for _ in range(4)]
    net = nn.Linear(4, pairs[0][1].shape[1])
    result = fedacg.run(
        model=net, clients=pairs[:3], test=pairs[3], loss=loss, rounds=15, participation=1.0, lr=0.3
    )
    values = list(result.history.series(figure).values())
    assert values[-1] > 0.8
    assert values[-1] > values[0]
    assert result.history.accuracy == []
    assert result.history.headline == ("test/rmse" if figure == "test/r2" else "test/f1")
