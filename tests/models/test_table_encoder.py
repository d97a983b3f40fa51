r"""The encoder: features by their definition, derivatives, traces, specs."""

import json

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import limbeck as lb
from limbeck.models.table_encoder import TableEncoder, embedding_size
from tests.refusals import refused

NUMBERS = [("a", None, 10.0, 2.0, 9.0), ("b", "b?", 0.0, 4.0, 1.0)]
CATEGORIES = [("c", 2, True), ("d", 3, False), ("e", 20, True)]
X = {
    "a": torch.tensor([10.0, 12.0, 8.0]),
    "b": torch.tensor([4.0, 777.0, -4.0]),
    "b?": torch.tensor([False, True, False]),
    "c": torch.tensor([0, 2, 3]),  # known, unknown, missing
    "d": torch.tensor([2, 3, 4]),
    "e": torch.tensor([19, 20, 21]),
}


def encoder(**options):
    return TableEncoder(NUMBERS, CATEGORIES, **options)


def test_features_are_standardised_indicated_and_embedded():
    net = encoder(embed=5)
    found = net(X)
    assert found.shape == (3, net.width) == (3, 2 + 1 + 3 + 3 + 5)
    expected = torch.tensor(
        [  # b, a, b?, c = 0, c = 1, c missing, d = 0, 1, 2
            [1.0, 0, 0, 1, 0, 0, 0, 0, 1],
            [0.25, 1, 1, 0, 0, 0, 0, 0, 0],
            [-1.0, -1, 0, 0, 0, 1, 0, 0, 0],
        ]
    )
    assert torch.equal(found[:, :9], expected)
    assert torch.equal(found[:, 9:], net.embeddings[0].weight[19:22])


def test_what_was_never_seen_starts_at_zero():
    weight = encoder().embeddings[0].weight
    assert (weight[20:] == 0).all()
    assert (weight[:20] != 0).all()


def test_equal_seeds_give_equal_embeddings():
    def weight(seed=None):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return encoder(generator=generator).embeddings[0].weight

    assert torch.equal(weight(), weight())
    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))


def test_sizes_of_embeddings():
    assert encoder(embed="one_hot").width == 2 + 1 + 3 + 3 + 21
    sizes = [embedding_size(k, "auto") for k in range(17, 500)]
    assert sizes == sorted(sizes)
    assert embedding_size(16, 4) == 0
    for bad in ("two", 0, 1.5, True):
        with refused("embed", expected='"auto", "one_hot"'):
            encoder(embed=bad)


def test_derivatives_are_one_over_the_scale_and_zero_where_missing():
    net = encoder()
    floats = {"a": X["a"], "b": X["b"]}
    found = grad(lambda part: net(X | part)[:, :2].sum())(floats)
    assert found["a"].tolist() == [0.5] * 3
    assert found["b"].tolist() == [0.25, 0, 0.25]


def test_it_is_traced_whole_and_differentiated_by_its_parameters():
    net = encoder()

    def loss(parameters, x):
        return functional_call(net, parameters, (x,)).square().sum()

    parameters = dict(net.named_parameters())
    traced = torch.compile(grad(loss), backend="eager", fullgraph=True)
    found, expected = traced(parameters, X), grad(loss)(parameters, X)
    assert set(found) == {"embeddings.0.weight"}
    torch.testing.assert_close(found, expected)


def test_examples_are_independent():
    net = encoder()
    one = vmap(lambda x: net({key: part[None] for key, part in x.items()})[0])(X)
    assert torch.equal(one, net(X))


def test_a_spec_gives_an_encoder_that_takes_the_weights():
    net = encoder(embed=3, generator=torch.Generator().manual_seed(5))
    again = TableEncoder.from_spec(json.loads(json.dumps(net.spec())))
    assert again.spec() == net.spec()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(X), net(X))
    with refused("spec", expected=r"the result of TableEncoder\.spec\(\)"):
        TableEncoder.from_spec({"type": "MLP"})


def test_only_numbers_or_only_categories():
    assert TableEncoder(NUMBERS[:1], [])(X).tolist() == [[0], [1], [-1]]
    codes = TableEncoder([], CATEGORIES[1:2])
    assert codes(X).dtype == torch.float32
    assert codes.double()(X).dtype == torch.float64
    assert TableEncoder([], CATEGORIES[2:])(X).shape == (3, embedding_size(20, "auto"))


def test_what_is_no_batch_of_the_table_is_refused():
    net = encoder()
    with refused("x", "no 'd'"):
        net({key: part for key, part in X.items() if key != "d"})
    with refused("x", "a Tensor"):
        net(torch.zeros(3, 4))


def test_it_counts_itself():
    text = repr(nn.Sequential(encoder()))
    assert "numbers=2, masks=1, categories=3" in text


def test_between_knots_a_feature_goes_from_0_to_1():
    numbers = [("a", None, 0.0, 2.0, 0.0), ("b", "gone", 1.0, 1.0, 3.0)]
    encoder = TableEncoder(numbers, [], knots=[[0.0, 1.0, 4.0], [2.0, 4.0]])
    x = {"a": torch.tensor([-1.0, 0.5, 2.5, 9.0]), "b": torch.tensor([0.0, 2.5, 5.0, 0.0])}
    x["gone"] = torch.tensor([False, False, False, True])
    expected = [  # b, with a mask, comes first; a missing value is as its fill of 3
        [-1.0, -0.5, 0.0, 0.0, 0.0, 0.0],
        [1.5, 0.25, 0.25, 0.5, 0.0, 0.0],
        [4.0, 1.25, 1.0, 1.0, 0.5, 0.0],
        [2.0, 4.5, 0.5, 1.0, 1.0, 1.0],
    ]
    torch.testing.assert_close(encoder(x), torch.tensor(expected))
    assert encoder.width == 6
    again = TableEncoder.from_spec(json.loads(json.dumps(encoder.spec())))
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again(x), encoder(x))


def test_clipped_numbers_end_at_their_knots():
    numbers = [("a", None, 0.0, 2.0, 0.0), ("b", None, 1.0, 1.0, 0.0)]
    encoder = TableEncoder(numbers, [], knots=[[-2.0, 1.0, 4.0], []], clip=True)
    x = {"a": torch.tensor([-9.0, 3.0, 9.0]), "b": torch.tensor([-9.0, 3.0, 9.0])}
    expected = torch.tensor([[-1.0, -10.0], [1.5, 2.0], [2.0, 8.0]])
    torch.testing.assert_close(encoder(x)[:, :2], expected)
    again = TableEncoder.from_spec(json.loads(json.dumps(encoder.spec())))
    torch.testing.assert_close(again(x), encoder(x))


def test_knots_must_ascend():
    with refused("knots", "not ascending"):
        TableEncoder([("a", None, 0.0, 1.0, 0.0)], [], knots=[[0.0, 2.0, 1.0]])


def test_a_layer_on_knots_is_any_piecewise_linear_function():
    knots, heights = [-2.0, -0.5, 0.1, 3.0], np.array([1.0, -2.0, 5.0, 0.5])
    encoder = TableEncoder([("a", None, 0.3, 1.7, 0.0)], [], knots=[knots])
    x = torch.linspace(-2, 3, 101)
    features = encoder({"a": x}).double().numpy()
    weight = np.concatenate([[0.0], np.diff(heights)])
    np.testing.assert_allclose(
        features @ weight + heights[0], np.interp(x, knots, heights), atol=1e-5
    )


def test_where_knots_are():
    rng = np.random.default_rng(0)
    gaps = np.where(rng.random(4000) < 0.3, np.nan, rng.integers(0, 9, 4000))
    df = pd.DataFrame({
        "code": 10 * rng.integers(0, 50, 4000), "real": rng.exponential(size=4000),
        "bit": rng.integers(0, 2, 4000), "gaps": gaps, "ids": np.arange(4000) // 4,
    })  # fmt: skip
    table = lb.Table(df)
    encoder = table.encoder(data=df)
    knots = {n.key: k for n, k in zip(encoder.numbers, encoder.knots, strict=True)}
    assert knots["code"] == [10.0 * k for k in range(50)]  # one at each of few values
    assert knots["gaps"] == [float(k) for k in range(9)]
    assert knots["bit"] == []  # on a line
    assert len(knots["ids"]) == len(knots["real"]) == 33
    np.testing.assert_allclose(
        knots["real"], np.quantile(df["real"], np.linspace(0, 1, 33)), rtol=1e-5
    )
    few = df[["real"]].head(50)
    assert len(lb.Table(few).encoder(data=few).knots[0]) == 3  # with enough rows between them
    assert table.encoder().knots == [[]] * 5
