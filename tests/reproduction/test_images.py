r"""Images side by side: each number in its place."""

import numpy as np
import pytest

from reproduction.canvas import canvas
from reproduction.plots import images
from tests.refusals import refused

pytest.importorskip("matplotlib")


def sheet_of(rows, **options):
    r"""The numbers that are drawn, with NaN for the lines between images."""
    with canvas() as (_, grid):
        images(grid[0, 0], rows, **options)
        return np.ma.filled(grid[0, 0].images[0].get_array(), np.nan)


def test_images_go_down_their_columns():
    picture = np.arange(6.0).reshape(2, 3)  # height 2, width 3
    by_column = picture.T.reshape(1, 6)
    np.testing.assert_array_equal(sheet_of(by_column, shape=(2, 3)), picture)
    by_row = picture.reshape(1, 6)
    np.testing.assert_array_equal(sheet_of(by_row, shape=(2, 3), by_column=False), picture)


def test_images_fill_rows_with_lines_between():
    rows = np.arange(5.0)[:, None] * np.ones((1, 4))
    sheet = sheet_of(rows, columns=3, shape=(2, 2))
    assert sheet.shape == (5, 8)
    assert (sheet[:2, 3:5] == 1).all()
    assert (sheet[3:, :2] == 3).all()
    assert (sheet[3:, 3:5] == 4).all()
    assert np.isnan(sheet[2]).all()
    assert np.isnan(sheet[:, 2]).all()
    assert np.isnan(sheet[3:, 6:]).all()  # no sixth image
    assert sheet_of(rows, shape=(2, 2)).shape == (5, 8)  # a square of three by three, two rows used


def test_features_are_scaled_one_by_one():
    sheet = sheet_of([[0.0, -2.0], [0.5, 0.25], [0.0, 0.0]], columns=1, shape=(1, 2), signed=True)
    np.testing.assert_array_equal(sheet[::2], [[0, -1], [1, 0.5], [0, 0]])


@pytest.mark.parametrize(("signed", "low"), [(False, 0), (True, -1)])
def test_the_sheet_is_drawn_as_it_is(signed, low):
    rows = np.random.default_rng(0).uniform(size=(4, 784))
    with canvas() as (_, grid):
        alt = images(grid[0, 0], rows, signed=signed, what="samples")
        drawn = grid[0, 0].images[0]
        scale = np.abs(rows).max(1, keepdims=True) if signed else 1
        first = (rows / scale)[0].reshape(28, 28).T
        np.testing.assert_array_equal(drawn.get_array()[:28, :28], first)
        assert drawn.get_clim() == (low, 1)
    assert alt.startswith("4 samples of 28 by 28 pixels")


@pytest.mark.parametrize("rows", [np.zeros((2, 783)), np.zeros(784), np.zeros((0, 784))])
def test_images_must_have_as_many_pixels_as_they_should(rows):
    with refused("rows", "shape .*"):
        sheet_of(rows)


def test_there_must_be_columns():
    with refused("columns", "0"):
        sheet_of(np.zeros((2, 4)), shape=(2, 2), columns=0)
