"""FedPara: weights as products of small factors, so that fewer numbers are trained and sent.

    linear        W = (X₁Y₁ᵀ) ⊙ (X₂Y₂ᵀ),  X: m × r, Y: n × r;  2r(m + n) numbers in place of mn
    convolution   W = (T₁ ×₁ O₁ ×₂ I₁) ⊙ (T₂ ×₁ O₂ ×₂ I₂),  T: r × r × k × k, O: out × r, I: in × r;
                  2r(out + in + rk²) numbers in place of out·in·k²

The entrywise product of two matrices of rank r can have any rank up to r², so that W can be of full rank as soon
as r² ≥ min(m, n). The factors are the model's parameters: every method runs on them, and messages are shorter. The
head, biases and normalisation stay as they are, and so does a layer whose factors would be no fewer numbers.

Factors are drawn from normal distributions whose width makes the entries of W vary as much as those of the weight
they take the place of.

Hyeon-Woo, Ye-Bin, Oh, "FedPara: Low-rank Hadamard product for communication-efficient federated learning", ICLR
2022, https://arxiv.org/abs/2108.06098
"""

from bisect import bisect_left
from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from fedacg.errors import InputError
from fedacg.models.networks import StagedModel


class FactorisedLinear(nn.Module):
    """A linear map with W = (X₁Y₁ᵀ) ⊙ (X₂Y₂ᵀ)"""

    def __init__(self, dense: nn.Linear, rank: int) -> None:
        super().__init__()
        outputs, inputs = dense.weight.shape
        # An entry of XYᵀ sums r products of two factors, and W multiplies two such sums: Var W = (rσ⁴)².
        width = dense.weight.detach().var() ** (1 / 8) * rank ** (-1 / 4)
        self.x1, self.x2 = (_drawn(dense.weight, width, outputs, rank) for _ in range(2))
        self.y1, self.y2 = (_drawn(dense.weight, width, inputs, rank) for _ in range(2))
        self.bias = dense.bias

    @property
    def weight(self) -> Tensor:
        """W"""
        return (self.x1 @ self.y1.T) * (self.x2 @ self.y2.T)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FactorisedConv2d(nn.Module):
    """A convolution with W = (T₁ ×₁ O₁ ×₂ I₁) ⊙ (T₂ ×₁ O₂ ×₂ I₂)"""

    def __init__(self, dense: nn.Conv2d, rank: int) -> None:
        super().__init__()
        outputs, inputs, height, width = dense.weight.shape
        # An entry of T ×₁ O ×₂ I sums r² products of three factors: Var W = (r²σ⁶)².
        spread = dense.weight.detach().var() ** (1 / 12) * rank ** (-1 / 3)
        self.t1, self.t2 = (_drawn(dense.weight, spread, rank, rank, height, width) for _ in range(2))
        self.o1, self.o2 = (_drawn(dense.weight, spread, outputs, rank) for _ in range(2))
        self.i1, self.i2 = (_drawn(dense.weight, spread, inputs, rank) for _ in range(2))
        self.bias = dense.bias
        self.stride, self.dilation, self.groups = dense.stride, dense.dilation, dense.groups
        self.padding = dense.padding

    @property
    def weight(self) -> Tensor:
        """W"""
        first = torch.einsum("abhw,oa,ib->oihw", self.t1, self.o1, self.i1)
        return first * torch.einsum("abhw,oa,ib->oihw", self.t2, self.o2, self.i2)

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def factorise(module: nn.Module, rank: float) -> nn.Module:
    """The module, changed in place: factors for the weights of its linear and convolutional layers.

    A whole number is r itself, of every layer. A fraction γ takes r = (1 − γ)·r_min + γ·r_max, rounded, layer by
    layer: r_min is the least with which W can be of full rank, r_max the greatest with which numbers are saved.
    The head stays dense: that of a StagedModel, the last linear layer of any other module.
    """
    if rank <= 0 or (rank >= 1 and rank != int(rank)):
        raise InputError(f"model.factorise = {rank}: must be a whole number of at least 1 or a fraction below 1")
    head = _head(module)
    swapped = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child is not head and (factors := _factors(child, rank)) is not None:
                setattr(parent, name, factors)
                swapped += 1
    if not swapped:
        raise InputError(
            f"model.factorise = {rank}: makes no layer of {type(module).__name__} smaller, as it takes linear and "
            "convolutional layers other than the head"
        )
    return module


def _head(module: nn.Module) -> nn.Module | None:
    if isinstance(module, StagedModel):
        return module.head
    return next((child for child in reversed(list(module.modules())) if isinstance(child, nn.Linear)), None)


def _factors(layer: nn.Module, rank: float) -> nn.Module | None:
    """The layer made of factors; None where it stays dense."""
    if type(layer) is nn.Linear:
        rows, columns = layer.weight.shape

        def count(r: int) -> int:
            return 2 * r * (rows + columns)

        found = _rank(rank, rows, columns, layer.weight.numel(), count)
        return FactorisedLinear(layer, found) if found else None
    if type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
        rows, columns, height, width = layer.weight.shape

        def count(r: int) -> int:
            return 2 * r * (rows + columns + r * height * width)

        found = _rank(rank, rows, columns, layer.weight.numel(), count)
        return FactorisedConv2d(layer, found) if found else None
    return None


def _rank(wish: float, rows: int, columns: int, dense: int, count: Callable[[int], int]) -> int | None:
    """r of a layer; None where its factors would be no fewer numbers than its weight."""
    if wish >= 1:
        return int(wish) if count(int(wish)) < dense else None
    least = isqrt(min(rows, columns) - 1) + 1
    if count(least) >= dense:
        return None
    most = least - 1 + bisect_left(range(least, rows + columns), dense, key=count)
    return round((1 - wish) * least + wish * most)


def _drawn(like: Tensor, width: Tensor, *shape: int) -> nn.Parameter:
    values = torch.empty(shape, dtype=like.dtype, device=like.device)
    return nn.Parameter(nn.init.normal_(values) * width)
