r"""NADE with centred inputs: a density of its own, and a better start at an RBM."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare
from torch.func import functional_call, jvp

import limbeck as lb
from limbeck.errors import CheckpointError
from limbeck.models import nade as nade_module
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.supports import Binary, Spins, States
from tests.models.kernels import reference
from tests.models.nets import score
from tests.refusals import raises_about, refused

SUPPORTS = [Binary(6), Binary(2, 3), Spins(5), States(2, 4)]
ORDERS = [None, "random"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def every(support, dtype=torch.float64):
    return support.enumerate(0, 2**support.size, dtype=dtype)


def means(support, seed=5):
    r"""Some in the support's values, of its shape."""
    return support.decode(torch.rand(support.shape, generator=generator(seed), dtype=torch.float64))


def make(support=None, order="random", dtype=torch.float64):
    r"""A centred NADE far from uniform."""
    support = Binary(6) if support is None else support
    nade = NADE(
        support.size, 3, order, support, dtype, generator=generator(), centre=means(support)
    )
    with torch.no_grad():
        for each in nade.parameters():
            each.copy_(2 * torch.randn(each.shape, generator=generator(1), dtype=dtype))
    return nade


def divergence(rbm, nade):
    r"""KL from an RBM, exactly."""
    x = every(rbm.support, rbm.W.dtype)
    log_p = rbm.log_unnormalized(x).detach().log_softmax(0)
    return (log_p.exp() * (log_p - nade.log_prob(x).detach())).sum().item()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("support", SUPPORTS, ids=repr)
class TestEverySupportAndOrder:
    def test_it_is_the_formula_and_sums_to_one(self, support, order):
        nade, x = make(support, order), every(support)
        codes = support.encode(x).flatten(1)[:, nade.order]
        m = support.encode(means(support)).flatten()[nade.order]
        expected = reference.log_prob(codes, *nade.parts, m)
        found = nade.log_prob(x)
        torch.testing.assert_close(found, expected)
        assert found.exp().sum().item() == pytest.approx(1, abs=1e-12)
        plain = reference.log_prob(codes, *nade.parts)
        assert (found - plain).abs().max() > 0.1, "the centre does something"

    def test_conditionals_are_those_of_the_joint_distribution(self, support, order):
        nade, x = make(support, order), every(support)
        p, codes = nade.log_prob(x).exp(), support.encode(x).flatten(1).long()
        found = nade.conditionals(x).flatten(1)
        for place in range(support.size):
            variable, earlier = nade.order[place], nade.order[:place]
            for n in (0, len(x) // 2, len(x) - 1):
                alike = (codes[:, earlier] == codes[n, earlier]).all(1)
                expected = p[alike & (codes[:, variable] == 1)].sum() / p[alike].sum()
                torch.testing.assert_close(found[n, variable], expected)

    def test_samples_come_with_the_probabilities_they_have(self, support, order):
        nade, x = make(support, order), every(support)
        drawn = nade.sample(2000, generator(3))
        support.check(drawn)
        weights = 2 ** torch.arange(support.size - 1, -1, -1)
        numbers = support.encode(drawn).flatten(1).long() @ weights
        seen = numbers.bincount(minlength=len(x)).double()
        expected = 2000 * nade.log_prob(x).exp().detach()
        frequent = expected >= 5
        pairs = [torch.cat([t[frequent], t[~frequent].sum()[None]]) for t in (seen, expected)]
        assert chisquare(*pairs).pvalue > 1e-3
        met = nade.sample_probabilities(2000, generator(3))
        torch.testing.assert_close(met, nade.conditionals(drawn).detach())

    def test_score_is_a_finite_difference(self, support, order):
        nade = make(support, order)
        x = nade.sample(3, generator())
        found = score(nade, x).flatten(1)
        for place in range(support.size):
            step = 1e-6 * torch.eye(support.size, dtype=x.dtype)[place].view(support.shape)
            ahead, behind = (nade.log_prob(x + sign * step, check=False) for sign in (1, -1))
            expected = (ahead - behind) / 2e-6
            torch.testing.assert_close(found[:, place], expected, rtol=1e-6, atol=1e-6)

    def test_second_derivatives_are_finite_differences(self, support, order):
        nade = make(support, order)
        x = nade.sample(3, generator())
        v = torch.randn(x.shape, generator=generator(9), dtype=x.dtype)

        expected = (score(nade, x + 1e-6 * v) - score(nade, x - 1e-6 * v)) / 2e-6
        found = jvp(lambda x: score(nade, x), (x,), (v,))[1]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

    def test_it_is_written_and_read(self, support, order, tmp_path):
        nade, x = make(support, order), every(support)
        read = NADE.load(nade.save(tmp_path / "nade.safetensors"))
        assert torch.equal(read.log_prob(x), nade.log_prob(x))
        assert read.spec() == nade.spec()
        fresh = NADE.from_spec(json.loads(json.dumps(nade.spec())))
        torch.testing.assert_close(fresh.mean, nade.mean, rtol=1e-15, atol=1e-15)


def test_gradients_are_finite_differences():
    nade = make()
    x = nade.sample(3, generator())
    names, values = zip(*nade.named_parameters(), strict=True)

    def log_prob(*values):
        return functional_call(nade, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(log_prob, values)


@pytest.mark.parametrize("kind", [list, torch.Tensor.numpy, torch.Tensor.float])
def test_a_centre_is_taken_from_anything_flat_or_of_an_events_shape(kind):
    support = Binary(2, 3)
    expected = NADE(6, 2, support=support, centre=means(support).float()).mean
    found = NADE(6, 2, support=support, centre=kind(means(support).flatten())).mean
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_a_centre_of_spins_is_one_of_bits_by_another_name():
    bits = make(Binary(5), [4, 2, 0, 1, 3])
    centre = 2 * means(Binary(5)) - 1
    spins = NADE(5, 3, [4, 2, 0, 1, 3], Spins(5), torch.float64, centre=centre)
    torch.testing.assert_close(spins.mean, bits.mean)
    spins.load_state_dict(bits.state_dict())
    x = every(Binary(5))
    assert torch.equal(spins.log_prob(2 * x - 1), bits.log_prob(x))


def test_a_centre_at_zero_is_none():
    nade = NADE(6, 3, dtype=torch.float64, generator=generator())
    other = NADE(6, 3, dtype=torch.float64, generator=generator(), centre=torch.zeros(6))
    x = every(Binary(6))
    torch.testing.assert_close(nade.log_prob(x), other.log_prob(x), rtol=1e-12, atol=1e-14)
    assert torch.equal(nade.sample(9, generator()), other.sample(9, generator()))
    assert nade.mean is None
    assert set(nade.state_dict()) == {"w", "c", "u", "b", "order"}
    assert nade.spec()["centre"] is None
    assert "centred" in repr(other)
    assert "centred" not in repr(nade)


def test_specs_from_before_there_were_centres_are_read():
    spec = NADE(3, 2, generator=generator()).spec()
    del spec["centre"]
    assert NADE.from_spec(spec).mean is None


class TestStates:
    def test_copies_and_state_dicts_carry_the_centre(self):
        nade, x = make(), every(Binary(6))
        assert torch.equal(copy.deepcopy(nade).log_prob(x), nade.log_prob(x))
        plain = NADE(6, 3)
        plain.load_state_dict(nade.state_dict())
        assert plain.mean.dtype == torch.float32
        torch.testing.assert_close(plain.double().mean, nade.mean, rtol=1e-6, atol=1e-7)
        outer = torch.nn.Sequential(NADE(6, 3, dtype=torch.float64))
        outer.load_state_dict(torch.nn.Sequential(nade).state_dict())
        assert torch.equal(outer[0].log_prob(x), nade.log_prob(x))

    def test_a_state_without_a_centre_is_no_state_of_a_centred_nade(self):
        with pytest.raises(RuntimeError, match="mean"):
            make().load_state_dict(NADE(6, 3).state_dict())

    def test_a_file_whose_centre_was_lost_is_refused(self, tmp_path):
        nade = make()
        spec = nade.spec()
        nade.mean, nade.spec = None, lambda: spec
        path = nade.save(tmp_path / "nade.safetensors")
        with raises_about(CheckpointError, "mean"):
            NADE.load(path)

    def test_results_are_loaded_with_it(self, tmp_path):
        data = Binary(6).start(50, generator())
        nade = NADE(6, 4, "random", generator=generator(), centre=data.mean(0))
        before = nade.mean.clone()
        folder = nade.fit(data, 20, lr=0.05, progress=False).save(tmp_path / "run")
        assert torch.equal(nade.mean, before), "no parameter"
        read = lb.load(folder).student
        assert torch.equal(read.log_prob(data), nade.log_prob(data))
        assert nade.log_prob(data).mean() > make(dtype=torch.float32).log_prob(data).mean()


@pytest.mark.parametrize(
    ("centre", "message"),
    [
        (torch.zeros(5), r"shape \(5,\)"),
        (torch.zeros(3, 2), r"shape \(3, 2\)"),
        (0.5, r"shape \(\)"),
        (torch.full((6,), 1.5), "6 values such as 1.5"),
        (torch.tensor([0.5, -0.1, 0, 0, 0, 1]), "1 values such as -0.1"),
        (torch.full((6,), float("nan")), "6 NaN"),
        ("auto", "strings|a str"),
        (object(), "object"),
    ],
)
def test_what_is_no_centre_is_refused(centre, message):
    expected = r"means from 0 to 1 of shape \(2, 3\) or \(6,\)|finite"
    with refused("centre", message, expected=expected):
        NADE(6, 2, support=Binary(2, 3), centre=centre)


def test_spins_have_means_from_minus_one_and_states_none():
    assert NADE(2, 2, support=Spins(2), centre=[-1.0, 1.0]).mean.tolist() == [0.0, 1.0]
    with refused("centre", ".*States.*"):
        NADE(2, 2, support=States(3, 2), centre=[1.0, 1.0])


class TestFromAnRBM:
    def rbm(self, seed=0, visible=9, hidden=5, scale=1.2):
        return RBM.random(visible, hidden, scale, generator(seed), dtype=torch.float64)

    @pytest.mark.parametrize("order", [None, [3, 1, 0, 2, 5, 4]])
    def test_its_conditionals_are_a_mean_field_step(self, order):
        rbm, m = self.rbm(visible=6), means(Binary(6))
        nade, x = NADE.from_rbm(rbm, order=order, centre=m), every(Binary(6))
        found = nade.conditionals(x)
        for place, variable in enumerate(nade.order.tolist()):
            filled, later = x.clone(), nade.order[place:]
            filled[:, later] = m[later]
            expected = rbm.visible_probabilities(rbm.hidden_probabilities(filled))[:, variable]
            torch.testing.assert_close(found[:, variable], expected)

    def test_further_units_start_small_and_where_the_rest_are_as_before(self):
        rbm = self.rbm()
        nade = NADE.from_rbm(rbm, 30, generator=generator())
        plain = NADE.from_rbm(rbm, 30, generator=generator(), centre=None)
        for name in ("w", "u", "b"):
            assert torch.equal(getattr(nade, name), getattr(plain, name)), "means draw from others"
        torch.testing.assert_close(nade.c, plain.c + nade.mean @ plain.w)
        assert nade.c[5:].abs().max() < 0.2

    @pytest.mark.parametrize("seed", range(3))
    def test_it_starts_nearer_than_without(self, seed):
        rbm = self.rbm(seed)
        found = divergence(rbm, NADE.from_rbm(rbm))
        assert 0 < found < 0.5 * divergence(rbm, NADE.from_rbm(rbm, centre=None))

    def test_auto_is_near_the_means_and_alike_each_time(self):
        rbm, x = self.rbm(), every(Binary(9))
        exact = rbm.log_unnormalized(x).softmax(0).detach() @ x
        found = NADE.from_rbm(rbm, order="random", generator=generator(1))
        error = (exact * (1 - exact) / (10 * nade_module.CHAINS)).sqrt()  # each counted ten times
        other = NADE.from_rbm(rbm)
        assert torch.equal(found.mean, other.mean[found.order])
        zero = other.mean == 0
        assert (exact[zero] < nade_module.RARE + 0.02).all()
        assert zero.sum() < 4
        assert ((other.mean - exact).abs() < 4.5 * error)[~zero].all()
        before = torch.get_rng_state()
        NADE.from_rbm(rbm, generator=generator())
        assert torch.equal(before, torch.get_rng_state())

    def test_without_chains_there_is_no_centre_but_a_given_one(self):
        rbm = self.rbm()
        bare = SimpleNamespace(W=rbm.W, a=rbm.a, b=rbm.b)
        assert NADE.from_rbm(bare).mean is None
        assert torch.equal(NADE.from_rbm(bare).c, rbm.b)
        given = NADE.from_rbm(bare, centre=means(Binary(9)))
        assert torch.equal(given.mean, means(Binary(9)))

    def test_rare_ones_are_taken_as_zero_and_impossible_means_are_not(self):
        rbm = self.rbm()
        with torch.no_grad():
            rbm.a[2], rbm.W[2] = -6.0, 0.0
        assert NADE.from_rbm(rbm).mean[2] == 0
        spins = SimpleNamespace(
            W=rbm.W, a=rbm.a, b=rbm.b, advance=lambda x, *_: x, start=lambda n, _: -torch.ones(n, 9)
        )
        with refused("centre", "9 values such as -1"):
            NADE.from_rbm(spins)

    def test_other_words_are_refused(self):
        with refused("centre", "'mean'"):
            NADE.from_rbm(self.rbm(), centre="mean")
