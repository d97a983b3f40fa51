r"""Densities that are averaged over symmetries: normalised, symmetric, and closer to the target."""

from __future__ import annotations

import pytest
import torch

import limbeck as lb
from limbeck.models import from_spec
from limbeck.models.symmetrized import Symmetrized
from tests.models.nets import DOUBLE, generator, randomised
from tests.refusals import refused


def made(support) -> lb.MADE:
    return randomised(lb.MADE(support.size, 5, support=support, dtype=DOUBLE))


def every(support) -> torch.Tensor:
    return support.enumerate(0, support.count**support.size, dtype=DOUBLE)


@pytest.mark.parametrize("support", [lb.Spins(2, 3), lb.Binary(5), lb.States(3, 4)])
@pytest.mark.parametrize("symmetry", ["spin flip", "translations", ["translations", "spin flip"]])
def test_it_is_the_mean_over_the_group(support, symmetry) -> None:
    model = made(support)
    student, x = Symmetrized(model, symmetry), every(support)
    with torch.no_grad():
        log = student.log_prob(x)
        assert float(log.logsumexp(0)) == pytest.approx(0, abs=1e-9)
        for image in student.images(x):
            torch.testing.assert_close(student.log_prob(image), log)
        images = [model.log_prob(image).exp() for image in student.images(x)]
        torch.testing.assert_close(log.exp(), torch.stack(images).mean(0))
    count = 2 if symmetry == "spin flip" else support.size * (1 + (symmetry != "translations"))
    assert len(images) == count


def test_samples_have_its_density() -> None:
    support = lb.Spins(4)
    student = Symmetrized(made(support), ["spin flip", "translations"])
    x = student.sample(40_000, generator(1))
    codes = (support.encode(x) @ torch.tensor([8.0, 4, 2, 1], dtype=DOUBLE)).long()
    with torch.no_grad():
        chance = student.log_prob(every(support)).exp()
    torch.testing.assert_close(
        codes.bincount(minlength=16) / 40_000, chance, atol=0.01, rtol=0, check_dtype=False
    )
    assert torch.equal(student.sample(5, generator(2)), student.sample(5, generator(2)))


def test_it_is_made_again_from_its_spec(tmp_path) -> None:
    student = Symmetrized(made(lb.Spins(2, 2)), "spin flip")
    again = from_spec(student.spec())
    again.load_state_dict(student.state_dict())
    x = every(lb.Spins(2, 2))
    assert torch.equal(again.log_prob(x), student.log_prob(x))


def ring(field: float = 0.0) -> lb.Energy:
    r"""Two far modes, all up and all down."""
    return lb.Energy(lambda x: -2 * (x * x.roll(1, 1)).sum(1) - field * x.sum(1), lb.Spins(8))


def test_normalizing_with_a_symmetry_covers_both_modes(tmp_path) -> None:
    target, up = ring(), torch.ones(20, 8)
    options = {"steps": 300, "chains": 200, "burn_in": 5, "progress": False, "device": "cpu"}
    result = lb.normalize(target, start=up, symmetry="spin flip", **options)
    student = result.student
    assert isinstance(student, Symmetrized)
    signs = student.sample(1000, generator(1)).mean(1)
    assert 0.3 < float((signs > 0).float().mean()) < 0.7
    log_z = lb.exact_log_z(target, progress=False)
    z = lb.log_partition(target, student, method="importance", samples=2000, progress=False)
    assert abs(z.value - log_z) < 4 * z.std_error + 1e-3
    assert z.std_error < 0.1
    result.save(tmp_path / "student")
    again = lb.load(tmp_path / "student").student
    torch.testing.assert_close(again.log_prob(up), student.log_prob(up))


def test_a_target_without_the_symmetry_is_refused() -> None:
    options = {"steps": 1, "chains": 10, "burn_in": 1, "progress": False, "device": "cpu"}
    with refused("symmetry", "spin flip changes log p̃"):
        lb.normalize(ring(0.01), symmetry="spin flip", **options)
    lb.normalize(ring(0.01), symmetry="translations", **options)
    broken = lb.Energy(lambda x: -x[:, 0] * x[:, 1], lb.Spins(4))
    with refused("symmetry", r"a shift by \(1,\)"):
        lb.normalize(broken, symmetry=["translations"], **options)


def test_over_the_reals() -> None:
    model = lb.GaussianMixture(2, 2).start_from(torch.randn(50, 2, generator=generator(1)) + 3)
    student = Symmetrized(model, "spin flip")
    x = torch.randn(9, 2, generator=generator(2))
    torch.testing.assert_close(student.log_prob(x), student.log_prob(-x))
    assert abs(float((student.sample(2000, generator(3))[:, 0] > 0).float().mean()) - 0.5) < 0.06


@pytest.mark.parametrize(
    ("symmetry", "received"),
    [("rotation", "'rotation'"), ([], r"\[\]"), (["spin flip", 3], "3"), (7, "7"), (None, "None")],
)
def test_bad_symmetries(symmetry, received) -> None:
    with refused("symmetry", received):
        Symmetrized(made(lb.Spins(3)), symmetry)


def test_bad_models() -> None:
    with refused("model", "a Linear"):
        Symmetrized(torch.nn.Linear(2, 2), "spin flip")
    with refused("symmetry", "4,900 elements"):
        Symmetrized(lb.MADE(4900, 1, support=lb.Spins(70, 70), skip=False), "translations")
