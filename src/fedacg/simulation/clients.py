"""Evaluation on single clients: the model's results on each client's examples, and figures over all clients."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

FIGURES = 7
"""Numbers that a worker sends of a client: examples, then the sum of losses, correct labels and those that count,
before and after fine-tuning."""


@dataclass(frozen=True)
class ClientFigures:
    """One client, as one line of `clients.csv`; accuracies are fractions."""

    client: int
    name: str
    examples: int
    """Number of training examples."""
    tested: int
    """Number of examples it was evaluated on."""
    accuracy: float | None
    """None if the task has no accuracy, such as a regression."""
    loss: float
    personal_accuracy: float | None = None
    """After fine-tuning; None without."""
    personal_loss: float | None = None

    @classmethod
    def of(cls, row: Tensor, client: int, name: str, examples: int, tuned: bool) -> "ClientFigures":
        """From a worker's measurements."""
        tested, loss, correct, counted, later_loss, later_correct, later_counted = row.tolist()
        return cls(
            client=client,
            name=name,
            examples=examples,
            tested=int(tested),
            accuracy=correct / counted if counted else None,
            loss=loss / tested,
            personal_accuracy=later_correct / later_counted if later_counted else None,
            personal_loss=later_loss / tested if tuned else None,
        )


def scores(clients: Sequence[ClientFigures]) -> dict[str, float]:
    """The figures of all clients by name, each client counting the same.

    `clients/mean`, `clients/worst_tenth` and `clients/spread` are of accuracies, of losses where there are none;
    those after fine-tuning are called `clients/personal_mean` and so on.
    """
    found: dict[str, float] = {}
    for before in ("", "personal_"):
        accuracies = [getattr(each, f"{before}accuracy") for each in clients]
        losses = [getattr(each, f"{before}loss") for each in clients]
        if accuracies and None not in accuracies:
            found |= _of(accuracies, f"clients/{before}", best_first=False)
        elif losses and None not in losses:
            found |= _of(losses, f"clients/{before}", best_first=True)
        if losses and None not in losses:
            found[f"clients/{before}loss"] = math.fsum(losses) / len(losses)
    return found


def _of(values: Sequence[float], prefix: str, *, best_first: bool) -> dict[str, float]:
    mean = math.fsum(values) / len(values)
    worst = sorted(values, reverse=best_first)[: math.ceil(len(values) / 10)]
    return {
        f"{prefix}mean": mean,
        f"{prefix}worst_tenth": math.fsum(worst) / len(worst),
        f"{prefix}spread": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
    }


def to_csv(clients: Sequence[ClientFigures]) -> str:
    """One line per client, in full precision; columns without any figure are left out."""
    lines = [asdict(each) for each in clients]
    names = [each.name for each in fields(ClientFigures) if any(line[each.name] is not None for line in lines)]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def from_csv(text: str) -> list[ClientFigures]:
    """The clients of a `clients.csv`; a ValueError or KeyError if it is none."""
    kinds: dict[str, Any] = {"client": int, "name": str, "examples": int, "tested": int}
    lines = csv.DictReader(io.StringIO(text))
    return [
        ClientFigures(**{"accuracy": None, **{key: kinds.get(key, float)(value) for key, value in line.items()}})
        for line in lines
    ]
