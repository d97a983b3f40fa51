r"""Stepwise EM: batch EM as its limit, the formulas in NumPy, streams, and interruptions."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.distributions.gaussians import KINDS
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mixture_em import fit_em
from limbeck.training.schedules import Constant, Linear, RobbinsMonro
from reproduction.parameter_em import ParameterEM
from tests.refusals import refused, warns_about

DOUBLE = torch.float64
PLAIN = {"restarts": 0, "average": 0, "window": 0}
SETTINGS = {"device": "cpu", "engine": "eager", "progress": False}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def text():
    r"""The source text's mixture of three."""
    return GaussianMixture(3, dtype=DOUBLE).set_([1 / 3] * 3, [-3.0, 0.0, 2.0], [2.0, 5.0, 1.0])


def stream(model, dtype=torch.float32, seed=None):
    return lb.inputs.Samples(copy.deepcopy(model).to(dtype), seed=seed)


def kl(p, q):
    r"""KL(p ‖ q) of one variable, by quadrature."""
    x = torch.linspace(-40, 40, 16_001, dtype=DOUBLE)
    log_p, log_q = p.double().log_prob(x), copy.deepcopy(q).double().log_prob(x)
    return ((log_p.exp() * (log_p - log_q)).sum() * (x[1] - x[0])).item()


def mixture(x, covariance="full", components=3, seed=1):
    found = GaussianMixture(components, x.shape[1], covariance, dtype=DOUBLE)
    return found.start_from(x, generator=generator(seed))


def distil(student, inputs, update, steps, batch_size=100, **options):
    settings = SETTINGS | {"seed": 0} | options
    return lb.distill(
        None,
        student,
        inputs,
        lb.losses.kl(),
        update=update,
        steps=steps,
        batch_size=batch_size,
        **settings,
    )


class Stream(lb.inputs.Inputs):
    r"""Given batches (steps, n, D), one after the other."""

    def __init__(self, batches, weight=None):
        super().__init__()
        self.batches, self.weight, self.next = batches, weight, 0

    def draw(self, n):
        batch = self.batches[self.next]
        self.next += 1
        return batch

    def build(self, drawn):
        return lb.Batch(drawn, weight=self.weight)

    def probe(self, n):
        return self.build(self.batches[0])


@pytest.mark.parametrize("covariance", KINDS)
@pytest.mark.parametrize("dim", [1, 2])
def test_with_all_data_and_weight_1_it_is_batch_em(covariance, dim):
    turn = torch.tensor([[1.0, 0.4], [0.0, 0.7]], dtype=DOUBLE)[:dim, :dim]
    x = torch.randn(400, dim, generator=generator(), dtype=DOUBLE) @ turn + 5
    x[:150] *= 1.5
    batch, online = mixture(x, covariance), mixture(x, covariance)
    update = StepwiseEM(Constant(), floor=1e-6, **PLAIN)
    taken = lb.steps(
        None, online, x, lb.losses.kl(), update=update, steps=12, batch_size=400, **SETTINGS
    )
    for step in taken:
        before = -batch.log_prob(x).mean().item()
        fit_em(batch, x, restarts=0, iterations=1, floor=1e-6, progress=False)
        assert step.loss == pytest.approx(before, rel=1e-10)
        for ours, theirs in zip(online.moments(), batch.moments(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


# the formulas, once more


def normal(x, mean, variance):
    return np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)


def e_step(x, theta):
    pi, mean, variance = theta
    z = pi * normal(x[:, None], mean, variance)
    z = z / z.sum(1, keepdims=True)
    return np.stack([z.mean(0), (z * x[:, None]).mean(0), (z * x[:, None] ** 2).mean(0)])


def m_step(phi):
    return np.stack(
        [phi[0] / phi[0].sum(), phi[1] / phi[0], phi[2] / phi[0] - (phi[1] / phi[0]) ** 2]
    )


def theta_of(student):
    weights, means, variances = student.moments()
    return np.stack([weights.numpy(), means[:, 0].numpy(), variances[:, 0].numpy()])


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ("linear", lambda t: 1 - t / 8),
        ("robbins-monro", lambda t: (1 + t) ** -0.6),
        (RobbinsMonro(3.0, 0.9), lambda t: (1 + t / 3) ** -0.9),
        (lambda t, total: 0.3 + 0 * t, lambda t: 0.3),
    ],
)
@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("average", [0.0, 0.5])
def test_steps_are_those_of_the_formulas(schedule, rate, parameters, average):
    batches = text().sample(8 * 60, generator()).reshape(8, 60, 1)
    student = mixture(batches[0])
    theta = theta_of(student)
    phi = np.stack([theta[0], theta[0] * theta[1], theta[0] * (theta[2] + theta[1] ** 2)])
    kept = []
    for t, x in enumerate(batches[..., 0].numpy()):
        if not parameters:
            phi = (1 - rate(t)) * phi + rate(t) * e_step(x, theta)
            theta = m_step(phi)
        else:
            fitted = theta
            for _ in range(2):
                fitted = m_step(e_step(x, fitted))
            theta = phi = (1 - rate(t)) * theta + rate(t) * fitted
        kept.append(phi)
    if average:
        mean = np.mean(kept[4:], axis=0)
        theta = mean if parameters else m_step(mean)
    kind = partial(ParameterEM, 2) if parameters else StepwiseEM
    distil(student, Stream(batches), kind(schedule, **PLAIN | {"average": average}), 8, 60)
    np.testing.assert_allclose(theta_of(student), theta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("window", "most"),
    [(30, lambda t: 0.2), ("auto", lambda t: 6 / (0.6 * (t + 1)).clamp(60, 600))],
)
def test_small_minibatches_weigh_no_more_than_they_should(window, most):
    batches = text().sample(200 * 6, generator()).reshape(200, 6, 1)
    found, limited = [], lambda t, total: (1 - t / total).clamp_max(most(t))
    for schedule, size in (("linear", window), (limited, 0)):
        student = mixture(batches[:20].reshape(-1, 1))
        distil(student, Stream(batches), StepwiseEM(schedule, **PLAIN | {"window": size}), 200, 6)
        found.append(theta_of(student))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_weights_of_inputs_count():
    x = text().sample(200, generator())
    weight = (torch.arange(200) < 120).to(DOUBLE)
    some, heavy = mixture(x), mixture(x)
    update = StepwiseEM(Constant(), floor=1e-6, **PLAIN)
    distil(some, x[:120], update, 5, 120)
    distil(heavy, lb.inputs.Dataset(x, weight=2 * weight), update, 5, 200)
    np.testing.assert_allclose(theta_of(heavy), theta_of(some), rtol=1e-9)
    expected = -(2 * weight * heavy.log_prob(x)).mean().item()
    taken = lb.steps(
        None, heavy, lb.inputs.Dataset(x, weight=2 * weight), lb.losses.kl(),
        update=update, steps=1, batch_size=200, **SETTINGS,
    )  # fmt: skip
    assert next(iter(taken)).loss == pytest.approx(expected, rel=1e-9)


def test_schedules_by_name():
    assert StepwiseEM().schedule == Linear()
    assert StepwiseEM("robbins-monro").schedule == RobbinsMonro()


# streams


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    ("schedule", "bound"),
    [("linear", 0.002), ("robbins-monro", 0.002), (RobbinsMonro(5.0, 0.8), 0.004)],
)
def test_on_a_stream_it_comes_to_the_truth(schedule, bound, dtype):
    student = GaussianMixture(3, dtype=dtype, generator=generator())
    update = StepwiseEM(schedule)
    result = distil(student, stream(text(), dtype), update, 400)
    assert result.steps == 400
    assert kl(text(), student) < bound
    assert update.reasons == ()
    entropy = -text().log_prob(text().sample(100_000, generator(1))).mean().item()
    assert np.mean(result.history["loss"][-20:]) == pytest.approx(entropy, abs=0.02)


@pytest.mark.parametrize("covariance", KINDS)
def test_vectors_stream_too(covariance):
    truth = GaussianMixture(2, 3, covariance)
    truth.set_([0.4, 0.6], [[-2.0, 0.0, 1e3], [2.0, 1.0, 1e3]], [1.0, 2.0])
    student = GaussianMixture(2, 3, covariance, generator=generator())
    distil(student, stream(truth), StepwiseEM(), 200)
    x = truth.sample(20_000, generator(1))
    assert (truth.log_prob(x) - student.log_prob(x)).mean().item() < 0.01


def test_parameters_can_be_interpolated():
    student = GaussianMixture(3, generator=generator())
    update = ParameterEM(3)
    distil(student, stream(text()), update, 300, 200)
    assert kl(text(), student) < 0.01


def test_one_input_at_a_time_will_do():
    student = GaussianMixture(3, generator=generator())
    distil(student, stream(text()), StepwiseEM(), 600, 1)
    assert kl(text(), student) < 0.06


def test_of_several_starts_the_best_is_kept():
    truth = GaussianMixture(5, dtype=DOUBLE)
    truth.set_([0.2] * 5, [-12.0, -6.0, 0.0, 6.0, 12.0], [0.5, 1.0, 2.0, 0.5, 1.0])
    found = []
    for restarts in (1, 4):
        student = GaussianMixture(5, generator=generator())
        distil(student, stream(truth), StepwiseEM(restarts=restarts), 40, 100, seed=4)
        found.append(kl(truth, student))
    assert found[0] > 0.1  # stuck, with two components on one hump
    assert found[1] < 0.01


@pytest.mark.parametrize("seed", [0, 1])
def test_components_that_overlap_are_told_apart(seed):
    truth = GaussianMixture(6, 5, "spherical", dtype=DOUBLE)
    means = 1.3 * torch.randn(6, 5, generator=generator(3), dtype=DOUBLE)
    truth.set_([1 / 6] * 6, means, [1.0] * 6)
    student = GaussianMixture(6, 5, dtype=DOUBLE, generator=generator())
    distil(student, stream(truth, DOUBLE), StepwiseEM(), 400, 200, seed=seed)
    x = truth.sample(20_000, generator(1))
    assert (truth.log_prob(x) - student.log_prob(x)).mean().item() < 0.006


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_does_not_become_worse_than_its_start(seed):
    student = text()  # which is the truth, and these steps are noise
    update = StepwiseEM(Constant(), **PLAIN)
    distil(student, stream(text(), DOUBLE), update, 30, 20, seed=seed)
    assert kl(text(), student) < 1e-12


def test_it_looks_at_inputs_without_moving_on():
    inputs = stream(text(), DOUBLE, 5)
    update = StepwiseEM()
    run = lb.steps(None, text(), inputs, lb.losses.kl(), update=update, steps=3, **SETTINGS)
    next(run)
    run.close()
    fresh = stream(text(), DOUBLE, 5)
    fresh.to(torch.device("cpu"), DOUBLE, 0)
    fresh(200)
    assert torch.equal(inputs(10).x, fresh(10).x)


# what goes wrong


@pytest.mark.parametrize("covariance", KINDS)
@pytest.mark.parametrize("kind", [StepwiseEM, partial(ParameterEM, 1)])
def test_a_collapsing_component_stops_at_the_floor(covariance, kind):
    x = torch.randn(300, 2, generator=generator(), dtype=DOUBLE)
    x[:100] = 20.0
    student = GaussianMixture(2, 2, covariance, dtype=DOUBLE, generator=generator())
    update = kind(floor=1e-3, start=300)
    result = distil(student, x, update, 40, 150)
    assert result.failure is None
    assert all(p.isfinite().all() for p in student.parameters())
    k = int(student.means[:, 0].argmax())
    assert f"component {k} has collapsed: its variance is at the floor" in update.reasons
    variance = 1e-3 * x.var(0, unbiased=False)
    found = student.covariances[k].diagonal()
    torch.testing.assert_close(found, variance.mean().expand(2), rtol=0.01, atol=0)


def test_a_component_without_inputs_keeps_its_place():
    x = text().sample(300, generator())
    student = GaussianMixture(2, dtype=DOUBLE).set_([0.5, 0.5], [0.0, 1e6], [4.0, 1.0])
    update = StepwiseEM(**PLAIN)
    distil(student, x, update, 5)
    assert update.reasons[0].startswith("component 1 has died out: its weight is ")
    assert student.means[1].item() == pytest.approx(1e6)
    assert student.weights[1].item() < 1e-20
    assert student.log_prob(x).isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_input_stops_it_and_leaves_the_student(bad):
    batches = text().sample(6 * 50, generator()).reshape(6, 50, 1)
    good = mixture(batches[0])
    distil(good, Stream(batches), StepwiseEM(Constant(), **PLAIN), 4, 50)
    batches[4, 7] = bad
    student = mixture(batches[0])
    with warns_about("step 5"):
        result = distil(student, Stream(batches), StepwiseEM(Constant(), **PLAIN), 6, 50)
    assert result.steps == 4
    assert result.failure is not None
    assert all(map(torch.equal, student.moments(), good.moments()))


@pytest.mark.parametrize(
    ("options", "argument", "received", "expected"),
    [
        ({"schedule": "quadratic"}, "schedule", "'quadratic'", ""),
        ({"floor": 0}, "floor", "^0$", "a number between 0 and 1"),
        ({"restarts": -1}, "restarts", "^-1$", ""),
        ({"start": 0}, "start", "^0$", "a whole number from 1, or 'auto'"),
        ({"window": -1}, "window", "^-1$", "a number from 0, or 'auto'"),
        ({"average": 2}, "average", "^2$", "a number from 0 to 1"),
    ],
)
def test_other_settings_are_refused(options, argument, received, expected):
    with refused(argument, received, expected=expected):
        StepwiseEM(**options)


def test_other_students_losses_and_inputs_are_refused():
    x = torch.randn(100, 1, dtype=DOUBLE, generator=generator())
    nade = lb.NADE(4, hidden=2)
    with refused("student", "a NADE, for StepwiseEM"):
        distil(nade, torch.zeros(9, 4), StepwiseEM(), 2, 5)
    with refused("loss", r"score_matching\(\)"):
        lb.distill(text(), mixture(x), x, lb.losses.score_matching(), update=StepwiseEM(), steps=2)
    with refused("inputs", "samples whose variable 0 never chan"):
        distil(mixture(x), torch.zeros(100, 1, dtype=DOUBLE), StepwiseEM(), 2)
    with refused("inputs", "2 samples"):
        distil(mixture(x), x[:2], StepwiseEM(), 2, 2)


# with the loop


def resumable(folder, student, update, steps=30):
    return lb.steps(
        None,
        student,
        stream(text()),
        lb.losses.kl(),
        update=update,
        steps=steps,
        batch_size=40,
        checkpoint=folder,
        **SETTINGS,
    )


@pytest.mark.parametrize("kind", [StepwiseEM, partial(ParameterEM, 1)])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, kind):
    whole = GaussianMixture(3, generator=generator())
    for _ in resumable(tmp_path / "whole", whole, kind()):
        pass
    parts = GaussianMixture(3, generator=generator())
    first = resumable(tmp_path / "parts", parts, kind())
    for step in first:
        if step.number == 17:
            break
    first.close()
    again = GaussianMixture(3, generator=generator(9))
    update = kind()
    numbers = [step.number for step in resumable(tmp_path / "parts", again, update)]
    assert numbers == list(range(18, 31))
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run = resumable(tmp_path, text().float(), StepwiseEM())
    next(run)
    run.close()
    for other in (StepwiseEM(floor=0.01), StepwiseEM("robbins-monro")):
        with pytest.raises(lb.CheckpointError, match="belongs to another run"):
            next(resumable(tmp_path, text().float(), other))


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", "spherical"])
def test_a_step_can_be_traced_whole(covariance):
    truth = GaussianMixture(2, 2, covariance, dtype=DOUBLE, generator=generator(3))
    found = []
    for traced in (False, True):
        student = GaussianMixture(2, 2, covariance, dtype=DOUBLE, generator=generator())
        update = StepwiseEM()
        options = {"update": update, "steps": 4, "batch_size": 80}
        run = lb.steps(None, student, stream(truth, DOUBLE), lb.losses.kl(), **options, **SETTINGS)
        step = next(run).run
        if traced:
            whole = torch.compile(
                lambda p, u=update: u.step(p, True), backend="aot_eager", fullgraph=True
            )
            step.engine.step = whole
        for _ in run:
            pass
        found.append([*student.moments(), update.progress.done, update.progress.last])
    assert found[1][3].item() == 4
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("covariance", "dim"), [("full", 1), ("full", 2)])
def test_compiled_steps_are_the_same(covariance, dim):
    truth = GaussianMixture(2, dim, covariance, dtype=DOUBLE, generator=generator(3))
    found = []
    for engine in ("eager", "compiled"):
        student = GaussianMixture(2, dim, covariance, dtype=DOUBLE, generator=generator())
        result = distil(student, stream(truth, DOUBLE), StepwiseEM(), 20, engine=engine)
        assert result.engine == engine
        found.append([*student.moments(), torch.tensor(result.history["loss"])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
