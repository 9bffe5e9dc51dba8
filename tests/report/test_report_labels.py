"""How labels lie with the clients: figures worked out by hand, lines for a terminal, the picture."""

import io

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from fedacg.data.examples import FederatedData, ListedClients, TensorExamples
from fedacg.data.pipelines import PlainPipeline
from fedacg.report import labels, pictures
from fedacg.report.labels import LabelCounts
from support.labels import examples


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def federation(*clients: TensorExamples, classes: int) -> FederatedData:
    return FederatedData("own", ListedClients(clients), clients[0], PlainPipeline(), classes, (1,))


def held(counts: np.ndarray) -> LabelCounts:
    return LabelCounts(np.arange(len(counts)), counts, len(counts))


# Counting and figures


def test_labels_are_counted_client_by_client() -> None:
    read = labels.count(federation(examples(0, 2, 2), examples(1), classes=4), rng())
    assert read.counts.tolist() == [[1, 0, 2, 0], [0, 1, 0, 0]]
    assert read.clients.tolist() == [0, 1]
    assert read.sizes.tolist() == [3, 1]
    assert read.shares.sum(axis=1).tolist() == [1, 1]


def test_of_a_large_population_a_random_choice_is_read() -> None:
    clients = [examples(*[0] * (number + 1)) for number in range(50)]
    read = labels.count(federation(*clients, classes=1), rng(), most=7)
    assert (len(read.clients), read.population) == (7, 50)
    assert read.sizes.tolist() == [number + 1 for number in read.clients.tolist()]
    assert read.clients.tolist() == sorted(set(read.clients.tolist()))
    other = labels.count(federation(*clients, classes=1), rng(1), most=7)
    assert read.clients.tolist() != other.clients.tolist()
    everyone = labels.count(federation(*clients, classes=1), rng(), most=50)
    assert everyone.clients.tolist() == list(range(50))


def test_figures_of_clients_of_one_class_each() -> None:
    found = labels.figures(np.array([[6, 0], [0, 2]]), rng())
    assert (found.smallest, found.median, found.mean, found.largest) == (2, 4, 4, 6)
    assert found.entropy == 0
    assert found.entropy_of_all == pytest.approx(0.75 * np.log2(4 / 3) + 0.25 * 2)
    # The whole is ¾, ¼: the first client is ¼ away from it, the second ¾.
    assert found.distance == pytest.approx(0.5)


def test_figures_of_clients_that_are_like_the_whole() -> None:
    found = labels.figures(np.array([[2, 1, 1], [4, 2, 2], [6, 3, 3]]), rng())
    assert (found.smallest, found.median, found.mean, found.largest) == (4, 8, 8, 12)
    assert found.entropy == found.entropy_of_all == pytest.approx(1.5)
    assert found.distance == pytest.approx(0)
    assert found.distance_by_chance > 0.02


def test_figures_count_every_client_the_same() -> None:
    found = labels.figures(np.array([[1, 1], [98, 0], [0, 1]]), rng())
    assert found.median == 2
    assert found.mean == pytest.approx(101 / 3)
    assert found.entropy == pytest.approx(1 / 3)
    first = 99 / 101
    assert found.distance == pytest.approx((first - 0.5 + 1 - first + first) / 3)


def test_by_chance_is_what_dealing_the_same_examples_to_the_same_sizes_gives() -> None:
    one_each = labels.figures(np.eye(10, dtype=np.int64).repeat(20, axis=0), rng())
    assert one_each.distance == one_each.distance_by_chance == pytest.approx(0.9)
    sorted_out = labels.figures(np.diag([500] * 4), rng())
    assert sorted_out.distance == pytest.approx(0.75)
    # A share of 500 out of 2000 has the deviation √(¼ · ¾ / 500 · ¾) = 0.0168; ½ · 4 · 0.8 of it.
    assert sorted_out.distance_by_chance == pytest.approx(0.027, abs=0.01)


def test_figures_follow_from_the_generator() -> None:
    counts = rng(1).integers(1, 9, (30, 5))
    assert labels.figures(counts, rng(2)) == labels.figures(counts, rng(2))
    assert labels.figures(counts, rng(2)) != labels.figures(counts, rng(3))


# Lines for a terminal


def test_cells_are_shaded_by_the_share_of_the_class_against_the_whole() -> None:
    # Of the whole each class is ¼; the first client has 0, ⅒, ⅖ and ½ of them, the last one class alone.
    counts = np.array([[0, 2, 8, 10], [12, 10, 4, 0], [8, 8, 8, 8], [0, 0, 0, 2]])
    heading, *lines = labels.rows(held(counts), 4, 80)
    assert heading == ("client  size  classes  ", "0     1     2     3")
    words, bars = zip(*lines, strict=True)
    assert words[1].split() == ["1", "26", "3"]
    assert bars == (
        "······░░░░░░▒▒▒▒▒▒▓▓▓▓▓▓",
        "▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒······",
        "▒▒▒▒▒▒" * 4,
        "··················██████",
    )


@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (30, 10), (5, 25), (25, 62), (3, 200), (2, 1000)])
def test_lines_fit_eighty_columns_and_stand_under_their_heading(clients: int, classes: int) -> None:
    counts = rng().integers(0, 10_000, (clients, classes))
    heading, *lines = labels.rows(held(counts), 20, 80)
    assert len(lines) == min(clients, 20)
    assert len({len(words) for words, _ in [heading, *lines]}) == 1
    assert len({len(bar) for _, bar in lines}) == 1
    assert all(len(words + bar) <= 80 for words, bar in [heading, *lines])
    assert len(labels.LEGEND) <= 80


def test_classes_that_share_a_cell_are_taken_together() -> None:
    counts = np.zeros((2, 120), dtype=np.int64)
    counts[0, 119] = counts[1, 0] = 1
    counts[:, 3] = 1
    heading, first, second = labels.rows(held(counts), 2, 80)
    assert heading[1].split() == ["0", "30", "60", "90"]  # three classes a cell, a number every ten cells
    assert first[1] == "·▒" + "·" * 37 + "▓"
    assert second[1] == "▓▒" + "·" * 38


# The picture


@pytest.mark.parametrize(
    ("clients", "classes", "bars"),
    [(10, 10, True), (40, 2, True), (41, 10, False), (10, 11, False), (500, 200, False), (1, 1, True)],
)
def test_few_clients_are_bars_and_many_a_heat_map(clients: int, classes: int, bars: bool) -> None:
    counts = rng().integers(1, 20, (clients, classes))
    figure = pictures.draw_labels(held(counts), labels.figures(counts, rng()), "own: $iid$")
    top = figure.axes[0]
    (title,) = (text for text in top.findobj(Text) if text.get_text() == "own: $iid$")
    assert not title.get_parse_math(), "a dollar in a file's name is a dollar"
    if bars:
        assert len(figure.axes) == 1
        assert len(top.patches) == clients * classes
        tops = [max(bar.get_y() + bar.get_height() for bar in stack.patches) for stack in top.containers[-1:]]
        assert max(tops) == counts.sum(axis=1).max()
        assert (top.get_xlabel(), top.get_ylabel()) == ("client", "examples")
    else:
        sizes, heat = figure.axes[:2]
        image = heat.get_images()[0].get_array()
        assert image is not None
        assert image.shape == (classes, clients)
        assert np.allclose(image.sum(axis=0), 1)
        assert (sizes.get_ylabel(), heat.get_ylabel()) == ("examples", "class")


def test_many_clients_are_ordered_by_their_most_frequent_class() -> None:
    counts = rng().integers(0, 50, (100, 12)) + 1
    figure = pictures.draw_labels(held(counts), labels.figures(counts, rng()), "own")
    image = np.asarray(figure.axes[1].get_images()[0].get_array())
    assert (np.diff(image.argmax(axis=0)) >= 0).all()
    assert sorted(map(tuple, image.T)) == sorted(map(tuple, held(counts).shares))
    assert "100 clients" in figure.axes[1].get_xlabel()
    few = pictures.draw_labels(held(counts[:50]), labels.figures(counts[:50], rng()), "own")
    assert np.array_equal(np.asarray(few.axes[1].get_images()[0].get_array()).T, held(counts[:50]).shares)


def test_the_same_counts_give_the_same_bytes() -> None:
    counts = rng().integers(1, 20, (12, 4))
    figures = labels.figures(counts, rng())
    first, again = (pictures.render(pictures.draw_labels(held(counts), figures, "own"), "png") for _ in range(2))
    assert first == again
    with Image.open(io.BytesIO(first)) as png:
        assert png.size == (1500, 840)
