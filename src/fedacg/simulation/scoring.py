"""What an evaluation measures: sums over parts of a set, the figures that follow, and users' own metrics.

Which figures suit a task follows from the loss and the labels, by the first line that fits:

    binary cross-entropy              yes or no: accuracy for one output, exact match and F1 for several
    squared, absolute or Huber loss   regression: root mean square error and R²
    outputs with a dimension more     classification: accuracy, over all positions of a sequence; the classes are
    than whole-number labels          in dimension 1, as cross-entropy has them, or else in the last
    labels of the outputs' shape      rows that sum to one: soft labels, accuracy against the largest
                                      all 0 or 1: as with binary cross-entropy, of logits
                                      else regression

Anything else has only its loss. Outputs that are NaN count as wrong.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedacg.core.tensors import IGNORED, Inputs, call
from fedacg.errors import InputError
from fedacg.methods.parts import LossFunction

_LOGITS = (functional.binary_cross_entropy_with_logits, functional.multilabel_soft_margin_loss)
_LOGIT_LOSSES = (nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)
_SQUARES = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
_SQUARE_LOSSES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


@dataclass(frozen=True)
class Aim:
    """The learning task, as far as loss and labels determine it; the shape of the outputs does the rest."""

    loss: Literal["binary", "regression", "other"]
    threshold: float
    """Outputs above it mean 1, where labels are 0 or 1."""
    labels: Literal["distributions", "zero or one", "numbers"]

    @classmethod
    def of(cls, loss: LossFunction, labels: Tensor) -> "Aim":
        """The task of a loss and a sample of labels."""
        threshold = 0.5 if loss is functional.binary_cross_entropy or isinstance(loss, nn.BCELoss) else 0.0
        if threshold or loss in _LOGITS or isinstance(loss, _LOGIT_LOSSES):
            kind: Literal["binary", "regression", "other"] = "binary"
        else:
            kind = "regression" if loss in _SQUARES or isinstance(loss, _SQUARE_LOSSES) else "other"
        return cls(kind, threshold, _look(labels))


def _look(y: Tensor) -> Literal["distributions", "zero or one", "numbers"]:
    if y.is_floating_point() and y.dim() > 1 and y.shape[1] > 1 and len(y):
        sums = y.double().sum(dim=1)
        if bool((y >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
            return "distributions"
    return "zero or one" if len(y) and bool(((y == 0) | (y == 1)).all()) else "numbers"


@dataclass(frozen=True)
class Hits:
    """Several yes-or-no labels per example: true positives, false positives, false negatives, exact matches."""

    right: int
    false_yes: int
    false_no: int
    exact: int
    examples: int

    def __add__(self, other: "Hits") -> "Hits":
        return Hits(*(mine + theirs for mine, theirs in zip(_numbers(self), _numbers(other), strict=True)))

    def figures(self) -> dict[str, float]:
        """F1 over all labels together, and the share of examples with all labels right."""
        found = 2 * self.right + self.false_yes + self.false_no
        return {
            "f1": 2 * self.right / found if found else math.nan,
            "exact_match": self.exact / self.examples if self.examples else math.nan,
        }


@dataclass(frozen=True)
class Errors:
    """Squared errors of a regression, by output, and how the labels spread."""

    count: int
    squares: Tensor
    mean: Tensor
    spread: Tensor
    """Σ (y − mean)², merged by the formula of parts, which no offset of the labels cancels out."""

    def __add__(self, other: "Errors") -> "Errors":
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        spread = self.spread + other.spread + apart.square() * (self.count * other.count / count)
        return Errors(count, self.squares + other.squares, mean, spread)

    def figures(self) -> dict[str, float]:
        """√ of the mean squared error, and R², the mean over the outputs whose labels differ at all."""
        varied = self.spread > 0
        r2 = 1 - self.squares[varied] / self.spread[varied]
        return {
            "rmse": float((self.squares.sum() / (self.count * len(self.squares))).sqrt()),
            "r2": float(r2.mean()) if len(r2) else math.nan,
        }


@dataclass(frozen=True)
class Evaluation:
    """Sums over examples; those of disjoint parts add up."""

    examples: int
    loss: float
    correct: int = 0
    counted: int = 0
    """The number of predicted labels, of which `correct` are right; 0 if there is no accuracy."""
    sums: Hits | Errors | None = None
    """Those of further figures."""

    def __add__(self, other: "Evaluation") -> "Evaluation":
        sums = self.sums or other.sums
        if self.sums is not None and other.sums is not None:
            sums = self.sums + other.sums  # type: ignore[operator]
        return Evaluation(
            self.examples + other.examples,
            self.loss + other.loss,
            self.correct + other.correct,
            self.counted + other.counted,
            sums,
        )

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.counted if self.counted else None

    @property
    def mean_loss(self) -> float:
        return self.loss / self.examples

    def figures(self) -> dict[str, float]:
        """Further figures besides accuracy and loss, by name."""
        return self.sums.figures() if self.sums else {}


def total(parts: Sequence[Evaluation]) -> Evaluation:
    """The sum of evaluations, in order."""
    result = Evaluation(0, 0.0)
    for part in parts:
        result = result + part
    return result


def measure(aim: Aim, outputs: object, y: Tensor, loss: float) -> Evaluation:
    """The sums over one batch, by the rule at the top of this module; `loss` is its sum."""
    if not isinstance(outputs, Tensor) or not len(y):
        return Evaluation(len(y), loss)
    alike = _flat(outputs).shape == _flat(y).shape
    if alike and aim.loss == "regression":
        return Evaluation(len(y), loss, sums=_errors(outputs, y))
    if alike and aim.loss == "binary":
        return _yes_or_no(outputs > aim.threshold, outputs, y, loss)
    if not y.is_floating_point() and (rows := _rows(outputs, y)) is not None:
        return Evaluation(len(y), loss, *_largest(*rows))
    if not alike:
        return Evaluation(len(y), loss)
    if aim.labels == "distributions":
        predicted, labels = outputs.movedim(1, -1).flatten(0, -2), y.movedim(1, -1).flatten(0, -2)
        return Evaluation(len(y), loss, *_largest(predicted, labels.argmax(dim=1)))
    if aim.labels == "zero or one":
        return _yes_or_no(outputs > aim.threshold, outputs, y, loss)
    return Evaluation(len(y), loss, sums=_errors(outputs, y))


def _rows(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """A row of logits for every label, where the outputs have a dimension of several classes."""
    if outputs.dim() != y.dim() + 1 or len(outputs) != len(y):
        return None
    if outputs.shape[1] > 1 and outputs.shape[2:] == y.shape[1:]:
        return outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), y.reshape(-1)
    if outputs.shape[-1] > 1 and outputs.shape[:-1] == y.shape:
        return outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1)
    return None


def _largest(logits: Tensor, y: Tensor) -> tuple[int, int]:
    """The number of labels that have the largest logit, and the number of labels."""
    # A row with an output that is not a number has no largest: it is wrong, whatever the label.
    right = (logits.argmax(dim=1) == y) & ~logits.isnan().any(dim=1)
    return int(right.sum()), int((y != IGNORED).sum())


def _flat(values: Tensor) -> Tensor:
    """One row per example."""
    return values.reshape(len(values), -1) if len(values) else values


def _yes_or_no(yes: Tensor, outputs: Tensor, y: Tensor, loss: float) -> Evaluation:
    wanted = _flat(y) >= 0.5
    said = torch.where(_flat(outputs).isnan(), ~wanted, _flat(yes))
    right, examples = said == wanted, len(y)
    if right.shape[1] == 1:
        return Evaluation(examples, loss, int(right.sum()), examples)
    hits = Hits(
        int((said & wanted).sum()),
        int((said & ~wanted).sum()),
        int((~said & wanted).sum()),
        int(right.all(dim=1).sum()),
        examples,
    )
    return Evaluation(examples, loss, sums=hits)


def _errors(outputs: Tensor, y: Tensor) -> Errors:
    found, wanted = _flat(outputs).cpu().double(), _flat(y).cpu().double()
    mean = wanted.mean(dim=0)
    return Errors(len(y), (found - wanted).square().sum(dim=0), mean, (wanted - mean).square().sum(dim=0))


def _numbers(hits: Hits) -> tuple[int, ...]:
    return hits.right, hits.false_yes, hits.false_no, hits.exact, hits.examples


@runtime_checkable
class Accumulating(Protocol):
    """A metric that is shown one part of a set after the other, as those of torchmetrics are."""

    def update(self, outputs: Tensor, labels: Tensor, /) -> Any: ...

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


Metric = Callable[[Tensor, Tensor], Any] | Accumulating
"""f(outputs, labels) of a whole set, or something that accumulates."""
_TAKEN = ("accuracy", "loss")


def check_metrics(metrics: object) -> dict[str, Metric]:
    """Metrics by name, as given by a user and checked. A class is called to make an instance."""
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics = {metrics!r}: must be a dict from names to functions of (outputs, labels)")
    found: dict[str, Metric] = {}
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name or not name.replace("_", "").replace("-", "").isalnum():
            raise InputError(f"metrics: {name!r} is not a valid name; must be letters, digits, _ and -")
        if name in _TAKEN:
            raise InputError(f"metrics: {name!r} is a built-in metric; use another name")
        if isinstance(metric, type):
            metric = metric()
        if not isinstance(metric, Accumulating) and not callable(metric):
            raise InputError(
                f"metrics: {name} is a {type(metric).__name__}; must be a function of (outputs, labels), or have "
                "update(outputs, labels), compute() and reset()"
            )
        found[name] = metric
    return found


class Scorer:
    """Shows outputs and labels to metrics of the user's own; functions get the whole set at once."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._outputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._seen = False
        for metric in metrics.values():
            if isinstance(metric, Accumulating):
                metric.reset()

    @property
    def see(self) -> Callable[[Tensor, Tensor], None] | None:
        """The function to call with each part in order; None without metrics."""
        return self._see if self._metrics else None

    def _see(self, outputs: Tensor, labels: Tensor) -> None:
        self._seen = True
        for metric in self._metrics.values():
            if isinstance(metric, Accumulating):
                metric.update(outputs, labels)
        if not all(isinstance(metric, Accumulating) for metric in self._metrics.values()):
            self._outputs.append(outputs)
            self._labels.append(labels)

    def figures(self) -> dict[str, float]:
        """The values of the metrics."""
        if not self._seen:
            return {}
        whole = (torch.cat(self._outputs), torch.cat(self._labels)) if self._outputs else None
        found = {}
        for name, metric in self._metrics.items():
            if isinstance(metric, Accumulating):
                value = metric.compute()
            elif whole is None:
                continue
            else:
                value = metric(*whole)
            try:
                found[name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise InputError(f"metrics: {name} gives {value!r}; must be one number") from None
        return found


_ENTRIES = 2**21
"""Entries of the largest output of a layer in one pass, at most; beyond that, examples take longer each."""


@torch.no_grad()
def examples_per_pass(module: nn.Module, one: Inputs) -> int:
    """How many test examples go through a network at once, found with one example.

    The size decides how the test loss rounds, so it follows from the network alone and not from the machine;
    benchmarks/evaluation.py measured it.
    """
    largest = 1

    def look(layer: nn.Module, given: object, found: object) -> None:
        nonlocal largest
        if isinstance(found, Tensor):
            largest = max(largest, found.numel())

    hooks = [layer.register_forward_hook(look) for layer in module.modules()]
    try:
        call(module, one)
    finally:
        for hook in hooks:
            hook.remove()
    return max(1, _ENTRIES // largest)
