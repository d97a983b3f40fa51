r"""Sources made of other sources."""

import torch

from limbeck.inputs import Dataset, Mix, Noise, Seek
from limbeck.inputs.base import spread


def test_sources_get_different_seeds_at_every_depth():
    source = Mix([Noise(1), Noise(1), Mix([Noise(1), Noise(1)])], weights=[1, 1, 2], seed=0)
    for _ in range(2):
        x = source(8).x
        assert len(x.unique()) == 8
        source.to(torch.device("cpu"), torch.float32, 0)


def test_a_source_with_a_seed_of_its_own_keeps_it():
    def alone():
        return Noise(1, seed=5)

    source = Mix([alone()], seed=0)
    assert torch.equal(source(4).x, alone()(4).x)
    source.to(torch.device("cpu"), torch.float32, 1)
    assert torch.equal(source(4).x, alone()(4).x)


def test_states_are_kept_apart_by_prefix():
    source = Mix([Dataset(torch.zeros(3)), Mix([Noise(())])])
    assert {"generator", "0.generator", "0.order", "1.generator", "1.0.generator"} <= set(
        source.state_dict()
    )


def test_losses_reach_the_sources_that_seek_them():
    inner = Seek(Noise(1))
    Mix([Noise(1), Mix([inner])]).bind(loss := lambda batch: batch.x[:, 0])
    assert inner.loss_of is loss


def test_seeds_follow_from_one():
    assert spread(0, 3) == spread(0, 3)
    assert len({*spread(0, 50), *spread(1, 50)}) == 100
