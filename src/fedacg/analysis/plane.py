"""The plane through three models, with coordinates to draw it by.

Geometry of vectors in float64 and nothing else: what is measured on the plane lives in surface.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedacg.errors import InputError

Coordinates = tuple[float, float]
"""(x, y) of a point of the plane. Lengths are those of the space of models."""


@dataclass(frozen=True, eq=False)
class Plane:
    """All w = a·first + b·second + c·third with a + b + c = 1.

    The origin is the first model, x runs towards the second, and the third has y > 0. Holds two float64 vectors
    beside the models.
    """

    models: tuple[Tensor, Tensor, Tensor]
    corners: tuple[Coordinates, Coordinates, Coordinates]
    """Where the three models lie."""
    basis: tuple[Tensor, Tensor]
    """Unit vectors along x and y."""

    @classmethod
    def through(cls, first: Tensor, second: Tensor, third: Tensor) -> "Plane":
        """The plane of three models that are not on one line."""
        models = (first, second, third)
        along, across = second.double() - first, third.double() - first
        x2 = _length(along)
        along /= x2
        x3 = float(across @ along)
        across -= x3 * along
        y3 = _length(across)
        # Entries are rounded, and what is no more than that is no distance.
        rounding = 4 * torch.finfo(first.dtype).eps * max(_length(model.double()) for model in models)
        if not min(x2, y3) > rounding:
            raise InputError("plane: its three models are equal or on one line; choose three that span one")
        across /= y3
        return cls(models, ((0.0, 0.0), (x2, 0.0), (x3, y3)), (along, across))

    def coordinates(self, vector: Tensor) -> Coordinates:
        """Where a model falls on the plane, straight down."""
        offset = vector.double() - self.models[0]
        return float(offset @ self.basis[0]), float(offset @ self.basis[1])

    def distance(self, vector: Tensor) -> float:
        """How far a model is from the plane."""
        x, y = self.coordinates(vector)
        offset = vector.double() - self.models[0]
        return _length(offset.sub_(self.basis[0], alpha=x).sub_(self.basis[1], alpha=y))

    def point(self, x: float, y: float) -> Tensor:
        """The model at these coordinates, in the type of the three; at `corners` it is theirs to the bit."""
        _, (x2, _), (x3, y3) = self.corners
        c = y / y3
        b = (x - c * x3) / x2
        weights = (1 - b - c, b, c)
        point = torch.zeros_like(self.models[0], dtype=torch.float64)
        for weight, model in zip(weights, self.models, strict=True):
            point.add_(model.double(), alpha=weight)
        return point.to(self.models[0].dtype)


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
