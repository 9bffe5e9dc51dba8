"""The catalogue of networks: `build(name, classes=…, shape=…)` checks the request and builds the network.

Networks are built from torch's global generator, which the caller seeds; nothing is seeded here.
Your own network is given as `module:function`: any nn.Module trains, a StagedModel with every method.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedacg.core.plugins import is_plugin, load_function
from fedacg.errors import InputError, unknown
from fedacg.models import factorised
from fedacg.models.networks import (
    CELEBA_SMALLEST,
    CNN_SMALLEST,
    FEMNIST_SMALLEST,
    LENET_SMALLEST,
    StagedModel,
    celeba_cnn,
    cnn,
    femnist_cnn,
    lenet,
    logistic,
    lstm,
    mlp,
    resnet18,
)

__all__ = ["NAMES", "StagedModel", "build"]


@dataclass(frozen=True)
class _Network:
    make: Callable[..., StagedModel]
    smallest: int | None = None  # the least height and width of an image; None: not only images
    sequence: bool = False  # takes sequences of ids only

    def options(self) -> list[str]:
        parameters = inspect.signature(self.make).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


_NETWORKS = {
    "logistic": _Network(logistic),
    "mlp": _Network(mlp),
    "cnn": _Network(cnn, smallest=CNN_SMALLEST),
    "lenet": _Network(lenet, smallest=LENET_SMALLEST),
    "resnet18": _Network(resnet18, smallest=1),
    "femnist-cnn": _Network(femnist_cnn, smallest=FEMNIST_SMALLEST),
    "celeba-cnn": _Network(celeba_cnn, smallest=CELEBA_SMALLEST),
    "lstm": _Network(lstm, sequence=True),
}
NAMES = tuple(_NETWORKS)


def build(
    name: str, *, classes: int, shape: tuple[int, ...] = (3, 32, 32), factorise: float = 0, **options: object
) -> nn.Module:
    """The network called `name` for examples of `shape`, with factors for weights if `factorise` says so.

    That is (channels, height, width) where it takes images, (length,) where it takes sequences. A network of a
    user's own is named `module:function`, and the function is called with shape, classes and the options.
    """
    module = _build(name, classes, shape, options)
    return factorised.factorise(module, factorise) if factorise else module


def _build(name: str, classes: int, shape: tuple[int, ...], options: dict[str, object]) -> nn.Module:
    if is_plugin(name):
        module = load_function("model.name", name)(shape, classes, **options)
        if not isinstance(module, nn.Module):
            raise InputError(f"model.name = {name}: made a {type(module).__name__}; must make a torch.nn.Module")
        return module
    if name not in _NETWORKS:
        raise unknown("model", name, NAMES)
    network = _NETWORKS[name]
    allowed = network.options()
    for option, value in options.items():
        if option not in allowed:
            takes = f"takes only {', '.join(allowed)}" if allowed else "takes no options"
            raise InputError(f"model.{option} = {value!r}: {name} {takes}")
    if not _positive(classes) or classes < 2:
        raise InputError(f"model.classes = {classes!r}: must be a whole number, 2 or more")
    _check_shape(name, shape, network)
    return network.make(shape, classes, **options)


def _check_shape(name: str, shape: tuple[int, ...], network: _Network) -> None:
    whole = isinstance(shape, (list, tuple)) and len(shape) > 0 and all(_positive(side) for side in shape)
    if network.sequence:
        fits = whole and len(shape) == 1
        takes = "sequences of ids, (length,)"
    elif network.smallest is not None:
        fits = whole and len(shape) == 3 and min(shape[1:]) >= network.smallest
        takes = f"images, (channels, height, width), of at least {network.smallest}×{network.smallest} pixels"
    else:
        fits, takes = whole, "examples of one or more positive sizes"
    if not fits:
        raise InputError(f"model.shape = {shape!r}: {name} takes {takes}")


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class _Unfilled(TorchFunctionMode):
    """Skips random initialisation, for which PyTorch would load hundreds of modules on the meta device."""

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
