r"""Stored targets: the same as the live teacher's, for everything that losses ask."""

from __future__ import annotations

import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

from limbeck import losses
from limbeck.arrays import Batch, leaves
from limbeck.errors import NotDifferentiableError
from limbeck.inputs import Dataset, Function
from limbeck.models import MLP, Ensemble
from limbeck.teachers.base import Teacher, as_teacher
from limbeck.teachers.stored import POOL, Stored, precompute
from limbeck.training.objective import Objective
from limbeck.training.update import GradientUpdate
from tests.refusals import refused

ROWS, D, CLASSES = 7, 2, 3
X = torch.randn(ROWS, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SOME = torch.tensor([5, 0, 5, 6, 2])  # rows in any order, one of them twice
WEIGHTS = [(d, w) for d in ("log", "plain") for w in ("uniform", "teacher")]


def net(seed: int = 0, classes: int = CLASSES, **kinds) -> MLP:
    g = torch.Generator().manual_seed(seed)
    return MLP(D, 4, classes, hidden="tanh", dtype=torch.float64, generator=g, **kinds)


class Gaussian(nn.Module):
    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.full((D,), mean, dtype=torch.float64))

    def log_prob(self, x: Tensor) -> Tensor:
        return -(x - self.mean).square().sum(1) / 2


def objective(loss, teacher=None, student=None) -> Objective:
    teacher, student = teacher or net(1, output="softmax"), student or net(2)
    return Objective(as_teacher(teacher), student, Dataset(X), loss)


def some() -> Batch:
    return Batch(X[SOME], index=SOME)


ASKS = [
    losses.square_error(),
    losses.cross_entropy(),
    losses.cross_entropy(3),
    losses.logit_error(),
    *(losses.derivative_error(domain, weight) for domain, weight in WEIGHTS),
    losses.hints("layers.0", "layers.0"),
    # terms that ask for the same thing
    losses.derivative_error() + losses.derivative_error(weight="teacher") + losses.cross_entropy(),
    losses.hints("layers.0", "layers.0") + losses.hints("layers.0", "layers.1"),
]


@pytest.mark.parametrize("block", [3, 1000])
@pytest.mark.parametrize("loss", ASKS, ids=repr)
def test_stored_targets_give_the_losses_of_the_live_teacher(loss, block) -> None:
    bound = objective(loss)
    stored = precompute(bound.teacher, X, bound.terms, block=block)
    assert all(len(tensor) == ROWS for tensor in leaves([stored.derivatives, stored.hidden]))
    torch.testing.assert_close(bound.at(some(), stored), bound.at(some()))


OWN_LOGS = ("one output", "ensemble")


@pytest.mark.parametrize("form", ["logits", "log_probabilities", *OWN_LOGS])
def test_any_form_of_outputs_is_stored_without_losing_digits(form) -> None:
    teacher, student = {
        "logits": (net(1), net(2)),
        "log_probabilities": (net(1, output="log_softmax"), net(2)),
        "one output": (net(1, 1, output="probit"), net(2, 1)),
        "ensemble": (Ensemble([net(1), net(3)]), net(2)),
    }[form]
    bound = objective(losses.cross_entropy() + losses.derivative_error(), teacher, student)
    stored = precompute(bound.teacher, X, bound.terms, block=3)
    expected = teacher.log_probabilities(X) if form in OWN_LOGS else teacher(X)
    torch.testing.assert_close(stored.values, expected)
    torch.testing.assert_close(bound.at(some(), stored), bound.at(some()))


@pytest.mark.parametrize("loss", [losses.logit_error(), losses.cross_entropy(50)], ids=repr)
def test_classes_that_underflow_are_stored_by_their_logs(loss) -> None:
    members = [net(1), net(3)]
    for member in members:
        nn.init.constant_(member.layers[-1].bias[0], -3000.0)
    bound = objective(loss, Ensemble(members))
    assert (bound.teacher.source(X)[:, 0] == 0).all()
    stored = precompute(bound.teacher, X, bound.terms)
    torch.testing.assert_close(bound.at(some(), stored), bound.at(some()))


def test_densities_and_their_scores_are_stored() -> None:
    for loss in (losses.log_density_error(0.5), losses.kl()):
        bound = objective(loss, Gaussian(0.3), Gaussian(0.0))
        stored = precompute(bound.teacher, X, bound.terms, block=3)
        torch.testing.assert_close(bound.at(some(), stored), bound.at(some()))
    bound = objective(losses.score_matching(), Gaussian(0.3), Gaussian(0.0))
    stored = precompute(bound.teacher, X, bound.terms, block=3)
    torch.testing.assert_close(bound.at(some(), stored), bound.at(some()))


def test_inputs_may_be_a_table_and_the_teacher_a_tree() -> None:
    tree = DecisionTreeClassifier(max_depth=2).fit(X.numpy(), torch.arange(ROWS) % CLASSES)
    bound = objective(losses.cross_entropy(), tree)
    stored = precompute(bound.teacher, X, bound.terms, block=3)
    torch.testing.assert_close(stored.values, torch.tensor(tree.predict_proba(X.numpy())))
    torch.testing.assert_close(bound.at(some(), stored), bound.at(some()))

    table = {"a": X, "town": torch.arange(ROWS) % 2}

    def teacher(x: dict[str, Tensor]) -> Tensor:
        return torch.stack([x["a"][:, 0] * x["town"], x["a"][:, 1]], 1)

    class Student(nn.Linear):
        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return super().forward(x["a"])

    loss = losses.square_error() + losses.derivative_error("plain")
    bound = Objective(Teacher(teacher), Student(D, 2).double(), Dataset(table), loss)
    stored = precompute(bound.teacher, table, bound.terms, block=3)
    rows = Batch({"a": X[SOME], "town": table["town"][SOME]}, index=SOME)
    torch.testing.assert_close(bound.at(rows, stored), bound.at(rows))


# random projections


def gradient(bound: Objective, teacher: Teacher, drawn: Tensor) -> tuple[Tensor, Tensor]:
    bound.teacher = teacher
    update = GradientUpdate()
    update.bind(bound, 1)
    found, means, _ = update.gradient({"inputs": SOME, "teacher": None, "loss": [drawn]})
    return torch.cat([g.flatten() for g in found.values()]).detach(), means[-1].detach()


@pytest.mark.parametrize(("domain", "weight"), WEIGHTS)
def test_a_pool_averages_to_the_mean_over_its_signs(domain, weight) -> None:
    loss = losses.derivative_error(domain, weight, projections=1)
    bound, n = objective(loss), len(SOME)
    live = bound.teacher
    stored = precompute(live, X, bound.terms, block=3)
    cotangents, projected = stored.pools[domain, weight]
    assert cotangents.shape == (ROWS, POOL, CLASSES)
    assert projected.shape == (ROWS, POOL, D)
    signs = (cotangents[SOME] > 0).double()  # (n, POOL, I)
    assert len(signs.flatten(0, 1).unique(dim=0)) > 2
    picked, asked = [], []
    for entry in range(POOL):
        picked.append(gradient(bound, stored, torch.full((1, n), entry)))
        asked.append(gradient(bound, live, signs[None, :, entry]))
    for found, wanted in zip(picked, asked, strict=True):
        torch.testing.assert_close(found, wanted)
    # several at once are their mean, so the mean over draws is that over the pool's signs
    several = losses.derivative_error(domain, weight, projections=POOL)
    entries = torch.arange(POOL)[:, None].expand(POOL, n)
    together, mean = gradient(objective(several), stored, entries)
    torch.testing.assert_close(together, torch.stack([g for g, _ in asked]).mean(0))
    torch.testing.assert_close(mean, torch.stack([m for _, m in asked]).mean())


def test_the_pool_of_a_row_is_even_over_many_rows() -> None:
    x = X[:1].repeat(1000, 1)
    loss = losses.derivative_error(projections=1)
    stored = precompute(objective(loss).teacher, x, [loss], block=300)
    signs = (stored.pools["log", "uniform"][0] > 0).long()
    counts = (signs * torch.tensor([1, 2, 4])).sum(2).flatten().bincount(minlength=8)
    expected = 1000 * POOL / 8
    assert ((counts - expected).square() / expected).sum() < 25  # chi² of 7, p = 8e-4


def test_draws_pick_every_entry_evenly_also_where_pools_have_different_sizes() -> None:
    terms = [
        losses.derivative_error("log", "teacher", projections=2),
        losses.derivative_error("plain", "uniform", projections=3),
        losses.derivative_error("log", "teacher", projections=1),
    ]
    bound = objective(sum(terms))
    stored = precompute(bound.teacher, X, bound.terms, block=3)
    sizes = {key: pool[0].shape[:2] for key, pool in stored.pools.items()}
    assert sizes == {("log", "teacher"): (ROWS, 8), ("plain", "uniform"): (ROWS, 12)}
    drawn = stored.signs(2, 3000, CLASSES, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 3000)
    numbers = drawn.unique().tolist()
    assert numbers == list(range(len(numbers)))
    for size in (8, 12):
        assert len(numbers) % size == 0  # so every entry stands for equally many numbers
        view = stored.view(Batch(X[:1], index=torch.tensor([0])))
        key = ("log", "teacher") if size == 8 else ("plain", "uniform")
        given = view.projection(*key, torch.arange(size)[:, None])[0][:, 0]  # (size, I)
        assert torch.equal(given, stored.pools[key][0][0])
    bound.teacher = stored
    assert all(each.isfinite().all() for each in bound(bound.draw(5)))


def test_all_derivatives_serve_random_projections_too() -> None:
    bound = objective(losses.derivative_error())
    stored = precompute(bound.teacher, X, bound.terms)
    projecting = objective(losses.derivative_error(projections=2))
    live, signs = projecting.teacher, torch.randint(0, 2, (2, len(SOME), CLASSES)).double()
    expected = gradient(projecting, live, signs)
    torch.testing.assert_close(gradient(projecting, stored, signs), expected)
    generator = torch.Generator().manual_seed(0)
    assert stored.signs(2, 5, CLASSES, generator).shape == (2, 5, CLASSES)


# as a teacher of its own


def test_stored_outputs_serve_as_a_teacher_by_row_numbers() -> None:
    p = net(1)(X).softmax(1).detach()
    bound = objective(losses.cross_entropy(), Stored(p))
    assert bound.teacher.form == "probabilities"
    plan = bound.draw(4)
    logs = net(2)(X[plan["inputs"]]).log_softmax(1)
    torch.testing.assert_close(bound(plan)[0], -(p[plan["inputs"]] * logs).sum(1))


def test_inputs_without_row_numbers_are_refused() -> None:
    stored = Stored(net(1)(X).softmax(1).detach())
    with refused("teacher", "inputs: expected a Dataset over.*, got no row numbers"):
        Objective(stored, net(2), Function(lambda n: X.new_zeros(n, D)), losses.cross_entropy())


@pytest.mark.parametrize(
    "loss",
    [losses.derivative_error(), losses.directional_error(torch.ones(D)), losses.score_matching()],
    ids=repr,
)
def test_derivatives_that_are_not_stored_are_refused(loss) -> None:
    outputs = torch.zeros(ROWS) if loss.needs == "density" else net(1)(X).softmax(1).detach()
    student = Gaussian(0.0) if loss.needs == "density" else net(2)
    with pytest.raises(NotDifferentiableError, match="stored targets"):
        objective(loss, Stored(outputs), student)


def test_what_is_stored_for_another_loss_is_not_mistaken() -> None:
    bound = objective(losses.derivative_error("log"))
    view = precompute(bound.teacher, X, bound.terms).view(some())
    with pytest.raises(NotDifferentiableError, match="no derivatives in the plain domain"):
        view.derivatives("plain")
    with pytest.raises(NotDifferentiableError, match="along directions are not stored"):
        view.directional("log", torch.ones(D))
    with refused("hints", r"'layers\.0'"):
        view.hidden("layers.0")


def test_unknown_forms_are_refused_with_a_suggestion() -> None:
    with refused("output", "'logit'", expected="did you mean 'logits'"):
        Stored(torch.zeros(ROWS, CLASSES), "logit")


@pytest.mark.parametrize(
    "loss",
    [
        losses.cross_entropy(),
        losses.cross_entropy() + losses.derivative_error(),
        losses.derivative_error(projections=2),
        losses.hints("layers.0", "layers.0"),
    ],
    ids=repr,
)
def test_the_size_is_that_of_all_targets_and_grows_with_the_rows(loss) -> None:
    bound = objective(loss)
    stored, few = (precompute(bound.teacher, x, bound.terms) for x in (X, X[:2]))
    tensors = [stored.values, stored.derivatives, stored.pools, stored.hidden]
    assert stored.bytes == sum(t.numel() * t.element_size() for t in leaves(tensors))
    assert stored.bytes * 2 == few.bytes * ROWS
