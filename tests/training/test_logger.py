r"""Loggers never break a training: what fails is said once."""

import errno
import sys
import warnings

import pytest

import limbeck as lb
from limbeck.training.callbacks import CSVLogger, Logger, MLflow, TensorBoard
from tests.refusals import raises_about, warns_about
from tests.training.short import distilled


class Failing(Logger):
    def __init__(self, at):
        self.at, self.calls = at, []

    def __repr__(self):
        return "Failing()"

    def _open(self, name, settings, history):
        self._do("open")

    def _write(self, entry):
        self._do("write")

    def _close(self, stop_reason):
        self._do("close")

    def _do(self, what):
        self.calls.append(what)
        if what == self.at:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("open", ["open"]),
        ("write", ["open", "write"]),
        ("close", ["open", *["write"] * 4, "close"]),
    ],
)
def test_a_full_disk_is_warned_of_once_and_the_training_goes_on(at, calls):
    logger = Failing(at)
    with warns_about("Failing()", "No space left") as caught:
        result = distilled(logger)
    assert len(caught) == 1
    assert logger.calls == calls
    assert result.steps == 8


def test_a_disk_that_fills_up_under_a_csv_file(tmp_path, monkeypatch):
    plain = distilled(None)
    logger = CSVLogger(tmp_path / "log.csv")

    def full(entry):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logger, "_write", full)
    with warns_about("CSVLogger", "No space left"):
        result = distilled(logger)
    assert result.history["loss"] == plain.history["loss"]


def test_a_log_changes_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logged = distilled(CSVLogger(tmp_path / "log.csv"))
    assert logged.history["loss"] == distilled(None).history["loss"]


@pytest.mark.parametrize(("kind", "extra"), [(TensorBoard, "tensorboard"), (MLflow, "mlflow")])
def test_without_the_library_the_error_says_how_to_get_it(monkeypatch, kind, extra):
    monkeypatch.setitem(sys.modules, extra, None)
    with raises_about(lb.LimbeckError, f"limbeck[{extra}]"):
        kind()
