"""Networks that take an example as a flat vector: logistic regression and the multilayer perceptron.

They take examples of any shape. The catalogue in __init__.py checks shape and classes; here only
the options that are these networks' own are checked.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from fedacg.errors import InputError
from fedacg.models.staged import StagedModel


def logistic(shape: Sequence[int], classes: int) -> StagedModel:
    """Multinomial logistic regression: convex in its parameters."""
    return StagedModel([nn.Flatten()], nn.Linear(prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, *, hidden: Sequence[int] = (64,)) -> StagedModel:
    """One stage, linear and ReLU, for every width in `hidden`."""
    if not _are_widths(hidden):
        raise InputError(f"model.hidden = {hidden!r}: must be one or more positive whole numbers, as in [64, 64]")
    widths = (prod(shape), *hidden)
    stages = [nn.Sequential(nn.Linear(i, o), nn.ReLU(inplace=True)) for i, o in pairwise(widths)]
    stages[0].insert(0, nn.Flatten())
    return StagedModel(stages, nn.Linear(widths[-1], classes))


def _are_widths(hidden: object) -> bool:
    return (
        isinstance(hidden, (list, tuple))
        and len(hidden) > 0
        and all(isinstance(width, int) and not isinstance(width, bool) and width > 0 for width in hidden)
    )
