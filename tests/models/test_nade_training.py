r"""A NADE in the loop: the compiled engine does what the eager one does."""

import pytest
import torch

import limbeck as lb
from limbeck.models.nade import NADE
from limbeck.supports import Binary, States


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(engine, support, loss, teacher=None, data=None, centre=None):
    nade = NADE(support.size, 5, "random", support, generator=generator(), centre=centre)
    result = lb.distill(
        teacher, nade, data, loss, steps=8, batch_size=8, engine=engine, every=2, progress=False
    )
    assert result.engine == engine
    return result.history, nade


def assert_equal_runs(support, loss, teacher=None, data=None, centre=None):
    (one, eager), (two, compiled) = (
        run(engine, support, loss, teacher, data, centre) for engine in ("eager", "compiled")
    )
    for name in one:
        assert one[name] == pytest.approx(two[name], rel=1e-4), name
    for here, there in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("support", [Binary(5, 6), States(3, 10)], ids=repr)
def test_maximum_likelihood(support):
    assert_equal_runs(support, lb.losses.kl(), data=support.start(40, generator()))


@pytest.mark.slow
def test_every_loss_on_densities():
    loss = lb.losses.kl() + lb.losses.log_density_error(1.0) + 0.1 * lb.losses.score_matching()
    teacher = NADE(9, 4, generator=generator(7))
    assert_equal_runs(Binary(9), loss, teacher, teacher.sample(50, generator()))


@pytest.mark.slow
def test_every_loss_on_a_centred_density():
    loss = lb.losses.kl() + lb.losses.log_density_error(1.0) + 0.1 * lb.losses.score_matching()
    teacher = NADE(9, 4, generator=generator(7), centre=torch.linspace(0, 1, 9))
    data = teacher.sample(50, generator())
    assert_equal_runs(Binary(9), loss, teacher, data, data.mean(0))
