r"""Torch's optimizers inside the step do what they do in everybody's loop."""

from unittest import mock

import pytest
import torch

import limbeck as lb
from limbeck.inputs import Dataset
from limbeck.training.update import FUNCTIONAL, has_functional_form
from tests.refusals import refused

DOUBLE = torch.float64
STEPS, SIZE, SEED = 30, 9, 4
X = torch.randn(50, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))

OPTIONS = {
    "Adadelta": [dict(lr=1.0), dict(lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.1)],
    "Adagrad": [dict(lr=0.1), dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3)],
    "Adam": [dict(lr=0.01), dict(lr=0.01, betas=(0.5, 0.7), amsgrad=True, weight_decay=0.1)],
    "AdamW": [dict(lr=0.01), dict(lr=0.01, weight_decay=0.3, amsgrad=True)],
    "Adamax": [dict(lr=0.01), dict(lr=0.01, eps=1e-3, weight_decay=0.1)],
    "NAdam": [dict(lr=0.01), dict(lr=0.01, momentum_decay=0.1, decoupled_weight_decay=True)],
    "RAdam": [dict(lr=0.01), dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)],
    "RMSprop": [dict(lr=0.01), dict(lr=0.01, centered=True, momentum=0.5, weight_decay=0.1)],
    "SGD": [dict(lr=0.1), dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)],
    "Rprop": [dict(lr=0.01)],
    "ASGD": [dict(lr=0.1, t0=5.0, weight_decay=0.1)],
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
# torch has no functional form of this that starts as the optimizer does
CASES += [("SGD", dict(lr=0.1, momentum=0.9, dampening=0.5))]
every = pytest.mark.parametrize(("name", "options"), CASES)


def net(seed):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(4, 6, 3, hidden="tanh", dtype=DOUBLE, generator=generator)


def groups(student):
    r"""Two groups, with settings of their own."""
    first, second = student.layers
    return [
        {"params": list(first.parameters()), "lr": 0.05, "weight_decay": 0.0},
        {"params": list(second.parameters()), "lr": 0.002, "weight_decay": 0.3},
    ]


def usual_loop(student, optimizer, steps=STEPS):
    r"""Zero the gradients, go back, step: on the batches that a distillation sees."""
    data, default = Dataset(X), torch.get_default_dtype()
    data.to(torch.device("cpu"), DOUBLE, SEED)
    if type(optimizer).__name__ in FUNCTIONAL:  # so that torch, too, keeps powers in double
        torch.set_default_dtype(DOUBLE)
    for _ in range(steps):
        x = data(SIZE).x
        optimizer.zero_grad()
        targets = net(2)(x).softmax(1).detach()
        loss = -(targets * student(x).log_softmax(1)).sum(1).mean()
        loss.backward()
        optimizer.step()
    torch.set_default_dtype(default)
    return student


def distilled(student, engine="eager", **options):
    settings = dict(steps=STEPS, batch_size=SIZE, seed=SEED, device="cpu", engine=engine)
    (*_, last) = lb.steps(net(2), student, X, **settings, schedule="constant", **options)
    return last.run


def same(one, other, tolerance=1e-12):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=tolerance)


def test_every_functional_optimizer_has_a_case():
    assert set(FUNCTIONAL) <= set(OPTIONS)


@every
def test_steps_by_name_are_those_of_the_usual_loop(name, options):
    expected = net(1)
    usual_loop(expected, getattr(torch.optim, name)(expected.parameters(), **options))
    update = lb.GradientUpdate(name.lower(), "constant", **options)
    run = distilled(student := net(1), update=update)
    assert type(update.optimizer) is getattr(torch.optim, name)
    assert run.update.compilable == (name in FUNCTIONAL and "dampening" not in options)
    same(student, expected)
    with pytest.raises(AssertionError):
        same(student, net(1), 1e-3)


@pytest.mark.parametrize("name", [*FUNCTIONAL, "Rprop", "ASGD"])
def test_an_instance_with_groups_steps_as_in_the_usual_loop(name):
    def both():
        student = net(1)
        settings = [
            {k: v for k, v in group.items() if name != "Rprop" or k != "weight_decay"}
            for group in groups(student)
        ]
        return student, getattr(torch.optim, name)(settings)

    expected, optimizer = both()
    usual_loop(expected, optimizer)
    student, optimizer = both()
    distilled(student, optimizer=optimizer)
    same(student, expected)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.002]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [(n, o) for n, o in CASES if n in FUNCTIONAL and "dampening" not in o]
)
def test_steps_as_they_are_traced_for_compilation_are_those_of_the_usual_loop(name, options):
    expected = net(1)
    usual_loop(expected, getattr(torch.optim, name)(expected.parameters(), **options))
    update = lb.GradientUpdate(name, "constant", **options)
    # the traced step is run node by node, in place of the code that would be made of it
    nodes = mock.patch(
        "torch._inductor.compile_fx.compile_fx", lambda module, examples, **options: module
    )
    with nodes:
        run = distilled(student := net(1), "compiled", update=update)
    assert run.engine.name == "compiled"
    same(student, expected)


def test_an_instance_goes_on_from_the_state_it_has():
    def both():
        student = net(1)
        return student, torch.optim.Adam(student.parameters(), lr=0.01)

    expected, optimizer = both()
    usual_loop(expected, optimizer, 10)
    usual_loop(expected, optimizer)
    student, optimizer = both()
    usual_loop(student, optimizer, 10)
    distilled(student, optimizer=optimizer)
    same(student, expected)
    assert optimizer.state[student.layers[0].weight]["step"] == 10 + STEPS


def test_parameters_that_only_the_optimizer_holds_stay():
    for kind in (torch.optim.Adam, torch.optim.Rprop):
        student, other = net(1), net(3)
        optimizer = kind([*student.parameters(), *other.parameters()])
        distilled(student, optimizer=optimizer)
        same(other, net(3), 0)


def test_an_instance_that_lacks_parameters_is_refused():
    student = net(1)
    optimizer = torch.optim.Adam(student.layers[0].parameters())
    with refused("optimizer", "an instance that lacks 2 of 4 trained parameters"):
        distilled(student, optimizer=optimizer)


def test_an_instance_has_its_own_rate():
    student = net(1)
    with refused("lr", expected="no lr with an optimizer instance"):
        distilled(student, optimizer=torch.optim.Adam(student.parameters()), lr=0.1)


def test_an_optimizer_that_needs_a_closure_is_refused():
    student = net(1)
    with refused("optimizer", "^LBFGS", expected=r"whose step\(\) needs no closure"):
        distilled(student, optimizer=torch.optim.LBFGS(student.parameters()))
    with refused("optimizer", "'lbfgs'"):
        distilled(student, optimizer="lbfgs")


@pytest.mark.parametrize("name", ["adam", "Adam", "ADAM"])
def test_names_are_taken_in_any_case(name):
    run = distilled(net(1), optimizer=name)
    assert type(run.update.optimizer) is torch.optim.Adam


@pytest.mark.parametrize(
    ("name", "meant"), [("Adem", "adam"), ("Adadelt", "adadelta"), ("rmsprob", "rmsprop")]
)
def test_an_unknown_name_suggests_the_nearest(name, meant):
    with refused("optimizer", f"'{name}'", expected=f"did you mean '{meant}'"):
        distilled(net(1), optimizer=name)


def test_something_else_than_a_name_or_an_instance_is_refused():
    with refused("optimizer", "<class"):
        distilled(net(1), optimizer=torch.optim.Adam)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("adam", dict(momentum=0.9), "momentum"),
        ("sgd", dict(lr=0.1, momentum=-1.0), "momentum"),
        ("adam", dict(betas=(2.0, 0.9)), "beta"),
        ("muon", dict(lr=0.1), "2D"),
    ],
)
def test_options_that_torch_refuses_are_refused_in_its_words(name, options, said):
    update = lb.GradientUpdate(name, "constant", **options)
    with refused("optimizer", "^options", expected=rf"torch\.optim\.\w+ takes \(.*{said}"):
        distilled(net(1), update=update)


@pytest.mark.parametrize(
    ("name", "rate"), [("adadelta", 1.0), ("sgd", 0.1), ("adagrad", 0.01), ("adam", 1e-3)]
)
def test_rates_that_nobody_gave(name, rate):
    (group,) = distilled(net(1), optimizer=name).update.optimizer.param_groups
    assert group["lr"] == rate


def test_the_thesis_preset_is_adadelta_with_its_constants_and_batches_of_twenty():
    (*_, last) = lb.steps(net(2), net(1), X, preset="thesis", steps=3, device="cpu")
    run = last.run
    (group,) = run.update.optimizer.param_groups
    assert type(run.update.optimizer) is torch.optim.Adadelta
    assert (group["lr"], group["rho"], group["eps"]) == (1.0, 0.95, 1e-6)
    assert run.update.schedule == lb.schedules.Constant()
    assert run.settings.batch_size == 20


def test_the_usual_settings_are_adam_with_a_cosine_and_batches_of_two_hundred():
    data = torch.randn(300, 4, dtype=DOUBLE)
    (*_, last) = lb.steps(net(2), net(1), data, steps=3, device="cpu")
    assert type(last.run.update.optimizer) is torch.optim.Adam
    assert last.run.update.schedule == lb.schedules.Cosine()
    assert last.run.settings.batch_size == 200


class Adam(torch.optim.Optimizer):
    r"""A user's own optimizer that has the name of one of torch's."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


def test_a_users_optimizer_is_not_taken_for_the_one_of_the_same_name():
    expected = net(1)
    usual_loop(expected, torch.optim.SGD(expected.parameters(), lr=0.1))
    student = net(1)
    optimizer = Adam(student.parameters())
    assert not has_functional_form(optimizer)
    distilled(student, optimizer=optimizer)
    same(student, expected)
