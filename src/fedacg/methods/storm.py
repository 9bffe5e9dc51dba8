"""STORM's gradient estimate (Cutkosky, Orabona, NeurIPS 2019), which STEM and FedGLOMO step against.

    v ← g(w_k; B_k) + (1 − a)(v − g(w_{k−1}; B_k)),  both gradients on the same batch

With a = 1 it is the plain gradient. The two gradients must share their batch: with another one the difference
g(w_k) − g(w_{k−1}) has the noise of two batches, which does not cancel.
"""

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
        """The next v, at w; the tensor is the caller's."""
        g = gradient(w).clone()
        if self._v is None or self._previous is None:
            self._v, self._previous = g.clone(), w.clone()
            return g
        rows = slice(len(w))
        g.add_(self._v[rows] - gradient(self._previous[rows]), alpha=1 - self._a)
        self._v[rows].copy_(g)
        self._previous[rows].copy_(w)
        return g
