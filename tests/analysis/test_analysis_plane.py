"""The plane through three models, and losses on it: geometry by hand, surfaces of known functions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedacg import methods, models
from fedacg.analysis.plane import (
    Plane,
    estimate_seconds,
    evaluator,
    grid_axes,
    sample_test,
    sample_training,
    surface,
)
from fedacg.config.sections import EngineSettings
from fedacg.core.vector import FlatModel, Layout
from fedacg.data.examples import TensorExamples
from fedacg.data.own_data import from_pairs
from fedacg.errors import InputError
from fedacg.runs.build import Ingredients
from support.quadratics import Bowl, Point, client, half_square

SERIAL = EngineSettings(name="serial")
NOTHING = torch.empty(0)


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def random_models(size: int = 1000, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    source = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=source, dtype=dtype) for _ in range(3)]


def quadratic(module: nn.Module, *centres: Sequence[float]) -> Ingredients:
    data = from_pairs([client(*centres)], client(*centres))
    return Ingredients(module, False, data, methods.build("fedavg").with_loss(half_square))


# Geometry


def test_coordinates_and_distance_are_those_worked_out_by_hand() -> None:
    """The plane z = 1, origin (1, 2, 1), x along (3, 4, 0)/5 and y along (−4, 3, 0)/5."""
    plane = Plane.through(vector(1, 2, 1), vector(7, 10, 1), vector(0, 9, 1))
    np.testing.assert_allclose(plane.corners, [(0, 0), (10, 0), (5, 5)])
    assert plane.coordinates(vector(4, 6, 3)) == pytest.approx((5, 0))
    assert plane.coordinates(vector(-3, 5, -1)) == pytest.approx((0, 5))
    assert plane.distance(vector(4, 6, 3)) == pytest.approx(2)
    assert plane.point(5, 10).tolist() == pytest.approx([-4, 12, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_plane_passes_through_its_three_models_to_the_bit(dtype: torch.dtype) -> None:
    given = random_models(dtype=dtype)
    plane = Plane.through(*given)
    for model, corner in zip(given, plane.corners, strict=True):
        point = plane.point(*corner)
        assert point.dtype == dtype
        assert torch.equal(point, model)
        assert plane.coordinates(model) == pytest.approx(corner, abs=1e-12)
        assert plane.distance(model) == pytest.approx(0, abs=1e-12)


def test_a_plane_leaves_its_models_as_they_were() -> None:
    given = random_models(dtype=torch.float64)
    before = [model.clone() for model in given]
    plane = Plane.through(*given)
    plane.point(0.3, 0.7)
    plane.coordinates(given[1])
    plane.distance(given[2])
    assert all(torch.equal(model, was) for model, was in zip(given, before, strict=True))


def test_the_mean_of_the_three_lies_at_the_centroid() -> None:
    given = random_models(dtype=torch.float64)
    plane = Plane.through(*given)
    mean = (given[0] + given[1] + given[2]) / 3
    centroid = tuple(sum(corner[axis] for corner in plane.corners) / 3 for axis in range(2))
    assert plane.coordinates(mean) == pytest.approx(centroid)
    assert plane.distance(mean) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(plane.point(*centroid), mean)


def test_distances_between_points_of_the_plane_are_those_between_models() -> None:
    plane = Plane.through(*random_models(dtype=torch.float64))
    one, other = plane.point(3, -4), plane.point(-9, 12)
    assert float((one - other).norm()) == pytest.approx(20)


def test_three_models_that_nearly_lie_on_a_line_still_span_a_plane() -> None:
    """Their height is a thousandth of their distance, and a few thousand times the rounding of float32."""
    first, second, third = random_models()
    plane = Plane.through(first, second, (first + second) / 2 + 1e-3 * third)
    assert plane.corners[2][1] == pytest.approx(1e-3 * math.sqrt(1000), rel=0.1)
    x, y = plane.basis
    assert float(x @ y) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("second", "third"),
    [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (1.0, 1 / 3), (1.0, -2.7)],
)
def test_models_that_are_equal_or_on_one_line_are_refused(second: float, third: float) -> None:
    first, along, _ = random_models()
    with pytest.raises(InputError, match="three models are equal or on one line"):
        Plane.through(first, first + second * along, first + third * along)


def test_models_that_differ_by_rounding_alone_count_as_equal() -> None:
    first, other, _ = random_models()
    nearly = torch.nextafter(first, other)
    for three in ([first, nearly, other], [first, other, nearly], [other, first, nearly]):
        with pytest.raises(InputError, match="three models are equal or on one line"):
            Plane.through(*three)


# Surfaces


def test_the_loss_surface_of_a_quadratic_is_that_quadratic() -> None:
    """½‖w − c‖² is a round bowl over the plane: its lowest point lies under c, as deep as c is far away."""
    module = Point((0.0, 0.0, 0.0))
    plane = Plane.through(vector(1, 2, 1), vector(7, 10, 1), vector(0, 9, 1))
    ingredients = quadratic(module, [4.0, 6.0, 3.0])
    xs, ys = np.array([-1.0, 0.0, 5.0]), np.array([-2.0, 7.0])
    with evaluator(ingredients, ingredients.data.test, SERIAL) as score:
        found = surface(plane, lambda w: score(w, NOTHING).loss, xs, ys)
    expected = [[0.5 * ((x - 5) ** 2 + y**2 + 2**2) for x in xs] for y in ys]
    np.testing.assert_allclose(found.values, expected)


def test_a_bowl_of_two_curvatures_keeps_them_along_its_axes() -> None:
    """½(4(w₀ − 1)² + 9(w₁ − 2)²) in the plane of its two parameters, with x along w₁ and y along −w₀."""
    plane = Plane.through(vector(0, 0), vector(0, 2), vector(-3, 1))
    ingredients = quadratic(Bowl(), [1.0, 2.0, 2.0, 3.0])
    xs, ys = np.array([0.0, 1.0, 2.5]), np.array([-1.0, 0.0])
    with evaluator(ingredients, ingredients.data.test, SERIAL) as score:
        found = surface(plane, lambda w: score(w, NOTHING).loss, xs, ys)
    expected = [[0.5 * (4 * (-y - 1) ** 2 + 9 * (x - 2) ** 2) for x in xs] for y in ys]
    np.testing.assert_allclose(found.values, expected)


def test_loss_at_the_corners_is_the_models_own() -> None:
    ingredients, given = network()
    plane = Plane.through(*given)
    with evaluator(ingredients, ingredients.data.test, SERIAL) as score:
        for model, corner in zip(given, plane.corners, strict=True):
            assert score(plane.point(*corner), NOTHING) == score(model, NOTHING)


def test_a_grid_takes_in_all_points_with_room_to_spare() -> None:
    plane = Plane.through(vector(0, 0), vector(4, 0), vector(1, 2))
    xs, ys = grid_axes(plane, [(-1.0, 1.0), (3.0, -4.0)], resolution=7, margin=0.5)
    np.testing.assert_allclose(xs, np.linspace(-4.5, 7.5, 7))
    np.testing.assert_allclose(ys, np.linspace(-7, 5, 7))


@pytest.mark.parametrize(
    ("resolution", "margin", "named"), [(1, 0.2, "resolution = 1"), (5, -0.1, "margin = -0.1")]
)
def test_a_grid_that_makes_no_sense_is_refused(resolution: int, margin: float, named: str) -> None:
    plane = Plane.through(vector(0, 0), vector(4, 0), vector(1, 2))
    with pytest.raises(InputError, match=named):
        grid_axes(plane, [], resolution, margin)


def test_time_is_estimated_from_evaluations_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, costs = [0.0], iter([100.0, 2.0, 4.0])
    monkeypatch.setattr("fedacg.analysis.plane.perf_counter", lambda: now[0])

    def evaluate(_: Tensor) -> float:
        now[0] += next(costs)
        return 0.0

    plane = Plane.through(vector(0, 0), vector(4, 0), vector(1, 2))
    assert estimate_seconds(plane, evaluate, points=50) == 150


# Scores


def network() -> tuple[Ingredients, list[Tensor]]:
    """A small convolutional network in channels-last layout, and three models of it."""
    source = torch.Generator().manual_seed(2)
    x, y = torch.randint(0, 256, (150, 1, 8, 8), generator=source).byte(), torch.arange(150) % 3
    module = models.build("cnn", classes=3, shape=(1, 8, 8))
    data = from_pairs([(x, y)], (x, y))
    size = sum(p.numel() for p in module.parameters())
    return Ingredients(module, True, data, methods.build("fedlc")), random_models(size)


def test_scores_are_mean_cross_entropy_and_error_whatever_the_method() -> None:
    ingredients, (model, *_) = network()
    test = ingredients.data.test
    flat = FlatModel(models.build("cnn", classes=3, shape=(1, 8, 8)), channels_last=True)
    flat.load(Layout.of(flat.module, channels_last=True).from_canonical({"w": model})["w"], NOTHING)
    x, y = test.fetch(torch.arange(len(test)))
    logits = flat.module.eval()(flat.prepare(ingredients.data.pipeline(x))).detach()
    with evaluator(ingredients, test, SERIAL) as score:
        found = score(model, NOTHING)
    assert found.loss == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    assert found.error == pytest.approx(float((logits.argmax(dim=1) != y).double().mean()))


def test_examples_without_classes_have_no_error() -> None:
    ingredients = quadratic(Point(), [1.0, 2.0])
    with evaluator(ingredients, ingredients.data.test, SERIAL) as score:
        loss, error = score(vector(1, 4), NOTHING)
    assert loss == pytest.approx(2)
    assert math.isnan(error)


@pytest.mark.slow
def test_workers_give_the_same_scores_to_the_bit() -> None:
    ingredients, given = network()
    found = []
    for settings in (SERIAL, EngineSettings(name="processes", workers=2)):
        with evaluator(ingredients, ingredients.data.test, settings) as score:
            found.append([score(model, NOTHING) for model in given])
    assert found[0] == found[1]


# Examples


def numbered(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Clients whose examples say whose they are and which."""
    return [
        (torch.tensor([[owner, i] for i in range(size)]), torch.full((size,), owner))
        for owner, size in enumerate(sizes)
    ]


def drawn(sizes: Sequence[int], examples: int, seed: int = 0) -> list[tuple[int, int]]:
    data = from_pairs(numbered(*sizes), numbered(1)[0])
    found = sample_training(data, examples, seed)
    x, y = found.fetch(torch.arange(len(found)))
    assert torch.equal(x[:, 0], y), "labels belong to their inputs"
    return [(owner, place) for owner, place in x.tolist()]


def test_a_training_sample_is_fixed_by_its_seed_and_has_nothing_twice() -> None:
    found = drawn([5, 1, 30, 64], 40)
    assert found == drawn([5, 1, 30, 64], 40)
    assert found != drawn([5, 1, 30, 64], 40, seed=1)
    assert len(set(found)) == 40


def test_a_sample_of_more_than_there_is_has_everything() -> None:
    assert drawn([2, 1, 3], 100) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]


def test_every_training_example_is_as_likely_whoever_holds_it() -> None:
    """1000 draws of 5 out of 10: each is drawn 500 times, with a deviation of 16."""
    counts: dict[tuple[int, int], int] = dict.fromkeys([(0, 0), *((1, i) for i in range(9))], 0)
    for seed in range(1000):
        for example in drawn([1, 9], 5, seed):
            counts[example] += 1
    assert all(abs(count - 500) < 80 for count in counts.values())


def test_only_what_is_drawn_is_fetched() -> None:
    fetched = []

    class Counting(TensorExamples):
        def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
            fetched.append(len(index))
            return super().fetch(index)

    data = from_pairs([Counting(*pair) for pair in numbered(50, 50)], numbered(1)[0], classes=2)
    fetched.clear()
    sample_training(data, 10, seed=0)
    assert sum(fetched) == 10


def test_a_test_sample_is_drawn_or_the_whole_set() -> None:
    data = from_pairs(numbered(1), numbered(20)[0])
    few = sample_test(data, 8, seed=3)
    x, _ = few.fetch(torch.arange(len(few)))
    assert len(set(x[:, 1].tolist())) == len(few) == 8
    assert len(sample_test(data, 500, seed=3)) == 20


def test_a_sample_of_nothing_is_refused() -> None:
    data = from_pairs(numbered(3), numbered(3)[0])
    for sample in (sample_training, sample_test):
        with pytest.raises(InputError, match="examples = 0: must be 1 or more"):
            sample(data, 0, 0)
