"""STORM's gradient estimate (Cutkosky, Orabona, NeurIPS 2019), which STEM and FedGLOMO step against.

    v ← g(w_k; B_k) + (1 − a)(v − g(w_{k−1}; B_k)),  both gradients on the same batch

With a = 1 it is the plain gradient. The two gradients must share their batch: with another one the difference
g(w_k) − g(w_{k−1}) has the noise of two batches, which does not cancel.
"""

import torch
from torch import Tensor

from fedacg.methods.parts import Gradient


class Storm:
    """v along one trajectory of w, or along many as rows; without a start it begins with the plain gradient."""

    def __init__(self, a: float, v: Tensor | None = None, previous: Tensor | None = None) -> None:
        self._a, self._v, self._previous = a, v, previous

    @property
    def v(self) -> Tensor:
        """The estimate, of rows that take no more steps the last one they had."""
        assert self._v is not None
        return self._v

    def direction(self, gradient: Gradient, w: Tensor) -> Tensor:
        """The next v, at w; valid until the next gradient, and the caller may change it."""
        if self._v is None or self._previous is None:
            g = gradient(w)
            self._v, self._previous = g.clone(), w.clone()
            return g
        rows, kept = slice(len(w)), 1 - self._a
        v, previous = self._v[rows], self._previous[rows]
        g = gradient.onto(lambda g: torch.mul(v, kept, out=g), w)
        g = gradient.onto(g, previous, times=-kept)
        previous.copy_(w)
        v.copy_(g)
        return g
