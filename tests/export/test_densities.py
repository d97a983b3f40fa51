r"""Densities and bags by plain operations are the same functions."""

import pytest
import torch

from limbeck.export.torch_files import plain, whitened
from tests.export.students import EVERY, mixture, rows, seeded


@pytest.mark.parametrize(
    "name", [name for name in EVERY if any(kind in name for kind in ("mixture", "bag"))]
)
def test_they_are_the_same_in_double_precision(name):
    make, shape = EVERY[name]
    student = make().double()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=seeded(5)))
    x = rows(student, shape, 20).double()
    other = plain(student)
    assert other is not student
    torch.testing.assert_close(other(x), student(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diagonal", "spherical"])
def test_whitening_inverts_the_covariances(covariance):
    made = mixture(covariance, dim=3).double()
    inverse, means, _ = whitened(made)
    eye = torch.eye(3, dtype=torch.float64).expand(3, 3, 3)
    torch.testing.assert_close(inverse @ made.covariances.detach() @ inverse.mT, eye)
    torch.testing.assert_close(means, made.means.detach())
