r"""A stream that fails in the middle: the student so far is returned, with the reason."""

import pytest
import torch

import limbeck as lb
from limbeck.condensation.condense import condense
from limbeck.errors import ArgumentError
from limbeck.posteriors.stream import StreamBroken

FEW = {"batch_size": 10, "steps": 50, "device": "cpu", "engine": "eager", "progress": False}
X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
GOOD = 20
r"""Batches of ten draws before the one that breaks."""


def failing():
    raise OSError("disk gone")


BROKEN = {
    "not finite": (
        lambda good: good * torch.nan,
        "batch 21: expected .*, got NaN or infinite numbers",
    ),
    "another shape": (
        lambda good: good[:, :1],
        r"batch 21: expected .*, got draws of shape \(1,\)",
    ),
    "none": (lambda good: None, "batch 21: expected .*, got a NoneType"),
    "no draws": (lambda good: good[:0], r"batch 21: expected .*, got shape \(0, 2\)"),
    "an error": (lambda good: failing(), r"failed \(OSError: disk gone\)"),
}

STUDENTS = {
    "classes": ((lambda w, x: lb.Bernoulli(logits=x @ w), X), {"components": 4}),
    "numbers": ((lambda w, x: lb.Normal(x @ w, w[0].exp()), X), {"components": 4}),
    "a network": (
        (lambda w, x: lb.Bernoulli(logits=x @ w), X),
        {"student": lambda: lb.MLP(2, 3, 1, generator=torch.Generator().manual_seed(0))},
    ),
    "a density by EM": ((lambda w: lb.Normal(w[0], w[1].exp()),), {"components": 2}),
    "a density by gradients": (
        (lambda w: lb.Normal(w[0], w[1].exp()),),
        {"components": 2, "lr": 0.01},
    ),
}


def batches(break_, good=GOOD):
    generator = torch.Generator().manual_seed(0)
    for number in range(good + 1):
        batch = torch.randn(10, 2, generator=generator)
        yield break_(batch) if number == good else batch


def condensed(kind, source, **changes):
    arguments, options = STUDENTS[kind]
    made = {name: value() if callable(value) else value for name, value in options.items()}
    return condense(source, *arguments, **FEW | made | changes)


@pytest.mark.parametrize("how", list(BROKEN))
@pytest.mark.parametrize("kind", [kind for kind in STUDENTS if "gradients" not in kind])
@pytest.mark.filterwarnings("ignore:posterior. R̂")  # so few draws say little
def test_the_student_so_far_is_kept_and_the_reason_told(kind, how):
    break_, message = BROKEN[how]
    with pytest.warns(UserWarning, match=f"{message}.*the student trained so far is returned"):
        result = condensed(kind, batches(break_))
    assert 0 < result.steps < 50
    assert f"at step {result.steps} of 50" in result.stop_reason
    assert "posterior: the stream" in str(result)
    assert result.history["step"][-1] == result.steps
    assert all(part.isfinite().all() for part in result.student.parameters())
    error = result.posterior.end
    assert isinstance(error, StreamBroken)
    assert type(error.__cause__) is (OSError if how == "an error" else ArgumentError)
    with pytest.raises(StreamBroken, match=message):
        result.posterior.next(1)


@pytest.mark.filterwarnings("ignore:posterior. R̂")
def test_a_density_by_gradients_is_kept_too():
    break_, message = BROKEN["not finite"]
    with pytest.warns(UserWarning, match=message.replace("21", "121")):
        result = condensed("a density by gradients", batches(break_, 120))
    assert 0 < result.steps < 50
    assert result.student.log_prob(torch.zeros(3, 1)).isfinite().all()


@pytest.mark.filterwarnings("ignore:posterior. R̂")
def test_the_student_is_that_of_a_stream_which_ends_there():
    ended = condensed("classes", (b for b in batches(lambda good: good, GOOD - 1)))
    with pytest.warns(UserWarning, match="gave a bad batch"):
        broken = condensed("classes", batches(BROKEN["not finite"][0]))
    assert broken.steps == ended.steps
    assert torch.equal(broken.student.free, ended.student.free)
    assert "the stream ended after 20 batches" in ended.stop_reason


@pytest.mark.parametrize("how", list(BROKEN))
@pytest.mark.parametrize("kind", list(STUDENTS))
def test_a_broken_first_batch_is_an_error(kind, how):
    break_, message = BROKEN[how]
    known = StreamBroken if how == "an error" else ArgumentError
    if how == "another shape":  # the first batch says what shape there is
        break_, message = (lambda good: good[0]), r"batch 21: expected .*, got shape \(2,\)"
    with pytest.raises(known, match=message.replace("21", "1")):
        condensed(kind, batches(break_, 0))
