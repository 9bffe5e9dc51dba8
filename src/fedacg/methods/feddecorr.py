"""FedDecorr: a penalty on correlated features keeps them from collapsing.

    client   minimise CE + β·(1/B)·mean_{a≠b} (XᵀX)²_{ab},  X the batch's features, standardised, B its size
    server   θ ← θ + η_g Σ ω_i Δ_i

This is the scale of the authors' code, for which β was tuned; the formula of their paper, with the
correlation matrix in place of XᵀX, is smaller by about the factor B. A batch of one adds nothing.
"""

import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, ForwardRows, Loss
from fedacg.methods.rules import Average

_EPSILON = 1e-8


class Decorrelation(Loss):
    """β·(1/B)·mean of the squared off-diagonal entries of XᵀX"""

    needs = frozenset({"stages"})
    fuses = True

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def __call__(self, forward: Forward) -> Tensor:
        features = forward.features
        batch, width = features.shape
        if batch == 1 or width == 1:
            return features.new_zeros(())
        centred = features - features.mean(dim=0)
        x = centred / torch.sqrt(centred.var(dim=0) + _EPSILON)
        return self.beta * _off_diagonal(x) / (width * (width - 1)) / batch

    def of_rows(self, forward: ForwardRows) -> Tensor:
        features, counts = forward.features, forward.counts.unsqueeze(2)
        width, batch = features.shape[2], counts.sum(dim=1, keepdim=True)
        if width == 1:
            return features.new_zeros(len(features))
        centred = (features - features.where(counts, 0).sum(dim=1, keepdim=True) / batch).where(counts, 0)
        variance = centred.square().sum(dim=1, keepdim=True) / (batch - 1).clamp(min=1)
        x = centred / torch.sqrt(variance + _EPSILON)
        return self.beta * _off_diagonal(x) / (width * (width - 1)) / batch.flatten()


def _off_diagonal(x: Tensor) -> Tensor:
    """Σ_{a≠b} (XᵀX)²_{ab}, of one matrix or of several.

    Where XXᵀ is smaller than XᵀX, it takes its place: both have the same sum of squares.
    """
    batch, width = x.shape[-2:]
    if width > batch:
        squares, diagonal = (x @ x.mT).square(), x.square().sum(dim=-2)
        return squares.sum(dim=(-2, -1)) - diagonal.square().sum(dim=-1)
    products = x.mT @ x
    diagonal = torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    return (products - diagonal).square().sum(dim=(-2, -1))


def feddecorr(beta: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Empirical(), Decorrelation(beta)))
