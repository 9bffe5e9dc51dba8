"""A network at many points at once: each row of a matrix holds its parameters, and has a batch of its own.

Linear layers are one batched product, and layers that work entry by entry are applied to all rows together. All
other layers, and networks with a forward of their own, go through `torch.func.vmap`, which takes more calls for
the same numbers.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedacg.core.vector import FlatModel
from fedacg.models.networks import StagedModel

_ENTRYWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity)
"""Layers that do the same to every entry, whatever the shape."""


class NetworkRows:
    """The parameters of a flat model's network at the rows of w, and what they make of inputs (rows, batch, …)."""

    def __init__(self, flat: FlatModel, w: Tensor) -> None:
        self._module, self._rows = flat.module, len(w)
        self._parameters = flat.unfold_rows(w)

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
        if module._forward_hooks or module._forward_pre_hooks:
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
