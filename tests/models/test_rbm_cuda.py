r"""The RBM on a GPU: the same numbers as on the CPU, and sweeps that a CUDA graph can hold."""

from __future__ import annotations

import pytest
import torch

from limbeck.models.rbm import RBM
from limbeck.models.rbm_training import train_rbm
from limbeck.normalization.log_partition import exact_log_z
from limbeck.normalization.mode_search import climb

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def model(visible: int = 30, hidden: int = 20, device: str = "cuda") -> RBM:
    return RBM.random(visible, hidden, 0.4, torch.Generator().manual_seed(0), device=device)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def test_values_are_those_of_the_cpu() -> None:
    here, there = model(device="cpu"), model()
    x = here.start(50, torch.Generator().manual_seed(1))
    for name in ("log_unnormalized", "hidden_probabilities"):
        found = getattr(there, name)(x.cuda())
        torch.testing.assert_close(found.cpu(), getattr(here, name)(x), atol=1e-4, rtol=1e-4)
    assert exact_log_z(there) == pytest.approx(exact_log_z(here), rel=1e-12)
    assert climb(there, 0)[0] == pytest.approx(climb(here, 0)[0], rel=1e-6)


def test_sweeps_find_the_expected_statistics() -> None:
    rbm, n = model(10, 6), 20_000
    x = rbm.advance(rbm.start(n, stream(1)), 100, stream(2))
    every = rbm.support.enumerate(0, 1024, device="cuda")
    exact = torch.autograd.grad(rbm(every).logsumexp(0), (rbm.W, rbm.a, rbm.b))
    means = torch.autograd.grad(rbm(x).mean(), (rbm.W, rbm.a, rbm.b))
    for mean, truth in zip(means, exact, strict=True):
        # of variables from 0 to 1
        assert ((mean - truth).abs() < 5 * (truth * (1 - truth) / n).sqrt() + 1e-5).all()


def test_a_graph_of_a_sweep_can_be_replayed() -> None:
    rbm, n = model(6, 4), 20_000
    x = rbm.start(n, stream())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rbm.advance(x, 2)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(rbm.advance(x, 2))
    for _ in range(50):
        graph.replay()
    every = rbm.support.enumerate(0, 64, device="cuda")
    p = rbm(every).softmax(0)
    number = (x @ (2.0 ** torch.arange(5, -1, -1, device="cuda"))).long()
    found = torch.bincount(number, minlength=64) / n
    assert ((found - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-5).all()


def test_training_stays_on_the_gpu() -> None:
    data = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]).repeat(50, 1)
    settings = dict(epochs=30, batch_size=10, device="cuda")
    rbm, same = (train_rbm(data, 3, **settings) for _ in range(2))
    assert rbm.W.is_cuda
    assert torch.equal(rbm.W, same.W)
    seen, unseen = torch.tensor([[[0.0, 0, 1, 1]], [[0, 1, 0, 1]]], device="cuda")
    assert rbm(seen) > rbm(unseen)


def test_files_come_and_go(tmp_path) -> None:
    path = model().save(tmp_path / "rbm.safetensors")
    assert torch.equal(RBM.load(path, device="cuda").W, model().W)
