"""Networks without convolutions: logistic regression, the multilayer perceptron, and `lstm`, which reads symbols.

The first two take examples of any shape as flat vectors. The catalogue in __init__.py checks shape and
classes; here only the options that are these networks' own are checked.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

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


def lstm(
    shape: Sequence[int],
    classes: int,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    symbols: int | None = None,
) -> StagedModel:
    """An embedding and LSTM layers, one stage each; the head sees the last step of the last layer.

    `symbols` is the size of the alphabet that is read; without it, there are as many as classes. The defaults are
    LEAF's for Shakespeare. A gate has two biases, as PyTorch's have, of which only the sum matters.
    """
    symbols = classes if symbols is None else symbols
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers, "symbols": symbols}
    for option, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"model.{option} = {value!r}: must be a whole number, 1 or more")
    stages: list[nn.Module] = [
        Layer(hidden if layer else embedding, hidden, last=layer == layers - 1) for layer in range(layers)
    ]
    stages[0] = nn.Sequential(Symbols(symbols, embedding), stages[0])
    return StagedModel(stages, nn.Linear(hidden, classes))


class Symbols(nn.Embedding):
    """Ids (B, T) to vectors (B, T, d); an id outside the alphabet raises a clear error."""

    def forward(self, input: Tensor) -> Tensor:
        if input.is_floating_point():
            raise InputError(f"data: x holds {input.dtype}; lstm takes whole numbers, the ids of symbols (int64)")
        try:
            return super().forward(input.long())
        except IndexError:
            span = f"from {int(input.min())} to {int(input.max())}"
            allowed = f"must be from 0 to {self.num_embeddings - 1} (model.symbols = {self.num_embeddings})"
            raise InputError(f"data: x has ids {span}; {allowed}") from None


class Layer(nn.Module):
    """One LSTM layer over (B, T, inputs). Puts out every step, (B, T, hidden), or only the last, (B, hidden)."""

    def __init__(self, inputs: int, hidden: int, *, last: bool) -> None:
        super().__init__()
        # On one thread it trains in less than two thirds of the time that a loop over the steps takes.
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.lstm(x)[0]
        return output[:, -1] if self.last else output
