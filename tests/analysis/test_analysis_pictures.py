"""Stability by hand, lines over seeds, and what the pictures of an analysis draw of plain numbers."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure

from fedacg.analysis import pictures
from fedacg.analysis.pictures import Ink, Line, over_seeds
from fedacg.analysis.rounds import squared_deviations, stability
from fedacg.analysis.surfaces import Panel, draw_panels, shared_levels
from fedacg.report.pictures import render
from fedacg.report.style import PALETTE, by_place
from fedacg.runs.history import History
from fedacg.simulation.metrics import RoundMetrics

FIRST, SECOND = PALETTE[1][0], PALETTE[2][0]


def ink(label: str, place: int) -> Ink:
    return Ink(label, place, by_place(place))


def history(*accuracies: float | None) -> History:
    return History(
        RoundMetrics(number, 0.1, (1,), 10, 1.0, 1, 1, 0.1, 0.1, 0.1, accuracy)
        for number, accuracy in enumerate(accuracies, start=1)
    )


def line(place: int, *ys: float, label: str = "") -> Line:
    return Line(ink(label or f"m{place}", place), np.arange(1.0, len(ys) + 1), np.array(ys))


def colours(axes) -> list[str]:
    return [to_hex(drawn.get_color()) for drawn in axes.lines]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# Stability


def test_stability_is_the_mean_squared_distance_from_the_average_in_points():
    # ema: 0.5, 0.9·0.5 + 0.1·0.7 = 0.52, 0.9·0.52 + 0.1·0.4 = 0.508
    run = history(0.5, 0.7, 0.4)
    assert squared_deviations(run) == pytest.approx([0.0, 18.0**2, 10.8**2])
    assert stability(run) == pytest.approx((18.0**2 + 10.8**2) / 3)


def test_stability_goes_by_evaluated_rounds_and_by_the_decay_that_is_asked_for():
    # Two rounds pass to the second evaluation: ema = 0.5²·0.5 + (1 − 0.5²)·0.9 = 0.8
    run = history(0.5, None, 0.9)
    assert squared_deviations(run, decay=0.5) == pytest.approx([0.0, 100.0])
    assert stability(run, decay=0.5) == pytest.approx(50.0)
    assert stability(run, decay=0.0) == pytest.approx(0.0)
    assert stability(history(None)) is None


# Lines


def test_a_line_is_the_mean_over_seeds_at_the_rounds_that_all_have():
    found = over_seeds(ink("a", 0), [{1: 1.0, 2: 2.0, 4: 5.0}, {2: 4.0, 3: 0.0, 4: 5.0}])
    assert found.xs.tolist() == [2, 4]
    assert found.ys.tolist() == [3.0, 5.0]
    assert found.deviation == pytest.approx([math.sqrt(2), 0.0])
    assert over_seeds(ink("a", 0), [{1: 1.0}]).deviation is None
    assert len(over_seeds(ink("a", 0), [{}]).xs) == 0
    assert over_seeds(ink("a", 0), [{}, {7: 1.0}]).xs.tolist() == [7]


def test_smoothing_takes_the_mean_of_the_rounds_around_and_leaves_short_runs_alone():
    short = line(0, *range(39))
    assert short.smooth.tolist() == short.ys.tolist()
    ys = np.zeros(80)
    ys[10] = ys[79] = 1.0
    smooth = line(0, *ys).smooth
    assert smooth[8:13] == pytest.approx([0.2] * 5)
    assert smooth[7] == smooth[13] == 0
    assert smooth[77:] == pytest.approx([1 / 5, 1 / 4, 1 / 3])


def test_a_group_has_the_colour_and_dashes_of_its_curve():
    assert (ink("a", 1).colour, ink("a", 1).dashes) == (SECOND, ())
    assert (ink("a", len(PALETTE) - 1).colour, bool(ink("a", len(PALETTE) - 1).dashes)) == (FIRST, True)


# Pictures over rounds and layers


def test_divergence_has_a_line_a_group_in_every_panel():
    parts = {f"stage {number}": [line(0, 1, 2), line(1, 2, 1)] for number in range(10)} | {"head": [line(1, 3, 4)]}
    figure = pictures.divergence([line(0, 0.1, 0.2), line(1, 0.3, 0.2)], parts)
    whole, *panels = figure.axes
    assert colours(whole) == [FIRST, SECOND]
    assert whole.lines[1].get_ydata().tolist() == [0.3, 0.2]
    assert [panel.get_title(loc="left") for panel in panels] == [*(f"stage {n}" for n in range(10)), "head"]
    assert [colours(panel) for panel in panels] == [[FIRST, SECOND]] * 10 + [[SECOND]]
    assert labels(figure) == ["m0", "m1"]
    assert all(axes.get_ylim()[0] == 0 for axes in figure.axes)


def test_divergence_of_networks_without_stages_is_one_panel():
    assert len(pictures.divergence([line(0, 0.1)], {}).axes) == 1


def test_many_rounds_are_drawn_faint_under_their_mean():
    figure = pictures.divergence([line(0, *np.random.default_rng(0).random(100))], {})
    raw, smooth = figure.axes[0].lines
    assert raw.get_alpha() < 0.5
    assert np.std(smooth.get_ydata()) < np.std(raw.get_ydata())


def test_cka_names_the_layers_and_shows_small_differences():
    close = [Line(ink("a", 0), np.arange(2.0), np.array([0.999, 0.991])), line(1, math.nan, math.nan)]
    axes = pictures.cka(["stage 0", "head"], close, 50).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["stage 0", "head"]
    assert "round 50" in axes.get_ylabel()
    low, high = axes.get_ylim()
    assert 0.98 < low < 0.991
    assert 1 < high < 1.01


def test_stability_has_a_line_and_a_bar_with_its_figure_for_each_group():
    groups = [
        pictures.Steadiness(line(0, 0.0, 4.0), 2.0, None),
        pictures.Steadiness(line(1, 0.0, 24.0), 12.0, 1.5),
    ]
    figure = pictures.stability(groups)
    curve, bars = figure.axes
    assert [drawn.get_ydata().tolist() for drawn in curve.lines] == [[0, 4], [0, 24]]
    assert curve.get_yscale() == "log"
    assert [bar.get_width() for bar in bars.patches] == [2, 12]
    assert [to_hex(bar.get_facecolor()) for bar in bars.patches] == [FIRST, SECOND]
    assert [text.get_text() for text in bars.texts] == ["2", "12"]


def test_drift_has_a_dot_a_client_and_a_bar_at_their_mean():
    strips = [
        pictures.Strip(ink("a", 0), 50, np.array([0.2, 0.6])),
        pictures.Strip(ink("b", 1), 50, np.array([0.9])),
        pictures.Strip(ink("b", 1), 100, np.array([-0.5, 0.7, 0.1])),
    ]
    means, dots = pictures.drift([line(0, 0.4, 0.5), line(1, 0.8, 0.9)], strips).axes
    assert colours(means) == [FIRST, SECOND]
    assert [tick.get_text() for tick in dots.get_xticklabels()] == ["50", "100"]
    clouds = [drawn for drawn in dots.lines if drawn.get_marker() == "o"]
    bars = [drawn for drawn in dots.lines if to_hex(drawn.get_color()) in (FIRST, SECOND) and drawn not in clouds]
    assert [cloud.get_ydata().tolist() for cloud in clouds] == [[0.2, 0.6], [0.9], [-0.5, 0.7, 0.1]]
    assert [bar.get_ydata()[0] for bar in bars] == pytest.approx([0.4, 0.9, 0.1])
    # Groups stand side by side within their round.
    middles = [float(np.mean(bar.get_xdata())) for bar in bars]
    assert -0.5 < middles[0] < 0 < middles[1] < 0.5 < middles[2] < 1.5
    assert means.get_ylim()[0] < -0.5


def test_drift_of_runs_without_recorded_rounds_is_one_panel():
    assert len(pictures.drift([line(0, 0.4)], []).axes) == 1


def test_of_many_recorded_rounds_some_are_drawn_among_them_the_first_and_the_last():
    strips = [pictures.Strip(ink("a", 0), round, np.array([0.5])) for round in range(10, 510, 10)]
    dots = pictures.drift([line(0, 0.5)], strips).axes[1]
    ticks = [int(tick.get_text()) for tick in dots.get_xticklabels()]
    assert (len(ticks), ticks[0], ticks[-1]) == (8, 10, 500)


@pytest.mark.parametrize(
    "figure",
    [
        pictures.stability([]),
        pictures.stability([pictures.Steadiness(line(0, 0.0), 0.0, None)]),
        pictures.drift([line(0)], []),
        pictures.divergence([line(0), line(1, 0.1)], {"head": []}),
        pictures.divergence([line(0, 0.1, label="$x^$"), line(1, 0.2, label="_hidden")], {}),
        pictures.cka(["head"], [line(0, 0.5)], 1),
    ],
)
def test_little_or_odd_data_make_a_picture_too(figure: Figure):
    assert render(figure, "png").startswith(b"\x89PNG")


# Surfaces


def panel(slope: float, title: str = "run", side: int = 9) -> Panel:
    """A loss that grows with x only."""
    xs, ys = np.linspace(-1, 3, side), np.linspace(-1, 2, side - 2)
    values = 1 + slope * np.tile(xs + 1, (len(ys), 1))
    return Panel(title, xs, ys, values, {7: (0, 0), 12: (2, 0), 30: (1, 1.5)}, (1, 0.5), (0.5, 0.25))


def contours(axes) -> QuadContourSet:
    return next(drawn for drawn in axes.collections if isinstance(drawn, QuadContourSet) and drawn.filled)


def test_all_panels_have_the_same_levels_and_colours():
    figure = draw_panels([panel(1.0, "one"), panel(5.0, "two")], "loss")
    one, two, bar = figure.axes
    both = shared_levels([panel(1.0).values, panel(5.0).values])
    assert contours(one).levels.tolist() == contours(two).levels.tolist() == both
    for value in (1.5, 4.0, 15.0):
        assert contours(one).to_rgba(value) == contours(two).to_rgba(value)
    assert [axes.get_title() for axes in (one, two)] == ["one", "two"]
    assert bar.get_ylabel() == "loss"


def test_models_their_mean_and_the_broadcast_are_drawn_where_they_lie():
    axes = draw_panels([panel(1.0)], "loss").axes[0]
    points = [(drawn.get_marker(), *drawn.get_xydata()[0]) for drawn in axes.lines]
    assert points == [("o", 0, 0), ("o", 2, 0), ("o", 1, 1.5), ("D", 1, 0.5), ("*", 0.5, 0.25)]
    assert [note.get_text() for note in axes.texts] == ["7", "12", "30"]
    assert axes.get_aspect() == 1


def test_a_value_is_drawn_at_its_x_and_y():
    figure = draw_panels([panel(1.0, side=21)], "loss")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    axes = figure.axes[0]

    def brightness(x: float, y: float) -> float:
        across, up = axes.transData.transform((x, y))
        return float(pixels[int(pixels.shape[0] - up), int(across), :3].sum())

    left, right = brightness(-0.8, 1.8), brightness(2.9, 1.8)
    assert left + 150 < right, "dark is low"
    assert brightness(-0.8, -0.8) == left


def test_levels_span_all_surfaces_and_leave_steep_corners_above():
    low, high = np.full((10, 10), 1.0), np.full((10, 10), 2.0)
    high[0, 0] = 1e6
    levels = shared_levels([low, high])
    assert levels[0] <= 1.0
    assert 2.0 <= levels[-1] < 3
    assert len(levels) > 5
    assert np.diff(levels) == pytest.approx([levels[1] - levels[0]] * (len(levels) - 1))


def test_levels_grow_by_a_factor_where_losses_span_a_lot():
    levels = shared_levels([np.geomspace(0.1, 100, 400).reshape(20, 20)])
    ratios = np.array(levels[1:]) / np.array(levels[:-1])
    assert ratios.min() > 1.5
    assert ratios.max() < 2.2


def test_losses_that_are_no_numbers_are_left_out():
    values = panel(1.0).values.copy()
    values[0, 0], values[-1, -1] = math.nan, math.inf
    broken = Panel("nan", panel(1.0).xs, panel(1.0).ys, values, {1: (0, 0)}, (0, 0), (0, 0))
    assert shared_levels([values])[-1] <= 6
    assert shared_levels([np.full((2, 2), math.nan)]) == [0.0, 1.0]
    assert shared_levels([np.zeros((2, 2))]) == [0.0, 1.0]
    lost = Panel("lost", broken.xs, broken.ys, np.full_like(values, math.nan), {1: (0, 0)}, (0, 0), (0, 0))
    assert render(draw_panels([broken, lost, panel(1.0), panel(1.0)], "loss"), "png").startswith(b"\x89PNG")
