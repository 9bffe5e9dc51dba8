"""FedDecorr: a penalty on correlated features keeps them from collapsing.

    client   minimise CE + β·(1/B)·mean_{a≠b} (XᵀX)²_{ab},  X the batch's features, standardised, B its size
    server   θ ← θ + η_g Σ ω_i Δ_i

This is the scale of the authors' code, for which β was tuned; the formula of their paper, with the
correlation matrix in place of XᵀX, is smaller by about the factor B. A batch of one adds nothing.
"""

import torch
from torch import Tensor

from fedacg.methods.method import Method
from fedacg.methods.parts import Empirical, Forward, Loss
from fedacg.methods.rules import Average

_EPSILON = 1e-8


class Decorrelation(Loss):
    """β·(1/B)·mean of the squared off-diagonal entries of XᵀX"""

    needs = frozenset({"stages"})

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


def _off_diagonal(x: Tensor) -> Tensor:
    """Σ_{a≠b} (XᵀX)²_{ab}, without the matrix XᵀX where XXᵀ is smaller: both have the same sum of squares."""
    batch, width = x.shape
    if width > batch:
        return (x @ x.T).square().sum() - x.square().sum(dim=0).square().sum()
    products = x.T @ x
    return (products - torch.diag(products.diagonal())).square().sum()


def feddecorr(beta: float, server_lr: float) -> Method:
    return Method(Average(server_lr), objective=(Empirical(), Decorrelation(beta)))
