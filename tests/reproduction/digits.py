r"""A tiny stand-in for MNIST: three kinds of images of 4 by 5 pixels, with noise."""

import torch

from reproduction.chapter2 import Settings
from reproduction.data import Digits

SHAPE = (4, 5)

SETTINGS = Settings(
    seeds=(0, 1), members=3, teacher_hidden=(16,), hidden=(8,), nade_hidden=6, passes=4,
    teacher_passes=6, nade_passes=4,
)  # fmt: skip


def small(train=200, test=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.tensor(
        [
            [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # the first row
            [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0],  # the first column
            [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0],  # a diagonal
        ]
    ).float()

    def some(n):
        y = torch.randint(3, (n,), generator=generator)
        return 0.7 * kinds[y] + 0.3 * torch.rand(n, 20, generator=generator), y

    return Digits(*some(train), *some(test), SHAPE)
