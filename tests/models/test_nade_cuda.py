r"""A NADE on a GPU does what it does on a CPU; skipped where there is none."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import limbeck as lb
from limbeck.models.kernels import nade_op
from limbeck.models.nade import NADE
from limbeck.supports import Binary, Spins, States
from tests.models.kernels import reference
from tests.models.nets import score

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

SUPPORTS = [Binary(5, 6), Spins(30), States(3, 10)]


@pytest.fixture(params=["triton", "plain"], autouse=True)
def kernels(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(nade_op, "triton_kernels", lambda: None)
        monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
        FakeTensorMode.cache_clear()  # shapes of the other kernels
    elif nade_op.triton_kernels() is None:
        pytest.skip("no Triton")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def both(support, dtype=torch.float32):
    return (
        NADE(support.size, 37, "random", support, dtype, device, generator())
        for device in ("cpu", "cuda")
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("support", SUPPORTS, ids=repr)
def test_values_gradients_and_samples(support, dtype):
    here, there = both(support, dtype)
    x = here.sample(300, generator(1))
    other = (there.sample(300, generator(1)).cpu() != x).flatten(1).any(1).sum()
    # up to 9,000 uniforms, and two machines' float32 probabilities differ by some 1e-6
    assert other <= (1 if dtype == torch.float32 else 0)
    found, expected = there.log_prob(x.cuda()), here.log_prob(x)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    found.mean().backward()
    expected.mean().backward()
    for one, other in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-5)
    conditionals = there.conditionals(x.cuda()).cpu()
    torch.testing.assert_close(conditionals, here.conditionals(x), rtol=1e-4, atol=1e-5)


def test_derivatives_with_respect_to_x():
    here, there = both(Binary(70))
    x = here.sample(20, generator(1))
    torch.testing.assert_close(score(there, x.cuda()).cpu(), score(here, x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 20, 3000])
def test_the_operator_is_as_defined(n):
    torch.manual_seed(0)
    x = torch.randint(2, (n, 70), device="cuda").float()
    w, u = torch.randn(2, 70, 33, device="cuda")
    c, b, g = (torch.randn(size, device="cuda") for size in (33, 70, n))
    parameters = tuple(each.requires_grad_() for each in (w, c, u, b))
    found = reference.operator_log_prob(x, *parameters)
    torch.testing.assert_close(found, reference.log_prob(x, *parameters), rtol=1e-4, atol=1e-3)
    expected = reference.gradients(g, x, *parameters)[1:]
    gradients = torch.autograd.grad((g * found).sum(), parameters)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * max(1, n**0.5 / 5))


@pytest.mark.parametrize("support", SUPPORTS, ids=repr)
def test_a_captured_run_equals_an_eager_one(support):
    runs = []
    for engine in ("eager", "compiled"):
        _, nade = both(support)
        result = lb.distill(
            None, nade, support.start(40, generator()), lb.losses.kl(), steps=12, batch_size=8,
            engine=engine, every=4, device="cuda", progress=False,
        )  # fmt: skip
        assert result.engine != "eager" or engine == "eager"
        runs.append(result.history["loss"])
    assert runs[0] == pytest.approx(runs[1], rel=1e-2)
