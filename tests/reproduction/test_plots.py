r"""What is drawn is what was given: the artists' data, never their pixels."""

import numpy as np
import pytest

from reproduction.canvas import canvas
from reproduction.plots import intervals, progress, sorted_log_probabilities
from tests.refusals import refused

pytest.importorskip("matplotlib")


@pytest.fixture
def axes():
    with canvas() as (_, grid):
        yield grid[0, 0]


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_progress_draws_every_curve(axes):
    curves = {"250": ([1, 2, 3], [-100.0, -96.0, -95.5]), "500": ([1, 3], [-99.0, -93.25])}
    alt = progress(axes, curves)
    for line, (name, (x, y)) in zip(axes.lines, curves.items(), strict=False):
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_xdata(), x)
        np.testing.assert_array_equal(line.get_ydata(), y)
    assert texts(axes) == ["250", "500"]
    assert axes.get_xlabel() == "steps"
    assert "(nats)" in axes.get_ylabel()
    assert "250 ends at -95.50; 500 ends at -93.25" in alt
    colours = [line.get_color() for line in axes.lines]
    assert len(set(colours)) == 2


def test_images_are_sorted_by_the_teacher_and_stay_together(axes):
    teacher, student = [-90.0, -70.0, -80.0], [-91.0, -72.0, -83.0]
    alt = sorted_log_probabilities(axes, teacher, student, names=("RBM", "MADE"))
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn["RBM"].get_ydata()) == [-70, -80, -90]
    assert list(drawn["MADE"].get_ydata()) == [-72, -83, -91]
    assert list(drawn["RBM"].get_xdata()) == [1, 2, 3]
    assert "on average 2.00 nats below" in alt
    assert f"standard deviation of {np.std([1, 2, 3]):.2f}" in alt


def test_intervals_have_three_errors_on_either_side(axes):
    estimates = {
        "bridge": {"value": 451.27, "std_error": 0.02, "trustworthy": True},
        "importance": {
            "value": 450.8, "std_error": 0.3, "trustworthy": False,
            "bounds": {"lower": [443.0, 0.1], "upper": None},
        },
    }  # fmt: skip
    alt = intervals(axes, estimates, reference=("AIS", 451.28, 450.97, 451.52))
    lines = [collection.get_segments()[0] for collection in axes.collections]
    np.testing.assert_allclose(lines[0], [[451.21, 0], [451.33, 0]])
    np.testing.assert_allclose(lines[1], [[449.9, 1], [451.7, 1]])
    points = {line.get_label(): line for line in axes.lines}
    assert points["trustworthy"].get_xdata() == [451.27]
    assert points["doubtful"].get_markerfacecolor() == "white"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["bridge", "importance"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is on top
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (band.x0, band.x1) == pytest.approx((450.97, 451.52))
    assert alt.startswith("Estimates of log Z with three standard errors: bridge 451.270 ± 0.060")
    assert "importance 450.800 ± 0.900 (doubtful)" in alt
    assert "The band is AIS: 451.28 (450.97 to 451.52)." in alt


@pytest.mark.parametrize(
    ("draw", "argument", "received"),
    [
        (lambda axes: progress(axes, {}), "curves", "nothing to draw"),
        (lambda axes: intervals(axes, {}), "curves", "nothing to draw"),
        (lambda axes: progress(axes, {"a": ([1, 2], [3])}), "a", "2 and 1 numbers"),
        (lambda axes: progress(axes, {"a": ([], [])}), "a", r"shape \(0,\)"),
        (
            lambda axes: sorted_log_probabilities(axes, [1, 2], [1]),
            "student",
            "1 numbers",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(axes, draw, argument, received):
    with refused(argument, received):
        draw(axes)
