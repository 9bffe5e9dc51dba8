"""Model inputs: one tensor, or several by position or by name, as `forward` takes them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A batch of inputs: a tensor, a tuple for `forward(a, b)`, or a dictionary for `forward(ids=…, mask=…)`."""


def each(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The inputs with a function applied to every tensor of them."""
    if isinstance(x, dict):
        return {name: function(tensor) for name, tensor in x.items()}
    return tuple(map(function, x)) if isinstance(x, tuple) else function(x)


def tensors(x: Inputs) -> list[Tensor]:
    """Every tensor of the inputs."""
    if isinstance(x, dict):
        return list(x.values())
    return list(x) if isinstance(x, tuple) else [x]


def join(parts: list[Inputs], together: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Combine inputs of the same kind: `together` makes one tensor of those with the same position or name."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: together([part[name] for part in parts if isinstance(part, dict)]) for name in first}
    if isinstance(first, tuple):
        return tuple(together([part[place] for part in parts]) for place in range(len(first)))  # type: ignore[index]
    return together([part for part in parts if isinstance(part, Tensor)])


def call(module: nn.Module, x: Inputs) -> Any:
    """The model's outputs: a tuple is passed by position, a dictionary by name."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def described(x: Inputs) -> str:
    """Type and shape of a batch's inputs, without the dimension that counts examples."""
    if isinstance(x, dict):
        return "{" + ", ".join(f"{name}: {described(tensor)}" for name, tensor in x.items()) + "}"
    if isinstance(x, tuple):
        return "(" + ", ".join(map(described, x)) + ")"
    return f"{x.dtype} of shape {tuple(x.shape[1:])}"
