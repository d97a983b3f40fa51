r"""Draws as they are condensed: what is to be distrusted is said at the user's own line."""

from __future__ import annotations

import pytest
import torch

import limbeck as lb
from limbeck.errors import warn
from tests.refusals import warns_about

G = torch.Generator().manual_seed(0)


def apart():
    r"""Draws (4, 2) of chains, each of which stays about a place of its own."""
    return torch.arange(4.0)[:, None] + 0.1 * torch.randn(4, 2, generator=G)


def stored():
    return {"w": torch.stack([apart() for _ in range(100)], 1)}


def stream():
    return ({"w": apart()} for _ in range(1000))


@pytest.mark.parametrize("make", [stored, stream])
def test_warnings_of_chains_point_at_the_users_line(make):
    with warns_about("R̂") as caught:
        lb.condense(
            make(),
            lambda draw, x: lb.Bernoulli(logits=x @ draw["w"]),
            torch.randn(50, 2, generator=G),
            steps=20,
            batch_size=20,
            components=2,
            progress=False,
        )
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_points_at_a_caller_outside_itself():
    with warns_about("mind the step") as caught:
        warn("mind the step")
    assert [warning.filename for warning in caught] == [__file__]
