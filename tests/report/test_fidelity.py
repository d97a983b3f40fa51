r"""Pictures of reports: what is drawn is what was given."""

import sys

import numpy as np
import pytest

from limbeck.compression.fidelity.report import fidelity
from limbeck.errors import LimbeckError
from limbeck.report import fidelity_plots as draw
from reproduction.canvas import canvas, save
from tests.refusals import raises_about, refused

matplotlib = pytest.importorskip("matplotlib")

RNG = np.random.default_rng(0)
P, S, B = RNG.dirichlet(np.ones(3), (3, 300))
S = 0.7 * P + 0.3 * S
Y = np.array(["a", "b", "c"])[P.argmax(1)]
HISTORY = {"step": [10, 20, 30], "loss": [2.0, 1.0, 0.1], "kl": [1.0, 0.5, 0.05]}


@pytest.fixture(scope="module")
def report():
    town = np.array(["York", "Bath"])[np.arange(300) % 2]
    groups = {"town": town, "age": np.arange(300.0)}
    return fidelity("classification", P, S, Y, baseline=B, classes=["a", "b", "c"], groups=groups)


@pytest.fixture(scope="module")
def values():
    t = RNG.normal(size=(250, 2))
    return fidelity("regression", t, t + 0.1, t - 0.1, classes=["u", "v"])


@pytest.fixture(scope="module")
def labels():
    return fidelity("multilabel", P[:, :2], S[:, :2], np.round(P[:, :2]), classes=["x", "y"])


def test_curves_are_those_of_the_report(report):
    axes = draw.calibration(report)
    drawn = [container.lines[0] for container in axes.containers]
    for line, curve in zip(drawn, report.calibration.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), curve["confidence"])
        np.testing.assert_array_equal(line.get_ydata(), curve["frequency"])
    assert len({line.get_marker() for line in drawn}) == 3  # not by colour alone
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    error = report.measures["student"]["ece"].value
    assert said[1] == f"student: {error:.1%}"
    assert said[1] in axes.get_label()
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_classes_are_crossed(report):
    axes = draw.disagreement(report)
    counts = np.array(report.pairs["counts"])
    apart = counts - np.diag(counts.diagonal())
    np.testing.assert_array_equal(axes.images[0].get_array().filled(0), apart)
    assert sorted(int(text.get_text()) for text in axes.texts) == sorted(counts[counts > 0])
    assert axes.get_title(loc="left") == f"{apart.sum()} of 300 rows differ"
    teacher, student = np.unravel_index(apart.argmax(), apart.shape)
    assert f"teacher says {'abc'[teacher]} and the student {'abc'[student]}" in axes.get_label()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "c"]


def test_models_that_agree_have_an_empty_map():
    axes = draw.disagreement(fidelity("classification", P, P))
    assert axes.get_title(loc="left") == "0 of 300 rows differ"
    assert axes.images[0].get_array().mask.all()


def test_values_lie_about_the_diagonal(values):
    axes = draw.disagreement(values, target=1)
    points = axes.collections[0].get_offsets()
    np.testing.assert_allclose(points[:, 1], points[:, 0] + 0.1)
    assert len(points) == 250
    assert axes.get_title(loc="left") == "v"
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), axes.lines[0].get_ydata())
    assert "mean difference of 0.1 " in axes.get_label()
    with refused("target", "2"):
        draw.disagreement(values, target=2)


def test_labels_of_one_alone_are_bars(labels):
    axes = draw.disagreement(labels)
    widths = [[bar.get_width() for bar in container] for container in axes.containers]
    np.testing.assert_allclose(widths[0], 100 * np.array(labels.pairs["teacher"]))
    np.testing.assert_allclose(widths[1], 100 * np.array(labels.pairs["student"]))
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["x", "y"]


def gaps(axes):
    lines = [container.lines for container in axes.containers]
    return [(data.get_xdata()[0], bars[0].get_segments()[0][:, 0]) for data, _, bars in lines]


def test_subgroups_have_three_errors_on_either_side(report):
    axes = draw.subgroups(report)
    parts = [part for groups in report.by_group.values() for part in groups.values()]
    for (value, ends), part in zip(gaps(axes), parts, strict=True):
        gap = part.differences["teacher"]["accuracy"]
        assert value == pytest.approx(100 * gap.value)
        assert ends == pytest.approx([value - 300 * gap.std_error, value + 300 * gap.std_error])
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names[0] == "town: Bath  (150)"
    assert len(names) == 6
    one = report.to_dict()
    del one["by_group"]["age"]
    names = [tick.get_text() for tick in draw.subgroups(one).get_yticklabels()]
    assert names == ["Bath  (150)", "York  (150)"]


def test_groups_that_are_worse_have_another_mark():
    where = np.arange(300) % 2
    student = P.copy()
    student[where == 1] = np.roll(P[where == 1], 1, axis=1)
    for y in (Y, None):
        found = fidelity("classification", P, student, y, classes=list("abc"), groups={"w": where})
        axes = draw.subgroups(found)
        assert [c.lines[0].get_marker() for c in axes.containers] == ["o", "D"]
        assert "clearly worse in w = 1" in axes.get_label()
    assert "student − elsewhere" in axes.get_xlabel()


def test_of_many_groups_the_worst_are_drawn():
    groups = {"g": np.arange(300) // 10}
    groups["g"] = [f"g{i}" for i in groups["g"]]
    found = fidelity("classification", P, S, Y, classes=list("abc"), groups=groups)
    axes = draw.subgroups(found)
    assert len(axes.containers) == draw.GROUPS
    assert "24 worst of 30" in axes.get_title(loc="left")


def test_learning_curves_are_the_history():
    axes = draw.learning(HISTORY)
    assert [line.get_label() for line in axes.lines] == ["loss", "kl"]
    assert list(axes.lines[1].get_ydata()) == HISTORY["kl"]
    assert axes.get_yscale() == "log"
    alone = draw.learning({"step": [1, 2], "loss": [-1.0, -2.0]}, name="loss")
    assert alone.get_yscale() == "linear"
    assert alone.get_legend() is None
    assert alone.get_ylabel() == "loss"


@pytest.mark.parametrize("values", [[0.4, 0.1], [4.0, -0.1], [4.0, 0.0]], ids=str)
def test_values_that_fall_little_or_below_zero_have_a_plain_scale(values):
    assert draw.learning({"step": [1, 2], "loss": values}).get_yscale() == "linear"


def test_values_that_fall_far_have_a_logarithmic_scale_with_few_ticks():
    axes = draw.learning({"step": [1, 2, 3], "loss": [0.4, 0.036, 0.035]})
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert shown == pytest.approx([0.05, 0.1, 0.2])


def test_given_axes_are_drawn_on_and_a_dict_will_do(report):
    with canvas(1, 2) as (_, grid):
        assert draw.calibration(report.to_dict(), grid[0, 0]) is grid[0, 0]
        assert draw.subgroups(report, grid[0, 1]) is grid[0, 1]
        assert grid[0, 0].get_label().startswith("Calibration curves")


def test_the_users_own_settings_stay_as_they_are(report):
    before = dict(matplotlib.rcParams)
    draw.calibration(report)
    assert dict(matplotlib.rcParams) == before


def test_pictures_are_written_with_their_descriptions(report, values, labels, tmp_path):
    drawn = {
        "calibration": draw.calibration(report),
        "disagreement": draw.disagreement(report),
        "subgroups": draw.subgroups(report),
        "learning": draw.learning(HISTORY),
        "values": draw.disagreement(values),
        "value groups": draw.subgroups(values),
        "labels": draw.calibration(labels),
    }
    for name, axes in drawn.items():
        path = save(axes.figure, tmp_path / f"{name}.png", axes.get_label())
        assert len(path.read_bytes()) > 5000
        assert axes.get_label().split()[0].encode() in path.read_bytes()


@pytest.mark.parametrize(
    ("wrong", "argument", "received", "expected"),
    [
        (lambda r, v: draw.calibration(v), "report", "report without calibration curves", ""),
        (lambda r, v: draw.calibration({}), "saved", "format None", "limbeck-fidelity-1"),
        (lambda r, v: draw.calibration(3), "saved", "^3$", "a dict"),
        (
            lambda r, v: draw.subgroups(fidelity("classification", P, S)),
            "report",
            "without subgroups",
            "",
        ),
        (lambda r, v: draw.learning({"step": []}), "saved", "without a history", ""),
        (
            lambda r, v: draw.learning({"step": [1, 2], "loss": [3.0]}),
            "saved",
            "different lengths",
            "a value for each step",
        ),
        (
            lambda r, v: draw.learning(HISTORY, name="los"),
            "name",
            "'los'",
            "did you mean 'loss'",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(report, values, wrong, argument, received, expected):
    with refused(argument, received, expected=expected):
        wrong(report, values)


def test_without_matplotlib_it_says_what_to_install(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises_about(LimbeckError, "limbeck[plots]"):
        draw.calibration(report)
