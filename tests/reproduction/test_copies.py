r"""Copies of images: each change by itself against what it must do to the pixels."""

import pytest
import torch

import limbeck as lb
from reproduction.copies import KNOTS, Change, Copies
from tests.refusals import refused

SHAPE = (8, 6)
NONE = {"rotation": 0.0, "shift": 0.0, "scale": 0.0, "shear": 0.0}
CPU = torch.device("cpu")


def images(n=3, shape=SHAPE, seed=0):
    return torch.rand(n, shape[0] * shape[1], generator=torch.Generator().manual_seed(seed))


def built(x, change, places=None, shape=SHAPE, normal=None):
    r"""Copies where given numbers are at their ends (0 or 1) and all others in the middle."""
    source = Copies(x, change, shape=shape)
    source.to(CPU, torch.float32, 0)
    uniform = torch.full((len(x), 7), 0.5)
    for place, value in (places or {}).items():
        uniform[:, place] = value
    drawn = {"rows": torch.arange(len(x)), "uniform": uniform}
    return source.build(drawn | ({} if normal is None else {"normal": normal})).x


def square(x, shape=SHAPE):
    return x.reshape(-1, *shape)


def test_in_the_middle_nothing_changes():
    x = images()
    assert torch.allclose(built(x, Change()), x, atol=1e-5)


@pytest.mark.parametrize(("place", "axis"), [(4, 2), (5, 1)])
def test_a_shift_by_a_pixel_moves_rows_or_columns(place, axis):
    x = images()
    x = square(x).clone()
    x[:, [0, -1]] = 0
    x[:, :, [0, -1]] = 0  # what goes over the edge is black
    moved = square(built(x.flatten(1), Change(**NONE | {"shift": 1.0}), {place: 1.0}))
    assert torch.allclose(moved, x.roll(-1, axis), atol=1e-5)


def test_a_quarter_turn():
    x = images(shape=(7, 7))
    turned = built(x, Change(**NONE | {"rotation": 90.0}), {0: 1.0}, (7, 7))
    assert torch.allclose(square(turned, (7, 7)), square(x, (7, 7)).rot90(1, (1, 2)), atol=1e-4)


def test_in_oblong_images_a_turn_keeps_lengths():
    x = torch.zeros(1, *SHAPE)
    x[:, 2:6, 1:5] = 1  # a square in the middle
    turned = built(x.flatten(1), Change(**NONE | {"rotation": 90.0}), {0: 0.0})
    assert torch.allclose(square(turned), x, atol=1e-4)


@pytest.mark.parametrize(("place", "height", "width"), [(1, 4, 2), (2, 2, 4)])
def test_stretching_by_half_makes_a_square_that_much_larger(place, height, width):
    x = torch.zeros(1, *SHAPE)
    x[:, 3:5, 2:4] = 1
    mass = built(x.flatten(1), Change(**NONE | {"scale": 0.5}), {place: 1.0}).sum()
    assert mass == pytest.approx(6.0, rel=0.1)  # of 4


def test_a_shear_moves_rows_against_each_other():
    x = torch.zeros(1, *SHAPE)
    x[:, :, 2:4] = 1
    found = square(built(x.flatten(1), Change(**NONE | {"shear": 0.4}), {3: 1.0}))[0]
    columns = torch.arange(6.0)
    middle = (found * columns).sum(1) / found.sum(1)  # of each row
    steps = middle.diff()
    assert torch.allclose(steps, steps.mean().expand(7), atol=0.05)
    assert abs(steps.mean()) == pytest.approx(0.4, abs=0.05)


def test_pulling_all_knots_alike_is_a_shift():
    x = images()
    normal = torch.zeros(3, 2, KNOTS**2)
    normal[:, 0] = 1.0
    bent = built(x, Change(**NONE | {"bend": 1.0}), normal=normal)
    moved = built(x, Change(**NONE | {"shift": 1.0}), {4: 1.0})
    assert torch.allclose(bent, moved, atol=1e-5)


def test_originals_stay_and_labels_go_with_their_images():
    x = images(50)
    source = Copies(x, Change(original=0.5), torch.arange(50), SHAPE)
    source.to(CPU, torch.float32, 0)
    batch = source(1000)
    same = (batch.x == x[batch.y]).all(1)
    assert 400 < same.sum() < 600
    assert batch.index is None  # what a teacher said of the image is not true of its copy
    weak = Copies(x, Change().times(0.01), torch.arange(50), SHAPE)
    batch = weak(200)
    assert (batch.x - x[batch.y]).abs().max() < 0.05


def test_equal_seeds_give_equal_copies_also_after_an_interruption():
    def source(seed):
        found = Copies(images(7), Change(bend=1.0), shape=SHAPE)
        found.to(CPU, torch.float32, seed)
        return found

    one, two, other = source(0), source(0), source(1)
    assert torch.equal(one(5).x, two(5).x)
    assert not torch.equal(one(5).x, other(5).x)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(5).x, other(5).x)


def test_a_teacher_is_asked_about_copies_and_not_about_images():
    asked = []

    def teacher(x):
        asked.append(x)
        return x[:, :2]

    lb.distill(
        lb.Teacher(teacher, "values"), lb.MLP(48, 2, output_form="values"),
        Copies(images(20), Change(), shape=SHAPE), steps=5, batch_size=10, device="cpu",
        engine="eager", progress=False,
    )  # fmt: skip
    assert not any((row == images(20)).all(1).any() for x in asked for row in x)


@pytest.mark.parametrize(
    ("change", "argument", "received", "expected"),
    [
        ({"rotation": -1.0}, "rotation", "^-1", ""),
        ({"scale": 1.0}, "scale", "^1", ""),
        ({"original": 1.5}, "original", "^1.5$", "a number from 0 to 1"),
        ({"shift": float("nan")}, "shift", "^nan$", ""),
    ],
)
def test_changes_are_checked(change, argument, received, expected):
    with refused(argument, received, expected=expected):
        Change(**change)


def test_images_of_another_shape_are_refused():
    with refused("X", r"shape \(3, 48\)", expected=r"shape \(3, 784\)"):
        Copies(images())
