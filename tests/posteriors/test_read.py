r"""Posteriors in memory: every form gives the same draws; what is none is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.posteriors.draws import Draws
from limbeck.posteriors.read import as_draws
from limbeck.posteriors.stream import Stream
from tests.refusals import refused, warns_about

RNG = np.random.default_rng(0)
ALPHA, SIGMA = RNG.normal(size=(4, 10, 3)), RNG.uniform(1, 2, size=(4, 10))
NAMED = {"alpha": ALPHA, "sigma": SIGMA}


class ArrayLike:
    r"""As much of a JAX array as is looked at: read-only memory behind `__array__`."""

    def __init__(self, array):
        self.array = array.copy()
        self.array.flags.writeable = False

    def __array__(self, dtype=None, copy=None):
        return self.array


def numbers(draws: Draws) -> np.ndarray:
    return draws.flat.numpy().reshape(draws.chains, draws.per_chain, -1)


FORMS = {
    "array": ALPHA,
    "tensor": torch.tensor(ALPHA),
    "gradients": torch.tensor(ALPHA, requires_grad=True),
    "list": list(ALPHA),
    "list of tensors": list(torch.tensor(ALPHA)),
    "mixed list": [ALPHA[0], *torch.tensor(ALPHA[1:])],
    "lists": ALPHA.tolist(),
    "array-like": ArrayLike(ALPHA),
    "big endian": ALPHA.astype(">f8"),
    "long double": ALPHA.astype(np.longdouble),
    "Fortran": np.asfortranarray(ALPHA),
    "backwards": ALPHA[:, ::-1][:, ::-1],
    "reversed": np.ascontiguousarray(ALPHA[:, ::-1])[:, ::-1],
    "draws again": Draws({"": ALPHA}),
}


@pytest.mark.parametrize("form", FORMS)
def test_chains_of_vectors(form):
    draws = as_draws(FORMS[form])
    assert repr(draws) == "Draws(4 chains of 10: a vector of 3)"
    assert draws.dtype == torch.float64
    np.testing.assert_array_equal(numbers(draws), ALPHA)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, ArrayLike, np.ndarray.tolist])
def test_variables_by_name(convert):
    draws = as_draws({name: convert(array) for name, array in NAMED.items()})
    assert repr(draws) == "Draws(4 chains of 10: alpha (3,), sigma ())"
    np.testing.assert_array_equal(draws.take(range(40))["alpha"].numpy(), ALPHA.reshape(40, 3))
    np.testing.assert_array_equal(draws.take(range(40))["sigma"].numpy(), SIGMA.reshape(40))


def test_a_posterior_within_a_dict():
    assert as_draws({"posterior": NAMED, "prior": {}}).structure.names == ("alpha", "sigma")
    assert as_draws({"posterior": ALPHA}).structure.names == ("posterior",)


def test_one_chain_of_vectors():
    draws = as_draws(ALPHA.reshape(40, 3))
    assert (draws.chains, draws.per_chain) == (1, 40)
    np.testing.assert_array_equal(draws.flat.numpy(), ALPHA.reshape(40, 3))
    assert as_draws(list(ALPHA[0])).per_chain == 10


LAYOUTS = [
    ("chains", lambda array: array),
    ("emcee", lambda array: array.swapaxes(0, 1)),
    ("draws", lambda array: array[0]),
]


@pytest.mark.parametrize(("layout", "turned"), LAYOUTS)
def test_layouts(layout, turned):
    chains = 1 if layout == "draws" else 4
    bare = as_draws(turned(ALPHA), layout=layout)
    np.testing.assert_array_equal(numbers(bare), ALPHA[:chains])
    named = as_draws({name: turned(array) for name, array in NAMED.items()}, layout=layout)
    np.testing.assert_array_equal(numbers(named)[..., :3], ALPHA[:chains])
    np.testing.assert_array_equal(numbers(named)[..., 3], SIGMA[:chains])


def test_lists_of_dicts():
    chains = [{name: array[chain] for name, array in NAMED.items()} for chain in range(4)]
    np.testing.assert_array_equal(numbers(as_draws(chains, layout="chains"))[..., :3], ALPHA)
    single = [{name: array[0, draw] for name, array in NAMED.items()} for draw in range(10)]
    np.testing.assert_array_equal(numbers(as_draws(single, layout="draws"))[..., :3], ALPHA[:1])
    with refused("posterior", "a list of dicts"):
        as_draws(chains)
    with refused("posterior[3]", "the variables sigma"):
        as_draws([*chains[:3], {"sigma": SIGMA[3]}], layout="chains")


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(1, 4))
def test_burn_in_and_thinning(burn_in, thin):
    expected = ALPHA[:, burn_in::thin]
    for form in (ALPHA, torch.tensor(ALPHA), list(ALPHA)):
        draws = as_draws(form, burn_in=burn_in, thin=thin)
        np.testing.assert_array_equal(numbers(draws), expected)
        index = torch.arange(draws.count)
        np.testing.assert_array_equal(draws.take(index), expected.reshape(-1, 3))


def test_more_chains_than_draws_are_doubtful():
    with warns_about("10 chains of 4 draws", 'layout="emcee"'):
        as_draws(ALPHA.swapaxes(0, 1))
    assert as_draws(ALPHA.swapaxes(0, 1), layout="chains").chains == 10


def test_floating_types():
    assert as_draws(np.float32(ALPHA)).dtype == torch.float32
    assert as_draws(np.float16(ALPHA)).take([0]).dtype == torch.float16
    assert as_draws({"a": np.float32(ALPHA), "b": SIGMA}).dtype == torch.float64
    draws = as_draws(NAMED, dtype=torch.float32)
    assert {part.dtype for part in draws.take([1, 2]).values()} == {torch.float32}
    assert draws.flat.dtype == torch.float32


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.uint32, bool])
def test_whole_numbers_become_floating_ones(kind):
    cluster = RNG.integers(0, 2, size=(4, 10)).astype(kind)
    draws = as_draws({"cluster": cluster, "alpha": np.float32(ALPHA)})
    assert draws.notes == ("cluster is of whole numbers, which become float32",)
    np.testing.assert_array_equal(draws.take(range(40))["cluster"], cluster.reshape(40))
    alone = as_draws({"cluster": torch.tensor(cluster.astype(np.int32))})
    assert alone.take([3])["cluster"].dtype == torch.get_default_dtype()


def test_var_names():
    three = {**NAMED, "log_lik": np.full((4, 10, 7), np.nan)}
    assert as_draws(three, var_names=["sigma", "alpha"]).structure.names == ("sigma", "alpha")
    assert as_draws(three, var_names="~log_lik").structure.names == ("alpha", "sigma")
    assert as_draws(three, var_names="alpha").structure.dim == 3
    assert as_draws({**three, "~a": SIGMA}, var_names="~a").structure.names == ("~a",)


@pytest.mark.parametrize(
    ("var_names", "received", "expected"),
    [
        ("alhpa", "'alhpa'", r"did you mean 'alpha'\?"),
        ("~sigm", "'sigm'", r"did you mean 'sigma'\?"),
        (["alpha", "~sigma"], r"\['alpha', '~sigma'\]", ""),
        (["~alpha", "~sigma"], r"\['~alpha', '~sigma'\]", ""),
        ([], r"^\[\]$", ""),
    ],
)
def test_names_that_are_not_there(var_names, received, expected):
    with refused("var_names", received, expected=expected):
        as_draws(NAMED, var_names=var_names)


def with_hole(array, value, *place):
    array = array.copy()
    array[place] = value
    return array


BAD = {
    "nothing": (np.zeros((0, 3)), "posterior", "^no draws$", ""),
    "no numbers": (np.zeros((5, 0)), "posterior", "draws of no numbers", ""),
    "one draw": (np.zeros((1, 3)), "posterior", "a single draw", ""),
    "a vector": (
        np.zeros(5),
        "posterior",
        r"shape \(5,\)",
        r"\(draw, dim\) or \(chain, draw, dim\)",
    ),
    "four axes": (np.zeros((2, 5, 2, 2)), "posterior", r"draws of shape \(2, 2\)", ""),
    "NaN": (
        with_hole(ALPHA, np.nan, (1, 3), (7, 2)),
        "posterior",
        "NaN or infinite numbers in 2 of 40 draws, the first is 7 of chain 1",
        "",
    ),
    "infinity by name": (
        {**NAMED, "sigma": with_hole(SIGMA, np.inf, 2)},
        "posterior['sigma']",
        "NaN .* in 10 of 40 draws",
        r"var_names=\['~sigma'\]",
    ),
    "complex": (ALPHA.astype(complex), "posterior", r"complex numbers \(complex128\)", ""),
    "complex tensor": (torch.zeros(5, 2, dtype=torch.cfloat), "posterior", "torch.complex64", ""),
    "sparse tensor": (torch.zeros(5, 2).to_sparse(), "posterior", "layout torch.sparse_coo", ""),
    "objects": (ALPHA.astype(object), "posterior", "values of dtype object", ""),
    "text": (
        {"alpha": np.array([["a", "b"]])},
        "posterior['alpha']",
        "^strings$",
        "",
    ),
    "masked": (np.ma.masked_less(ALPHA, 0), "posterior", "masked values", ""),
    "nested": (
        {"net": {"weight": ALPHA}},
        "posterior",
        "a dict of 'net'",
        "",
    ),
    "numbers as names": ({0: ALPHA}, "posterior", "a dict of 0", ""),
    "empty dict": ({}, "posterior", "a dict of nothing", ""),
    "empty list": ([], "posterior", "an empty list", ""),
    "chains disagree": (
        {**NAMED, "sigma": SIGMA[:3]},
        "posterior['sigma']",
        "3 chains of 10 draws",
        "4 chains of 10",
    ),
    "draws disagree": (
        {**NAMED, "sigma": SIGMA[:, :9]},
        "posterior['sigma']",
        "4 chains of 9 draws",
        "",
    ),
    "without chains": (
        {"alpha": ALPHA[0], "sigma": SIGMA[0]},
        "posterior['sigma']",
        r"shape \(10,\)",
        r"layout=\"draws\"",
    ),
    "chains of a list": (
        [ALPHA[0], ALPHA[1, :5]],
        "posterior[1]",
        r"shape \(5, 3\)",
        r"shape \(10, 3\), as posterior\[0\]",
    ),
    "ragged": (
        {"alpha": [[1.0, 2.0], [3.0]]},
        "posterior['alpha']",
        "a list that is no array",
        "",
    ),
    "None": (None, "posterior", "a NoneType", ""),
    "a number": (3, "posterior", "^a int$", ""),
    "a class": (Draws, "posterior", "the class Draws", ""),
    "a function": (lambda: None, "posterior", "a function", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_posterior(case):
    posterior, argument, received, expected = BAD[case]
    with refused(argument, received, expected=expected):
        as_draws(posterior)


@pytest.mark.parametrize(
    ("options", "argument", "received", "expected"),
    [
        ({"burn_in": -1}, "burn_in", "^-1$", ""),
        ({"burn_in": 10}, "posterior", "no draws after burn_in=10", ""),
        ({"thin": 0}, "thin", "^0$", ""),
        ({"layout": "chain"}, "layout", "'chain'", r"did you mean 'chains'\?"),
        ({"dtype": torch.int64}, "dtype", "torch.int64", ""),
        ({"dtype": float}, "dtype", "<class 'float'>", ""),
        ({"var_names": "alpha"}, "var_names", r"\['alpha'\]", ""),
    ],
)
def test_bad_options(options, argument, received, expected):
    with refused(argument, received, expected=expected):
        as_draws(ALPHA, **options)


def test_numbers_that_do_not_fit():
    large = with_hole(ALPHA, 1e300, 0, 0, 0)
    assert as_draws(large).count == 40
    with refused("posterior", "torch.float32 in 1 of 40 draws"):
        as_draws(large, dtype=torch.float32)


def test_what_flows_is_a_stream():
    class Sampler:
        def step(self):
            return torch.ones(4, 3)

    for posterior in (Sampler(), iter([torch.ones(4, 3)]), (torch.ones(4, 3) for _ in range(2))):
        stream = as_draws(posterior)
        assert isinstance(stream, Stream)
        assert stream.next(2).shape == (2, 3)
        assert as_draws(stream) is stream
        with refused("posterior", "a Stream with further options"):
            as_draws(stream, thin=2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 3)))
    assert isinstance(as_draws(loader), Stream)
    assert as_draws(iter([]), layout="draws").in_time
