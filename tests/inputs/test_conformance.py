r"""What every input source promises, whatever it draws from."""

import numpy as np
import pytest
import torch
from torch import distributions
from torch.utils import data

from limbeck.arrays import Batch, leaves, rows
from limbeck.inputs import Augment, Dataset, Function, Loader, Mix, Munge, Noise, Samples, Seek

N, SIZE = 23, 7  # batches straddle the passes over the data
CPU = torch.device("cpu")
TABLE = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(N)
PARTS = {
    "pixels": TABLE.reshape(N, 3, 1).repeat(1, 1, 2),
    "age": TABLE[:, 0] ** 2,
    "town": torch.arange(N) % 5,
    "member": torch.arange(N) % 2 == 0,
}


def uniform(generator, *shape):
    return torch.rand(shape, generator=generator, device=generator.device)


class Sampler:
    def sample(self, n, generator):
        return uniform(generator, n, 3)

    def sample_parts(self, n):
        return {"a": torch.randn(n, 2), "b": torch.randint(5, (n,))}


def jitter(x):
    return x + 0.1 * torch.randn_like(x) + torch.tensor(np.random.rand(), dtype=x.dtype)


def jitter_parts(x, generator):
    return x | {"age": x["age"] + uniform(generator, len(x["age"]))}


def bound(source):
    source.bind(lambda batch: leaves(batch.x)[0].reshape(rows(batch.x), -1)[:, 0].square())
    return source


def loader(seed, *tensors):
    dataset = data.TensorDataset(*tensors)
    return Loader(data.DataLoader(dataset, batch_size=5, shuffle=True), seed=seed)


SOURCES = {
    "dataset": lambda s: Dataset(TABLE, seed=s),
    "dataset replace": lambda s: Dataset(TABLE, LABELS, replace=True, seed=s),
    "dataset parts": lambda s: Dataset(PARTS, LABELS, weight=torch.ones(N), seed=s),
    "noise": lambda s: Noise((2, 3), scale=2.0, mean=1.0, seed=s),
    "munge": lambda s: Munge(TABLE, seed=s),
    "munge parts": lambda s: Munge(PARTS, categorical=["age"], seed=s),
    "augment": lambda s: Augment(TABLE, jitter, LABELS, seed=s),
    "augment parts": lambda s: Augment(PARTS, jitter_parts, seed=s),
    "samples": lambda s: Samples(Sampler(), seed=s),
    "samples parts": lambda s: Function(Sampler().sample_parts, seed=s),
    "distribution": lambda s: Samples(distributions.Normal(torch.zeros(3), 1.0), seed=s),
    "function": lambda s: Function(lambda n: torch.randn(n, 2), seed=s),
    "function batch": lambda s: Function(
        lambda n, generator: Batch(uniform(generator, n, 2), y=torch.arange(n)), seed=s
    ),
    "loader": lambda s: loader(s, TABLE),
    "loader labels": lambda s: loader(s, TABLE, LABELS),
    "mix": lambda s: Mix([Dataset(TABLE, LABELS), Augment(TABLE, jitter, LABELS)], [3, 1], seed=s),
    "mix parts": lambda s: Mix([PARTS, Munge(PARTS), Mix([PARTS, PARTS])], seed=s),
    "mix seek": lambda s: bound(Mix([Noise(3), Seek(Noise(3)), loader(None, TABLE)], seed=s)),
    "seek": lambda s: bound(Seek(Dataset(TABLE, LABELS), candidates=3, seed=s)),
    "seek parts": lambda s: bound(Seek(Munge(PARTS), seed=s)),
}

every = pytest.mark.parametrize("name", SOURCES)


def same(one, other):
    return len(leaves(one)) == len(leaves(other)) and all(
        torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True)
    )


def batches(source, count=8):
    return [source(SIZE) for _ in range(count)]


@every
def test_gives_batches_of_the_size_asked_for(name):
    for batch in batches(SOURCES[name](0)):
        assert isinstance(batch, Batch)
        for tensor in leaves(batch):
            assert len(tensor) == SIZE
            assert not tensor.requires_grad


@every
def test_equal_seeds_give_equal_batches(name):
    assert same(batches(SOURCES[name](3)), batches(SOURCES[name](3)))


@every
def test_different_seeds_give_different_batches(name):
    assert not same(batches(SOURCES[name](3)), batches(SOURCES[name](4)))


@every
def test_the_seed_of_the_distillation_counts_only_without_an_own_one(name):
    def drawn(own, given):
        source = SOURCES[name](own)
        source(SIZE)  # what was drawn before is forgotten
        source.to(CPU, torch.float32, given)
        return batches(source)

    assert same(drawn(None, 5), drawn(None, 5))
    assert not same(drawn(None, 5), drawn(None, 6))
    assert same(drawn(5, 1), drawn(5, 2))


@every
@pytest.mark.parametrize("before", [0, 1, 5])
def test_continues_exactly_from_a_saved_state(name, before):
    source = SOURCES[name](3)
    batches(source, before)
    state = source.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    kept = {key: value.clone() for key, value in state.items()}
    expected = batches(source)
    assert same(state, kept), "the state must not move on with the source"
    other = SOURCES[name](9)
    batches(other, 2)
    other.load_state_dict(state)
    assert same(batches(other), expected)


@every
def test_a_probe_does_not_move_on(name):
    source, other = SOURCES[name](3), SOURCES[name](3)
    batches(source, 2), batches(other, 2)
    assert rows(source.probe(6).x) <= 6
    assert same(batches(source), batches(other))


@every
def test_leaves_the_global_generators_alone(name):
    source = SOURCES[name](3)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches(source, 2)
    assert torch.equal(torch.get_rng_state(), before)


@every
def test_build_is_pure_and_compiles_whole(name):
    torch._dynamo.reset()
    source = SOURCES[name](3)
    compiled = torch.compile(source.build, backend="eager", fullgraph=True)
    for _ in range(3):
        drawn = source.draw(SIZE)
        assert same(source.build(drawn), source.build(drawn))
        assert same(compiled(drawn), source.build(drawn))


@every
def test_shapes_and_types_are_constant(name):
    kinds = {
        tuple((tensor.shape, tensor.dtype) for tensor in leaves(drawn))
        for drawn in (SOURCES[name](3).draw(SIZE) for _ in range(10))
    }
    assert len(kinds) == 1


@every
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_does_all_of_it_on_an_accelerator(name):
    cuda = torch.device("cuda")

    def moved(seed):
        source = SOURCES[name](None)
        source.to(cuda, torch.float32, seed)
        return source

    source = moved(3)
    expected = batches(source, 2)
    assert all(tensor.device.type == "cuda" for tensor in leaves(expected))
    assert same(batches(moved(3), 2), expected)
    assert not same(batches(moved(4), 2), expected)
    state = source.state_dict()
    after = batches(source)
    other = moved(9)
    other.load_state_dict({key: value.cpu() for key, value in state.items()})
    assert same(batches(other), after)
    torch._dynamo.reset()
    drawn = source.draw(SIZE)
    compiled = torch.compile(source.build, backend="eager", fullgraph=True)
    assert same(compiled(drawn), source.build(drawn))
