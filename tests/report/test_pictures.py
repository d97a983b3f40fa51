r"""Pictures of saved results: the artists' data are the arrays'."""

import numpy as np
import pytest

from limbeck import storage
from limbeck.report import pictures
from limbeck.report.canvas import COLOURS
from reproduction.canvas import canvas
from tests.refusals import refused
from tests.report import making

pytest.importorskip("matplotlib")

DRAWN = [
    ("compress", pictures.learning, {}),
    ("compress", pictures.calibration, {}),
    ("compress", pictures.disagreement, {}),
    ("compress", pictures.subgroups, {}),
    ("compress", pictures.examples, {}),
    ("table", pictures.disagreement, {}),
    ("condense", pictures.weights, {}),
    ("condense", pictures.surface, {"model": "teacher"}),
    ("condense", pictures.difference, {}),
    ("density", pictures.curve, {}),
    ("normalize", pictures.samples, {}),
    ("normalize", pictures.features, {"model": "teacher"}),
    ("normalize", pictures.log_probabilities, {}),
    ("normalize", pictures.log_z, {}),
    ("ring", pictures.samples, {}),
    ("logz", pictures.log_z, {}),
]


@pytest.mark.parametrize(("name", "draw", "options"), DRAWN)
def test_each_draws_on_given_axes_or_its_own_and_says_what_it_shows(name, draw, options):
    saved = making.saved(name)
    own = draw(saved, **options)
    with canvas() as (_, grid):
        given = grid[0, 0]
        assert draw(saved, ax=given, **options) is given
        assert given.get_label() == own.get_label()
    assert own.get_label().endswith(".")
    assert len(own.get_label()) > 30


def test_a_folder_will_do(tmp_path):
    storage.write(tmp_path, *making.to_record("logz"))
    axes = pictures.log_z(tmp_path)
    assert axes.get_label() == pictures.log_z(making.saved("logz")).get_label()


def test_surfaces_and_their_difference_are_the_arrays():
    saved = making.saved("condense")
    teacher, student = (saved.arrays[f"surface_{each}"][0] for each in ("teacher", "student"))
    for model, values in (("teacher", teacher), ("student", student)):
        axes = pictures.surface(saved, model=model)
        np.testing.assert_array_equal(axes.images[0].get_array(), values.T)
    gap = pictures.difference(saved)
    np.testing.assert_array_equal(gap.images[0].get_array(), (student - teacher).T)
    assert f"{np.abs(student - teacher).max():.2g} at most" in gap.get_label()
    low, high = gap.images[0].get_clim()
    assert low == -high  # zero has the middle colour


def test_pseudo_draws_are_drawn_where_they_are():
    saved = making.saved("condense")
    axes = pictures.weights(saved)
    points = axes.collections[0].get_offsets()
    np.testing.assert_allclose(points, saved.arrays["pseudo_draws"][:, :2])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), saved.arrays["draws"][:, 0])
    single = dict(saved.arrays, pseudo_draws=saved.arrays["pseudo_draws"][:, :1])
    with refused("saved", "draws of one number"):
        pictures.weights(saved._replace(arrays=single))


def test_worth_and_ranks_are_the_saved_numbers():
    saved = making.saved("condense")
    curve, pit = [[1, 0.4], [2, 0.2], [4, 0.1]], [0.2, 0.5, 0.3]
    new = {"curve": curve, "best": 0.05}
    saved = saved._replace(content=saved.content | {"new_inputs": new, "agreement": {"pit": pit}})
    axes = pictures.worth(saved)
    axes.figure.canvas.draw()
    assert not any("$" in label.get_text() for label in axes.get_xticklabels())
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), curve)
    assert axes.get_label().endswith("of the bag, 0.05.")
    assert [bar.get_height() for bar in pictures.ranks(saved).patches] == pit
    for draw in (pictures.worth, pictures.ranks):
        with refused("saved", "a result without"):
            draw(making.saved("logz"))


def test_curves_are_the_arrays():
    saved = making.saved("density")
    axes = pictures.curve(saved)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), saved.arrays["curve_teacher"][0])
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), saved.arrays["curve_student"][0])
    with refused("output", "1"):
        pictures.curve(saved, output=1)


def test_the_exact_value_stands_among_the_estimates():
    saved = making.saved("logz")
    axes = pictures.log_z(saved)
    exact = saved.content["exact"]
    assert list(axes.lines[0].get_xdata()) == [exact, exact]
    assert f"The line is exact {exact:.4f}" in axes.get_label()


def test_estimates_have_three_errors_on_either_side_and_doubtful_ones_are_hollow():
    entry = making.saved("logz").content["log_z"][0]
    good = {**entry, "name": "bridge", "value": 451.27, "std_error": 0.02,
            "trustworthy": True, "state": "trustworthy"}  # fmt: skip
    poor = {**good, "name": "importance", "value": 450.8, "std_error": 0.3,
            "trustworthy": False, "state": "doubtful"}  # fmt: skip
    unknown = {**poor, "name": "none", "value": None}
    saved = making.saved("logz")
    content = {**saved.content, "log_z": [good, unknown, poor, {**good, "name": "again"}]}
    axes = pictures.log_z(saved._replace(content=content))
    trusted, doubtful = (np.array(lines.get_segments()) for lines in axes.collections)
    np.testing.assert_allclose(trusted[0], [[451.21, 0], [451.33, 0]])
    np.testing.assert_allclose(trusted[1], [[451.21, 2], [451.33, 2]])
    np.testing.assert_allclose(doubtful[0], [[449.9, 1], [451.7, 1]])
    points = {line.get_label(): line for line in axes.lines}
    assert list(points["trustworthy"].get_xdata()) == [451.27, 451.27]
    assert points["trustworthy"].get_markerfacecolor() == COLOURS[0]
    assert points["doubtful"].get_markerfacecolor() == "white"
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["bridge", "importance", "again"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is on top
    assert "bridge 451.270 ± 0.060; importance 450.800 ± 0.900 (doubtful)" in axes.get_label()


def test_log_probabilities_are_sorted_by_the_teachers_and_stay_together():
    saved = making.saved("normalize")
    teacher, student = np.array([-90.0, -70.0, -80.0]), np.array([-91.0, -72.0, -83.0])
    arrays = {"log_prob_teacher": teacher, "log_prob_student": student}
    axes = pictures.log_probabilities(saved._replace(arrays=arrays))
    scattered, line = axes.lines
    assert list(line.get_ydata()) == [-70, -80, -90]
    assert list(scattered.get_ydata()) == [-72, -83, -91]
    assert list(line.get_xdata()) == list(scattered.get_xdata()) == [1, 2, 3]
    assert "on average 2.00 nats below" in axes.get_label()
    assert f"standard deviation of {np.std([1, 2, 3]):.2f}" in axes.get_label()


def test_sheets_have_lines_between_images_and_features_are_scaled_one_by_one():
    saved = making.saved("normalize")
    content = {**saved.content, "image": [1, 2]}
    rows = np.array([[0.0, -2.0], [0.5, 0.25], [0.0, 0.0]])
    arrays = {"samples_student": rows, "features_student": rows}
    small = saved._replace(content=content, arrays=arrays)
    for draw, images in (
        (pictures.samples, rows),
        (pictures.features, [[0, -1], [1, 0.5], [0, 0]]),
    ):
        axes = draw(small)
        sheet = np.ma.filled(axes.images[0].get_array(), np.nan)
        nan = np.nan
        one, two, three = images
        expected = [[*one, nan, *two], [nan] * 5, [*three, nan, nan, nan]]
        np.testing.assert_array_equal(sheet, expected)
    assert axes.images[0].get_clim() == (-1, 1)
    assert "3 features of 1 by 2 pixels in a grid, each scaled" in axes.get_label()


def test_points_of_two_classes_have_marks_of_their_own():
    saved = making.saved("condense")
    points, labels = saved.arrays["points"], saved.arrays["labels"]
    axes = pictures.surface(saved)
    for line, label in zip(axes.lines, (1, 0), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), points[labels == label])
    one, two = axes.lines
    assert one.get_marker() != two.get_marker()
    assert axes.get_xlim() == (saved.arrays["surface_x"][0], saved.arrays["surface_x"][-1])
    three = dict(saved.arrays, labels=np.arange(len(points)) % 3)
    lines = pictures.surface(saved._replace(arrays=three)).lines
    assert sum(len(line.get_xdata()) for line in lines) == len(points)
    assert len({(line.get_marker(), line.get_color()) for line in lines}) == 3
    del three["labels"]
    (line,) = pictures.surface(saved._replace(arrays=three)).lines
    np.testing.assert_array_equal(line.get_xydata(), points)


def test_samples_of_many_variables_are_shown_by_their_means():
    saved = making.saved("ring")
    rng = np.random.default_rng(0)
    both = {f"samples_{each}": rng.normal(size=(50, 5)) for each in ("teacher", "student")}
    axes = pictures.samples(saved._replace(arrays=both))
    points = axes.collections[0].get_offsets()
    np.testing.assert_allclose(points[:, 0], both["samples_teacher"].mean(0))
    np.testing.assert_allclose(points[:, 1], both["samples_student"].mean(0))
    one = {name: rows[:, :1] for name, rows in both.items()}
    bars = pictures.samples(saved._replace(arrays=one)).patches
    assert sum(bar.get_height() for bar in bars if hasattr(bar, "get_height")) == 50


def test_images_on_which_both_differ_are_drawn_from_white_to_black():
    saved = making.saved("compress")
    sheet = pictures.examples(saved).images[0].get_array()
    rows = saved.arrays["disagreement_rows"]
    np.testing.assert_allclose(sheet[:8, :8], rows[0].reshape(8, 8) / rows.max())
    assert (np.nanmin(sheet), np.nanmax(sheet)) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "name", "message"),
    [
        (pictures.calibration, "logz", "a result without a comparison"),
        (pictures.learning, "logz", "a result without a history"),
        (pictures.surface, "compress", "a result without surfaces"),
        (pictures.weights, "logz", "without a bag of pseudo-draws"),
        (pictures.log_z, "compress", "a result without log Z"),
        (pictures.samples, "logz", "a result without samples"),
        (pictures.features, "ring", "a result without features"),
        (pictures.examples, "table", "rows .* are no images"),
    ],
)
def test_what_a_result_has_not_is_said(draw, name, message):
    with refused("saved", message):
        draw(making.saved(name))


def test_what_is_no_result_is_refused():
    with refused("saved", r"^\{\}$"):
        pictures.learning({})
    with refused("model", expected="did you mean 'teacher'"):
        pictures.samples(making.saved("ring"), model="techer")


def test_rows_that_are_no_images_are_said_to_differ():
    saved = making.saved("compress")
    count = len(saved.content["fidelity"]["disagreements"])
    assert count
    arrays = {name: a for name, a in saved.arrays.items() if name != "disagreement_rows"}
    with refused("saved", f"whose {count} rows .* are no images"):
        pictures.examples(saved._replace(arrays=arrays))
    equal = saved.content["fidelity"] | {"disagreements": []}
    content = saved.content | {"fidelity": equal}
    with refused("saved", "without rows on which both differ"):
        pictures.examples(saved._replace(arrays=arrays, content=content))
