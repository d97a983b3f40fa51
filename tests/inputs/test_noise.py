r"""Normal noise."""

import pytest
import torch
from scipy import stats

from limbeck.inputs import Noise
from tests.refusals import refused


def test_is_normal_with_the_mean_and_scale_asked_for():
    x = Noise((2, 2), scale=3.0, mean=-1.0, seed=0)(5000).x
    assert stats.kstest(x.flatten().numpy(), "norm", args=(-1.0, 3.0)).pvalue > 1e-3


def test_shape_and_type():
    source = Noise(4)
    assert source(3).x.shape == (3, 4)
    source.to(torch.device("cpu"), torch.float64, 0)
    assert source(3).x.dtype == torch.float64
    assert Noise(())(3).x.shape == (3,)


@pytest.mark.parametrize(
    ("arguments", "argument", "received"),
    [
        ({"shape": 0}, "shape", "^0$"),
        ({"shape": (2, -1)}, "shape", "^-1$"),
        ({"shape": 2.5}, "shape", "^2.5$"),
        ({"shape": "2"}, "shape", "'2'"),
        ({"shape": 2, "scale": 0}, "scale", "^0$"),
        ({"shape": 2, "scale": float("inf")}, "scale", "^inf$"),
        ({"shape": 2, "mean": float("nan")}, "mean", "^nan$"),
    ],
)
def test_bad_arguments_are_refused(arguments, argument, received):
    with refused(argument, received):
        Noise(**arguments)
