r"""Structures: there and back, under vmap and the compiler, as JSON."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.posteriors.draws import Structure
from tests.refusals import refused

REGRESSION = Structure(("alpha", "beta", "sigma"), ((85,), (), (2, 3)))

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
structures = st.one_of(
    st.integers(1, 6).map(lambda dim: Structure(("",), ((dim,),))),
    st.dictionaries(st.text(min_size=1, max_size=3), shapes, min_size=1, max_size=4).map(
        lambda parts: Structure(tuple(parts), tuple(parts.values()))
    ),
)


@settings(deadline=None)
@given(structures, st.lists(st.integers(0, 3), max_size=2))
def test_there_and_back(structure, leading):
    flat = torch.arange(1.0, 1 + structure.dim * torch.Size(leading).numel())
    flat = flat.reshape(*leading, structure.dim)
    draws = structure.unflatten(flat)
    assert torch.equal(structure.flatten(draws), flat)
    if not structure.vector:
        assert list(draws) == list(structure.names)
        for name, shape in zip(structure.names, structure.shapes, strict=True):
            assert draws[name].shape == (*leading, *shape)
    assert Structure.from_spec(json.loads(json.dumps(structure.spec()))) == structure


@settings(deadline=None)
@given(structures)
def test_every_number_has_its_label(structure):
    draws = structure.unflatten(torch.arange(float(structure.dim)))
    labels = [structure.label(index) for index in range(structure.dim)]
    assert len(set(labels)) == structure.dim
    for index in range(structure.dim):
        name, place = structure.place(index)
        part = draws if structure.vector else draws[name]
        assert part[place] == index


def test_labels_in_words():
    assert REGRESSION.label(84) == "alpha[84]"
    assert REGRESSION.label(85) == "beta"
    assert REGRESSION.label(91) == "sigma[1, 2]"
    assert Structure(("",), ((3,),)).label(1) == "draw[1]"
    with pytest.raises(IndexError):
        REGRESSION.label(92)


def test_under_vmap_and_the_compiler():
    flat = torch.randn(7, REGRESSION.dim, generator=torch.Generator().manual_seed(0))

    def again(row):
        return REGRESSION.flatten(REGRESSION.unflatten(row))

    assert torch.equal(torch.vmap(again)(flat), flat)
    compiled = torch.compile(torch.vmap(again), fullgraph=True, backend="eager")
    assert torch.equal(compiled(flat), flat)
    assert torch.equal(torch.func.jacrev(again)(flat[0]), torch.eye(REGRESSION.dim))


@pytest.mark.parametrize(
    ("draws", "received", "expected"),
    [
        (torch.zeros(2, 92), "a bare tensor", ""),
        ({"alpha": torch.zeros(2, 85)}, "draws of alpha", ""),
        (
            {"alpha": torch.zeros(2, 84), "beta": torch.zeros(2), "sigma": torch.zeros(2, 2, 3)},
            r"shape \(2, 84\) of 'alpha'",
            r"shape \(\.\.\., 85\)",
        ),
        (
            {"alpha": torch.zeros(2, 85), "beta": torch.zeros(2), "sigma": torch.zeros(3)},
            r"shape \(3,\) of 'sigma'",
            "",
        ),
    ],
)
def test_draws_of_another_structure(draws, received, expected):
    with refused("draws", received, expected=expected):
        REGRESSION.flatten(draws)


def test_rows_of_another_width():
    with refused("flat", r"shape \(2, 91\)"):
        REGRESSION.unflatten(torch.zeros(2, 91))


@pytest.mark.parametrize(
    ("names", "shapes"),
    [((), ()), (("a", "a"), ((), ())), (("a",), ((), ())), (("", "a"), ((2,), ())), (("",), ((),))],
)
def test_structures_that_are_none(names, shapes):
    with refused("structure"):
        Structure(names, shapes)
