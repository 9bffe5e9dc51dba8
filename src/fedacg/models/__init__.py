"""The catalogue of networks: `build(name, classes=…, shape=…)` checks what is asked for and builds it.

Networks are built from torch's global generator, which the caller seeds; nothing is seeded here.
A network of one's own needs no entry: any nn.Module trains, a StagedModel with every method.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from fedacg.errors import InputError, unknown
from fedacg.models.convolutional import CNN_SMALLEST, LENET_SMALLEST, cnn, lenet
from fedacg.models.dense import logistic, mlp
from fedacg.models.resnet import resnet18
from fedacg.models.staged import StagedModel

__all__ = ["NAMES", "StagedModel", "build"]


@dataclass(frozen=True)
class _Network:
    make: Callable[..., StagedModel]
    smallest: int | None = None  # the least height and width of an image; None: an example of any shape

    def options(self) -> list[str]:
        parameters = inspect.signature(self.make).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


_NETWORKS = {
    "logistic": _Network(logistic),
    "mlp": _Network(mlp),
    "cnn": _Network(cnn, smallest=CNN_SMALLEST),
    "lenet": _Network(lenet, smallest=LENET_SMALLEST),
    "resnet18": _Network(resnet18, smallest=1),
}
NAMES = tuple(_NETWORKS)


def build(name: str, *, classes: int, shape: tuple[int, ...] = (3, 32, 32), **options: object) -> StagedModel:
    """The network called `name` for examples of `shape`, (channels, height, width) where it takes images."""
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
    _check_shape(name, shape, network.smallest)
    return network.make(shape, classes, **options)


def _check_shape(name: str, shape: tuple[int, ...], smallest: int | None) -> None:
    whole = isinstance(shape, (list, tuple)) and len(shape) > 0 and all(_positive(side) for side in shape)
    if smallest is None:
        if not whole:
            raise InputError(f"model.shape = {shape!r}: {name} takes examples of one or more positive sizes")
    elif not whole or len(shape) != 3 or min(shape[1:]) < smallest:
        raise InputError(
            f"model.shape = {shape!r}: {name} takes images, (channels, height, width), "
            f"of at least {smallest}×{smallest} pixels"
        )


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
