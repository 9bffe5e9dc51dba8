"""A network at many points at once: each row of a matrix holds its parameters, and has a batch of its own.

Linear layers are one batched product, layers that work entry by entry are applied to all rows together, and
dropout and BatchNorm have something of every row's own. All other layers, and networks with a forward of their
own, go through `torch.func.vmap`, which takes more calls for the same numbers.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedacg.core.vector import FlatModel
from fedacg.models.networks import StagedModel
from fedacg.models.row_gradients import has_hooks

_ENTRYWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity)
"""Layers that do the same to every entry, whatever the shape."""


_NORMALISING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def keeps_rows(layer: nn.Module) -> bool:
    """Whether a layer's buffers are known to be those of `RowLayers`."""
    return type(layer) in _NORMALISING


class RowLayers:
    """What layers have of every row's own: the masks of dropout and the statistics of BatchNorm.

    A mask comes from the row's own stream, and statistics are over the examples that count: both are what the
    layers would have for the row alone. Of a step's passes all have the same masks, and the first moves running
    statistics.
    """

    def __init__(self, streams: Sequence[torch.Generator], buffers: Mapping[int, Tensor]) -> None:
        self._streams, self.buffers = streams, buffers
        self.take(())

    def take(self, sizes: Sequence[int]) -> None:
        """Go on to the next step, of the first rows, of whose batches so many examples count."""
        self._sizes, self._masks, self._passes = sizes, list[Tensor](), 0

    def start(self) -> None:
        """Begin a pass through the network."""
        self._next, self._passes = 0, self._passes + 1

    def drop(self, x: Tensor, p: float) -> Tensor:
        """What dropout makes of inputs (rows, batch, …)."""
        if self._next == len(self._masks):
            mask = torch.zeros(x.shape, dtype=x.dtype)  # drawn on the CPU, as everything is
            for row, size, stream in zip(mask, self._sizes, self._streams, strict=False):
                row[:size].bernoulli_(1 - p, generator=stream)
            self._masks.append(mask.div_(1 - p).to(x.device))
        self._next += 1
        return x * self._masks[self._next - 1]

    def normalise(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """What BatchNorm makes of inputs (rows, batch, channels, …), before its affine map."""
        running = [
            self.buffers[id(buffer)][: len(x)] if buffer is not None else None
            for buffer in (layer.running_mean, layer.running_var, layer.num_batches_tracked)
        ]
        mean, variance, batches = running
        across = (1, *range(3, x.dim()))
        if not layer.training and mean is not None and variance is not None:
            mean, variance = (_across(each, x) for each in (mean, variance))
            return (x - mean) * torch.rsqrt(variance + layer.eps)
        sizes = torch.tensor(self._sizes, device=x.device).view(-1, *[1] * (x.dim() - 1))
        counts = torch.arange(x.shape[1], device=x.device).view(1, -1, *[1] * (x.dim() - 2)) < sizes
        places = x[0, 0, 0].numel()
        if min(self._sizes) * places == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got {tuple(x.shape[2:])}")
        number = sizes.to(x.dtype) * places
        centre = x.where(counts, 0).sum(dim=across, keepdim=True) / number
        centred = (x - centre).where(counts, 0)
        spread = centred.square().sum(dim=across, keepdim=True) / number
        if self._passes == 1 and mean is not None and variance is not None and batches is not None:
            with torch.no_grad():
                batches.add_(1)
                share = 1 / batches.to(x.dtype).view(-1, 1) if layer.momentum is None else layer.momentum
                mean.mul_(1 - share).add_(centre.view(mean.shape) * share)
                variance.mul_(1 - share).add_((spread * (number / (number - 1))).view(mean.shape) * share)
        return centred * torch.rsqrt(spread + layer.eps)


def _across(channels: Tensor, x: Tensor) -> Tensor:
    """Numbers (rows, channels) so that they go with inputs (rows, batch, channels, …)."""
    return channels.view(len(channels), 1, -1, *[1] * (x.dim() - 3))


class NetworkRows:
    """The parameters of a flat model's network at the rows of w, and what they make of inputs (rows, batch, …)."""

    def __init__(self, flat: FlatModel, w: Tensor, layers: RowLayers) -> None:
        self._module, self._rows, self._layers = flat.module, len(w), layers
        self._parameters = flat.unfold_rows(w)
        layers.start()

    def logits(self, x: Tensor) -> Tensor:
        """The network's outputs."""
        return self._apply(self._module, x)

    def features(self, x: Tensor) -> Tensor:
        """The input of a staged model's head."""
        assert isinstance(self._module, StagedModel)
        return self._chain(self._module.stages, x)

    def head(self, features: Tensor) -> Tensor:
        """The logits that a staged model's head makes of features."""
        assert isinstance(self._module, StagedModel)
        return self._apply(self._module.head, features)

    def _apply(self, module: nn.Module, x: Tensor) -> Tensor:
        kind = type(module)
        if has_hooks(module):
            return self._each(module, x)
        if kind is nn.Sequential:
            return self._chain(module.children(), x)
        if kind is StagedModel:
            return self.head(self.features(x))
        if isinstance(module, nn.Linear) and kind is nn.Linear and x.dim() == 3:
            products = torch.bmm(x, self._of(module.weight).transpose(1, 2))
            return products if module.bias is None else products + self._of(module.bias).unsqueeze(1)
        if isinstance(module, nn.Flatten) and kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return x.flatten(2)
        if isinstance(module, nn.Dropout) and kind is nn.Dropout and 0 < module.p < 1 and module.training:
            return self._layers.drop(x, module.p)
        if isinstance(module, _BatchNorm) and keeps_rows(module):
            normal = self._layers.normalise(module, x)
            if not module.affine:
                return normal
            return normal * _across(self._of(module.weight), x) + _across(self._of(module.bias), x)
        if kind in _ENTRYWISE:
            same: Tensor = module(x)
            return same
        return self._each(module, x)

    def _chain(self, layers: Iterable[nn.Module], x: Tensor) -> Tensor:
        for layer in layers:
            x = self._apply(layer, x)
        return x

    def _each(self, module: nn.Module, x: Tensor) -> Tensor:
        """A module whose layers are not known, for all rows at once."""
        own = {name: self._parameters[id(p)] for name, p in module.named_parameters() if id(p) in self._parameters}

        def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, parameters, (x,))
            return outputs

        rows: Tensor = vmap(one, randomness="error")(own, x)
        return rows

    def _of(self, parameter: Tensor) -> Tensor:
        """A parameter of each row; one that is not trained is the same for all."""
        found = self._parameters.get(id(parameter))
        return parameter.expand(self._rows, *parameter.shape) if found is None else found
