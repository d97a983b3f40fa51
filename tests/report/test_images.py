r"""Images side by side: each number in its place."""

import numpy as np
import pytest

from limbeck.report.canvas import canvas
from limbeck.report.plots import images, mosaic
from tests.refusals import refused

pytest.importorskip("matplotlib")


def test_images_go_down_their_columns():
    picture = np.arange(6.0).reshape(2, 3)  # height 2, width 3
    by_column = picture.T.reshape(1, 6)
    np.testing.assert_array_equal(mosaic(by_column, shape=(2, 3)), picture)
    by_row = picture.reshape(1, 6)
    np.testing.assert_array_equal(mosaic(by_row, shape=(2, 3), by_column=False), picture)


def test_images_fill_rows_with_lines_between():
    rows = np.arange(5.0)[:, None] * np.ones((1, 4))
    sheet = mosaic(rows, columns=3, shape=(2, 2))
    assert sheet.shape == (5, 8)
    assert (sheet[:2, 3:5] == 1).all()
    assert (sheet[3:, :2] == 3).all()
    assert (sheet[3:, 3:5] == 4).all()
    assert np.isnan(sheet[2]).all()
    assert np.isnan(sheet[:, 2]).all()
    assert np.isnan(sheet[3:, 6:]).all()  # no sixth image
    assert mosaic(rows, shape=(2, 2)).shape == (5, 8)  # a square of three by three, two rows used


def test_features_are_scaled_one_by_one():
    sheet = mosaic([[0.0, -2.0], [0.5, 0.25], [0.0, 0.0]], columns=1, shape=(1, 2), signed=True)
    np.testing.assert_array_equal(sheet[::2], [[0, -1], [1, 0.5], [0, 0]])


@pytest.mark.parametrize(("signed", "low"), [(False, 0), (True, -1)])
def test_the_sheet_is_drawn_as_it_is(signed, low):
    rows = np.random.default_rng(0).uniform(size=(4, 784))
    with canvas() as (_, grid):
        alt = images(grid[0, 0], rows, signed=signed, what="samples")
        drawn = grid[0, 0].images[0]
        np.testing.assert_array_equal(
            np.ma.filled(drawn.get_array(), np.nan), mosaic(rows, signed=signed)
        )
        assert drawn.get_clim() == (low, 1)
    assert alt.startswith("4 samples of 28 by 28 pixels")


@pytest.mark.parametrize("rows", [np.zeros((2, 783)), np.zeros(784), np.zeros((0, 784))])
def test_images_must_have_as_many_pixels_as_they_should(rows):
    with refused("rows", "shape .*"):
        mosaic(rows)


def test_there_must_be_columns():
    with refused("columns", "0"):
        mosaic(np.zeros((2, 4)), shape=(2, 2), columns=0)
