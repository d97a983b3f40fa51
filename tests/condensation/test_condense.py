r"""Condensing predictions: bags and nets of stored draws and of streams, and bad input."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import limbeck as lb
from limbeck import losses
from limbeck.condensation import models
from limbeck.condensation.condense import condense
from limbeck.condensation.sample_bag import SampleBag
from limbeck.distributions import Bernoulli, Categorical, Mixture, Normal, Poisson
from limbeck.errors import InexactTeacherError, NotDifferentiableError
from limbeck.posteriors.stream import StreamEnded
from limbeck.samplers.slice import Slice
from tests.refusals import raises_about, refused, warns_about

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal([1.0, 0.0], [0.5, 1.0], (4, 100, 2))
POINTS = torch.tensor(RNG.normal(size=(200, 2)), dtype=torch.float32)
NOISE = {"shape": 2, "scale": 2.0}
FAST = {"device": "cpu", "engine": "eager", "progress": False, "steps": 120, "batch_size": 50}
BOTH = losses.cross_entropy() + losses.derivative_error(weight="teacher")


def logistic(w, x):
    return Bernoulli(logits=x @ w)


def average(x, weights=WEIGHTS):
    w = torch.tensor(weights.reshape(-1, 2), dtype=torch.float32)
    return (x @ w.T).sigmoid().mean(1)


def batches(count, size=40, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.normal([1.0, 0.0], [0.5, 1.0], (size, 2))


def worst(result, x=POINTS):
    return (result.predict(x).mean - average(x)).abs().max().item()


LOSSES = {
    "values": losses.cross_entropy(),
    "derivatives": losses.derivative_error(weight="teacher"),
    "both": BOTH,
}


@pytest.mark.parametrize("online", [False, True], ids=["batch", "online"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_bag_of_few_draws_predicts_like_all(loss, online):
    start = SampleBag(logistic, WEIGHTS, 5, generator=torch.Generator().manual_seed(0))
    before = (start(POINTS).mean - average(POINTS)).abs().max().item()
    result = condense(
        WEIGHTS, logistic, lb.inputs.Noise(**NOISE), components=5, loss=loss, online=online, **FAST
    )
    assert isinstance(result.student, SampleBag)
    assert worst(result) < 0.04 < before / 2
    assert isinstance(result.student(POINTS), Bernoulli)
    assert result.student.components == 5
    assert result.used == 400 if not online else result.used > 120 * 50


def test_a_stream_teaches_with_few_draws_in_memory():
    result = condense(batches(10_000), logistic, lb.inputs.Noise(**NOISE), **FAST)
    assert worst(result) < 0.06  # of another sample of the same posterior
    assert result.draw_bytes == 50 * 2 * 4
    assert result.diagnostics.r_hat.shape == (2,)
    assert result.stop_reason == "all 120 steps done"


def test_equal_seeds_give_equal_students():
    for posterior in (lambda: WEIGHTS, lambda: batches(1000)):
        one, same, other = (
            condense(
                posterior(), logistic, lb.inputs.Noise(**NOISE), **FAST | {"steps": 20, "seed": s}
            ).student.free
            for s in (0, 0, 1)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


def test_any_module_is_a_student_whose_outputs_are_read():
    options = FAST | {"steps": 300, "lr": 0.02}
    for outputs in (1, 2):
        net = lb.MLP(2, 16, outputs, hidden="tanh", generator=torch.Generator().manual_seed(0))
        result = condense(WEIGHTS, logistic, POINTS, student=net, **options)
        assert result.student is net
        assert result.student(POINTS).shape == (200, outputs)
        assert isinstance(result.predict(POINTS), Bernoulli)
        assert worst(result) < 0.05
    own = nn.Sequential(nn.Linear(2, 2))
    with refused("student_output", expected="student_output"):
        condense(WEIGHTS, logistic, POINTS, student=own, **options)
    said = condense(WEIGHTS, logistic, POINTS, student=own, student_output="logits", **options)
    assert worst(said) < 0.2


class OwnDistribution(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(2, 1), kind
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        z = self.linear(x)[:, 0]
        return Bernoulli(logits=z) if self.kind == "classes" else Normal(z, torch.ones_like(z))


def test_a_module_may_give_distributions_itself():
    result = condense(
        WEIGHTS, logistic, POINTS, student=OwnDistribution("classes"), lr=0.05, **FAST
    )
    assert isinstance(result.predict(POINTS), Bernoulli)
    assert worst(result) < 0.1
    flat = np.concatenate([WEIGHTS, np.ones((4, 100, 1))], 2)
    result = condense(
        flat, models.linear(), POINTS, student=OwnDistribution("normal"), lr=0.05, **FAST
    )
    assert (result.predict(POINTS).mean - POINTS[:, 0]).abs().max() < 0.5


def test_several_classes():
    matrices = {"v": RNG.normal(size=(2, 100, 2, 3))}
    result = condense(
        matrices,
        lambda draw, x: Categorical(logits=x @ draw["v"]),
        POINTS,
        loss=BOTH,
        weighted=True,
        **FAST,
    )
    report = result.report(POINTS)
    assert report.max_error < 0.03
    assert report.kl < 1e-3
    assert result.predict(POINTS).mean.shape == (200, 3)
    assert not torch.allclose(result.student.weights, torch.tensor(0.1))


REGRESSION = {
    "beta": RNG.normal([1.0, -1.0], 0.3, (2, 200, 2)),
    "sigma": RNG.gamma(20, 0.05, (2, 200)),
}


@pytest.mark.parametrize("online", [False, True], ids=["batch", "online"])
@pytest.mark.parametrize("loss", ["cross_entropy", BOTH], ids=["values", "both"])
def test_regression_with_a_density(online, loss):
    result = condense(
        REGRESSION, models.linear(), POINTS, loss=loss, online=online, **FAST | {"batch_size": 200}
    )
    report = result.report(POINTS)
    assert report.kl < 0.02
    assert report.mean_error < 0.15
    assert isinstance(result.predict(POINTS), Mixture)
    assert (result.student._draws["sigma"] > 0).all()  # kept so unasked
    low, high = result.predict(POINTS).interval(0.9)
    assert (high > low).all()


def test_counts():
    result = condense(
        REGRESSION["beta"] / 2, models.poisson(), POINTS, loss=BOTH, **FAST | {"batch_size": 200}
    )
    assert result.report(POINTS).kl < 0.02
    net = condense(
        REGRESSION["beta"] / 2,
        models.poisson(),
        POINTS,
        student=lb.MLP(2, 8, 1, hidden="tanh"),
        **FAST,
    )
    assert isinstance(net.predict(POINTS), Poisson)


def test_several_outcomes_an_input_count_one_by_one():
    def two(draw, x):
        z = x @ draw["beta"]
        return Normal(torch.stack([z, -z], 1), draw["sigma"].reshape(1, 1).expand(len(x), 2))

    result = condense(REGRESSION, two, POINTS, **FAST)
    found = result.predict(POINTS).mean
    assert found.shape == (200, 2)
    torch.testing.assert_close(found[:, 0], -found[:, 1], rtol=0, atol=1e-4)
    with refused("loss", expected="for several outcomes an input"):
        condense(REGRESSION, two, POINTS, loss=BOTH, **FAST)


def test_structured_draws_and_inputs():
    posterior = {"alpha": RNG.normal(size=(4, 60, 3)), "beta": RNG.normal(1, 0.2, (4, 60))}
    x = {"group": torch.arange(90) % 3, "dose": torch.linspace(-2, 2, 90)}

    def predict(draw, x):
        return Bernoulli(logits=draw["alpha"][x["group"]] + draw["beta"] * x["dose"])

    result = condense(posterior, predict, x, **FAST)
    report = result.report(x, y=(torch.arange(90) % 2).numpy())
    assert report.max_error < 0.05
    assert report.log_prob[0] == pytest.approx(report.log_prob[1], abs=0.02)
    assert result.student._draws["alpha"].shape == (10, 3)


def in_numpy(w, x):
    return Bernoulli(probs=1 / (1 + np.exp(-x @ w)))


def test_functions_of_numpy_teach_nets():
    net = lb.MLP(2, 16, 2, hidden="tanh", generator=torch.Generator().manual_seed(0))
    options = FAST | {"lr": 0.02}
    result = condense(WEIGHTS, in_numpy, lb.inputs.Noise(**NOISE), student=net, pool=300, **options)
    assert worst(result) < 0.1
    assert result.notes == ["predict: it is a function of NumPy arrays"]
    condense(batches(2000), in_numpy, POINTS, student=net, **options | {"steps": 5})
    with refused("student", "None with a predict that torch cannot"):
        condense(WEIGHTS, in_numpy, POINTS, **FAST)
    with raises_about(NotDifferentiableError, "predict"):
        condense(WEIGHTS, in_numpy, POINTS, student=net, loss="derivative_error", **FAST)

    def real(w, x):
        return Normal(np.tanh(x @ w), np.ones(len(x)))

    two = lb.MLP(2, 4, 2)
    condense(WEIGHTS, real, POINTS, student=two, **FAST | {"steps": 3, "batch_size": 8})
    with raises_about(NotDifferentiableError, "predict"):
        condense(WEIGHTS, real, POINTS, student=two, loss=BOTH, **FAST)


def test_uniform_derivatives_are_for_averages_alone():
    loss = losses.derivative_error()
    with raises_about(InexactTeacherError, 'weight="teacher"'):
        condense(batches(1000), logistic, POINTS, loss=loss, **FAST)
    condense(WEIGHTS, logistic, POINTS, loss=loss, **FAST | {"steps": 2})


# floating types


def normal(dtype):
    def draw(n, generator):
        return torch.randn(n, 2, dtype=dtype, generator=generator)

    return draw


ARRAY = WEIGHTS.reshape(-1, 2)
SOURCES = {
    "a function": lb.inputs.Function,
    "a bare function": lambda fn: fn,
    "a mixture": lambda fn: lb.inputs.Mix([lb.inputs.Function(fn), lb.inputs.Noise((2,))]),
    "a loader": lambda fn: DataLoader(TensorDataset(fn(40, None)), batch_size=10),
}


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize(
    ("posterior", "gives", "settled"),
    [
        (lambda: ARRAY, torch.float64, torch.float32),
        (lambda: iter(np.split(ARRAY, 20)), torch.float64, torch.float32),
        (lambda: torch.as_tensor(ARRAY), torch.float32, torch.float64),
    ],
    ids=["an array", "a stream", "a tensor"],
)
def test_inputs_of_another_floating_type_become_the_students(source, posterior, gives, settled):
    few = FAST | {"steps": 3, "batch_size": 10}
    seen = []

    def watched(w, x):
        seen.append((w.dtype, x.dtype))
        return logistic(w, x)

    result = condense(posterior(), watched, SOURCES[source](normal(gives)), **few)
    assert result.student.free.dtype == settled
    assert set(seen) == {(settled, settled)}
    assert result.predict(np.zeros((2, 2))).mean.dtype == settled


def test_inputs_that_do_not_fit_into_the_students_type_are_refused():
    far = lb.inputs.Function(lambda n: torch.full((n, 2), 1e300, dtype=torch.float64))
    with refused("fn", r"values of up to 1e\+300"):
        condense(ARRAY, logistic, far, **FAST)


# streams that end


def test_a_stream_that_ends_keeps_the_student_so_far():
    result = condense(batches(40), logistic, lb.inputs.Noise(**NOISE), **FAST)
    assert 0 < result.steps < 120
    assert "the stream ended after 40 batches with 1,600 draws" in result.stop_reason
    assert f"at step {result.steps} of 120" in result.stop_reason
    assert result.history["step"][-1] == result.steps
    assert len(result.predict(POINTS).mean) == 200


def test_a_stream_without_enough_for_a_step_is_an_error():
    with raises_about(StreamEnded, 3):
        condense(batches(3), logistic, POINTS, **FAST)
    with refused("posterior", "without a single batch"):
        condense(iter([]), logistic, POINTS, **FAST)


def slices(seed=0):
    start = torch.zeros(20, 2, dtype=torch.float64)
    return Slice(lambda w: -w.square().sum(1) / 2, start, seed=seed)


def test_a_running_chain_is_condensed_and_goes_on_after_an_interruption(tmp_path):
    options = FAST | {"steps": 30, "batch_size": 20}
    whole = condense(slices(), logistic, lb.inputs.Noise(**NOISE), **options)
    with pytest.raises(KeyboardInterrupt):
        condense(
            slices(),
            logistic,
            lb.inputs.Noise(**NOISE),
            checkpoint=tmp_path,
            checkpoint_every=1,
            metrics={"stop": interrupting(10)},
            every=10,
            **options,
        )
    again = condense(slices(), logistic, lb.inputs.Noise(**NOISE), checkpoint=tmp_path, **options)
    assert again.steps == 30
    assert torch.equal(again.student.free, whole.student.free)


def interrupting(step):
    looks = []

    def metric(student):
        looks.append(student)
        if len(looks) * 10 > step:
            raise KeyboardInterrupt
        return 0.0

    return metric


def test_burn_in_thinning_and_names_choose_draws():
    posterior = REGRESSION | {"mu": np.full((2, 200, 7), np.nan)}
    result = condense(
        posterior,
        models.linear(),
        POINTS,
        var_names="~mu",
        burn_in=100,
        thin=2,
        **FAST | {"steps": 2},
    )
    assert result.used == 100
    assert set(result.student.structure.names) == {"beta", "sigma"}
    with refused("posterior['mu']", "NaN"):
        condense(posterior, models.linear(), POINTS, **FAST)


# settings


def test_the_source_texts_settings_are_a_preset():
    result = condense(
        WEIGHTS,
        logistic,
        lb.inputs.Noise(**NOISE),
        preset="thesis",
        steps=5,
        device="cpu",
        progress=False,
    )
    settings = result.settings
    assert settings["batch_size"] == 10
    assert "SGD" in settings["update"]
    assert "lr=1.0" in settings["update"]
    assert settings["schedule"] == "Linear()"
    assert settings["inputs"] == "Noise"
    assert torch.equal(result.student.scale, torch.ones(2))


def test_inputs_that_never_end_are_pooled_for_averages():
    noise = lb.inputs.Noise(**NOISE)
    short = FAST | {"steps": 3}
    assert condense(WEIGHTS, logistic, noise, pool=60, **short).settings["inputs"] == "Dataset"
    assert condense(WEIGHTS, logistic, noise, pool=None, **short).settings["inputs"] == "Noise"
    assert condense(WEIGHTS, logistic, noise, **short).settings["inputs"] == "Noise"  # few inputs
    long = FAST | {"batch_size": 20_000, "steps": 5}
    assert condense(WEIGHTS, logistic, noise, **long).settings["inputs"] == "Dataset"
    with refused("pool", "0"):
        condense(WEIGHTS, logistic, noise, pool=0, **short)


def test_metrics_see_the_student_itself():
    seen = []
    condense(
        WEIGHTS,
        logistic,
        POINTS,
        metrics={"components": lambda student: seen.append(student) or student.components},
        **FAST | {"steps": 4},
    )
    predictions = lb.Normal(POINTS[:, 0].expand(5, -1), torch.ones(5, len(POINTS)))
    net = lb.MLP(2, 3, 2)  # of which the loss takes a density
    known = {"predictions": predictions, "inputs": POINTS, "student": net}
    found = condense(**known, metrics={"same": lambda each: each is net}, **FAST | {"steps": 4})
    assert all(found.history["same"])
    assert all(isinstance(each, SampleBag) for each in seen)
    assert seen


def test_held_out_losses_are_recorded():
    for function, posterior in ((logistic, WEIGHTS), (models.linear(), REGRESSION)):
        result = condense(posterior, function, POINTS[:100], held_out=POINTS[100:], **FAST)
        assert result.history["held_out"][-1] < result.history["held_out"][0]
    result = condense(batches(1000), logistic, POINTS[:100], held_out=POINTS[100:], **FAST)
    assert "held_out" not in result.history  # a stream that cannot go back has no draws to spare
    assert result.new_inputs.held_out.inputs == 100
    with refused("patience", "patience beside a stream that cannot go back"):
        condense(batches(1000), logistic, POINTS, patience=2, **FAST)
    condense(slices(), logistic, POINTS, held_out=POINTS, **FAST | {"steps": 2})


def test_a_bag_of_the_users_is_trained_in_place():
    bag = SampleBag(logistic, WEIGHTS, 3)
    before = bag.free.detach().clone()
    result = condense(WEIGHTS, logistic, POINTS, student=bag, lr=0.05, **FAST)
    assert result.student is bag
    assert not torch.equal(bag.free, before)


def test_types_follow_tensors():
    double = torch.tensor(WEIGHTS.reshape(-1, 2))
    result = condense(double, logistic, lb.inputs.Noise(2), **FAST | {"steps": 2})
    assert result.student.free.dtype == torch.float64
    single = condense(double, logistic, POINTS, **FAST | {"steps": 2})
    assert single.student.free.dtype == torch.float32
    plain = condense(WEIGHTS, logistic, POINTS.double(), **FAST | {"steps": 2})
    assert plain.student.free.dtype == torch.float64


# bad input


def test_a_chain_that_is_stuck_is_warned_of():
    stuck = WEIGHTS.copy()
    stuck[2] = 3.0
    with warns_about("1 of 4"):
        result = condense(stuck, logistic, POINTS, **FAST | {"steps": 2})
    assert result.diagnostics.reasons
    assert "stuck" in str(result)


def test_a_student_that_leaves_where_it_makes_sense_is_warned_of():
    posterior = {"p": RNG.uniform(0.9, 1.0, (4, 50))}

    def coin(draw, x):
        return Bernoulli(probs=draw["p"] * torch.ones(len(x)))

    with warns_about("probs", "Bernoulli", "support="):
        condense(posterior, coin, POINTS, support=None, lr=1e3, **FAST | {"steps": 1})


@pytest.mark.parametrize(
    ("arguments", "argument", "received", "expected"),
    [
        ({"predict": None}, "predict", "^None$", ""),
        ({"posterior": None}, "posterior", "^None$", ""),
        ({"posterior": WEIGHTS[0, :1]}, "posterior", "a single draw", ""),
        ({"posterior": 3}, "posterior", "^a int$", ""),
        ({"inputs": None}, "predict", "missing 1 required .* 'x'", "alone, without inputs="),
        ({"inputs": 3}, "inputs", "^a int$", ""),
        ({"loss": "kl_divergence"}, "loss", "'kl_divergence'", ""),
        ({"online": "maybe"}, "online", "'maybe'", ""),
        ({"posterior": iter([WEIGHTS[0]]), "online": False}, "online", "^False$", ""),
        ({"preset": "best"}, "preset", "'best'", ""),
        ({"stepss": 3}, "stepss", "an unknown name", "did you mean 'steps'"),
        ({"student": "net"}, "student", "'net'", ""),
        ({"components": 401}, "components", "^401$", "at most 400"),
        ({"support": {"w": "positive"}}, "support", "'w'", "positions from 0 to 1"),
        ({"draws_per_input": 0, "online": True}, "draws_per_input", "^0$", ""),
        ({"predict": lambda w, x: x @ w}, "predict", "^a Tensor", ""),
        (
            {"predict": lambda w, x: Bernoulli(probs=x @ w)},
            "predict",
            "probs of a Bernoulli between",
            "",
        ),
    ],
)
def test_bad_input_is_refused(arguments, argument, received, expected):
    given = {"posterior": WEIGHTS, "predict": logistic, "inputs": POINTS} | arguments
    with refused(argument, received, expected=expected):
        condense(**FAST | given)
