"""How many parameters a network of the catalogue has, found without memory for one of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fedacg.errors import InputError
from fedacg.models import build


class _Unfilled(TorchFunctionMode):
    """Leaves out random numbers, for which PyTorch would load hundreds of modules where there is no memory."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if getattr(function, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else named["tensor"]
        return function(*args, **named)


def parameters(name: str, *, classes: int, shape: tuple[int, ...], factorise: float = 0, **options: object) -> int:
    """The number of trainable parameters of the network that `build` makes of the same arguments."""
    try:
        with torch.device("meta"), _Unfilled():
            module = build(name, classes=classes, shape=shape, factorise=factorise, **options)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that no integer of PyTorch's holds
        if "verflow" not in str(error):
            raise
        raise InputError(f"model.name = {name}: too large for inputs of shape {shape}") from None
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
