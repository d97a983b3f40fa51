r"""A torch DataLoader's batches are its own: each step takes the next one as it comes.

They were joined and cut anew into batches of 200, whatever the loader said: the batch sampler of
the user had no effect, and the number of rows that a run saw was not the one that was asked for. A
short last batch is used, as in any loop over a loader; `drop_last=True` leaves it out. A batch_size
beside a loader must be the loader's own.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
)

import limbeck as lb
from limbeck.inputs import Loader, Mix, Seek
from tests.refusals import raises_about, refused

X = torch.arange(20.0)[:, None]


class Sizes(nn.Module):
    r"""A student that writes down the batches it is trained on."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.seen.append(x.detach().flatten().tolist())
        return x * self.weight


def trained(loader, steps=5, **options):
    r"""The batches of each step, without those of the look before the first."""
    student = Sizes()
    settled = dict(steps=steps, every=1000, device="cpu", progress=False, seed=0)
    result = lb.distill(lambda x: 2 * x, student, loader, "square_error", **settled | options)
    assert result.steps == steps
    return student.seen[-steps:], result


def sizes(loader, steps=5, **options):
    return [len(batch) for batch in trained(loader, steps, **options)[0]]


def loader_of(**options):
    return DataLoader(TensorDataset(X), **options)


def test_steps_take_the_batches_of_the_loader():
    seen, result = trained(loader_of(batch_size=5), steps=6)
    expected = X.flatten().split(5)
    assert seen == [expected[step % 4].tolist() for step in range(6)]
    assert result.settings["batch_size"] == 5


def test_a_short_last_batch_is_used_and_drop_last_drops_it():
    assert sizes(loader_of(batch_size=8)) == [8, 8, 4, 8, 8]
    assert sizes(loader_of(batch_size=8, drop_last=True)) == [8, 8, 8, 8, 8]
    assert sizes(loader_of(batch_size=50)) == [20] * 5


def test_batches_of_changing_sizes_stay_as_the_sampler_makes_them():
    batches = [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9, 10]]
    seen, _ = trained(loader_of(batch_sampler=batches), steps=4)
    assert seen == [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9, 10], [0, 1, 2]]
    assert sizes(DataLoader([X[:3], X[3:10]], batch_size=None), 3) == [3, 7, 3]
    doubled = loader_of(batch_size=4, collate_fn=lambda items: torch.stack([*items[0], *items[1]]))
    assert sizes(doubled, 2) == [2, 2]


@pytest.mark.parametrize("preset", ["auto", "thesis"])
def test_a_preset_does_not_change_the_batches(preset):
    assert sizes(loader_of(batch_size=6), 4, preset=preset) == [6, 6, 6, 2]


def test_a_batch_size_beside_a_loader_must_be_its_own():
    assert sizes(loader_of(batch_size=8), 3, batch_size=8) == [8, 8, 4]
    sampler = BatchSampler(range(20), 8, drop_last=True)
    assert sizes(loader_of(batch_sampler=sampler), 3, batch_size=8) == [8, 8, 8]
    with refused("batch_size", "4"):
        sizes(loader_of(batch_size=8), batch_size=4)
    with refused("batch_size", "3"):
        sizes(loader_of(batch_sampler=[[0, 1, 2], [3]]), batch_size=3)
    with refused("batch_size", "20"):
        sizes(Loader(loader_of(batch_size=8)), batch_size=20)


def test_a_stream_without_batches_is_taken_in_batches_of_batch_size():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(X)

    assert sizes(Stream(), 2) == [200, 200]
    assert sizes(Stream(), 2, batch_size=7) == [7, 7]
    assert sizes(DataLoader(Stream(), batch_size=7), 4) == [7, 7, 6, 7]


def test_rows_of_a_loader_are_regrouped_where_others_ask_for_n():
    batch = Loader(loader_of(batch_size=8))(11)
    assert batch.x.flatten().tolist() == list(range(11))
    mixed = sizes(Mix([loader_of(batch_size=8), X]), 2, batch_size=10)
    assert mixed == [10, 10]
    sought = trained(Seek(loader_of(batch_size=8), candidates=2), 2, batch_size=10)[0]
    assert len(sought[-1]) == 10  # the candidates are looked at before


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_a_run_with_a_loader_continues_exactly(tmp_path, steps):
    def run(student, steps, **options):
        loader = loader_of(batch_size=8, shuffle=True)
        settled = dict(batch_size="auto", schedule="constant", every=1, device="cpu", seed=1)
        return lb.distill(
            lambda x: 2 * x, student, loader, "square_error", steps=steps, progress=False,
            **settled, **options,
        )  # fmt: skip

    run(Sizes(), steps, checkpoint=tmp_path)
    continued, whole = Sizes(), Sizes()
    result = run(continued, 9, checkpoint=tmp_path)
    expected = run(whole, 9)
    assert continued.seen[-(9 - steps) :] == whole.seen[-(9 - steps) :]
    assert result.history["loss"] == pytest.approx(expected.history["loss"])
    with raises_about(lb.CheckpointError, "batch_size was 8 and is 5"):
        lb.distill(
            lambda x: 2 * x, Sizes(), loader_of(batch_size=5), "square_error", steps=9, seed=1,
            schedule="constant", device="cpu", checkpoint=tmp_path, progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("family", ["classes", "numbers"])
@pytest.mark.parametrize("online", [True, False])
def test_condense_keeps_the_batches_of_a_loader(family, online):
    draws = torch.randn(30, 1, generator=torch.Generator().manual_seed(0))

    def predict(draw, x):
        z = x @ draw
        return lb.Bernoulli(logits=z) if family == "classes" else lb.Normal(z, torch.ones_like(z))

    loader = DataLoader(TensorDataset(X / 20), batch_size=8)
    options = dict(components=2, steps=6, device="cpu", progress=False, online=online)
    result = lb.condense(draws, predict, loader, **options)
    assert (result.steps, result.settings["batch_size"]) == (6, 8)
    with refused("batch_size", "5"):
        lb.condense(draws, predict, loader, batch_size=5, **options)
    thesis = lb.condense(draws, predict, loader, preset="thesis", **options)
    assert thesis.settings["batch_size"] == 8


def test_condense_pools_the_rows_of_a_loader_in_batches_of_its_size():
    draws = torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(X / 20), batch_size=8)
    result = lb.condense(
        draws, lambda draw, x: lb.Bernoulli(logits=x @ draw), loader, components=2, steps=6,
        pool=40, device="cpu", progress=False,
    )  # fmt: skip
    assert result.settings["batch_size"] == 8
    assert result.settings["inputs"] == "Dataset"


def test_compress_takes_a_loader_as_inputs_and_refuses_it_as_rows():
    teacher = lb.MLP(1, 3)
    loader = loader_of(batch_size=8)
    options = dict(student=(4,), teacher_output="logits", steps=6, device="cpu", progress=False)
    result = lb.compress(teacher, X.numpy(), inputs=loader, **options)
    assert result.settings["batch_size"] == 8
    with refused("batch_size", "5"):
        lb.compress(teacher, X.numpy(), inputs=loader, batch_size=5, **options)
    with refused("X", ".*DataLoader"):
        lb.compress(teacher, loader, **options)


def test_batches_may_have_shapes_of_their_own():
    class Mean(Sizes):
        def forward(self, x):
            return super().forward(x).mean(1, keepdim=True)

    class Lengths(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, item):
            return torch.ones(3 + item // 4)

    loader = DataLoader(Lengths(), batch_size=4)
    student = Mean()
    lb.distill(
        lambda x: x.mean(1, keepdim=True), student, loader, "square_error", steps=4, every=100,
        device="cpu", progress=False,
    )  # fmt: skip
    assert [len(batch) for batch in student.seen[-4:]] == [12, 16, 20, 12]
