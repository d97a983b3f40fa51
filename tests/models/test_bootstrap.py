r"""Bootstrap ensembles: trained at once, each member is what it would be if trained alone."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import limbeck as lb
from limbeck.models.ensemble import Resamples, members_cross_entropy
from tests.refusals import raises_about, refused

DOUBLE, CPU = torch.float64, torch.device("cpu")
N, MEMBERS, SEED, SIZES = 53, 4, 5, (4, 7, 3)
CENTRES = torch.tensor([[2.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.0, 0]], dtype=DOUBLE)
Y = torch.arange(N) % 3
X = CENTRES[Y] + 0.5 * torch.randn(N, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def in_double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(before)


def train(X=X, y=Y, members=MEMBERS, **options):
    settings = dict(epochs=3, seed=SEED, device="cpu") | options
    return lb.Ensemble.train_bootstrap(settings.pop("sizes", SIZES), X, y, members, **settings)


def source(members=MEMBERS, seed=SEED, X=X, y=Y, **options):
    inputs = Resamples(X, y, members, **options)
    inputs.to(CPU, DOUBLE, seed)
    return inputs


def alone(steps, size, make):
    r"""The members, each trained by a usual loop on the examples that are its own."""
    generator = torch.Generator().manual_seed(SEED)
    nets = [lb.MLP(*SIZES, generator=generator) for _ in range(MEMBERS)]
    rows = [inputs.draw(size) for inputs in [source()] for _ in range(steps)]
    for member, net in enumerate(nets):
        optimizer = make(net.parameters())
        for numbers in rows:
            optimizer.zero_grad()
            F.cross_entropy(net(X[numbers[member]]), Y[numbers[member]]).backward()
            optimizer.step()
    return nets


@pytest.mark.usefixtures("in_double")
def test_members_are_those_that_a_usual_loop_trains_one_by_one():
    ensemble = train()
    steps = 3 * N // 20
    expected = alone(steps, 20, lambda p: torch.optim.Adadelta(p, lr=1.0, rho=0.95, eps=1e-6))
    for member, net in zip(ensemble, expected, strict=True):
        torch.testing.assert_close(member.state_dict(), net.state_dict(), rtol=0, atol=1e-10)
    weights = [member.layers[0].weight for member in ensemble]
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.usefixtures("in_double")
def test_members_are_so_with_other_settings_too():
    ensemble = train(preset="auto", batch_size=9, steps=15, lr=0.01, schedule="constant")
    expected = alone(15, 9, lambda p: torch.optim.Adam(p, lr=0.01))
    for member, net in zip(ensemble, expected, strict=True):
        torch.testing.assert_close(member.state_dict(), net.state_dict(), rtol=0, atol=1e-10)


def test_an_ensemble_learns_and_the_number_of_members_is_as_asked():
    ensemble = train(X.float(), Y, members=3, epochs=40)
    assert len(ensemble) == 3
    assert ensemble.output_form == "probabilities"
    assert (ensemble(X.float()).argmax(1) == Y).float().mean() > 0.95


def test_arrays_and_lists_are_taken_as_well():
    one = train(X.numpy(), Y.numpy())
    other = train(X.float(), Y.tolist())
    assert torch.equal(one(X.float()), other(X.float()))


def test_resamples_have_about_sixty_three_percent_of_the_rows():
    rows = 2000
    inputs = source(20, X=torch.zeros(rows, 1, dtype=DOUBLE), y=torch.zeros(rows, dtype=torch.long))
    distinct = [len(member.unique()) / rows for member in inputs.rows]
    assert np.mean(distinct) == pytest.approx(1 - np.exp(-1), abs=0.005)
    assert len(set(distinct)) > 1


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("size", [1, 10, N])
def test_every_pass_takes_each_row_of_a_members_resample_once(bootstrap, size):
    inputs = source(bootstrap=bootstrap)
    own = inputs.rows.sort(1).values
    drawn = torch.cat([inputs.draw(size) for _ in range(2 * N)], 1)
    passes = drawn[:, : 2 * N * size // N * N].unflatten(1, (-1, N))
    assert passes.shape[1] == 2 * size
    for number in range(passes.shape[1]):
        assert torch.equal(passes[:, number].sort(1).values, own)
    if size > 1:
        assert not torch.equal(passes[:, 0], passes[:, 1])
    assert torch.equal(own, torch.arange(N).expand(MEMBERS, N)) != bootstrap


def test_a_batch_has_the_members_examples_side_by_side():
    inputs = source()
    numbers = inputs.draw(6)
    batch = inputs.build(numbers)
    assert batch.x.shape == (6, MEMBERS, 4)
    assert batch.y.shape == (6, MEMBERS)
    for member in range(MEMBERS):
        assert torch.equal(batch.x[:, member], X[numbers[member]])
        assert torch.equal(batch.y[:, member], Y[numbers[member]])


def test_equal_seeds_give_equal_ensembles_and_others_do_not():
    x = X.float()
    assert torch.equal(train(x)(x), train(x)(x))
    assert not torch.equal(train(x)(x), train(x, seed=SEED + 1)(x))


@pytest.mark.parametrize("looks", [1, 3])
def test_training_goes_on_where_it_was_interrupted(tmp_path, looks):
    calls = []

    def interrupt(student):
        calls.append(student)
        if len(calls) == looks:
            raise KeyboardInterrupt
        return 0.0

    x, options = X.float(), dict(every=2, epochs=5)
    with pytest.raises(KeyboardInterrupt):
        train(x, checkpoint=tmp_path, metrics={"stop": interrupt}, **options)
    resumed = train(x, checkpoint=tmp_path, metrics={"stop": interrupt}, **options)
    whole = train(x, **options)
    for member, expected in zip(resumed, whole, strict=True):
        torch.testing.assert_close(member.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_checkpoint_of_another_ensemble_is_refused(tmp_path):
    train(X.float(), checkpoint=tmp_path)
    with raises_about(lb.CheckpointError, "student was"):
        train(X.float(), members=MEMBERS + 1, checkpoint=tmp_path, epochs=9)
    with raises_about(lb.CheckpointError, "not 40"):
        train(X[:40].float(), Y[:40], checkpoint=tmp_path, epochs=9)


def changed(row, value):
    labels = Y.clone()
    labels[row] = value
    return labels


@pytest.mark.parametrize(
    ("labels", "received", "expected"),
    [
        (None, "no class numbers", ""),
        (Y.double(), "no class numbers", ""),
        (changed(40, 3), "labels .* from 0 to 3", "class numbers .* from 0 to 2"),
        (changed(40, -1), "labels .* from -1 to 2", ""),
        (Y[:, None], r"labels of shape \(53, 1\)", ""),
        (Y[:40], "^40 rows$", "as many rows as X: 53"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, received, expected):
    with refused("y", received, expected=expected):
        train(X.float(), labels)


@pytest.mark.parametrize(
    ("options", "argument", "received", "expected"),
    [
        (dict(members=0), "members", "^0$", ""),
        (dict(epochs=0), "epochs", "^0$", "a whole number from 1"),
        (dict(epochs=1.5), "epochs", "^1.5$", ""),
        (dict(batch_size=0), "batch_size", "^0$", ""),
        (dict(batch_size="many"), "batch_size", "'many'", ""),
        (dict(preset="theses"), "preset", "'theses'", "did you mean 'thesis'"),
        (dict(sizes=(5, 3)), "student", "x: expected .*, got shape", ""),
    ],
)
def test_bad_settings_are_refused(options, argument, received, expected):
    with refused(argument, received, expected=expected):
        train(X.float(), **options)


def test_batches_are_no_larger_than_the_data():
    assert len(train(X[:7].float(), Y[:7])) == MEMBERS
    with refused("batch_size", "54"):
        source().draw(N + 1)


def test_the_loss_is_the_sum_of_the_members_own():
    net = lb.BatchedMLP(MEMBERS, *SIZES, dtype=DOUBLE)
    batch = source()(6)

    class Seen:
        def raw(self):
            return net(batch.x)

    loss = members_cross_entropy()
    expected = sum(
        F.cross_entropy(net.member(m)(batch.x[:, m]), batch.y[:, m], reduction="none")
        for m in range(MEMBERS)
    )
    torch.testing.assert_close(loss(Seen(), None, batch), expected, rtol=1e-12, atol=1e-12)
