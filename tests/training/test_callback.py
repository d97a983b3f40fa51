r"""Callbacks are told of the start, of each look and of the end, whatever happens between."""

import pytest
import torch

import limbeck as lb
from limbeck.training.callbacks import Callback, as_callbacks, name_of
from tests.refusals import refused

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))


class Told(Callback):
    def __init__(self):
        self.events = []

    def start(self, settings, history):
        self.events.append(("start", dict(settings), list(history.get("step", []))))

    def on_evaluation(self, entry):
        self.events.append(("look", dict(entry)))

    def end(self, stop_reason):
        self.events.append(("end", stop_reason))


def distilled(callbacks, student=None, teacher=None, **options):
    student = student or lb.MLP(4, 3, generator=torch.Generator().manual_seed(0))
    settings = dict(steps=6, every=2, batch_size=5, device="cpu", engine="eager") | options
    teacher = teacher or (lambda x: x[:, :3].softmax(1))
    return lb.distill(teacher, student, X, callbacks=callbacks, **settings)


def test_looks_are_those_of_the_history():
    told = Told()
    result = distilled(told, metrics={"size": lambda student: 7.0})
    kinds = [event[0] for event in told.events]
    assert kinds == ["start", "look", "look", "look", "end"]
    looks = [event[1] for event in told.events if event[0] == "look"]
    for name, values in result.history.items():
        assert [entry[name] for entry in looks] == values
    assert told.events[0][1]["seed"] == 0
    assert told.events[0][1]["steps"] == 6
    assert told.events[-1] == ("end", result.stop_reason)


def test_functions_will_do_and_several_of_them():
    one, two = [], []
    distilled([one.append, lambda entry: two.append(entry["step"])])
    assert [entry["step"] for entry in one] == two == [2, 4, 6]


def test_a_run_that_goes_on_tells_what_it_goes_on_from(tmp_path):
    first, second = Told(), Told()
    distilled(first, steps=4, checkpoint=tmp_path, schedule="constant")
    distilled(second, steps=8, checkpoint=tmp_path, schedule="constant")
    assert second.events[0][2] == [2, 4]
    assert [e[1]["step"] for e in second.events if e[0] == "look"] == [6, 8]
    assert name_of(first.events[0][1]) == name_of(second.events[0][1])


def test_an_interrupted_run_ends_without_a_reason():
    told = Told()

    def teacher(x):
        if len(told.events) > 2:
            raise KeyboardInterrupt
        return x[:, :3].softmax(1)

    with pytest.raises(KeyboardInterrupt):
        distilled(told, teacher=teacher, precompute=False)
    assert told.events[-1] == ("end", None)


def test_names_tell_runs_apart():
    settings = {"student": "MLP {}", "seed": 0, "steps": 5}
    assert name_of(settings) == name_of(settings | {"steps": 9})
    assert name_of(settings) != name_of(settings | {"seed": 1})


@pytest.mark.parametrize("wrong", [3, "log.csv", Told, [3]], ids=str)
def test_what_is_no_callback_is_refused(wrong):
    with refused("callbacks"):
        distilled(wrong)


def test_none_is_none():
    assert as_callbacks(None) == as_callbacks([]) == ()


@pytest.mark.slow
def test_every_verb_passes_them_on():
    g = torch.Generator().manual_seed(0)
    quick = dict(steps=2, device="cpu", progress=False)
    told = [Told() for _ in range(5)]
    teacher = lambda rows: rows[:, :1] * 2.0  # noqa: E731
    result = lb.compress(
        teacher, X.numpy(), student=(2,), inputs="auto", pool=30, task="regression",
        callbacks=told[0], **quick,
    )  # fmt: skip
    result.on_labels(X[:, 0].numpy())
    posterior = torch.randn(40, 4, generator=g)
    predict = lambda draw, x: lb.Bernoulli(logits=x @ draw)  # noqa: E731
    lb.condense(posterior, predict, X, components=2, callbacks=told[1], **quick)
    density = lambda draw: lb.Normal(draw[0], draw.new_ones(()))  # noqa: E731
    lb.condense(posterior, density, components=2, restarts=1, callbacks=told[2], **quick)
    batches = iter(torch.randn(40, 10, 4, generator=g))  # which end before the steps do
    stream = dict(quick, steps=500, batch_size=5)
    lb.condense(batches, predict, X, components=2, callbacks=told[3], **stream)
    rbm = lb.RBM(torch.zeros(4, 2), torch.zeros(4), torch.zeros(2))
    student = lb.NADE(4, 2, generator=g)
    lb.normalize(rbm, student, chains=10, burn_in=1, batch_size=5, callbacks=told[4], **quick)
    for each in told:
        kinds = [event[0] for event in each.events]
        assert kinds.count("start") == 1, kinds  # trials and comparisons are not told of
        assert "look" in kinds
        assert kinds[-1] == "end"
        assert each.events[-1][1]
