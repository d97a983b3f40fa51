r"""Engines: batches of any shape, a forecast before compilation, and seconds that count it.

What went wrong: a compiled step met a batch of another shape and the run ended in a RuntimeError,
minutes after it began; "auto" compiled models whose compilation takes longer than all their steps;
a failure of the compiler's own ended a run; nobody could tell compilation from training in a
result's seconds.
"""

import shutil
import time
import warnings

import pytest
import torch
from torch import nn
from torch._inductor.cpu_vec_isa import pick_vec_isa

import limbeck as lb
from limbeck.arrays import Batch
from limbeck.inputs.base import Inputs
from tests.refusals import warns_about

DOUBLE = torch.float64
compiles = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="no C++ compiler (g++ or clang++) to compile steps with",
)
vectorised = pytest.mark.skipif(
    not pick_vec_isa(), reason="torch's compiler needs vector instructions for these steps"
)
MANY = 10**6


class Mean(nn.Module):
    r"""A student of sequences of any length."""

    def __init__(self, width=6):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.net = lb.MLP(3, width, 2, hidden="tanh", dtype=DOUBLE, generator=generator)

    def forward(self, x):
        return self.net(x.mean(1))


class Batches(Inputs):
    r"""Batches whose rows and lengths follow a pattern that is repeated."""

    def __init__(self, *sizes):
        super().__init__()
        self.sizes, self.count = sizes, 0

    def draw(self, n):
        rows, length = self.sizes[self.count % len(self.sizes)]
        self.count += 1
        return torch.randn(rows, length, 3, dtype=DOUBLE, generator=self.generator)

    def build(self, drawn):
        return Batch(drawn)

    def state_dict(self):
        return super().state_dict() | {"count": torch.tensor(self.count)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.count = int(state["count"])


PADDED = [(9, 5), (9, 7), (9, 4)]
SHORT = [(9, 5), (9, 5), (4, 5)]


def teacher(x):
    return torch.stack([x[..., 0].mean(1), x[..., 1].mean(1)], 1)


def options(*sizes, **more):
    return {
        "teacher": teacher, "inputs": Batches(*sizes), "teacher_output": "logits",
        "student_output": "logits", "batch_size": 9, "device": "cpu", "lr": 0.05, "every": 3,
    } | more  # fmt: skip


def trained(engine, *sizes, student=None, **more):
    r"""The result of a few steps, and what it warned of the engine."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = {"steps": 24, "progress": False} | more
        result = lb.distill(student=student or Mean(), engine=engine, **options(*sizes, **settings))
    told = [str(each.message) for each in caught if str(each.message).startswith("engine:")]
    return result, told


def taken(count, **more):
    r"""A long run after some steps: the steps are left off there."""
    run = None
    for step in lb.steps(**({"student": Mean()} | more)):
        run = step.run
        if step.number == count:
            break
    return run


@pytest.fixture
def compiler(monkeypatch):
    r"""A compiler that takes no time: its graph is the eager step, and notes which plans it got."""
    from limbeck.training.engines import Compiled

    seen = []

    def fitting(self, plan):
        seen.append(tuple(plan["inputs"].shape))
        self.update.step(plan, False)

    monkeypatch.setattr(shutil, "which", lambda name: "/bin/" + name)
    monkeypatch.setattr(Compiled, "_run_graph", fitting, raising=False)
    return seen


@pytest.mark.slow
@compiles
@vectorised
@pytest.mark.parametrize(("sizes", "warned"), [(PADDED, 1), (SHORT, 0)], ids=["padded", "short"])
def test_batches_of_other_shapes_take_the_steps_of_an_eager_run(sizes, warned):
    r"""Batches padded to their longest row, and the short last batch of each pass."""
    compiled, told = trained("compiled", *sizes)
    eager, _ = trained("eager", *sizes)
    assert compiled.engine == "compiled"
    assert compiled.steps == 24
    assert len(told) == warned
    assert all("shapes of the batches change" in each for each in told)
    state = compiled.student.state_dict()
    torch.testing.assert_close(state, eager.student.state_dict(), rtol=1e-9, atol=1e-11)
    assert (state["net.layers.0.weight"] - Mean().net.layers[0].weight).norm() > 0.1


def test_a_number_in_a_plan_is_not_compiled_in():
    r"""A graph would take a Python number of the first plan for granted in all others."""

    class Numbered(Batches):
        def draw(self, n):
            return {"x": super().draw(n), "scale": float(self.count % 2)}

        def build(self, drawn):
            return Batch(drawn["x"] * drawn["scale"])

    from limbeck.training.engines import shapes_of

    source = Numbered((9, 5))
    one, two, three = (shapes_of({"inputs": source.draw(9)}) for _ in range(3))
    assert one != two
    assert one == three
    assert str(one) == str(three)


def test_auto_stays_eager_where_shapes_change_and_says_so_once(compiler):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = taken(20, **options(*PADDED, engine="auto", steps=20_000))
    told = [str(each.message) for each in caught if str(each.message).startswith("engine:")]
    assert len(told) == 1
    assert "shapes of the batches change" in told[0]
    assert run.engine.name == "eager"
    assert compiler == []


def test_auto_compiles_full_batches_beside_short_ones(compiler):
    run = taken(20, **options(*SHORT, engine="auto", steps=MANY))
    assert run.engine.name == "compiled"
    assert set(compiler) == {(9, 5, 3)}


def test_auto_compiles_a_long_run_of_a_small_net_and_no_short_one(compiler):
    def chosen(steps, **more):
        return taken(12, **options((9, 5), engine="auto", steps=steps, **more)).engine.name

    assert chosen(MANY) == "compiled"
    assert chosen(500) == "eager"
    assert {chosen(30_000) for _ in range(3)} == {"compiled"}


def test_auto_counts_the_operations_of_a_step(compiler):
    r"""A deep student takes longer to compile than it takes to train for as many steps."""

    class Deep(Mean):
        def forward(self, x):
            x = x.mean(1)
            for _ in range(300):
                x = x + 1e-3 * torch.tanh(x)
            return self.net(x)

    from limbeck.training.engines import CPU, pays

    run = taken(12, **options((9, 5), engine="auto", steps=4_000, student=Deep()))
    operations = run.engine.operations
    assert operations > 900
    assert run.engine.name == "eager"
    assert not pays(CPU, operations, 4_000)
    assert taken(12, **options((9, 5), engine="auto", steps=4_000)).engine.operations < 300


def test_auto_does_not_spend_a_time_limit_on_compilation(compiler):
    def chosen(seconds):
        settings = options((9, 5), engine="auto", steps=MANY, seconds=seconds)
        return taken(12, **settings).engine.name

    assert chosen(10.0) == "eager"
    assert chosen(1000.0) == "compiled"


@pytest.mark.parametrize("engine", ["auto", "compiled"])
@pytest.mark.parametrize("when", ["in compiling", "in running"])
def test_a_compiler_that_fails_leaves_an_eager_run(monkeypatch, engine, when):
    r"""Whatever fails, also after the compiled step has changed the student half."""
    from limbeck.training.engines import Compiled

    def broken(self, plan, calls):
        if when == "in running":
            calls.append((None, ()))
            for tensor in self.update.parameters.values():
                tensor.data.fill_(7.0)
            self.update.progress.done.fill_(99.0)
        raise ValueError("no such instruction")

    monkeypatch.setattr(shutil, "which", lambda name: "/bin/" + name)
    monkeypatch.setattr(Compiled, "_trace", broken)
    with warns_about("no such instruction", "eagerly") as caught:
        run = taken(20, **options((9, 5), engine=engine, steps=MANY))
    assert len(caught) == 1
    assert run.engine.name == "eager"
    eager = taken(20, **options((9, 5), engine="eager", steps=MANY))
    assert run.update.progress.done.item() == 20
    state = run.objective.student.state_dict()
    torch.testing.assert_close(state, eager.objective.student.state_dict(), rtol=0, atol=0)


def test_seconds_count_compilation_and_the_result_says_how_many(monkeypatch, tmp_path):
    from limbeck.training.engines import Compiled

    def slow(self, plan, calls):
        time.sleep(0.3)
        self.update.step(plan, False)
        calls.append((lambda *_: self.update.step(plan, False), ()))

    monkeypatch.setattr(Compiled, "_trace", slow)
    result, _ = trained("compiled", (9, 5), seconds=0.2, steps=MANY)
    assert result.steps == 1
    assert result.seconds >= result.compile_seconds >= 0.3
    assert f"after {result.compile_seconds:.1f} s of compilation" in result.stop_reason
    assert "of them compilation" in str(result)
    again = lb.load(result.save(tmp_path), student=Mean())
    assert again.compile_seconds == result.compile_seconds
    assert "of them compilation" in str(again)
    assert "compilation" not in str(trained("eager", (9, 5))[0])


@pytest.mark.parametrize("engine", ["auto", "compiled"])
@pytest.mark.parametrize("interrupted", [3, 8, 14])
@pytest.mark.parametrize("sizes", [[(9, 5)], SHORT, [(4, 5), *SHORT]], ids=["one", "short", "odd"])
def test_a_resumed_run_compiles_the_steps_that_an_uninterrupted_one_compiles(
    compiler, tmp_path, engine, interrupted, sizes
):
    settings = {"engine": engine, "steps": MANY}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        taken(20, **options(*sizes, **settings))
        whole = list(compiler)
        compiler.clear()
        settings["checkpoint"] = tmp_path
        taken(interrupted, **options(*sizes, **settings))
        taken(20, **options(*sizes, **settings))
    assert compiler == whole
    assert whole
