r"""The pictures of chapter 3, from results made up; and what they are drawn with."""

import numpy as np
import pytest

from reproduction import plots as surfaces
from reproduction.canvas import canvas
from reproduction.chapter3_pictures import pictures
from reproduction.posterior_plots import ellipses, weights
from tests.refusals import refused
from tests.report.written import assert_written

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow  # of pages and studies, not of the library


def packed(values):
    return " ".join(f"{value:.4g}" for value in np.ravel(values))


def mixture(observations):
    at = np.linspace(-10, 10, 41)
    curve = packed(np.exp(-(at**2) / 8) / np.sqrt(8 * np.pi))
    score = {"kl": [0.0123], "mean": 0.0123, "highest": 0.02}
    edges = np.linspace(-5, 5, 11)
    return {
        "observations": observations,
        "pooled": {"kl": 0.001},
        "chain": score | {"mean": 0.002},
        "students": dict.fromkeys(("batch, text", "online, text", "online, parallel"), score),
        "curves": {"x": packed(at)}
        | dict.fromkeys(("true", "Monte Carlo", "batch", "online"), curve),
        "histograms": {"edges": packed(edges), "chain": [packed(np.ones(10))] * 3,
                       "exact": [packed(np.ones(10))] * 3},
    }  # fmt: skip


def data_set(names, components=False):
    side, weights = np.linspace(-8, 8, 9), np.linspace(-12, 36, 7)
    p = packed(1 / (1 + np.exp(-np.add.outer(side, 0 * side))))
    bag = {"draws": packed([3, 4, 6, 8]), "share": packed([0.25, 0.75])}
    found = {
        "errors": dict.fromkeys(("EP", "MCMC", *names), (0.01, 0.05, 0.02)),
        "shown": {
            "points": packed([[-4, 0], [4, 1]]), "labels": [0, 1],
            "posterior": {"across": packed(weights), "up": packed(weights),
                          "density": packed(np.linspace(0, 1, 49))},
            "draws": packed(np.arange(20)),
            "weights": dict.fromkeys(names, bag),
            "gaussian": {"mean": packed([10, 0]), "covariance": packed([[9, 1], [1, 4]])},
            "surface": {"side": packed(side),
                        "values": dict.fromkeys(("exact", "MCMC", "EP", *names), p)},
        },
    }  # fmt: skip
    counted = {"1": (0.1, 0.3, 0.1), "10": (0.01, 0.04, 0.004)}
    return found | ({"components": counted} if components else {})


def test_every_picture_is_written_and_described(tmp_path):
    bags = ("CE batch", "CE online", "limbeck")
    results = {
        "mixtures": [mixture(2), mixture(1000)],
        "logistic": [data_set(bags, components=True), data_set(bags)],
    }
    said = pictures(results, tmp_path)
    names = ["components", "densities", "divergences", "posteriors", "setup", "surfaces", "weights"]
    assert_written(tmp_path, said, [f"{name}.png" for name in names])
    assert "1,000: KL of batch 0.0123, of online 0.0123" in said["densities.png"]
    assert "all chains together 0.0010 to 0.0010" in said["divergences.png"]
    assert "CE batch: 2 draws of mean length 7.5" in said["weights.png"]
    assert "limbeck 0.0100 and 0.050" in said["surfaces.png"]
    assert "mean |t − f| falls from 0.1000 to 0.0100" in said["components.png"]


def test_parts_alone_are_drawn_and_nothing_is_refused(tmp_path):
    assert len(pictures({"mixtures": [mixture(5)]}, tmp_path)) == 3
    assert len(pictures({"logistic": [data_set(("limbeck",))]}, tmp_path)) == 3
    with refused("results", "no finished experiments"):
        pictures({"mixtures": []}, tmp_path)


def test_surfaces_have_the_first_index_across():
    side = np.linspace(-1, 1, 5)
    p = np.add.outer(0.4 * side, 0.1 * side) + 0.5
    with canvas() as (_, axes):
        drawn = surfaces.surface(axes[0][0], side, p)
        image = np.asarray(drawn.get_array())
        assert drawn.get_extent() == pytest.approx([-1.25, 1.25, -1.25, 1.25])
        np.testing.assert_allclose(image, p.T)  # rows go up
        with refused("values", "24 numbers"):
            surfaces.surface(axes[0][0], side, p.flatten()[1:])


def test_ellipses_are_at_one_and_two_deviations():
    mean, covariance = np.array([1.0, -2.0]), np.array([[4.0, 1.5], [1.5, 1.0]])
    with canvas() as (_, axes):
        ellipses(axes[0][0], mean, covariance)
        one, two, centre = (line.get_xydata() for line in axes[0][0].lines)
    for radius, line in ((1, one), (2, two)):
        apart = line - mean
        distance = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(covariance), apart)
        np.testing.assert_allclose(distance, radius**2)
    np.testing.assert_allclose(centre, mean[None])


def test_weights_have_areas_by_their_shares():
    with canvas() as (_, axes):
        weights(axes[0][0], [[0.0, 1.0], [2.0, 3.0]], [0.25, 0.75])
        (discs,) = axes[0][0].collections
        np.testing.assert_allclose(discs.get_offsets(), [[0, 1], [2, 3]])
        small, large = discs.get_sizes() - 4
        assert large == pytest.approx(3 * small)
