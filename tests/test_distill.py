r"""`distill`: defaults that suit what was passed, and refusals that name the argument."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from torch import nn

import limbeck as lb
from limbeck.inputs import Dataset, Noise
from tests.refusals import refused

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
CE, DE = lb.losses.cross_entropy, lb.losses.derivative_error


def net(seed=1, *sizes, **options):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(*(sizes or (4, 6, 3)), hidden="tanh", generator=generator, **options)


def distilled(teacher=None, student=None, inputs=X, **options):
    settings = dict(steps=3, batch_size=10, device="cpu") | options
    return lb.distill(teacher or net(2), student or net(1), inputs, **settings)


def refuses(said, error=lb.ArgumentError, **options):
    with pytest.raises(error, match=said) as caught:
        distilled(**options)
    return caught.value


def weights(student):
    return torch.cat([p.detach().flatten() for p in student.parameters()])


# losses that nobody chose


class Density(nn.Module):
    r"""A normal density."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.ones(4))

    def log_prob(self, x):
        return -(x - self.mean).square().sum(1) / 2


class Regressor:
    def predict(self, array):
        return array[:, :1] * 2


class Classifier:
    def predict_proba(self, array):
        one = 1 / (1 + np.exp(-array[:, 0]))
        return np.stack([1 - one, one], 1)


def soft(x):
    return x[:, :3].softmax(1)


def plain(x):
    return x[:, :3]


@pytest.mark.parametrize(
    ("teacher", "student", "options", "expected"),
    [
        (net(2), net(1), {}, "cross_entropy"),
        (lb.Ensemble([net(2), net(3)]), net(1), {}, "cross_entropy"),
        (plain, net(1), dict(teacher_output="logits"), "cross_entropy"),
        (soft, nn.Linear(4, 3), dict(student_output="logits"), "cross_entropy"),
        (Classifier(), net(1, 4, 2), {}, "cross_entropy"),
        (net(2, 4, 1), net(1, 4, 1), {}, "cross_entropy"),
        (plain, nn.Linear(4, 3), {}, "square_error"),
        (plain, net(1, output_form="values"), {}, "square_error"),
        (net(2, output_form="values"), nn.Linear(4, 3), {}, "square_error"),
        (Regressor(), nn.Linear(4, 1), {}, "square_error"),
        (None, Density(), {}, "kl"),
        (lambda x: x.sum(1), Density(), {}, "kl"),
    ],
)
def test_the_loss_goes_by_the_kind_of_outputs(teacher, student, options, expected):
    settings = dict(steps=3, batch_size=10, device="cpu") | options
    result = lb.distill(teacher, student, X, **settings)
    assert result.settings["loss"].startswith(f"{expected}(")
    assert result.steps == 3


def test_a_teacher_of_probabilities_asks_what_an_unknown_student_gives():
    refuses(
        r"student_output: expected .*\"logits\".*, got outputs that could be logits or plain",
        teacher=soft,
        student=nn.Linear(4, 3),
    )


@pytest.mark.parametrize("name", ["cross_entropy", "square_error", "logit_error"])
def test_a_loss_by_name_is_the_loss_with_its_defaults(name):
    named = distilled(loss=name)
    made = distilled(loss=getattr(lb.losses, name)())
    assert named.settings["loss"] == made.settings["loss"]
    assert torch.equal(weights(named.student), weights(made.student))


def test_labels_need_no_teacher():
    labels = X[:, 0].gt(0).long()
    result = lb.distill(
        None, net(1), Dataset(X, labels), "label_cross_entropy", steps=5, batch_size=9, device="cpu"
    )
    assert result.steps == 5


# refusals


@pytest.mark.parametrize(
    ("argument", "name", "meant"),
    [
        ("loss", "cross_entrpy", "cross_entropy"),
        ("loss", "derivative_eror", "derivative_error"),
        ("optimizer", "adamm", "adam"),
        ("schedule", "cosin", "cosine"),
        ("engine", "compile", "compiled"),
        ("preset", "tesis", "thesis"),
        ("teacher_output", "probabilitis", "probabilities"),
        ("student_output", "logit", "logits"),
        ("precompute", "Auto", "auto"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(argument, name, meant):
    error = refuses(
        rf"{argument}: expected .*\(did you mean '{meant}'\?\), got '{name}'", **{argument: name}
    )
    assert error.argument == argument


@pytest.mark.parametrize("name", ["hints", "directional_error"])
def test_losses_that_need_arguments_have_no_name(name):
    refuses(rf"loss: expected 'auto'.*, got '{name}'", loss=name)


@pytest.mark.parametrize("argument", ["steps", "batch_size", "every", "checkpoint_every"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
def test_counts_must_be_whole_numbers_from_one(argument, value):
    error = refuses(f"^{argument}: expected a whole number from 1.*, got ", **{argument: value})
    assert error.received == repr(value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(lr=-1.0), "^lr: expected a number above zero.*, got -1.0"),
        (dict(lr=0.0), "^lr: expected .*, got 0.0"),
        (dict(clip=0.0), "^clip: expected .*, got 0.0"),
        (dict(clip=-3.0), "^clip: expected .*, got -3.0"),
        (dict(seed=1.5), "^seed: expected a whole number.*, got 1.5"),
        (dict(seed="one"), "^seed: expected .*, got 'one'"),
        (dict(checkpoint_seconds=0), "^checkpoint_seconds: expected .*, got 0"),
        (dict(metrics=[len]), r"^metrics: expected .*.*a dict of functions.*, got "),
        (dict(metrics={"a": 3.0}), r"^metrics: expected .*.*a dict of functions.*, got "),
        (dict(metrics={"loss": len}), "^metrics: expected names .*history's own, got 'loss'"),
        (dict(loss=3), "^loss: expected 'auto'.*, got 3"),
        (dict(schedule=3), "^schedule: expected .*, got 3"),
        (dict(precompute=None), "^precompute: expected .*, got None"),
        (dict(precompute=True, inputs=Noise(4)), "^precompute: expected a Dataset.*, got True"),
        (dict(held_out=Noise(4)), "^held_out: expected a tensor.*, got Noise inputs"),
        (dict(held_out=X[:0]), "^held_out: expected .*, got no data"),
        (dict(student="mlp"), "^student: expected a torch module.*, got 'mlp'"),
        (dict(student=plain), "^student: expected .*, got an object of type function"),
        (dict(student=net(1, 5, 3)), "shape"),
        (dict(student=net(1, 4, 2)), "2 outputs where the teacher has 3"),
        (dict(teacher=object()), "^teacher: expected .*, got an object of type object"),
        (dict(inputs=torch.zeros(0, 4)), r"^inputs: expected .*, got no data \(shape \(0, 4\)\)"),
        (dict(inputs=[]), "^inputs: expected .*, got no data"),
        (
            dict(inputs=X.where(X < 2, torch.nan)),
            "^inputs: expected .*, got .* NaN .* the first in row",
        ),
        (dict(inputs=X.double()), "float64"),
        (dict(inputs="digits.csv"), "^inputs: expected .*, got "),
        (dict(batch_size=61), "^batch_size: expected at most 60, .* or replace=True.*, got 61"),
        (dict(device="abc"), "^device: expected a device of this machine.*, got 'abc'"),
        (dict(device=None), "^device: expected .*, got None"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(options, said):
    refuses(said, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_refused():
    refuses("^device: expected a device of this machine.*, got 'cuda'", device="cuda")


def test_a_refusal_leaves_the_student_as_it_was():
    student = net(1)
    refuses("optimizer", student=student, optimizer="nope")
    assert torch.equal(weights(student), weights(net(1)))


def test_a_batch_may_be_larger_than_data_drawn_with_replacement():
    assert distilled(inputs=Dataset(X, replace=True), batch_size=61).steps == 3


def test_the_usual_batch_is_no_larger_than_the_data():
    result = distilled(batch_size="auto")
    assert result.settings["batch_size"] == 60


def test_stored_targets_have_none_for_other_inputs():
    stored = lb.Stored(net(2)(X).detach(), "logits")
    assert distilled(stored).steps == 3
    refuses(
        "^held_out: expected .*, got inputs that no targets are stored for",
        teacher=stored,
        held_out=X[:9],
    )


# the same student, by other ways


@pytest.mark.parametrize("loss", [CE(), CE(2.0) + DE(), DE(weight="teacher")], ids=str)
def test_stored_and_live_targets_give_the_same_student(loss):
    def student(precompute, steps=30):
        trained = net(1).double()
        distilled(
            net(2).double(), trained, X.double(), loss=loss, precompute=precompute, steps=steps
        )
        return weights(trained)

    live = student(False)
    torch.testing.assert_close(student(True), live, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(student("auto"), live, rtol=1e-10, atol=1e-12)
    assert not torch.equal(live, weights(net(1).double()))


def asked(precompute, steps):
    calls = []

    def teacher(x):
        calls.append(len(x))
        return soft(x)

    distilled(teacher, precompute=precompute, steps=steps)
    return calls


@pytest.mark.parametrize(
    ("precompute", "steps", "stored"),
    [(True, 1, True), (False, 30, False), ("auto", 5, False), ("auto", 6, True)],
)
def test_targets_are_stored_once_rows_are_met_again(precompute, steps, stored):
    calls = asked(precompute, steps)
    assert (60 in calls) == stored
    assert calls.count(10) == (0 if stored else steps)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, list])
def test_arrays_become_the_students_floating_type(kind):
    array = X.half().numpy()
    inputs = array.tolist() if kind is list else array.astype(kind)
    expected = distilled(inputs=X.half().float(), held_out=X[:9], steps=9)
    result = distilled(inputs=inputs, held_out=X[:9].numpy(), steps=9)
    assert next(result.student.parameters()).dtype == torch.float32
    assert torch.equal(weights(result.student), weights(expected.student))
    assert result.history["held_out"] == expected.history["held_out"]


def test_settings_tell_what_was_asked_for():
    result = distilled(seed=8, clip=2.0, inputs=X.reshape(60, 2, 2))
    assert result.settings["seed"] == 8
    assert result.settings["clip"] == 2.0
    assert result.settings["steps"] == 3
    assert result.settings["device"] == "cpu"
    assert result.settings["input_shape"] == {"": [2, 2]}
    assert result.settings["update"].startswith("Adam(lr=0.001")


# from end to end


def test_a_forest_becomes_a_small_net_that_agrees_with_it():
    digits = load_digits()
    images, labels = digits.data / 16, digits.target
    train, test = images[:1297], images[1297:]
    forest = RandomForestClassifier(50, random_state=0).fit(train, labels[:1297])
    student = net(0, 64, 40, 10)
    result = lb.distill(
        forest, student, train, steps=1500, batch_size=100, lr=5e-3, device="cpu", engine="eager"
    )
    assert result.settings["loss"].startswith("cross_entropy")
    guess = student(torch.as_tensor(test, dtype=torch.float32)).argmax(1).numpy()
    assert (guess == forest.predict(test)).mean() > 0.9
    assert result.history["loss"][-1] < result.history["loss"][0] / 2


def test_a_linear_regression_is_found_again_exactly():
    generator = np.random.default_rng(0)
    data = generator.normal(size=(200, 4))
    teacher = LinearRegression().fit(data, data @ [1.0, -2.0, 0.5, 3.0] + 0.7)
    student = nn.Linear(4, 1)
    lb.distill(teacher, student, data, steps=800, batch_size=50, lr=0.05, device="cpu")
    found = [*student.weight[0].tolist(), student.bias.item()]
    assert found == pytest.approx([1.0, -2.0, 0.5, 3.0, 0.7], abs=1e-3)


@pytest.mark.slow
def test_derivatives_teach_more_from_few_inputs():
    r"""The claim of the method, at its smallest: slopes at twenty points against values there."""
    few = X[:20]
    other = torch.randn(500, 4, generator=torch.Generator().manual_seed(9))

    def error(loss):
        student = net(1, 4, 12, 3)
        distilled(net(2), student, few, loss=loss, steps=1200, batch_size=20, lr=0.02)
        with torch.no_grad():
            return (student(other).softmax(1) - net(2)(other).softmax(1)).abs().mean().item()

    assert error(CE() + DE()) < error(CE()) / 2


# what is drawn from torch's own generator


def dropout_student() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_dropout_is_seeded_and_leaves_the_users_generator_alone(seeds):
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    teacher = lb.MLP(4, 3, generator=torch.Generator().manual_seed(1))
    found = []
    for seed, disturbance in zip(seeds, (3, 4), strict=True):
        student = dropout_student()
        torch.manual_seed(disturbance)
        before = torch.get_rng_state()
        lb.distill(
            teacher, student, lb.inputs.Dataset(x, seed=7), steps=20, batch_size=10, seed=seed,
            student_output="logits", engine="eager", progress=False,
        )  # fmt: skip
        assert torch.equal(before, torch.get_rng_state())
        found.append(student[0].weight.detach())
    assert torch.equal(*found) == (seeds[0] == seeds[1])


def test_a_student_with_dropout_resumes_exactly(tmp_path):
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    teacher = lb.MLP(4, 3, generator=torch.Generator().manual_seed(1))
    options = {"steps": 40, "batch_size": 10, "student_output": "logits", "engine": "eager"}
    whole = lb.distill(teacher, dropout_student(), x, **options, progress=False).student
    for step in lb.steps(teacher, dropout_student(), x, **options, checkpoint=tmp_path):
        if step.number == 17:
            break
    again = lb.distill(
        teacher, dropout_student(), x, **options, checkpoint=tmp_path, progress=False
    ).student
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True)
    )


def test_a_teacher_is_not_distilled_into_itself():
    teacher = net(2)
    refuses("student: expected .*, got the teacher itself", teacher=teacher, student=teacher)


def test_a_net_that_does_not_fit_the_inputs_is_named():
    refuses(r"student: expected inputs that .*\(8, 4\).*\(n, 5\)", student=net(1, 5, 3))
    refuses(r"teacher: expected inputs that .*\(8, 4\).*\(n, 5\)", teacher=net(1, 5, 3))


@pytest.mark.parametrize("precompute", [True, False])
def test_no_hooks_stay_on_either_model(precompute):
    teacher, student = net(2), net(1)
    hints = lb.losses.hints("layers.0", "layers.0")
    distilled(teacher, student, loss=hints, precompute=precompute)
    for model in (teacher, student):
        assert not any(module._forward_hooks for module in model.modules())


def test_an_unknown_setting_of_steps_suggests_the_nearest():
    with refused("optimiser", "an unknown name", expected="did you mean 'optimizer'"):
        next(iter(lb.steps(None, nn.Linear(2, 2), torch.zeros(4, 2), "kl", optimiser="adam")))


def test_no_batch_size_is_refused():
    with refused("batch_size", "None"):
        next(iter(lb.steps(None, nn.Linear(2, 2), torch.zeros(4, 2), "kl", batch_size=None)))
