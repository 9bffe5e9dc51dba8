"""Sharpness-aware local steps, `+sam` and `+asam`, and the methods that are made of them.

    sam     ε = ρ g(w; B)/(‖g(w; B)‖₂ + 10⁻¹⁶), over all parameters together;  the step goes against g(w + ε; B)
    asam    ε = ρ T²g/(‖Tg‖₂ + 10⁻¹⁶), T = |w| + η_a on weights, 1 on biases and normalisation (all vectors)

    FedSAM    fedavg+sam        MoFedSAM  fedcm+sam         FedGamma  scaffold+sam
    FedASAM   fedavg+asam       FedNSAM   fedavg+acg+sam    FedSpeed  feddyn+sam

The ascent follows the gradient of the losses alone: corrections, clipping and weight decay belong to the descent.
Both gradients are of one batch with one dropout mask, and normalisation statistics move in the first pass only.
FedSpeed's w ← w − η[G + α(w − φ + h_i)], h_i ← h_i + Δ_i is FedDyn's client with g_i = −αh_i.
"""

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from fedacg.errors import InputError
from fedacg.methods.fedacg import swap_in_lookahead
from fedacg.methods.fedavg import fedavg
from fedacg.methods.fedcm import fedcm
from fedacg.methods.feddyn import feddyn
from fedacg.methods.method import Method
from fedacg.methods.parts import Gradient, LocalStep
from fedacg.methods.scaffold import scaffold
from fedacg.methods.visit import Assignment


def _length(vector: Tensor) -> Tensor:
    """‖x‖₂, of every row, and never zero."""
    length: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return length.add_(1e-16)


class Ascent(LocalStep):
    """g(w + ρ g/‖g‖), of one vector or of every row"""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        return gradient.last(self.ascended(gradient(), w)) if self.rho else gradient.last()

    def ascended(self, g: Tensor, w: Tensor) -> Tensor:
        """w + ε, written over g."""
        return torch.addcdiv(w, g, _length(g), value=self.rho, out=g)


class AdaptiveAscent(Ascent):
    """g(w + ρ T²g/‖Tg‖): the ascent is measured relative to each weight"""

    def __init__(self, rho: float, eta: float) -> None:
        super().__init__(rho)
        self.eta = eta

    def begin(self, assignment: Assignment) -> None:
        self._scratch = assignment.scratch
        parameters = assignment.flat.unfold(assignment.flat.w).values()
        stops = list(accumulate(parameter.numel() for parameter in parameters))
        self._vectors = [
            slice(stop - parameter.numel(), stop)
            for stop, parameter in zip(stops, parameters, strict=True)
            if parameter.dim() < 2
        ]

    def ascended(self, g: Tensor, w: Tensor) -> Tensor:
        scale = torch.abs(w, out=self._scratch[: len(w)]).add_(self.eta)
        for span in self._vectors:
            scale[..., span] = 1
        length = _length(g.mul_(scale))
        return torch.addcdiv(w, g.mul_(scale), length, value=self.rho, out=g)


def add_sam(method: Method, rho: float) -> Method:
    return with_step(method, Ascent(rho))


def add_asam(method: Method, rho: float, eta: float) -> Method:
    return with_step(method, AdaptiveAscent(rho, eta))


def with_step(method: Method, step: LocalStep) -> Method:
    """A method with another local step instead of the plain one."""
    if type(method.step) is not LocalStep:
        raise InputError("it has a local step already, and a method has only one")
    return replace(method, step=step)


def fedsam(rho: float, server_lr: float) -> Method:
    return add_sam(fedavg(server_lr), rho)


def fedasam(rho: float, eta: float, server_lr: float) -> Method:
    return add_asam(fedavg(server_lr), rho, eta)


def mofedsam(rho: float, alpha: float, server_lr: float) -> Method:
    return add_sam(fedcm(alpha, server_lr), rho)


def fedspeed(rho: float, alpha: float) -> Method:
    return add_sam(feddyn(alpha), rho)


def fedgamma(rho: float, option: float, server_lr: float) -> Method:
    return add_sam(scaffold(option, server_lr), rho)


def fednsam(rho: float, lam: float, server_lr: float) -> Method:
    return add_sam(swap_in_lookahead(fedavg(server_lr), lam), rho)
