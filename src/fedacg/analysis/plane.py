"""A loss on a grid of a plane of models: the examples, the grid, and workers that share each point's examples.

Which models span a plane, and how it is drawn, is in surfaces.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedacg import engines
from fedacg.config.sections import EngineSettings, LocalSettings
from fedacg.core.randomness import numpy_generator
from fedacg.core.tensors import join
from fedacg.core.vector import Layout
from fedacg.data.examples import Examples, FederatedData, ListedClients, in_memory
from fedacg.engines import Job, one_thread
from fedacg.errors import InputError
from fedacg.runs.build import Ingredients

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
        # Entries are rounded, so a distance no larger than the rounding counts as zero.
        rounding = 4 * torch.finfo(first.dtype).eps * max(_length(model.double()) for model in models)
        if not min(x2, y3) > rounding:
            raise InputError("plane: its three models are equal or on one line; choose three that span one")
        across /= y3
        return cls(models, ((0.0, 0.0), (x2, 0.0), (x3, y3)), (along, across))

    def coordinates(self, vector: Tensor) -> Coordinates:
        """The projection of a model onto the plane."""
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


Floats = NDArray[np.float64]

_BATCH = 64
"""Examples per forward pass. Larger batches were no faster, and these keep many workers busy. The same for any
number of workers, so that sums do not depend on it."""


def sample_training(data: FederatedData, examples: int, seed: int) -> Examples:
    """This many training examples drawn uniformly from all clients together, or all if there are fewer.

    Only the drawn ones are fetched.
    """
    clients = data.clients
    ends = np.cumsum([clients.size(client) for client in range(len(clients))])
    drawn = _draw(int(ends[-1]), examples, seed)
    owners, starts = np.unique(np.searchsorted(ends, drawn, side="right"), return_index=True)
    parts = []
    for owner, positions in zip(owners.tolist(), np.split(drawn, starts[1:]), strict=True):
        first = int(ends[owner]) - clients.size(owner)
        parts.append(clients[owner].fetch(torch.from_numpy(positions - first)))
    return in_memory(join([x for x, _ in parts], torch.cat), torch.cat([y for _, y in parts]))


def sample_test(data: FederatedData, examples: int, seed: int) -> Examples:
    """This many test examples, or all if there are fewer."""
    if examples >= len(data.test):
        return data.test
    return in_memory(*data.test.fetch(torch.from_numpy(_draw(len(data.test), examples, seed))))


def _draw(population: int, count: int, seed: int) -> NDArray[np.int64]:
    if count < 1:
        raise InputError(f"examples = {count}: must be 1 or more")
    rng = numpy_generator(seed, "analysis examples")
    return np.sort(rng.choice(population, size=min(count, population), replace=False))


@dataclass(frozen=True, eq=False)
class Surface:
    """Values on a grid: `values[j, i]` belongs to (xs[i], ys[j])."""

    xs: Floats
    ys: Floats
    values: Floats


def grid_axes(
    plane: Plane, points: Sequence[Coordinates], resolution: int, margin: float = 0.25
) -> tuple[Floats, Floats]:
    """A square grid of resolution × resolution points around the plane's three models and these points.

    `margin` is the margin on every side, as a fraction of the extent of the models and points.
    """
    if resolution < 2:
        raise InputError(f"resolution = {resolution}: must be 2 or more")
    if not margin >= 0:
        raise InputError(f"margin = {margin}: must be 0 or more")
    inside = np.array([*plane.corners, *points])
    low, high = inside.min(axis=0), inside.max(axis=0)
    side = float((high - low).max()) * (1 + 2 * margin)
    xs, ys = (np.linspace(centre - side / 2, centre + side / 2, resolution) for centre in (low + high) / 2)
    return xs, ys


def surface(plane: Plane, evaluate: Callable[[Tensor], float], xs: Floats, ys: Floats) -> Surface:
    """The value of every point of the grid, row by row; progress can be shown from within `evaluate`."""
    values = [[evaluate(plane.point(float(x), float(y))) for x in xs] for y in ys]
    return Surface(xs, ys, np.array(values, dtype=np.float64))


def estimate_seconds(plane: Plane, evaluate: Callable[[Tensor], float], points: int) -> float:
    """Estimated seconds for this many points, by evaluating the plane's three models; the first warms up."""
    corners = iter(plane.corners)
    evaluate(plane.point(*next(corners)))
    start = perf_counter()
    timed = [evaluate(plane.point(x, y)) for x, y in corners]
    return (perf_counter() - start) / len(timed) * points


class Scores(NamedTuple):
    """How a model does on examples."""

    loss: float
    """The mean loss: cross-entropy, or the user's own."""
    error: float
    """1 − accuracy; NaN where labels are no classes."""


Scorer = Callable[[Tensor, Tensor], Scores]
"""From a model's vector, in the canonical order, and buffers to its scores."""


@contextmanager
def evaluator(ingredients: Ingredients, examples: Examples, settings: EngineSettings) -> Iterator[Scorer]:
    """A function that scores models on these examples, for as long as the block lasts.

    Models are scored one after another, and the workers share the examples of each. The scores do not depend on
    the engine or the number of workers. As in a run, this process computes with one thread meanwhile.
    """
    job = Job(
        module=ingredients.module,
        channels_last=ingredients.channels_last,
        # Workers get only the examples to evaluate, not all training data.
        data=replace(ingredients.data, clients=ListedClients([examples]), test=examples),
        method=ingredients.method,
        local=LocalSettings(),
        seed=0,
        evaluate_batch=_BATCH,
    )
    engine = engines.start(settings)
    layout = Layout.of(ingredients.module, ingredients.channels_last)

    def score(vector: Tensor, buffers: Tensor) -> Scores:
        sums = engine.evaluate(layout.from_canonical({"theta": vector, "buffers": buffers}))
        return Scores(sums.mean_loss, float("nan") if sums.accuracy is None else 1 - sums.accuracy)

    try:
        with one_thread():
            engine.setup(job)
            yield score
    finally:
        engine.close()


Score = Callable[[Tensor, Tensor], float]
"""From a model's vector and buffers to what is drawn of it."""


@dataclass(frozen=True)
class Measure:
    """A measure that can be drawn over the plane, with its names in captions."""

    title: str
    name: str
    unit: str
    part: str
    """The examples it is computed on."""


MEASURES = {
    "loss": Measure("Loss surface", "training loss", "global training loss", "training"),
    "error": Measure("Surface of the test error", "test error", "test error, %", "test"),
}


@dataclass(frozen=True)
class Grid:
    """How surfaces are computed."""

    resolution: int
    examples: int
    margin: float
    error: bool
    """Compute the test error as well."""
    clients: tuple[int, ...] | None
    """The clients whose models span the plane; without them, the first of the cohort."""
    workers: int


@dataclass(frozen=True)
class Evaluation:
    """The function that computes each measure, the network, and the number of examples."""

    module: nn.Module
    scores: Mapping[str, Score]
    examples: Mapping[str, int]


@contextmanager
def evaluation(ingredients: Ingredients, seed: int, grid: Grid) -> Iterator[Evaluation]:
    """Workers that are available for as long as the block lasts."""
    settings = EngineSettings(name="serial" if grid.workers == 1 else "processes", workers=grid.workers)
    with ExitStack() as stack:
        train = sample_training(ingredients.data, grid.examples, seed)
        on_train = stack.enter_context(evaluator(ingredients, train, settings))
        scores: dict[str, Score] = {"loss": lambda vector, buffers: on_train(vector, buffers).loss}
        examples = {"loss": len(train)}
        if grid.error:
            test = sample_test(ingredients.data, grid.examples, seed)
            on_test = stack.enter_context(evaluator(ingredients, test, settings))
            scores["error"] = lambda vector, buffers: 100 * on_test(vector, buffers).error
            examples["error"] = len(test)
        yield Evaluation(ingredients.module, scores, examples)
