r"""Inputs that seek high loss."""

import pytest
import torch
from scipy import stats

from limbeck.arrays import Batch
from limbeck.inputs import Dataset, Function, Noise, Seek
from tests.refusals import refused


def seek(source, loss, **options):
    result = Seek(source, **options)
    result.bind(loss)
    return result


@pytest.mark.parametrize("uniform", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("shift", [0.0, -2.0])
def test_the_weighted_mean_is_the_plain_mean(uniform, shift):
    def loss(batch):
        return batch.x[:, 0].square() + shift

    source = seek(Noise(1), loss, uniform=uniform, seed=0)
    means = []
    for _ in range(2000):
        batch = source(10)
        means.append(
            torch.stack([batch.weight * loss(batch), batch.weight * batch.x[:, 0]]).mean(1)
        )
    means = torch.stack(means).double()
    error = means.std(0) / len(means) ** 0.5
    assert ((means.mean(0) - torch.tensor([1.0 + shift, 0.0])).abs() < 4 * error).all()


def test_own_weights_of_the_candidates_are_kept():
    def draw(n, generator):
        x = torch.rand(n, generator=generator)
        return Batch(x, weight=2 * x)

    source = seek(Function(draw), lambda batch: batch.x, seed=0)
    means = torch.stack([(b.weight * b.x).mean() for b in (source(50) for _ in range(1000))])
    assert abs(means.mean() - 2 / 3) < 4 * means.std() / 1000**0.5


def test_candidates_are_kept_in_proportion_to_their_loss():
    loss = torch.tensor([0.0, 1.0, 2.0, 5.0])
    source = seek(Dataset(loss), lambda batch: batch.x, candidates=1, uniform=0.2, seed=0)
    index = torch.cat([source(4).index for _ in range(3000)])
    expected = 12_000 * (0.2 / 4 + 0.8 * loss.double() / 8)
    assert stats.chisquare(index.bincount(minlength=4).numpy(), expected.numpy()).pvalue > 1e-3


def test_high_losses_come_more_often():
    source = seek(Noise(1), lambda batch: batch.x[:, 0].square(), candidates=8, seed=0)
    assert source(2000).x.square().mean() > 1.8  # 3 in the limit of many candidates


def test_labels_and_row_numbers_travel_along():
    source = seek(Dataset(torch.arange(40.0), y=torch.arange(40)), lambda batch: batch.x)
    batch = source(10)
    assert torch.equal(batch.x, batch.index.float())
    assert torch.equal(batch.y, batch.index)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
        ([7.0, 7.0, 7.0, 7.0], [0.25, 0.25, 0.25, 0.25]),
        ([-7.0, -7.0, -7.0, -7.0], [0.25, 0.25, 0.25, 0.25]),
        ([0.0, 0.0, 0.0, 1.0], [0.05, 0.05, 0.05, 0.85]),
        ([-1.0, 0.0, 0.0, 1.0], [0.05, 0.25, 0.25, 0.45]),
        ([torch.nan, torch.inf, -torch.inf, 1.0], [0.05, 0.05, 0.05, 0.85]),
        ([torch.nan] * 4, [0.25, 0.25, 0.25, 0.25]),
        ([3e38, 3e38, 0.0, 0.0], [0.45, 0.45, 0.05, 0.05]),
        ([1e-44, 0.0, 0.0, 0.0], [0.85, 0.05, 0.05, 0.05]),
    ],
)
def test_probabilities(loss, expected):
    found = Seek(Noise(1), uniform=0.2).probabilities(torch.tensor(loss))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_errors_name_what_is_wrong():
    with refused("inputs", "a Seek without a loss"):
        Seek(Noise(1))(3)
    with refused("loss_of", r"a Tensor of shape \(\)"):
        seek(Noise(1), lambda batch: batch.x.mean())(3)
    with refused("candidates", "12", expected=r"\(4 for each of 3\)"):
        seek(Dataset(torch.zeros(10)), lambda batch: batch.x)(3)
    with refused("candidates", "0"):
        Seek(Noise(1), candidates=0)
    with refused("uniform", "0"):
        Seek(Noise(1), uniform=0)
    with refused("source", "a int"):
        Seek(3)
