r"""normalize end to end, on RBMs and energies small enough to enumerate."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import limbeck as lb
from limbeck.errors import CheckpointError
from limbeck.models.energy import Energy
from limbeck.models.made import MADE
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization import normalize as module
from limbeck.normalization.importance import free_energy
from limbeck.normalization.normalize import normalize
from limbeck.supports import Binary, Real, Spins, States
from tests.refusals import raises_about, refused

DOUBLE = torch.float64
LOSSES = ("kl", "square_error", "reverse_kl")
QUICK = {"burn_in": 50, "chains": 300, "batch_size": 100, "device": "cpu", "engine": "eager"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rbm() -> RBM:
    return RBM.random(6, 4, scale=1.0, generator=generator(1))


def nade(hidden=6, seed=2, **options) -> NADE:
    return NADE(6, hidden, generator=generator(seed), **options)


def ring(x: Tensor) -> Tensor:
    return -(x * x.roll(1, 1)).sum(1) - 0.2 * x.sum(1)


class Exact:
    r"""KL(p ‖ q) and log Z of a discrete target, by enumeration."""

    def __init__(self, target):
        support = target.support
        self.x = support.enumerate(0, support.count**support.size)
        with torch.no_grad():
            log = target.log_unnormalized(self.x).double()
        self.log_z = log.logsumexp(0).item()
        self.log_p = log - self.log_z

    @torch.no_grad()
    def __call__(self, student) -> float:
        return (self.log_p.exp() @ (self.log_p - student.log_prob(self.x).double())).item()


EXACT = Exact(rbm())


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_the_student_comes_close_to_the_target(loss):
    student = nade()
    before = EXACT(student)
    result = normalize(rbm(), student, loss, steps=400, lr=0.03, metrics={"exact": EXACT}, **QUICK)
    assert result.student is student
    assert before > 0.5
    assert EXACT(student) < 0.03
    assert result.history["exact"][-1] == pytest.approx(EXACT(student))
    bound = free_energy(rbm(), student)
    assert bound == pytest.approx(EXACT.log_z, abs=0.05)
    assert bound < EXACT.log_z + 3 * bound.std_error


@pytest.mark.parametrize("target", ["spins", "states", "image"])
def test_any_energy_has_a_student_by_default(target):
    energy = {
        "spins": Energy(ring, Spins(6), temperature=1.5),
        "states": Energy(lambda x: (x - x.roll(1, 1)).abs().sum(1), States(3, 4), temperature=2.0),
        "image": Energy(lambda x: -(x[:, 0] * x[:, 1]).sum(1), Binary(2, 3)),
    }[target]
    exact = Exact(energy)
    result = normalize(energy, steps=300, lr=0.02, sweeps=1, **QUICK)
    assert isinstance(result.student, MADE)
    assert result.student.support == energy.support
    assert result.settings["normalization"]["init"] == "none"
    assert exact(result.student) < 0.05


def test_a_warm_start_beats_a_cold_one_at_equal_steps():
    warm, cold = nade(4), nade(4)
    divergence = {"exact": EXACT}
    options = dict(steps=60, every=1, metrics=divergence, **QUICK)
    one = normalize(rbm(), warm, init="teacher", **options)
    two = normalize(rbm(), cold, init="none", **options)
    assert one.history["exact"][-1] < 0.5 * two.history["exact"][-1]
    assert one.settings["normalization"]["init"] == "teacher"
    assert two.settings["normalization"]["init"] == "none"


def test_by_default_only_a_student_of_its_own_making_is_started_at_the_teacher():
    own = normalize(rbm(), steps=1, lr=1e-9, **QUICK)
    assert own.settings["normalization"]["init"] == "teacher"
    assert own.student.hidden == 4
    torch.testing.assert_close(own.student.w.detach(), rbm().W.detach())
    given = nade(4)
    before = given.w.detach().clone()
    result = normalize(rbm(), given, steps=1, lr=1e-9, **QUICK)
    assert result.settings["normalization"]["init"] == "none"
    torch.testing.assert_close(given.w.detach(), before)
    thesis = normalize(rbm(), steps=1, preset="thesis", **{**QUICK, "batch_size": 20})
    assert thesis.settings["normalization"]["init"] == "none"


def test_the_settings_of_the_text(monkeypatch):
    seen = {}

    def stop(target, student, inputs, loss, training):
        seen.update(vars(training), chains=inputs, loss=loss)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        normalize(rbm(), preset="thesis", device="cpu")
    chains = seen["chains"]
    assert (seen["steps"], seen["batch_size"], seen["preset"]) == (30_000, 20, "thesis")
    assert (chains.count, chains.scheme, chains.sweeps, chains.burn_in) == (2000, "all", 1, 2000)
    assert repr(seen["loss"]) == "kl()"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("block", 10)),
        ({"batch_size": 500}, ("block", 4)),
        ({"batch_size": 20}, ("block", 20)),
        ({"batch_size": 2000}, ("block", 1)),
        ({"scheme": "all"}, ("all", 1)),
        ({"scheme": "all", "sweeps": 3}, ("all", 3)),
        ({"sweeps": 3}, ("block", 3)),
    ],
)
def test_which_chains_advance_by_default(given, expected):
    result = normalize(rbm(), steps=2, burn_in=3, device="cpu", **given)
    about = result.settings["normalization"]
    assert (about["scheme"], about["sweeps"]) == expected
    size = given.get("batch_size", 200)
    moved = 2000 if expected[0] == "all" else size
    assert about["sweeps_done"] == 2000 * 3 + 2 * moved * expected[1]


@pytest.mark.parametrize("scheme", ["all", "block"])
def test_both_schemes_reach_the_target(scheme):
    student = nade(4)
    normalize(rbm(), student, init="teacher", scheme=scheme, sweeps=2, steps=200, **QUICK)
    assert EXACT(student) < 0.05


@pytest.mark.parametrize("loss", LOSSES)
def test_equal_seeds_give_equal_students(loss):
    def run(seed):
        torch.rand(1)  # the global generator has no say
        return normalize(rbm(), loss=loss, steps=12, seed=seed, **QUICK).student

    one, two, three = run(1), run(1), run(2)
    assert same(one, two)
    assert not same(one, three)


@pytest.mark.parametrize(
    ("loss", "scheme"), [("reverse_kl", "auto"), *itertools.product(LOSSES[:2], ("all", "block"))]
)
@pytest.mark.parametrize("stop", [2, 9])
def test_an_interrupted_run_ends_bit_for_bit_where_another_ends(loss, scheme, stop, tmp_path):
    class Stop:
        r"""A metric during which the user presses Ctrl-C, once."""

        def __init__(self, looks=math.inf):
            self.left = looks

        def __call__(self, student):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return EXACT(student)

    def run(metric, **more):
        options = {**QUICK, "batch_size": 70, "steps": 15, "every": 1} | more
        student = nade()
        return normalize(rbm(), student, loss, scheme=scheme, metrics={"exact": metric}, **options)

    expected = run(Stop())
    with pytest.raises(KeyboardInterrupt):
        run(Stop(stop), checkpoint=tmp_path / "run")
    found = run(Stop(), checkpoint=tmp_path / "run")
    assert same(found.student, expected.student)
    assert found.settings["normalization"] == expected.settings["normalization"]
    assert dict(found.history) == dict(expected.history)
    assert found.history["step"] == list(range(1, 16))
    again = run(Stop(), checkpoint=tmp_path / "run")
    assert same(again.student, expected.student), "nothing is left to do"


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["reverse_kl", "square_error"])
def test_compiled_and_eager_runs_agree(loss):
    results = []
    for engine in ("eager", "compiled"):
        results.append(normalize(rbm(), loss=loss, steps=20, **QUICK | {"engine": engine}))
        assert results[-1].engine == engine
    one, two = (result.student.state_dict() for result in results)
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_a_folder_of_another_run_is_refused(tmp_path):
    folder = tmp_path / "run"
    options = dict(steps=3, checkpoint=folder, **QUICK)
    normalize(rbm(), nade(), **options)
    with raises_about(CheckpointError, "sweeps was 3 and is 2"):
        normalize(rbm(), nade(), sweeps=2, **options)


def test_the_constant_is_found_by_climbing_or_given():
    found = normalize(rbm(), nade(), "square_error", steps=2, **QUICK).settings
    about = found["normalization"]
    assert about["c_origin"] == "hill climbing"
    assert about["c"] == pytest.approx((EXACT.log_p.max() + EXACT.log_z).item(), abs=1e-4)
    given = normalize(rbm(), nade(), "log_density_error", c=-3, steps=2, **QUICK).settings
    assert given["normalization"]["c"] == -3.0
    assert given["loss"] == "log_density_error(c=-3)"


class Bell(nn.Module):
    def __init__(self, samples=True):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(2))
        self.log_scale = nn.Parameter(torch.zeros(()))
        if samples:
            self.sample = self._sample

    def log_prob(self, x):
        scaled = (x - self.mean) / self.log_scale.exp()
        return -scaled.square().sum(1) / 2 - 2 * self.log_scale - math.log(2 * math.pi)

    @torch.no_grad()
    def _sample(self, n, generator=None):
        return self.mean + self.log_scale.exp() * torch.randn(n, 2, generator=generator)


def langevin(x, sweeps, generator):
    r"""Exact draws of the quadratic below."""
    return 1.0 + 0.5 * torch.randn(x.shape, generator=generator)


@pytest.mark.parametrize("loss", ["kl", "square_error", "reverse_kl", "score_matching"])
def test_real_supports_with_a_student_and_sweeps_of_the_users_own(loss):
    bowl = Energy(lambda x: 2 * (x - 1).square().sum(1), Real(2), advance=langevin)
    student = Bell()
    result = normalize(bowl, student, loss, steps=400, lr=0.03, **QUICK)
    torch.testing.assert_close(student.mean.detach(), torch.ones(2), atol=0.06, rtol=0)
    assert student.log_scale.exp().item() == pytest.approx(0.5, abs=0.06)
    log_z = math.log(2 * math.pi * 0.25)
    assert free_energy(bowl, student) == pytest.approx(log_z, abs=0.03)
    about = result.settings["normalization"]
    if loss == "square_error":
        assert about["c_origin"] == "the free energy of the student"
        assert log_z - 7 < about["c"] < log_z


def test_losses_are_added_up():
    loss = lb.losses.kl() + 0.1 * lb.losses.log_density_error(3.0)
    student = nade()
    result = normalize(rbm(), student, loss, steps=200, lr=0.03, **QUICK)
    assert EXACT(student) < 0.1
    assert {"kl", "log_density_error"} <= set(result.history)


def test_score_matching_on_bits_is_refused_and_fails_where_it_is_forced():
    r"""x(1 − x) is zero at all events: the target is the same, and only its derivatives differ."""
    with refused("loss", r"score_matching over Binary\(6\)", expected="force=True"):
        normalize(rbm(), nade(), "score_matching", steps=2, **QUICK)
    with refused("loss", expected="force=True"):
        normalize(rbm(), nade(), lb.losses.kl() + lb.losses.score_matching(), steps=2, **QUICK)
    machine = rbm().requires_grad_(False)
    target = Energy(lambda x: 4 * (x * (1 - x)).sum(1) - machine(x), Binary(6))
    wrong, right = nade(), nade()
    options = dict(steps=200, lr=0.03, sweeps=1, **QUICK)
    result = normalize(target, wrong, "score_matching", force=True, **options)
    assert result.history["loss"][-1] < 0.7 * result.history["loss"][0], "derivatives come closer"
    normalize(target, right, "kl", **options)
    assert EXACT(wrong) > 0.3, "and the distributions do not"
    assert EXACT(right) < 0.1


def test_sweeps_that_are_not_exact_are_noted():
    rough = Energy(ring, Spins(6), exact=False)
    about = normalize(rough, steps=2, **QUICK).settings["normalization"]
    assert "approximately" in about["doubt"]
    assert "doubt" not in normalize(rbm(), steps=2, **QUICK).settings["normalization"]


def test_a_result_is_saved_and_read_back(tmp_path):
    result = normalize(rbm(), steps=3, **QUICK)
    result.save(tmp_path / "student")
    back = lb.load(tmp_path / "student", student=nade(4))
    assert same(back.student, result.student)
    assert back.settings["normalization"] == result.settings["normalization"]


def test_a_single_chain_is_enough_for_a_batch_of_one():
    options = {**QUICK, "chains": 1, "batch_size": "auto"}
    assert normalize(rbm(), nade(), steps=3, **options).settings["batch_size"] == 1


def test_the_evidence_of_numbers_is_found_with_no_sampler_of_the_users_own():
    # y ~ N(θ, 1) once and θ ~ N(0, 1), in two dimensions: the evidence is N(y | 0, 2).
    y = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def energy(theta):
        return (theta.square() + (y - theta).square()).sum(1) / 2 + 2 * math.log(2 * math.pi)

    target = Energy(energy, Real(2))
    start = target.advance(torch.zeros(300, 2, dtype=torch.float64), 10, generator())
    student = lb.GaussianMixture(2, 2, dtype=torch.float64).start_from(start, generator=generator())
    settings = dict(burn_in=20, progress=False)
    result = normalize(target, student, steps=20, chains=200, start=start, **settings)
    z = lb.log_partition(target, result.student, samples=500, start=start, **settings)
    assert z.verdict.trustworthy
    assert z.std_error < 0.05
    truth = float(-y.square().sum() / 4 - math.log(4 * math.pi))
    assert abs(z.value - truth) < 4 * z.std_error


def test_a_time_limit_bounds_burn_in_and_sets_the_learning_rate(monkeypatch):
    r"""The rate falls with the clock, so that a run that time stops has come to its end."""
    schedule = module.CosineOfTime(began=100.0, seconds=10.0)
    for now, factor in ((100.0, 1.0), (105.0, 0.5), (110.0, 0.0), (130.0, 0.0)):
        monkeypatch.setattr(module.time, "monotonic", lambda now=now: now)
        value = schedule(torch.zeros((), dtype=torch.float64), 5)
        assert value.item() == pytest.approx(factor, abs=1e-12)
    clock = itertools.count(0.0, 10.0)  # five sweeps take 10 s
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    energy = Energy(ring, Spins(6), temperature=1.5)
    assert module._burn_in(energy, 20, None, 200.0) == 10
    assert module._burn_in(energy, 20, None, None) == 2000


def test_seconds_alone_limit_a_run():
    energy = Energy(ring, Spins(6), temperature=1.5)
    result = normalize(energy, seconds=0.5, chains=500, progress=False)
    assert "time limit" in result.stop_reason
    assert result.settings["normalization"]["burn_in"] <= 2000
    assert Exact(energy)(result.student) < 0.05
