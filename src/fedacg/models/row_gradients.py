"""Gradients at many points at once, by hand: of cross-entropy, and of chains of linear layers and ReLU.

Of a small network autograd's own bookkeeping takes longer than the arithmetic. What is here takes the same
operations as autograd does, in the same order, so the bits are the same and whether a method's other losses go
through autograd makes no difference.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedacg.core.tensors import IGNORED
from fedacg.core.vector import FlatModel
from fedacg.models.networks import StagedModel


def cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Every row's mean cross-entropy over the labels that count, and its slope at the logits.

    Logits are (rows, batch, classes, …). Inside, the classes come first: a softmax over a few numbers that lie
    side by side takes many times as long.
    """
    each = logits.flatten(0, 1).movedim(1, 0)
    log_p = torch.log_softmax(each.flatten(1), dim=0)
    counts = y != IGNORED
    weight = counts.flatten(1).to(log_p.dtype)
    weight = (weight / weight.sum(dim=1, keepdim=True)).view(1, -1)
    label = y.where(counts, 0).view(1, -1)
    # A class may have the logit −∞; that of a label that does not count must not turn zero into NaN.
    losses = log_p.gather(0, label).view(y.shape).where(counts, 0).view(1, -1).mul_(weight)
    slope = log_p.exp_().mul_(weight).scatter_add_(0, label, -weight)
    return losses.view(len(y), -1).sum(dim=1).neg_(), slope.view(each.shape).movedim(0, 1).reshape(logits.shape)


class CrossEntropy(torch.autograd.Function):
    """The same for autograd."""

    @staticmethod
    def forward(context: Any, logits: Tensor, y: Tensor) -> Tensor:
        losses, slope = cross_entropy(logits, y)
        context.save_for_backward(slope)
        return losses

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,), (outer,) = context.saved_tensors, gradients
        return slope * outer.view(-1, *[1] * (slope.dim() - 1)), None


class LayerChain:
    """A network that is nothing but linear layers, each with its own parameters, ReLU and flattening."""

    def __init__(self, flat: FlatModel, layers: list[nn.Module]) -> None:
        self._flat, self._layers = flat, layers

    @classmethod
    def of(cls, flat: FlatModel, x: Tensor) -> "LayerChain | None":
        """The network of a flat model as a chain for such inputs (rows, batch, …), None if it is not one."""
        layers, flattened = list(_layers(flat.module)), x.dim() == 3
        for layer in layers:
            flattened = flattened or _flattens(layer)
            if not ((type(layer) is nn.Linear and flattened) or type(layer) is nn.ReLU or _flattens(layer)):
                return None
        own = [p for layer in layers for p in layer.parameters()]
        alone = len({id(p) for p in own}) == len(own) and all(p.requires_grad for p in own)
        return cls(flat, layers) if alone and not any(map(has_hooks, flat.module.modules())) else None

    def forward(self, w: Tensor, x: Tensor) -> Tensor:
        """The outputs for inputs (rows, batch, …), each row with its parameters."""
        self._parameters = self._flat.unfold_rows(w)
        self._inputs: list[Tensor] = []
        for layer in self._layers:
            self._inputs.append(x)
            if isinstance(layer, nn.Linear):
                x = torch.bmm(x, self._parameters[id(layer.weight)].transpose(1, 2))
                if layer.bias is not None:
                    x = x.add_(self._parameters[id(layer.bias)].unsqueeze(1))
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else x.relu()
        return x

    def backward(self, slope: Tensor, g: Tensor) -> Tensor:
        """Write the gradients of what has the outputs' slope into g, a row each, and return it."""
        into = self._flat.unfold_rows(g)
        first = next(place for place, layer in enumerate(self._layers) if isinstance(layer, nn.Linear))
        for place in range(len(self._layers) - 1, first - 1, -1):
            layer, x = self._layers[place], self._inputs[place]
            if isinstance(layer, nn.Linear):
                into[id(layer.weight)].copy_(torch.bmm(x.transpose(1, 2), slope).transpose(1, 2))
                if layer.bias is not None:
                    torch.sum(slope, dim=1, out=into[id(layer.bias)])
                if place > first:
                    slope = torch.bmm(slope, self._parameters[id(layer.weight)])
            elif isinstance(layer, nn.ReLU):
                slope = slope.where(x > 0, 0)
            else:
                slope = slope.view(x.shape)
        return g


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a chain in their order; a module that is none is its own only layer."""
    if type(module) in (nn.Sequential, nn.ModuleList):
        for child in module.children():
            yield from _layers(child)
    elif type(module) is StagedModel:
        yield from _layers(module.stages)
        yield from _layers(module.head)
    else:
        yield module


def _flattens(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)


def has_hooks(module: nn.Module) -> bool:
    """Whether something is called beside a module's forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
