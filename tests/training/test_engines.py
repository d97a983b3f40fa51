r"""Engines run one and the same step: they agree, and what will not compile still runs."""

import copy
import functools
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import limbeck as lb
from limbeck.inputs import Dataset
from limbeck.training import engines
from limbeck.training.engines import CPU, pays
from tests.refusals import refused, warns_about

DOUBLE = torch.float64
X = torch.randn(90, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
compiles = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="no C++ compiler (g++ or clang++) to compile steps with",
)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def net(seed):
    generator = torch.Generator().manual_seed(seed)
    return lb.MLP(4, 6, 3, hidden="tanh", dtype=DOUBLE, generator=generator)


class Strided(Dataset):
    r"""Rows whose numbers lie in memory now next to each other and now apart."""

    def draw(self, n):
        rows = super().draw(n)
        even = self.position % (2 * n) == 0
        return torch.stack([rows, rows], 1)[:, 0] if even else rows


class Momentum(lb.GradientUpdate):
    def __init__(self):
        super().__init__("sgd", "linear", lr=0.05, clip=0.3, momentum=0.9, nesterov=True)


CE, DE = lb.losses.cross_entropy, lb.losses.derivative_error
CASES = {
    "adam, cosine": lambda: dict(inputs=Dataset(X), loss=CE(), schedule="cosine", lr=0.02),
    "derivatives, clipping, momentum, strides that change": lambda: dict(
        inputs=Strided(X), loss=CE() + 0.1 * DE(), update=Momentum(), precompute=False
    ),
    "adadelta as in the thesis, stored pools of projections": lambda: dict(
        inputs=Dataset(X),
        loss=DE(projections=1, weight="teacher"),
        preset="thesis",
        precompute=True,
    ),
}


def take(**options):
    r"""All steps of a run, and the run."""
    settings = dict(teacher=net(2), student=net(1), steps=100, batch_size=9, every=10, seed=3)
    settings |= dict(device="cpu") | options
    (*_, last) = lb.steps(**settings)
    return last.run


@functools.cache
def ran(case, engine):
    return take(**CASES[case](), engine=engine)


def learned(run):
    r"""All that a run has changed: the student, optimizer state and progress, and the history."""
    return run.objective.student.state_dict(), run.update.tensors(), dict(run.history)


@pytest.mark.slow
@compiles
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_compiled_steps_are_the_eager_ones_to_rounding(case):
    eager, compiled = ran(case, "eager"), ran(case, "compiled")
    assert (eager.engine.name, compiled.engine.name) == ("eager", "compiled")
    assert len(compiled.history["loss"]) == 10
    moved = compiled.objective.student.state_dict()["layers.0.weight"]
    assert (moved - net(1).layers[0].weight).norm() > 0.1
    assert any("optimizer." in name for name in learned(compiled)[1])
    torch.testing.assert_close(learned(compiled), learned(eager), rtol=1e-9, atol=1e-11)


def test_pools_of_projections_are_stored_where_the_case_says_so():
    run = ran("adadelta as in the thesis, stored pools of projections", "eager")
    assert set(run.objective.teacher.pools) == {("log", "teacher")}
    assert type(run.update.optimizer) is torch.optim.Adadelta


@pytest.mark.slow
@compiles
def test_an_interrupted_compiled_run_ends_bit_for_bit_where_an_uninterrupted_one_ends(tmp_path):
    options = dict(CASES["adam, cosine"](), engine="compiled", checkpoint=tmp_path)
    settings = dict(teacher=net(2), steps=100, batch_size=9, every=10, seed=3, device="cpu")
    for step in lb.steps(student=net(1), **settings, **options):
        if step.number == 37:
            break
    del step
    resumed = take(**options, student=net(7))
    whole = ran("adam, cosine", "compiled")
    assert resumed.done == 100
    torch.testing.assert_close(learned(resumed), learned(whole), rtol=0, atol=0)


BAD_ROW = 70


def poisoned(x):
    r"""A teacher that fails at one row, which is marked by a large number."""
    logits = torch.stack([x[:, 0], x[:, 1] - x[:, 2], x[:, 3]], 1).tanh()
    return torch.where(x[:, :1] == 30.0, torch.nan, logits)


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3, dtype=DOUBLE)
    ).to(DOUBLE)


@functools.cache
def fall(engine):
    r"""A run of a net with running statistics into a bad row: the states it was in, and the run."""
    data = X.clone()
    data[BAD_ROW, 0] = 30.0
    student = normalised()
    steps = lb.steps(
        poisoned, student, Dataset(data), teacher_output="logits", student_output="logits",
        optimizer="adam", schedule="constant", precompute=False, engine=engine, device="cpu",
        steps=100, batch_size=9, seed=3,
    )  # fmt: skip
    with warns_about("cross_entropy"):
        seen = [(copy.deepcopy(student.state_dict()), step.run) for step in steps]
    return [state for state, _ in seen], student.state_dict(), seen[-1][1]


def first_batch_with(row):
    data = Dataset(X, seed=3)
    return next(k for k in range(1, 11) if row in data(9).index.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", pytest.param("compiled", marks=compiles)])
def test_a_bad_step_leaves_parameters_and_running_statistics_bit_for_bit(engine):
    states, after, run = fall(engine)
    step = first_batch_with(BAD_ROW)
    assert step > 2
    assert run.engine.name == engine
    assert run.done == len(states) == step - 1
    assert run.failure.step == step
    assert run.failure.batch.index[run.failure.examples].tolist() == [BAD_ROW]
    assert after["1.num_batches_tracked"] == step - 1
    torch.testing.assert_close(after, states[-1], rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(states[-1], states[-2], rtol=0, atol=0)


@pytest.mark.slow
@compiles
def test_running_statistics_agree_between_engines():
    (_, eager, _), (_, compiled, _) = fall("eager"), fall("compiled")
    assert not torch.equal(eager["1.running_mean"], normalised()[1].running_mean)
    torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", pytest.param("compiled", marks=compiles)])
def test_dropout_draws_anew_at_every_step(engine):
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Tanh(), nn.Linear(50, 3))
    same = torch.ones(30, 4)  # without dropout, and without learning, every step has the same loss
    run = take(
        teacher=lambda x: x[:, :3].softmax(1), student=student, inputs=same, every=1, steps=10,
        student_output="logits", lr=1e-12, engine=engine,
    )  # fmt: skip
    assert run.engine.name == engine
    assert len({round(loss, 5) for loss in run.history["loss"]}) == 10


def branching(x):
    return x[:, :3] * 2 if x.sum() > 0 else x[:, :3]


def test_a_step_that_cannot_be_compiled_runs_eagerly_with_one_warning():
    options = dict(
        teacher=branching, inputs=X, loss=CE(), teacher_output="logits", precompute=False, steps=8
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = take(**options, engine="compiled")
    own = [str(w.message) for w in caught if str(w.message).startswith("engine:")]
    assert len(own) == 1
    assert "cannot be compiled" in own[0]
    assert "running eagerly" in own[0]
    assert run.engine.name == "eager"
    eager = take(**options, engine="eager")
    torch.testing.assert_close(learned(run), learned(eager), rtol=0, atol=0)


class Descent(torch.optim.Optimizer):
    r"""A user's own optimizer."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


@pytest.mark.parametrize("kind", [torch.optim.Rprop, Descent])
def test_an_optimizer_without_a_functional_form_runs_eagerly_and_says_so(kind):
    def trained(engine):
        student = net(1)
        return take(
            student=student, inputs=X, optimizer=kind(student.parameters()), engine=engine, steps=8
        )

    with warns_about(kind.__name__):
        run = trained("compiled")
    eager = trained("eager")
    assert run.engine.name == "eager"
    assert not torch.equal(run.objective.student.layers[0].weight, net(1).layers[0].weight)
    torch.testing.assert_close(learned(run), learned(eager), rtol=0, atol=0)
    assert trained("auto").engine.name == "eager"


class Scaled(nn.Module):
    r"""A net with a trained number of no dimension."""

    def __init__(self):
        super().__init__()
        self.net, self.scale = net(1), nn.Parameter(torch.tensor(1.0, dtype=DOUBLE))

    def forward(self, x):
        return self.scale * self.net(x)


def test_a_number_that_a_compiled_step_would_leave_as_it_is_is_trained_eagerly():
    options = dict(inputs=X, student_output="logits", steps=8)
    with warns_about("student.scale"):
        run = take(**options, student=Scaled(), engine="compiled")
    assert run.engine.name == "eager"
    assert run.objective.student.scale != 1.0


def made(name="auto", *, compilable=True):
    objective = SimpleNamespace(device=torch.device("cpu"))
    objective.named_parameters = objective.named_buffers = list
    return type(engines.make_engine(name, objective, SimpleNamespace(compilable=compilable), 10**6))


@pytest.mark.parametrize(
    ("compilable", "compiler", "expected"),
    [
        (True, True, engines.Compiled),
        (False, True, engines.Eager),
        (True, False, engines.Eager),
    ],
)
def test_auto_needs_a_compiler_and_an_update_that_can_be_compiled(
    monkeypatch, compilable, compiler, expected
):
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/" + name if compiler else None)
    assert made(compilable=compilable) is expected


@pytest.mark.parametrize(
    ("operations", "steps", "seconds", "expected"),
    [
        (170, 5_000, None, False),  # the thesis' student and cross entropy
        (170, 20_000, None, True),
        (300, 2_000, None, False),  # with derivatives
        (300, 10_000, None, True),
        (1_600, 2_000, None, False),  # six layers of a transformer
        (1_600, 20_000, None, True),
        (1_600, 20_000, 100.0, False),
        (1_600, 20_000, 1_000.0, True),
    ],
)
def test_compilation_pays_by_operations_steps_and_seconds(operations, steps, seconds, expected):
    assert pays(CPU, operations, steps, seconds) is expected


def test_a_short_run_is_eager_by_default():
    assert take(inputs=X, steps=5).engine.name == "eager"


@pytest.mark.parametrize(("name", "meant"), [("compild", "compiled"), ("Eager", "eager")])
def test_an_unknown_engine_suggests_the_nearest(name, meant):
    with refused("engine", f"'{name}'", expected=f"did you mean '{meant}'"):
        take(inputs=X, engine=name)


@on_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_captured_graph_gives_the_eager_steps_to_rounding(case):
    eager = take(**CASES[case](), engine="eager", device="cuda")
    captured = take(**CASES[case](), engine="compiled", device="cuda")
    assert captured.engine.name == "compiled"
    assert captured.engine._captured is not None
    torch.testing.assert_close(learned(captured), learned(eager), rtol=1e-7, atol=1e-9)
