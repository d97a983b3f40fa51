r"""What careless users hand to `condense`, as ArviZ objects, data trees and dicts."""

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.condensation.condense import condense
from limbeck.errors import ArgumentError
from limbeck.posteriors.stream import StreamBroken
from tests.refusals import raises_about, refused, warns_about

CHAINS, DRAWS, N = 4, 60, 30
FEW = {
    "steps": 3, "batch_size": 10, "components": 4, "device": "cpu", "engine": "eager",
    "progress": False,
}  # fmt: skip
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
POSTERIOR = {"alpha": RNG.normal(size=(CHAINS, DRAWS)), "beta": RNG.normal(size=(CHAINS, DRAWS, 2))}
MU = POSTERIOR["alpha"][..., None] + POSTERIOR["beta"] @ X.T.astype(float)  # a deterministic


def predict(draw, x):
    return lb.Bernoulli(logits=draw["alpha"] + x @ draw["beta"])


def as_dict(variables):
    return variables


def as_arviz(variables):
    return pytest.importorskip("arviz").from_dict(posterior=variables)


def as_tree(variables):
    xarray = pytest.importorskip("xarray")
    named = {
        name: (("chain", "draw", *(f"{name}_{k}" for k in range(array.ndim - 2))), array)
        for name, array in variables.items()
    }
    return xarray.DataTree.from_dict({"/posterior": xarray.Dataset(named)})


KINDS = pytest.mark.parametrize("kind", [as_dict, as_arviz, as_tree])


def changed(name, place, value):
    found = {key: array.copy() for key, array in POSTERIOR.items()}
    found[name][place] = value
    return found


@KINDS
def test_deterministics_are_noticed_and_var_names_leaves_them_out(kind):
    posterior = kind(POSTERIOR | {"mu": MU})
    whole = condense(posterior, predict, X, **FEW)
    assert whole.notes == [
        "predict does not use mu: var_names=['~mu'] leaves out what is not needed"
    ]
    assert "mu" in whole.student.structure.names
    for var_names in ("~mu", ["alpha", "beta"]):
        result = condense(posterior, predict, X, var_names=var_names, **FEW)
        assert result.notes == []
        assert set(result.student.structure.names) == {"alpha", "beta"}
        assert result.bytes < whole.bytes


@KINDS
def test_deterministics_that_are_not_finite_can_be_left_out(kind):
    posterior = kind(POSTERIOR | {"log_p": np.full((CHAINS, DRAWS), -np.inf)})
    with refused("posterior['log_p']", expected="var_names=.'~log_p'."):
        condense(posterior, predict, X, **FEW)
    condense(posterior, predict, X, var_names="~log_p", **FEW)


@KINDS
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_draws_that_are_not_finite_are_counted_and_the_first_is_named(kind, value):
    posterior = kind(changed("beta", (1, 7, 0), value))
    with refused(
        "posterior['beta']", "NaN or infinite numbers in 1 of 240 draws, the first is 7 of chain 1"
    ):
        condense(posterior, predict, X, **FEW)


@pytest.mark.parametrize(("chains", "draws"), [(3, DRAWS), (CHAINS, 50)])
def test_variables_of_unequal_shapes_are_refused(chains, draws):
    posterior = POSTERIOR | {"alpha": POSTERIOR["alpha"][:chains, :draws]}
    expected = f"{chains} chains of {draws} draws"
    with refused("posterior['beta']", "4 chains of 60 draws", expected=expected):
        condense(posterior, predict, X, **FEW)


@KINDS
def test_a_single_draw_is_refused(kind):
    one = kind({name: array[:1, :1] for name, array in POSTERIOR.items()})
    with refused("posterior", "a single draw"):
        condense(one, predict, X, **FEW)
    with refused("posterior", "no draws after burn_in=60"):
        condense(kind(POSTERIOR), predict, X, burn_in=DRAWS, **FEW)


@KINDS
def test_a_stuck_chain_is_warned_of_by_number_and_its_r_hat_is_reported(kind):
    stuck = changed("beta", 2, 1.0) | {"alpha": changed("alpha", 2, 1.0)["alpha"]}
    with warns_about("1 of 4", ": 2;", "R̂"):
        result = condense(kind(stuck), predict, X, **FEW)
    assert result.diagnostics.r_hat.max() > 1.05
    assert "stuck" in str(result)


def test_a_chain_elsewhere_is_warned_of():
    with warns_about("R̂ of beta["):
        condense(changed("beta", 2, POSTERIOR["beta"][2] + 5), predict, X, **FEW)


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda d, x: lb.Bernoulli(probs=2 + x @ d["beta"]), "probs of a Bernoulli"),
        (lambda d, x: lb.Bernoulli(logits=(x @ d["beta"])[:, None]), "batch shape (8, 1)"),
        (lambda d, x: lb.Bernoulli(logits=(x @ d["beta"])[1:]), "(7,) for 8 inputs"),
        (lambda d, x: lb.Bernoulli(logits=(x @ d["beta"]).sum()), "() for 8 inputs"),
        (lambda d, x: lb.Normal(x @ d["beta"], d["alpha"] - 100), "scale of a Normal between"),
        (lambda d, x: (x @ d["beta"]).sigmoid(), "a Tensor as its result"),
        (lambda d, x: lb.Bernoulli(logits=x @ d["bta"]), "KeyError: 'bta'"),
        (lambda d, x: lb.Bernoulli(logits=x @ d["beta"].repeat(2)), "inputs (8, 2)"),
    ],
)
def test_predictions_that_are_none_are_refused(function, shown):
    with raises_about(ArgumentError, "predict", shown):
        condense(POSTERIOR, function, X, **FEW)


def batches(count, change=lambda batch: batch):
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        batch = {
            "alpha": torch.randn(10, generator=generator),
            "beta": torch.randn(10, 2, generator=generator),
        }
        yield change(batch) if number == count - 1 else batch


@pytest.mark.filterwarnings("ignore:posterior. R̂")  # so few draws say little
def test_an_iterator_that_ends_early_gives_the_student_so_far():
    result = condense(batches(12), predict, X, **FEW | {"steps": 50})
    assert 0 < result.steps < 50
    assert "the stream ended after 12 batches" in result.stop_reason
    assert f"at step {result.steps} of 50" in str(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda b: b | {"beta": b["beta"] * torch.nan},
            r"'beta'\] in batch 9: expected .*, got NaN or inf",
        ),
        (lambda b: b | {"beta": b["beta"][:, :1]}, r"'beta'\] in batch 9: .*shape \(1,\)"),
        (lambda b: b | {"alpha": b["alpha"][:5]}, r"'beta'\] in batch 9: .*beside others"),
        (lambda b: {"alpha": b["alpha"]}, r"'beta'\] in batch 9: expected .*, got only 'alpha'"),
        (lambda b: None, "in batch 9: expected .*, got a NoneType"),
    ],
)
def test_a_batch_that_is_none_is_named_by_its_number(change, message):
    with pytest.raises(StreamBroken, match=message):  # before there is a student
        condense(batches(9, change), predict, X, **FEW | {"steps": 50, "batch_size": 30})


def narrow(draw):
    return lb.Normal(draw[0], torch.where(draw[0].abs() < 1e-3, 1e-6, 1.0))


def test_a_collapsed_component_is_told_of_by_batch_em():
    few = {"samples": 4, "components": 4, "restarts": 2, "progress": False}
    draws = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    result = condense(draws, narrow, **few)
    assert "but component 0 has collapsed" in result.stop_reason
    assert "component 3 has collapsed: its variance is at the floor" in result.notes


def test_a_collapsed_component_is_told_of_by_stepwise_em():
    def spikes():
        generator = torch.Generator().manual_seed(0)
        while True:
            wide = 3 * torch.randn(50, 1, generator=generator)
            yield torch.cat([1e-9 * torch.randn(50, 1, generator=generator), wide])

    result = condense(
        spikes(), narrow, components=3, steps=60, batch_size=100, device="cpu", engine="eager",
        progress=False,
    )  # fmt: skip
    assert any("has collapsed" in note for note in result.notes)
    assert "has collapsed" in str(result)
