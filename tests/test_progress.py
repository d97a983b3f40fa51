r"""The progress bar: there where somebody looks, silent elsewhere, without effect on the run."""

import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import limbeck as lb
from limbeck import progress

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
SETTINGS = dict(steps=10, batch_size=5, device="cpu")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def look(monkeypatch):
    def at_a_terminal():
        monkeypatch.setattr("sys.stderr", terminal := Terminal())
        monkeypatch.setattr(progress, "REFRESH", -1.0)  # at every step
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        return terminal

    return at_a_terminal  # called by each test, since pytest has its own stderr for fixtures


def net(seed):
    return lb.MLP(4, 6, 3, generator=torch.Generator().manual_seed(seed))


def weights(student):
    return torch.cat([p.flatten() for p in student.parameters()])


def test_a_terminal_shows_the_steps_and_the_loss(look):
    screen = look()
    result = lb.distill(net(2), net(1), X, **SETTINGS)
    shown = screen.getvalue()
    assert "distilling" in shown
    assert "10/10" in shown
    assert f"loss {result.history['loss'][-1]:.4g}" in shown


def test_no_bar_where_none_is_wanted(look):
    screen = look()
    lb.distill(net(2), net(1), X, **SETTINGS, progress=False)
    assert screen.getvalue() == ""


def refitted(**options):
    rows, labels = X.numpy(), (X[:, 0] > 0).long().numpy()
    teacher = LogisticRegression().fit(rows, labels)
    few = dict(steps=5, pool=50, device="cpu")
    lb.compress(teacher, rows, (4,), labels=labels, teacher_folds=2, **few, **options)


def condensed(**options):
    draws = torch.randn(400, 4, generator=torch.Generator().manual_seed(4))

    def predict(draw, x):
        return lb.Bernoulli(logits=x @ draw)

    lb.condense(draws, predict, X, steps=5, device="cpu", **options)


def normalized(**options):
    rbm = lb.RBM.random(4, 2, generator=torch.Generator().manual_seed(3))
    lb.normalize(rbm, steps=5, chains=10, burn_in=2, device="cpu", **options)


@pytest.mark.parametrize("verb", [refitted, condensed, normalized])
def test_a_verb_shows_bars_or_none_as_it_is_asked(look, verb):
    screen = look()
    verb(progress=False)
    assert screen.getvalue() == ""
    verb(progress=True)
    assert screen.getvalue()


def test_no_bar_where_nobody_looks(monkeypatch):
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    lb.distill(net(2), net(1), X, **SETTINGS, progress=True)
    assert file.getvalue() == ""


@pytest.mark.parametrize("verb", [refitted, condensed, normalized])
def test_long_work_writes_lines_without_a_terminal(monkeypatch, verb):
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    monkeypatch.setattr(progress, "BETWEEN_LINES", -1.0)  # as if each piece took long
    verb(progress=False)
    assert file.getvalue() == ""
    verb(progress=True)
    lines = file.getvalue().splitlines()
    assert any(re.fullmatch(r"\w+: \d of 5 done, loss [\d.e-]+", line) for line in lines)


def test_labelling_and_the_search_write_lines_without_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    monkeypatch.setattr(progress, "BETWEEN_LINES", -1.0)
    numbers = np.arange(2000) % 200 + 0.0
    df = pd.DataFrame({"a": np.random.default_rng(0).permutation(numbers), "b": numbers})
    lb.compress(lambda X: (X["a"] + X["b"]).to_numpy(), df, (4,), steps=5, task="regression")
    for label in ("querying the teacher", "trying inputs", "trying columns", "distilling"):
        assert f"{label}: " in file.getvalue()


def test_steps_taken_one_by_one_show_a_bar_only_if_asked(look):
    screen = look()
    list(lb.steps(net(2), net(1), X, **SETTINGS))
    assert screen.getvalue() == ""
    list(lb.steps(net(2), net(1), X, **SETTINGS, progress=True))
    assert "10/10" in screen.getvalue()


def test_the_bar_changes_nothing(look):
    screen = look()
    shown, silent = net(1), net(1)
    lb.distill(net(2), shown, X, **SETTINGS, progress=True)
    lb.distill(net(2), silent, X, **SETTINGS, progress=False)
    assert screen.getvalue()
    assert torch.equal(weights(shown), weights(silent))


def test_a_resumed_run_starts_its_bar_where_it_stopped(look, tmp_path):
    screen = look()
    settings = SETTINGS | {"schedule": "constant", "checkpoint": tmp_path}
    lb.distill(net(2), net(1), X, **settings, progress=False)
    longer = settings | {"steps": 20}
    steps = lb.steps(net(2), net(1), X, **longer, progress=True)
    assert next(steps).number == 11
    steps.close()
    shown = screen.getvalue()
    assert " 0/20" not in shown
    assert "11/20" in shown


def test_a_run_broken_off_behind_a_bar_is_saved(look, tmp_path):
    look()
    for step in lb.steps(net(2), net(1), X, **SETTINGS, checkpoint=tmp_path, progress=True):
        if step.number == 4:
            break
    del step
    result = lb.distill(net(2), net(7), X, **SETTINGS, checkpoint=tmp_path)
    whole = lb.distill(net(2), net(1), X, **SETTINGS)
    assert torch.equal(weights(result.student), weights(whole.student))
    assert result.history["step"] == list(range(1, 11))
