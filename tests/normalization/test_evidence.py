import math
import threading

import numpy as np
import pytest
import torch
from torch.distributions import (
    Dirichlet,
    Gamma,
    HalfNormal,
    MultivariateNormal,
    Normal,
    constraints,
)

import limbeck as lb
from limbeck.distributions.conversion import validation
from limbeck.normalization import evidence
from limbeck.normalization.evidence_students import Candidate, StudentT
from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Structure
from tests.refusals import refused

LOG_2PI = math.log(2 * math.pi)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal_draws(n=2000, dim=3, seed=0):
    return torch.randn(n, dim, generator=generator(seed), dtype=torch.float64)


def standard(x):
    return -x.square().sum(-1) / 2


def quick(log_density, draws, **options):
    return lb.log_evidence(log_density, draws, **{"student": "gaussian", "sweeps": 2} | options)


def check(e, truth):
    assert e.verdict.state == "trustworthy", str(e.verdict)
    assert abs(e.value - truth) < 4.5 * e.std_error, (e.value - truth, e.std_error)


def test_coordinates_are_inverse_with_the_volume_of_autograd():
    structure = Structure(("a", "o", "p", "q"), ((2,), (3,), (4,), ()))
    support = {"a": "positive", "o": "ordered", "p": "simplex", "q": (-1, 5)}
    coordinates = Coordinates(structure, support)
    u = torch.randn(5, coordinates.dim, generator=generator(), dtype=torch.float64)
    x, volume = coordinates.constrained(u)
    torch.testing.assert_close(coordinates.unconstrained(x), u)
    free = [k for k in range(structure.dim) if k != 8]  # the last number of a simplex is not free

    def values(row):
        return coordinates.constrained(row[None])[0][0, free]

    for row, log_volume in zip(u, volume, strict=True):
        jacobian = torch.autograd.functional.jacobian(values, row)
        torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], log_volume)


@pytest.mark.parametrize(("support", "u"), [("positive", -800.0), ((1, None), -50.0)])
def test_there_is_no_density_where_rounding_leads_out_of_a_support(support, u):
    coordinates = Coordinates(Structure(("a",), ((),)), {"a": support})
    x, volume = coordinates.constrained(torch.tensor([[u], [0.5]], dtype=torch.float64))
    assert x[0] == (0 if support == "positive" else 1)
    assert volume.tolist() == [-math.inf, 0.5]


@pytest.mark.parametrize("position", [3, -4, 0.5, "x", "mu"])
def test_positions_of_a_vector_are_whole_numbers_within(position):
    with refused("support", repr(position), expected="positions from 0 to 2"):
        Coordinates(Structure(("",), ((3,),)), {0: "positive", position: "positive"})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -x.square().sum(1) / 2,  # many draws
        lambda x: -x.square().sum() / 2,  # one draw
        lambda x: -x.square().sum() / 2 if float(x[0].detach()) > -99 else -math.inf,  # no vmap
    ],
)
def test_functions_of_one_draw_or_of_many(function):
    e = quick(function, normal_draws(400), sweeps=1)
    check(e, 1.5 * LOG_2PI)


def test_columns_and_floats_of_functions():
    check(quick(lambda x: standard(x)[:, None], normal_draws(400)), 1.5 * LOG_2PI)
    check(quick(lambda x: float(standard(x)), normal_draws(400), sweeps=1), 1.5 * LOG_2PI)


def test_draws_that_were_copied_or_read_by_other_axes_are_doubtful():
    x = normal_draws(500)
    resampled = x[torch.randint(500, (2000,), generator=generator())]
    for copied in (torch.stack([x, x]), torch.stack([x] * 4), torch.cat([x, x]), resampled):
        e = quick(standard, copied)
        assert any("copied or resampled" in reason for reason in e.verdict.doubts)
    check(quick(standard, x.repeat_interleave(4, 0)), 1.5 * LOG_2PI)  # as Metropolis stays
    with pytest.warns(UserWarning, match="2,000 chains of 3 draws"):
        e = quick(lambda d: -d["x"].square() / 2, {"x": normal_draws()})
    assert any("chains of 3 draws" in reason for reason in e.verdict.doubts)


def test_a_function_of_numpy_is_checked_by_slice_sampling():
    draws = normal_draws(400).numpy()
    e = quick(lambda x: -0.5 * np.sum(np.square(np.asarray(x)), -1), draws)
    check(e, 1.5 * LOG_2PI)


def test_supports_by_name_and_chains():
    g = np.random.default_rng(0)
    draws = {
        "w": g.dirichlet([3.0, 4.0, 5.0], (4, 500)), "s": g.gamma(3.0, 2.0, (4, 500)),
        "p": g.beta(2.0, 3.0, (4, 500)), "c": np.sort(g.normal(size=(4, 500, 2)), -1),
    }  # fmt: skip

    def log_density(d):
        log = Dirichlet(torch.tensor([3.0, 4.0, 5.0]).to(d["w"])).log_prob(d["w"])
        log = log + Gamma(3.0, 0.5).log_prob(d["s"]) + 3.0
        log = log + torch.distributions.Beta(2.0, 3.0).log_prob(d["p"])
        return log + Normal(0.0, 1.0).log_prob(d["c"]).sum(-1) + math.log(2)

    support = {"w": "simplex", "s": constraints.positive, "p": (0, 1), "c": "ordered"}
    check(quick(log_density, draws, support=support, student="student_t"), 3.0)


def test_cholesky_factors_of_correlations_have_constants():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = torch.distributions.LKJCholesky(2, 2.0).sample((2000,)).double()

    def log_density(d):
        log = torch.distributions.LKJCholesky(2, 2.0, validate_args=False).log_prob(d["L"])
        return log + 1.0

    support = {"L": constraints.corr_cholesky}
    e = quick(log_density, {"L": draws}, support=support, layout="draws", student="student_t")
    check(e, 1.0)


def test_a_density_that_is_zero_somewhere():
    draws = normal_draws(2000, 1).abs()

    def log_density(x):
        return torch.where(x[:, 0] > 0, HalfNormal(1.0).log_prob(x[:, 0].abs()), -math.inf)

    e = quick(log_density, draws)
    assert e.diagnostics["proposals_outside"] > 0
    check(e, 0.0)
    check(quick(log_density, draws, support="positive"), 0.0)


def test_errors_of_the_user_outside_the_support_are_rejections():
    draws = torch.distributions.Exponential(1.0).sample((150, 1)).double() + 0.01

    def log_density(x):  # torch refuses values below zero
        return torch.distributions.Exponential(1.0).log_prob(x[0])

    pytest.importorskip("zuko")  # which switches torch's own checks off when it is imported
    e = quick(log_density, draws, sweeps=1)
    assert e.diagnostics["proposals_outside"] > 0
    assert abs(e.value) < 0.2


def test_validation_is_switched_for_one_thread_only():
    seen, before = [], torch.distributions.Distribution._validate_args

    def other():
        with validation(False):
            inside.set()
            left.wait(10)

    inside, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with validation(True):
        thread.start()
        inside.wait(10)
        seen.append(torch.distributions.Distribution._validate_args)
    left.set()
    thread.join()
    assert seen == [True]
    assert torch.distributions.Distribution._validate_args == before


def test_a_student_that_diverges_on_more_draws_is_not_taken(monkeypatch):
    class Diverged:
        def log_prob(self, x):
            return x.sum(1) * math.nan

        def sample(self, n, generator):
            return torch.full((n, 3), math.nan, dtype=torch.float64)

    def fit(x):
        return StudentT(x, math.inf) if len(x) < 900 else Diverged()

    fits = [Candidate("gaussian", "gaussian", fit)]
    monkeypatch.setattr(evidence, "candidates", lambda *arguments: fits)
    check(quick(standard, normal_draws()), 1.5 * LOG_2PI)


def test_progress_is_shown_as_lines(capsys, monkeypatch):
    monkeypatch.setattr("limbeck.progress.BETWEEN_LINES", -1.0)
    quick(standard, normal_draws(400), progress=True)
    err = capsys.readouterr().err
    assert "fitting students" in err
    assert "sweeps that check the draws: 1 of 2 done" in err
    quick(standard, normal_draws(400), progress=False)
    assert capsys.readouterr().err == ""


def test_differences_are_caught_by_sweeps():
    def log_density(x):
        return standard(x) + 7.0

    draws = normal_draws(2000, 5)
    check(quick(log_density, draws), 2.5 * LOG_2PI + 7)
    shifted = draws + torch.tensor([0.3, 0, 0, 0, 0])
    for wrong in (shifted, 0.85 * draws, 1.2 * draws):
        e = quick(log_density, wrong, sweeps=10)
        assert e.verdict.state == "doubtful"
        assert any("sweeps" in reason for reason in e.verdict.reasons)


def test_without_sweeps_it_is_unchecked():
    e = quick(standard, normal_draws(), sweeps=0)
    assert e.verdict.state == "unchecked"


def test_one_mode_of_two_is_found_by_a_probe_only():
    def log_density(x):
        centres = torch.tensor([[-8.0, 0], [8.0, 0]]).to(x)
        return torch.stack([standard(x - centre) for centre in centres]).logsumexp(0)

    draws = normal_draws(2000, 2) - torch.tensor([8.0, 0])
    assert quick(log_density, draws).verdict  # as documented
    e = quick(log_density, draws, probe=[[8.0, 0.5]])
    assert e.verdict.state == "doubtful"
    assert e.std_error > 0.5  # the mode that is missing is as large
    e = quick(log_density, draws, probe=[[-7.0, 0.5]])
    assert e.verdict.state == "trustworthy"


@pytest.mark.slow
def test_a_spike_in_a_slab():
    d = 10

    def log_density(x):
        spike = MultivariateNormal(torch.zeros(d).to(x), 1e-6 * torch.eye(d).to(x))
        slab = MultivariateNormal(torch.zeros(d).to(x), torch.eye(d).to(x))
        return torch.stack([spike.log_prob(x), slab.log_prob(x)]).logsumexp(0) - math.log(2)

    slab = normal_draws(2000, d)
    assert quick(log_density, slab).verdict.state == "doubtful"
    chains = torch.stack([slab[:1000], slab[1000:], 1e-3 * slab[:1000], 1e-3 * slab[1000:]])
    e = quick(log_density, chains)
    assert not e.verdict or abs(e.value) < 4.5 * e.std_error


def test_a_forgotten_jacobian():
    sigma = Gamma(4.0, 2.0).sample((2000,)).double()
    z = sigma.log()[:, None]

    def right(x):
        return Gamma(4.0, 2.0).log_prob(x[:, 0].exp()) + x[:, 0]

    def wrong(x):
        return Gamma(4.0, 2.0).log_prob(x[:, 0].exp())

    given = right(z) + 3.0
    e = quick(right, z, log_posterior=given)
    assert e.diagnostics["log_posterior"] == "matches log_density"
    check(e, 0.0)
    e = quick(wrong, z, log_posterior=given)
    assert any("a Jacobian may be missing or one too many" in reason for reason in e.verdict.doubts)
    assert quick(wrong, z).verdict.state == "doubtful"  # by sweeps

    def of_sigma(x):
        return Gamma(4.0, 2.0).log_prob(x[:, 0])

    e = quick(of_sigma, sigma[:, None], support="positive", log_posterior=given)
    assert e.diagnostics["log_posterior"] == "matches log_density with the Jacobian of supports"
    check(e, 0.0)


@pytest.mark.slow
def test_a_funnel():
    d = 10

    def log_density(x):
        scale = (x[:, :1] / 2).exp()
        rest = Normal(0.0, 1.0).log_prob(x[:, 1:] / scale) - scale.log()
        return Normal(0.0, 3.0).log_prob(x[:, 0]) + rest.sum(1)

    v = 3 * normal_draws(2000, 1)
    draws = torch.cat([v, (v / 2).exp() * normal_draws(2000, d - 1, 1)], 1)
    for each in (draws, draws[draws[:, 0] > -3]):  # exact ones, and those of a chain that is stuck
        e = lb.log_evidence(log_density, each)
        assert not e.verdict or abs(e.value) < 4.5 * e.std_error


@pytest.mark.slow
def test_a_linear_regression_from_scratch():
    g = generator(3)
    n, d = 100, 20
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = X @ torch.linspace(-1, 1, d).double() + torch.randn(n, generator=g, dtype=torch.float64)
    truth = MultivariateNormal(torch.zeros(n).double(), torch.eye(n) + X @ X.T).log_prob(y).item()

    def log_density(b):
        return Normal(b @ X.T, 1.0).log_prob(y).sum(1) + Normal(0.0, 1.0).log_prob(b).sum(1)

    sampler = lb.samplers.HMC(log_density, torch.zeros(100, d).double()).burn_in(200)
    draws = torch.stack([sampler.step() for _ in range(20)], 1)
    check(lb.log_evidence(log_density, draws, layout="chains"), truth)


def test_an_improper_density_is_doubtful():
    def log_density(x):  # flat in x₁ − x₂
        return -(x[:, 0] + x[:, 1]).square() / 2

    draws = normal_draws(2000, 2) @ torch.tensor([[1.0, -1], [0.5, 0.5]]).double()
    e = quick(log_density, draws)
    assert e.verdict.state == "doubtful"


def test_heavy_tails_are_not_improper():
    g = generator(1)
    z = torch.randn(2000, 3, generator=g, dtype=torch.float64)
    scale = torch._standard_gamma(torch.ones(2000, 1, dtype=torch.float64), g).sqrt()

    def log_density(x):  # of a Student t with two degrees of freedom
        constant = math.lgamma(2.5) - 1.5 * LOG_2PI
        return constant - 2.5 * torch.log1p(x.square().sum(1) / 2)

    check(quick(log_density, z / scale, student="student_t"), 0.0)


def test_arviz_objects_with_their_log_posterior():
    az = pytest.importorskip("arviz")
    g = np.random.default_rng(0)
    mu, s = g.normal(size=(4, 400)), g.gamma(3.0, 1.0, (4, 400))

    def log_density(d):
        return Normal(0.0, 1.0).log_prob(d["mu"]) + Gamma(3.0, 1.0).log_prob(d["s"])

    lp = log_density({"mu": torch.tensor(mu), "s": torch.tensor(s)}).numpy() + np.log(s)
    data = az.from_dict(posterior={"mu": mu, "s": s, "twice": 2 * mu}, sample_stats={"lp": lp})
    support = {"s": "positive"}
    with refused("draws['twice']", "does not depend"):
        quick(log_density, data, support=support)
    e = quick(log_density, data, support=support, var_names="~twice")
    assert e.diagnostics["log_posterior"].startswith("matches")
    check(e, 0.0)
    e = quick(lambda s, mu: log_density({"mu": mu, "s": s}), data, support=support,
                        var_names=["mu", "s"])  # by keywords, in any order  # fmt: skip
    check(e, 0.0)


def test_the_standard_error_is_right_over_repeats():
    errors = []
    for seed in range(12):
        e = quick(standard, normal_draws(400, 2, seed), sweeps=0)
        errors.append((e.value - LOG_2PI) / e.std_error)
    assert 0.4 < float(np.sqrt(np.mean(np.square(errors)))) < 1.8


@pytest.mark.parametrize(
    ("draws", "argument", "received"),
    [
        (normal_draws(30), "draws", "30 draws"),
        (torch.cat([normal_draws(), torch.ones(2000, 1)], 1), "draws[..., 3]", "constant"),
        (torch.cat([normal_draws(), normal_draws(dim=1).round()], 1), "draws[..., 3]", "values"),
        (normal_draws().long(), "draws", "whole numbers"),
        (normal_draws().where(normal_draws() < 3, math.nan), "draws", "NaN"),
        (normal_draws()[:, [0, 0, 1]], "draws", "linear functions"),
        ({"a": normal_draws(), "b": normal_draws()[:, 0]}, "draws['b']", "linear functions"),
    ],
)
def test_draws_that_are_refused(draws, argument, received):
    named = isinstance(draws, dict)

    def log_density(x):
        return standard(x["a"]) - x["b"] if named else standard(x)

    with refused(argument, received):
        lb.log_evidence(log_density, draws, layout="draws" if named else "auto")


def test_names_in_errors():
    draws = {"mu": np.zeros((4, 500)) + np.random.default_rng(0).normal(size=(4, 500))}
    with refused("log_density", "KeyError"):
        lb.log_evidence(lambda d: d["tau"], draws)
    with refused("support", "tau"):
        lb.log_evidence(lambda d: d["mu"], draws, support={"tau": "positive"})
    with refused("draws['mu']", "draws such as"):
        lb.log_evidence(lambda d: d["mu"], draws, support={"mu": "positive"})
    with refused("log_density", r"shape \(3,\) for one draw"):
        lb.log_evidence(lambda x: -x.square(), normal_draws())
    with refused("log_density", "nan at"):
        lb.log_evidence(lambda x: (x[:, 0] + 2).sqrt(), normal_draws())
    with refused("log_posterior", "shape"):
        lb.log_evidence(standard, normal_draws(), log_posterior=np.zeros(7), sweeps=0)
    with refused("probe", "shape"):
        lb.log_evidence(standard, normal_draws(), probe=[[1.0]])


def test_zero_density_at_some_draws_is_counted():
    draws = normal_draws(2000, 2)

    def log_density(x):
        return torch.where(x[:, 0] < 2.5, standard(x), -math.inf)

    e = quick(log_density, draws)
    assert any("−∞ at" in reason for reason in e.verdict.doubts)


def test_comparison():
    good = quick(standard, normal_draws(), sweeps=2)
    other = quick(lambda x: standard(x) - 2, normal_draws(seed=1), sweeps=2)
    comparison = lb.compare_evidence({"b": other, "a": good})
    assert list(comparison.evidence) == ["a", "b"]
    value, error = comparison.log_bayes_factors["b"]
    assert abs(value + 2) < 4.5 * error
    assert math.isclose(error, (good - other).std_error)
    p, low, high = comparison.probabilities["a"]
    assert low <= p <= high
    assert math.isclose(p, 1 / (1 + math.exp(value)), rel_tol=1e-9)
    assert "a is" in str(comparison)
    assert comparison.to_dict()["state"] == comparison.verdict.state == "trustworthy"
    assert len(comparison.plot().axes) == 1
    unchecked = quick(standard, normal_draws(seed=2), sweeps=0)
    comparison = lb.compare_evidence({"a": good, "c": unchecked}, prior={"a": 1, "c": 3})
    assert comparison.verdict.state == "unchecked"
    assert comparison.probabilities["c"][0] > 0.7
    for wrong, argument in (({"a": good}, "evidence"), ({"a": good, "b": 1.0}, "evidence['b']")):
        with refused(argument):
            lb.compare_evidence(wrong)
    with refused("prior"):
        lb.compare_evidence({"a": good, "b": other}, prior={"a": 1.0})


def test_draws_with_wrong_weights_of_two_modes_are_doubted():
    g = torch.Generator().manual_seed(0)
    both = torch.randn(2000, 2, generator=g, dtype=torch.float64)
    both[::2] += 10

    def density(weight):
        def log_density(z):
            near, far = (-(z - at).square().sum(-1) / 2 for at in (0, 10))
            return torch.logaddexp(near + math.log1p(-weight), far + math.log(weight))

        return log_density

    right = lb.log_evidence(density(0.5), both, progress=False)
    assert right.verdict.trustworthy
    assert abs(right.value - math.log(2 * math.pi)) < 4 * right.std_error
    assert lb.log_evidence(density(0.8), both, progress=False).verdict.state == "doubtful"


def test_a_flat_variable_is_right_where_its_support_is_bounded():
    g = torch.Generator().manual_seed(5)
    draws = {
        "x": torch.randn(2000, generator=g),
        "a": 2 + 3 * torch.rand(2000, generator=g),
        "p": torch.as_tensor(np.random.default_rng(5).dirichlet(np.ones(3), 2000)).float(),
    }
    support = {"a": (2, 5), "p": "simplex"}

    def log_density(d):
        return -d["x"].square() / 2

    e = lb.log_evidence(log_density, draws, support=support, layout="draws")
    truth = math.log(2 * math.pi) / 2 + math.log(3) - math.log(2)  # a triangle's area is 1/2
    assert e.verdict.trustworthy, e.verdict
    assert abs(e.value - truth) < 4.5 * e.std_error
    with refused("draws['a']", "does not depend"):  # improper
        lb.log_evidence(log_density, draws, support={"p": "simplex"}, layout="draws")
