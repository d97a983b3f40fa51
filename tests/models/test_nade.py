import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.func import grad

import limbeck as lb
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.models import nade as nade_module
from limbeck.models.nade import NADE
from limbeck.supports import Binary, Real, Spins, States
from limbeck.training.result import Result
from tests.models.kernels import reference
from tests.models.nets import score
from tests.refusals import raises_about, refused

SUPPORTS = [Binary(6), Binary(2, 3), Spins(5), States(3, 4), States(2, 4), States(4, 2, 2)]
ORDERS = [None, "random", "reversed"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(support=None, hidden=3, order=None, seed=0, spread=2.0, dtype=torch.float64):
    r"""A NADE far from uniform."""
    support = Binary(6) if support is None else support
    order = list(reversed(range(support.size))) if order == "reversed" else order
    nade = NADE(support.size, hidden, order, support, dtype, generator=generator(seed))
    with torch.no_grad():
        for each in nade.parameters():
            each.copy_(spread * torch.randn(each.shape, generator=generator(seed + 1)).to(dtype))
    return nade


def every(nade):
    return nade.support.enumerate(0, nade.support.count**nade.support.size, dtype=nade.w.dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("support", SUPPORTS, ids=repr)
class TestEverySupportAndOrder:
    def test_probabilities_sum_to_one(self, support, order):
        nade = make(support, order=order)
        log_p = nade.log_prob(every(nade))
        assert log_p.shape == (support.count**support.size,)
        assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
        assert log_p.std() > 0.5

    def test_conditionals_are_those_of_the_joint_distribution(self, support, order):
        nade = make(support, order=order)
        x = every(nade)
        p = nade.log_prob(x).exp()
        codes = support.encode(x).flatten(1).long()
        found = nade.conditionals(x).flatten(1, len(support.shape))
        for place in range(support.size):
            variable, earlier = nade.order[place], nade.order[:place]
            for n in (0, len(x) // 2, len(x) - 1):
                alike = (codes[:, earlier] == codes[n, earlier]).all(1)
                each = torch.stack(
                    [p[alike & (codes[:, variable] == k)].sum() for k in range(support.count)]
                )
                expected = each / each.sum()
                expected = expected[1] if support.count == 2 else expected
                torch.testing.assert_close(found[n, variable], expected)

    def test_samples_come_with_the_probabilities_they_have(self, support, order):
        nade = make(support, order=order)
        x = nade.sample(500, generator())
        assert x.shape == (500, *support.shape)
        support.check(x)
        found = x.unique(dim=0, return_counts=True)
        counts = dict(zip(map(tuple, found[0].flatten(1).tolist()), found[1], strict=True))
        events = every(nade)
        expected = 500 * nade.log_prob(events).exp().detach()
        seen = torch.tensor([float(counts.get(tuple(e), 0)) for e in events.flatten(1).tolist()])
        frequent = expected >= 5
        pairs = [
            torch.cat([each[frequent], each[~frequent].sum().unsqueeze(0)])
            for each in (seen.double(), expected)
        ]
        enough = pairs[1] > 0
        assert chisquare(pairs[0][enough], pairs[1][enough]).pvalue > 1e-3

    def test_probabilities_met_belong_to_the_samples(self, support, order):
        nade = make(support, order=order)
        x, met = nade.sample(20, generator(3)), nade.sample_probabilities(20, generator(3))
        torch.testing.assert_close(met, nade.conditionals(x).detach())

    def test_gradients_are_finite_differences(self, support, order):
        nade = make(support, order=order, spread=0.5)
        x = nade.sample(3, generator())
        names, values = zip(*nade.named_parameters(), strict=True)

        def log_prob(*values):
            return torch.func.functional_call(nade, dict(zip(names, values, strict=True)), (x,))

        assert torch.autograd.gradcheck(log_prob, values)

    def test_it_is_written_and_read(self, support, order, tmp_path):
        nade = make(support, order=order)
        read = NADE.load(nade.save(tmp_path / "nade.safetensors"))
        assert read.support == support
        assert torch.equal(read.order, nade.order)
        assert torch.equal(read.log_prob(every(nade)), nade.log_prob(every(nade)))
        assert read.spec() == nade.spec()


def test_parameters_are_those_of_the_definition_in_the_order():
    order = [2, 0, 3, 1]
    nade = make(Binary(4), order=order)
    x = every(nade)
    expected = reference.log_prob(x[:, order], nade.w, nade.c, nade.u, nade.b)
    torch.testing.assert_close(nade.log_prob(x), expected)
    torch.testing.assert_close(nade(x), expected)
    assert nade.output_form == "log_density"
    assert {name: tuple(p.shape) for name, p in nade.named_parameters()} == {
        "w": (4, 3), "u": (4, 3), "c": (3,), "b": (4,),
    }  # fmt: skip


def test_spins_are_zeros_and_ones_by_another_name():
    zeros = make(Binary(5))
    spins = NADE(5, 3, support=Spins(5), dtype=torch.float64)
    spins.load_state_dict(zeros.state_dict())
    x = every(zeros)
    assert torch.equal(spins.log_prob(2 * x - 1), zeros.log_prob(x))
    torch.testing.assert_close(score(spins, 2 * x - 1), score(zeros, x) / 2)
    assert torch.equal(spins.sample(9, generator()), 2 * zeros.sample(9, generator()) - 1)


def test_two_states_are_binary():
    nade = make(States(2, 5))
    assert nade.w.shape == (5, 3)


def test_equal_seeds_give_equal_models_and_samples():
    one, two, other = (NADE(20, 7, "random", generator=generator(s)) for s in (1, 1, 2))
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.w, other.w)
    assert not torch.equal(one.order, other.order)
    assert torch.equal(one.sample(30, generator(5)), two.sample(30, generator(5)))
    assert not torch.equal(one.sample(30, generator(5)), one.sample(30, generator(6)))


def test_global_randomness_is_left_alone_where_a_generator_is_given():
    before = torch.get_rng_state()
    NADE(20, 7, "random", generator=generator()).sample(3, generator())
    assert torch.equal(before, torch.get_rng_state())


def test_weights_start_small_and_biases_at_zero():
    nade = NADE(400, 100, generator=generator())
    assert nade.w.std().item() == pytest.approx(400**-0.5, rel=0.05)
    assert nade.u.std().item() == pytest.approx(0.1, rel=0.05)
    assert not nade.b.any()
    assert not nade.c.any()
    assert nade.w.dtype == torch.float32


@settings(deadline=None, max_examples=20)
@given(size=st.integers(1, 7), hidden=st.integers(1, 5), seed=st.integers(0, 99))
def test_any_size_is_normalised(size, hidden, seed):
    nade = make(Binary(size), hidden, "random", seed)
    assert nade.log_prob(every(nade)).exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("support", [Binary(2, 4), Spins(8)], ids=repr)
def test_score_is_a_finite_difference(support):
    nade = make(support, order="random")
    x = nade.sample(3, generator())
    found = score(nade, x)
    for place in range(8):
        step = torch.zeros(8, dtype=x.dtype)
        step[place] = 1e-6
        step = step.view(support.shape)
        ahead, behind = (nade.log_prob(x + sign * step, check=False) for sign in (1, -1))
        torch.testing.assert_close(
            found.flatten(1)[:, place], (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-6
        )


def test_scores_can_be_trained_on():
    nade = make(order="random")
    x = nade.sample(4, generator())
    score(nade, x).square().sum().backward()

    def loss(parameters):
        def total(x):
            return torch.func.functional_call(nade, parameters, (x,)).sum()

        return grad(total)(x).square().sum()

    expected = grad(loss)({name: p.detach() for name, p in nade.named_parameters()})
    for name, parameter in nade.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


class TestFitting:
    data = torch.tensor([[0.0, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]])

    def test_maximum_likelihood_finds_the_frequencies(self):
        nade = NADE(3, 8, generator=generator())
        result = nade.fit(self.data, 500, lr=0.05, batch_size=4, progress=False)
        assert isinstance(result, Result)
        assert result.student is nade
        expected = math.log(0.25) * 0.5 + math.log(0.5) * 0.5
        assert nade.log_prob(self.data).mean().item() == pytest.approx(expected, abs=0.02)

    @pytest.mark.parametrize("kind", ["array", "bits"])
    def test_arrays_and_integers_are_taken(self, kind):
        data = self.data.numpy().astype(np.uint8) if kind == "bits" else self.data.double().numpy()
        nade = NADE(3, 2, generator=generator())
        assert nade.fit(data, 3, progress=False).steps == 3

    def test_grey_images_are_refused(self):
        with refused("data", "12 values such as 0.5"):
            NADE(3, 2).fit(torch.full((4, 3), 0.5))

    def test_a_result_is_loaded_with_its_student(self, tmp_path):
        nade = NADE(3, 4, [2, 1, 0], generator=generator())
        folder = nade.fit(self.data, 5, progress=False).save(tmp_path / "run")
        read = lb.load(folder).student
        assert type(read) is NADE
        assert torch.equal(read.log_prob(self.data), nade.log_prob(self.data))


class TestWarmStart:
    @staticmethod
    def rbm(visible=6, hidden=4, seed=0):
        def normal(*shape):
            return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)

        return SimpleNamespace(W=normal(visible, hidden), a=normal(visible), b=normal(hidden))

    def test_parameters_are_the_rbms_in_the_order(self):
        rbm, order = self.rbm(), [3, 1, 0, 2, 5, 4]
        nade = NADE.from_rbm(rbm, order=order)
        assert torch.equal(nade.w, rbm.W[order])
        assert torch.equal(nade.u, rbm.W[order])
        assert torch.equal(nade.c, rbm.b)
        assert torch.equal(nade.b, rbm.a[order])
        assert nade.w.data_ptr() != nade.u.data_ptr()
        assert nade.w.requires_grad

    def test_the_order_only_renames_variables(self):
        rbm, order = self.rbm(), [3, 1, 0, 2, 5, 4]
        renamed = SimpleNamespace(W=rbm.W[order], a=rbm.a[order], b=rbm.b)
        ordered, plain = NADE.from_rbm(rbm, order=order), NADE.from_rbm(renamed)
        x = every(plain)
        torch.testing.assert_close(ordered.log_prob(x), plain.log_prob(x[:, order]))

    def test_further_units_start_small(self):
        rbm = self.rbm(40, 4)
        nade = NADE.from_rbm(rbm, hidden=30, generator=generator())
        for weights in (nade.w, nade.u):
            assert torch.equal(weights[:, :4], rbm.W)
            assert weights[:, 4:].std().item() == pytest.approx(nade_module.SMALL, rel=0.1)
        assert torch.equal(nade.c[:4], rbm.b)
        assert not nade.c[4:].any()

    def test_of_too_many_units_the_largest_are_kept(self):
        rbm = self.rbm()
        rbm.W *= torch.tensor([5.0, 0.1, 4.0, 0.2])
        nade = NADE.from_rbm(rbm, hidden=2)
        assert torch.equal(nade.w, rbm.W[:, [0, 2]])
        assert torch.equal(nade.c, rbm.b[[0, 2]])

    def test_arrays_will_do(self):
        rbm = self.rbm()
        arrays = SimpleNamespace(**{name: each.numpy() for name, each in vars(rbm).items()})
        assert torch.equal(NADE.from_rbm(arrays).w, rbm.W)

    def test_the_support_is_the_rbms(self):
        rbm = self.rbm()
        rbm.support = Binary(2, 3)
        assert NADE.from_rbm(rbm).support == Binary(2, 3)

    @pytest.mark.parametrize(
        ("change", "received"),
        [
            ({"W": torch.zeros(5, 4)}, r"a: .* shape \(5,\)"),
            ({"b": torch.zeros(3)}, r"b: .* shape \(4,\)"),
            ({"a": torch.full((6,), float("nan"))}, "a: .* finite"),
            ({"W": None}, "SimpleNamespace"),
        ],
    )
    def test_weights_that_do_not_fit_are_refused(self, change, received):
        rbm = SimpleNamespace(**{**vars(self.rbm()), **change})
        with refused("rbm", received):
            NADE.from_rbm(rbm)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "argument", "received", "expected"),
        [
            ((0, 3), "inputs", "^0$", ""),
            ((3, 0), "hidden", "^0$", ""),
            ((3, 2.5), "hidden", "^2.5$", ""),
            ((3, 2, [0, 1]), "order", "numbers of shape", ""),
            ((3, 2, [0, 1, 1]), "order", "numbers of shape", ""),
            ((3, 2, [0.0, 1.0, 2.0]), "order", "numbers of shape", ""),
            ((3, 2, "columns"), "order", "'columns'", "None, 'random' or"),
            ((3, 2, object()), "order", "object", ""),
            ((3, 2, None, Binary(4)), "support", "^Binary", ""),
            ((3, 2, None, Real(3)), "support", "^Real", ""),
            ((3, 2, None, None, torch.int64), "dtype", "torch.int64", ""),
        ],
    )
    def test_constructor(self, arguments, argument, received, expected):
        with refused(argument, received, expected=expected):
            NADE(*arguments)

    @pytest.mark.parametrize("method", ["log_prob", "conditionals"])
    @pytest.mark.parametrize(
        ("x", "received", "expected"),
        [
            (torch.tensor([[0.0, 0.5]]), "1 values such as 0.5", "0 and 1"),
            (torch.tensor([[0.0, float("nan")]]), "1 values such as nan", ""),
            (torch.zeros(2, 3), r"torch.float32 of shape \(2, 3\)", r"\(n, 2\)"),
            (torch.zeros(2), r"shape \(2,\)", ""),
            (torch.zeros(2, 2, dtype=torch.float64), "torch.float64", ""),
            (torch.zeros(2, 2, dtype=torch.long), "torch.int64", ""),
            ([[0.0, 1.0]], r"(a list|\[\[0.0, 1.0\]\])", ""),
        ],
    )
    def test_x(self, method, x, received, expected):
        nade = NADE(2, 3, generator=generator())
        with refused("x", received, expected=expected):
            getattr(nade, method)(x)

    def test_spins_are_not_zeros(self):
        nade = NADE(2, 3, support=Spins(2), generator=generator())
        with refused("x", expected="-1 and 1"):
            nade.log_prob(torch.zeros(1, 2))

    def test_values_are_not_looked_at_under_vmap(self):
        nade = make(Binary(3))
        x = every(nade)
        found = torch.func.vmap(lambda row: nade.log_prob(row.unsqueeze(0))[0])(x)
        torch.testing.assert_close(found, nade.log_prob(x))

    @pytest.mark.parametrize("n", [0, -3, 2.5, True, None])
    def test_number_of_samples(self, n):
        nade = NADE(2, 3, generator=generator())
        for method in (nade.sample, nade.sample_probabilities):
            with refused("n"):
                method(n)

    @pytest.mark.parametrize(
        "change", [{"type": "MLP"}, {"support": ["Real", 2, 3]}, {"hidden": None}, {"more": 1}]
    )
    def test_specs_of_something_else(self, change):
        spec = {**NADE(3, 2, generator=generator()).spec(), **change}
        with pytest.raises(ArgumentError, match=r"^spec[^:]*: expected"):
            NADE.from_spec(spec)

    def test_files_of_something_else(self, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("not a model")
        with raises_about(CheckpointError, path):
            NADE.load(path)
        with pytest.raises(CheckpointError):
            NADE.load(tmp_path / "nothing.safetensors")


def test_an_empty_batch_is_a_batch():
    nade = make()
    x = torch.empty(0, 6, dtype=torch.float64)
    assert nade.log_prob(x).shape == (0,)
    assert nade.conditionals(x).shape == (0, 6)
    assert score(nade, x).shape == (0, 6)


def test_copies_and_state_dicts_carry_the_order():
    nade = make(order="random")
    x = every(nade)
    assert torch.equal(copy.deepcopy(nade).log_prob(x), nade.log_prob(x))
    other = NADE(6, 3, dtype=torch.float64)
    other.load_state_dict(nade.state_dict())
    assert torch.equal(other.log_prob(x), nade.log_prob(x))
    assert other.spec() == nade.spec()


def test_double_precision_after_the_fact():
    nade = make(dtype=torch.float32).double()
    assert nade.spec()["dtype"] == "float64"
    assert nade.sample(2, generator()).dtype == torch.float64
    assert nade.log_prob(every(nade)).exp().sum().item() == pytest.approx(1, abs=1e-12)
