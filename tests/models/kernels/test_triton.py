r"""Triton's kernels against the plain formulas: interpreted here, and compiled where a GPU is."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from limbeck.models.kernels import nade_op
from limbeck.models.nade import NADE
from tests.models.kernels import reference

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which this platform lacks"
)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.slow
def test_interpreted_kernels_give_what_the_formulas_say():
    # in a process of its own, since Triton decides at its import whether it interprets
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("interpreted.py"))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@on_gpu
@pytest.mark.parametrize(("n", "hidden"), [(1, 7), (20, 500), (100, 130), (700, 60)])
def test_compiled_kernels_give_what_the_formulas_say(n, hidden):
    generator = torch.Generator().manual_seed(0)
    nade = NADE(77, hidden, generator=generator)
    x = torch.randint(2, (n, 77), generator=generator).float()
    wanted = torch.func.grad(lambda p: reference.log_prob(x.double(), *p).sum())(
        tuple(each.detach().double() for each in nade.parts)
    )
    nade.cuda()
    log_p = nade.log_prob(x.cuda())
    found = torch.autograd.grad(log_p.sum(), nade.parts)
    for each, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(each.cpu().double(), exact, atol=2e-3, rtol=2e-4)


@on_gpu
@pytest.mark.parametrize("centred", [False, True])
def test_samples_are_those_of_the_cpu(centred):
    nade = NADE(50, 30, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(200, 50, generator=torch.Generator().manual_seed(1))
    given = [uniforms, *(p.detach() for p in nade.parts)]
    if centred:
        given.append(torch.rand(50, generator=torch.Generator().manual_seed(2)))
    here = reference.sample(*given)
    there = nade_op.gpu_kernels(uniforms.cuda()).sample(*(each.cuda() for each in given))
    assert (here[0] != there[0].cpu()).float().mean() < 1e-3  # rounding decides a few
