r"""The kernels for a CPU, by runs in plain torch and in C++, against the definition."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from limbeck.models.kernels import nade_native, nade_op
from limbeck.models.nade import NADE
from tests.models.kernels import reference


class Runs:
    r"""What the operator does without C++ kernels."""

    @staticmethod
    def logits(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nade_op, "WORTH_NATIVE", float("inf"))
            return reference.operator_logits(*arguments)

    @staticmethod
    def pull(d, x, w, c, u, period=1, wants_x=False):
        if wants_x:
            return torch.func.vjp(lambda *each: Runs.logits(*each, period), x, w, c, u)[1](d)
        back = torch.func.vjp(lambda *each: Runs.logits(x, *each, period), w, c, u)[1]
        return x.new_empty(0), *back(d)

    @staticmethod
    def sample(uniforms, w, c, u, b, m=None):
        nade = NADE(*w.shape, dtype=w.dtype, centre=m)
        for name, values in zip("wcub", (w, c, u, b), strict=True):
            getattr(nade, name).data = values
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(nade_op, "WORTH_NATIVE", float("inf"))
            return nade._draw(uniforms)


KERNELS = {"runs": Runs, "native": nade_native}
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-12}


@pytest.fixture(params=KERNELS)
def kernels(request):
    if request.param == "native" and not nade_native.available():
        pytest.skip("no C++ compiler")
    return KERNELS[request.param]


def problem(n, inputs, hidden, dtype, density=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    if density == "real":
        x = normal(n, inputs)
    else:
        x = (torch.rand(n, inputs, generator=generator) < density).to(dtype)
    return x, normal(inputs, hidden), normal(hidden), normal(inputs, hidden), normal(n, inputs)


def assert_as_defined(kernels, n, inputs, hidden, period, dtype, density, seed=0):
    x, w, c, u, d = problem(n, inputs, hidden, dtype, density, seed)
    z, back = torch.func.vjp(lambda *each: reference.logits(*each, period), x, w, c, u)
    expected = back(d)
    scale = TOLERANCE[dtype]
    close = {"rtol": scale, "atol": scale * max(each.abs().max().item() for each in expected)}
    torch.testing.assert_close(kernels.logits(x, w, c, u, period), z, rtol=scale, atol=20 * scale)
    for wants_x in (True, False):
        gx, *found = kernels.pull(d, x, w, c, u, period, wants_x)
        for one, other in zip(found, expected[1:], strict=True):
            torch.testing.assert_close(one, other, **close)
        if wants_x:
            torch.testing.assert_close(gx, expected[0], **close)
        else:
            assert gx.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("density", [0.0, 0.13, 1.0, "real"])
@pytest.mark.parametrize(
    ("n", "inputs", "hidden", "period"),
    [
        (1, 1, 1, 1),
        (2, 3, 1, 1),
        (5, 28, 17, 1),
        (3, 29, 16, 1),
        (20, 85, 65, 1),
        (4, 57, 129, 1),
        (6, 30, 9, 3),
        (3, 64, 5, 32),
        (2, 4, 3, 4),
    ],
)
def test_value_and_pull_back_are_as_defined(kernels, n, inputs, hidden, period, density, dtype):
    assert_as_defined(kernels, n, inputs, hidden, period, dtype, density)


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 70),
    variables=st.integers(1, 40),
    hidden=st.integers(1, 70),
    period=st.integers(1, 3),
    density=st.sampled_from([0.05, 0.5, "real"]),
    seed=st.integers(0, 1000),
)
def test_any_size_will_do(n, variables, hidden, period, density, seed):
    for name, kernels in KERNELS.items():
        if name == "runs" or nade_native.available():
            assert_as_defined(
                kernels, n, variables * period, hidden, period, torch.float64, density, seed
            )


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_may_be_done_in_chunks(kernels, rows, monkeypatch):
    monkeypatch.setitem(nade_op.NUMBERS, "cpu", rows * 20 * 5)
    monkeypatch.setitem(nade_op.TOGETHER, "cpu", 2 * rows * 2 * 5)
    monkeypatch.setattr(nade_native, "CHUNK", rows)
    monkeypatch.setattr(nade_native, "GROUP", rows)
    assert_as_defined(kernels, 10, 40, 5, 1, torch.float64, 0.3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_will_do(kernels, threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert_as_defined(kernels, 11, 30, 3, 1, torch.float64, 0.3)
        assert_as_defined(kernels, 11, 30, 150, 1, torch.float64, 0.3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("n", "inputs", "hidden"), [(1, 1, 1), (9, 30, 17), (21, 12, 150)])
@pytest.mark.parametrize("centred", [False, True])
def test_samples_are_as_defined(kernels, n, inputs, hidden, dtype, centred):
    _, w, c, u, _ = problem(n, inputs, hidden, dtype)
    b = w[:, 0].contiguous()
    uniforms = torch.rand(n, inputs, generator=torch.Generator().manual_seed(1), dtype=dtype)
    # apart in memory, and with values at which a one or a zero adds nothing
    m = torch.stack([uniforms[0].where(uniforms[0] < 0.8, uniforms[0].round()), c.new_ones(inputs)])
    m = m.T[:, 0] if centred else None
    x, probabilities = kernels.sample(uniforms, w, c, u, b, m)
    expected, met = reference.sample(uniforms, w, c, u, b, m)
    assert (uniforms - met).abs().min() > TOLERANCE[dtype], "so rounding decides nothing"
    assert torch.equal(x, expected)
    torch.testing.assert_close(
        met, (reference.logits(x if m is None else x - m, w, c, u) + b).sigmoid()
    )
    torch.testing.assert_close(probabilities, met, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_layout_in_memory_does_not_matter(kernels):
    x, w, c, u, d = problem(6, 9, 4, torch.float64)

    def apart(tensor):
        return torch.stack([tensor, tensor + 1], -1)[..., 0]

    apart_d, *apart_rest = map(apart, (d, x, w, c, u))
    assert not apart_rest[0].is_contiguous()
    close = {"rtol": 1e-12, "atol": 1e-13}  # strides choose between matrix products
    torch.testing.assert_close(kernels.logits(*apart_rest), kernels.logits(x, w, c, u), **close)
    pairs = zip(kernels.pull(apart_d, *apart_rest), kernels.pull(d, x, w, c, u), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, **close)


def test_what_is_not_a_number_stays_so(kernels):
    x, w, c, u, d = problem(4, 9, 70, torch.float32)
    x[:, 0] = 1
    for place in range(3):
        spoilt = [w.clone(), c.clone(), u.clone()]
        spoilt[place].view(-1)[-1 if place == 1 else 2] = float("nan")
        found = kernels.logits(x, *spoilt)
        expected = reference.logits(x, *spoilt).isnan()
        assert expected.any()
        assert found[expected].isnan().all()
        assert any(each.isnan().any() for each in kernels.pull(d, x, *spoilt))


def test_hidden_units_saturate(kernels):
    x, w, _, u, _ = problem(4, 9, 8, torch.float32)
    c = torch.tensor([1e30, -1e30, 1e4, -1e4, 200.0, -200.0, 88.0, -88.0])
    expected = reference.logits(x, w, c, u)
    torch.testing.assert_close(kernels.logits(x, w, c, u), expected, rtol=1e-5, atol=1e-5)
    infinite = torch.where(c.abs() > 1e20, c * float("inf"), c)
    torch.testing.assert_close(kernels.logits(x, w, infinite, u), expected, rtol=1e-5, atol=1e-5)


class Largest(TorchDispatchMode):
    r"""The size of the largest tensor that was made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // 4)
        return found


def test_runs_never_hold_batch_by_inputs_by_hidden():
    n, inputs, hidden = 2000, 50, 40
    x, w, c, u, d = problem(n, inputs, hidden, torch.float32)
    with Largest() as largest:
        Runs.logits(x, w, c, u)
        Runs.pull(d, x, w, c, u, wants_x=True)
        Runs.sample(d, w, c, u, w[:, 0])
    assert largest.numbers <= nade_op.NUMBERS["cpu"] < n * inputs * hidden / 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read in kB")
@pytest.mark.skipif(not nade_native.available(), reason="no C++ compiler")
def test_native_kernels_never_hold_batch_by_inputs_by_hidden():
    script = """
import resource, torch
from limbeck.models.kernels import nade_native as kernels
n, inputs, hidden = 1000, 784, 250
x = (torch.rand(n, inputs) < 0.1).float()
w, u, c = torch.randn(inputs, hidden), torch.randn(inputs, hidden), torch.randn(hidden)
kernels.pull(x[:1], x[:1], w, c, u, wants_x=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kernels.logits(x, w, c, u)
kernels.pull(x, x, w, c, u)
kernels.sample(x, w, c, u, w[:, 0])
more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(more * 1024 / (4 * n * inputs * hidden))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 0.05  # of one tensor of batch × inputs × hidden
