r"""Anything as inputs."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import distributions, nn
from torch.utils import data

from limbeck.inputs import Dataset, Function, Loader, Noise, Samples, as_inputs
from tests.refusals import refused

X = torch.zeros(5, 2)


class Frame:
    r"""As much of a pandas data frame as is looked at; it has a method sample, too."""

    def __init__(self, array, dtypes):
        self.array, self.dtypes = np.asarray(array), [np.dtype(d) for d in dtypes]
        self.columns = [f"column {i}" for i in range(len(dtypes))]

    def to_numpy(self, **options):
        return self.array

    def sample(self, n):
        raise AssertionError("a table is data")


class Sampler(nn.Module):
    def sample(self, n):
        return torch.zeros(n, 2)


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(X)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (X, Dataset),
        (X.numpy(), Dataset),
        (X.tolist(), Dataset),
        ({"a": X, "b": X.numpy()}, Dataset),
        (data.TensorDataset(X), Dataset),
        (Frame(np.zeros((5, 2)), ["f8", "f8"]), Dataset),
        (data.DataLoader(data.TensorDataset(X)), Loader),
        (Stream(), Loader),
        (Sampler(), Samples),
        (distributions.Normal(torch.zeros(2), 1.0), Samples),
        (lambda n: torch.zeros(n, 2), Function),
    ],
)
def test_the_source_that_a_value_stands_for(value, kind):
    source = as_inputs(value)
    assert type(source) is kind
    assert source(3) is not None


def test_sources_are_given_back():
    source = Noise(2)
    assert as_inputs(source) is source


@pytest.mark.parametrize(
    ("value", "argument", "received"),
    [
        (3, "data", "^a int$"),
        ("x.csv", "data", "^a str$"),
        (None, "data", "a NoneType"),
        (
            nn.Linear(2, 2),
            "data",
            "a Linear, a module without a method sample",
        ),
        (Noise, "data", "the class Noise"),
        ([Noise(2), Noise(2)], "data", "several sources"),
        (torch.tensor([torch.nan]), "data", "1 NaN or infinite"),
        ({"a": ["x"]}, "data['a']", "^strings$"),
        (sparse.eye(2), "data", "^a sparse"),
        (
            Frame(np.array([["a", 1.0]], dtype=object), ["O", "f8"]),
            "data",
            "a table with columns .*: 'column 0'",
        ),
    ],
)
def test_everything_else_is_refused_by_the_callers_name(value, argument, received):
    with refused(argument, received):
        as_inputs(value, "data")


def test_a_real_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [1, 2], "c": [True, False]})
    assert as_inputs(frame).x.tolist() == [[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    with refused("inputs", "a table .*'town'"):
        as_inputs(frame.assign(town="x"))
