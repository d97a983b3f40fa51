r"""Asking a teacher: once for each input, with patience, and nothing that was said is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

import limbeck as lb
from limbeck.teachers import query as labelling
from limbeck.teachers.cache import ROWS, TeacherCache
from limbeck.teachers.keys import row_keys
from limbeck.teachers.query import TeacherError
from tests.refusals import raises_about, refused, warns_about
from tests.teachers import stand_in
from tests.teachers.stand_in import StandIn, label_rows, probabilities

X = np.random.default_rng(0).standard_normal((200, 2))
TARGETS = probabilities(X)


class Clock:
    r"""Time that passes only where it is told to."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(labelling, "time", clock := Clock())
    return clock


def stored(folder):
    answers = TeacherCache(folder).answers("stand-in", (3,), list("abc"))
    return answers.get(row_keys(X))[0].sum()


def fails_at(call, error, times=1):
    def fail(teacher):
        if call <= teacher.calls < call + times:
            raise error

    return fail


def test_each_row_gets_its_own_answer_in_order():
    teacher = StandIn()
    found = label_rows(teacher, X)
    assert np.array_equal(found, probabilities(X))
    assert found.dtype == np.float64
    assert teacher.asked == X.tolist()


def test_equal_rows_are_asked_about_once():
    teacher = StandIn()
    rows = np.random.default_rng(1).integers(0, 20, 500)
    found = label_rows(teacher, X[rows])
    assert np.array_equal(found, probabilities(X[rows]))
    assert len(teacher.asked) == len(np.unique(rows))


def test_a_second_run_asks_nothing_and_says_the_same(tmp_path):
    first = label_rows(StandIn(), X, cache=tmp_path)
    teacher = StandIn()
    second = label_rows(teacher, X[::-1], cache=str(tmp_path))
    assert teacher.calls == 0
    assert np.array_equal(first, second[::-1])
    assert np.array_equal(first, TARGETS)


def test_only_what_is_new_is_asked(tmp_path):
    cache = TeacherCache(tmp_path)
    label_rows(StandIn(), X[50:100], cache=cache)
    teacher = StandIn()
    assert np.array_equal(label_rows(teacher, X, cache=cache), TARGETS)
    assert teacher.asked == np.concatenate([X[:50], X[100:]]).tolist()


def test_teachers_are_told_apart_by_fingerprint_or_key(tmp_path):
    label_rows(StandIn("one"), X, cache=tmp_path)
    for teacher, key, calls in ((StandIn("two"), None, True), (StandIn("one"), "mine", True),
                                (StandIn("three"), "mine", False)):  # fmt: skip
        label_rows(teacher, X, cache=tmp_path, cache_key=key)
        assert bool(teacher.calls) == calls


def test_of_a_callable_nothing_is_kept_without_a_key(tmp_path):
    teacher = StandIn(fingerprint=None)
    with warns_about("cache_key") as caught:
        assert np.array_equal(label_rows(teacher, X, cache=tmp_path), probabilities(X))
    assert len(caught) == 1
    assert caught[0].filename == stand_in.__file__
    assert list(tmp_path.iterdir()) == []
    label_rows(teacher, X, cache=tmp_path, cache_key="mine")
    again = StandIn(fingerprint=None)
    label_rows(again, X, cache=tmp_path, cache_key="mine")
    assert again.calls == 0


@pytest.mark.parametrize("kind", ["list", "tensor", "frame", "sparse", "dict"])
def test_inputs_of_any_kind_reach_the_teacher_as_they_are(tmp_path, kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b"], index=np.arange(200) + 5)
    makers = {
        "list": (X.tolist(), lambda part: part),
        "tensor": (torch.tensor(X), lambda part: part.numpy()),
        "frame": (frame, lambda part: part[["a", "b"]].to_numpy()),
        "sparse": (sparse.coo_matrix(X), lambda part: part.toarray()),
        "dict": ({"a": X[:, :1], "b": torch.tensor(X[:, 1:])},
                 lambda part: np.hstack([part["a"], part["b"].numpy()])),
    }  # fmt: skip
    given, unpack = makers[kind]

    class Unpacking(StandIn):
        def __call__(self, part):
            return super().__call__(unpack(part))

    assert np.array_equal(label_rows(Unpacking(), given), probabilities(X))
    label_rows(Unpacking(), given, cache=tmp_path)
    again = Unpacking()
    assert np.array_equal(label_rows(again, given, cache=tmp_path), TARGETS)
    assert again.calls == 0


def test_no_rows_have_no_answers():
    assert label_rows(StandIn(), X[:0]).shape == (0, 3)


def test_a_batch_size_that_is_given_is_kept():
    teacher = StandIn()
    label_rows(teacher, X, teacher_batch=30)
    assert teacher.sizes == [30] * 6 + [20]


def test_a_quick_teacher_soon_gets_large_batches(clock):
    teacher = StandIn()
    label_rows(teacher, np.arange(40_000.0).reshape(-1, 2) / 1e5)
    assert teacher.sizes == [8, 64, 512, 4096, 15320]


@pytest.mark.parametrize("each", [0.3, 1.0, 25.0])
def test_the_bar_moves_every_few_seconds_for_a_slow_teacher(clock, each):
    spent = []

    class Slow(StandIn):
        def __call__(self, part):
            clock.now += each * len(part)
            spent.append(each * len(part))
            return super().__call__(part)

    label_rows(Slow(), X)
    assert max(spent[1:]) <= max(each, 2 * labelling.PATIENCE)


def test_a_teacher_that_is_far_away_is_asked_about_more_at_once(clock):
    class Remote(StandIn):
        def __call__(self, part):
            clock.now += 1.0  # for any number of rows
            return super().__call__(part)

    teacher = Remote()
    label_rows(teacher, X)
    assert teacher.sizes == [8, 16, 32, 64, 80]


@pytest.mark.parametrize(("seconds", "between"), [(0.9, 1), (0.09, 23)])
def test_answers_are_written_at_once_or_every_two_seconds(clock, tmp_path, seconds, between):
    seen = []

    class Slow(StandIn):
        def __call__(self, part):
            seen.append(stored(tmp_path))
            clock.now += seconds
            return super().__call__(part)

    label_rows(Slow(), X, cache=tmp_path, teacher_batch=5)
    assert seen == [5 * between * (call // between) for call in range(40)]
    assert stored(tmp_path) == 200


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError(), OSError("network")])
def test_what_may_pass_is_tried_again_with_longer_pauses(clock, error):
    teacher = StandIn(fail=fails_at(2, error, times=3))
    assert np.array_equal(label_rows(teacher, X, teacher_batch=50, wait=0.5), probabilities(X))
    assert clock.slept == [0.5, 1.0, 2.0]
    assert teacher.asked == X.tolist()


def test_in_the_end_patience_runs_out_and_answers_stay(clock, tmp_path):
    teacher = StandIn(fail=fails_at(3, cause := ConnectionError("the line is dead"), times=99))
    with pytest.raises(TeacherError) as caught:
        label_rows(teacher, X, cache=tmp_path, teacher_batch=50, retries=2)
    assert str(caught.value) == (
        "teacher: it failed at rows 100 to 149 of X, 3 times (ConnectionError: the line is dead); "
        "100 of 200 predictions are in the cache and are not computed again"
    )
    assert caught.value.__cause__ is cause
    assert isinstance(caught.value, lb.LimbeckError)
    assert caught.value.cached == 100
    assert caught.value.rows.tolist() == list(range(100, 150))
    assert clock.slept == [1.0, 2.0]
    again = StandIn()
    assert np.array_equal(label_rows(again, X, cache=tmp_path), TARGETS)
    assert again.asked == X[100:].tolist()


def test_other_errors_are_not_tried_again(clock, tmp_path):
    teacher = StandIn(fail=fails_at(2, cause := KeyError("age")))
    with raises_about(TeacherError, "rows 50 to 99 of X", "KeyError: 'age'") as caught:
        label_rows(teacher, X, cache=tmp_path, teacher_batch=50)
    assert caught.value.__cause__ is cause
    assert clock.slept == []
    assert caught.value.cached == 50


def test_the_rows_of_an_error_are_those_of_the_users_inputs():
    rows = X[[0, 0, 1, 1, 1, 2]]
    with raises_about(TeacherError, "3 rows", "0 to 5 of X", "cache="):
        label_rows(StandIn(fail=fails_at(1, RuntimeError("no"))), rows)
    with raises_about(TeacherError, "row 5 of X"):
        label_rows(StandIn(fail=fails_at(3, RuntimeError())), rows, teacher_batch=1)


def test_the_user_says_what_may_pass(clock):
    class RateLimitError(Exception):
        pass

    error = RateLimitError("slow down")
    label_rows(StandIn(fail=fails_at(1, error)), X, retry_on=RateLimitError)
    assert clock.slept == [1.0]
    with raises_about(TeacherError, "OSError"):
        label_rows(StandIn(fail=fails_at(1, OSError())), X, retry_on=(RateLimitError, KeyError))


def test_what_limbeck_itself_refuses_is_told_as_it_is():
    error = lb.ArgumentError("X", "columns 'a'", "columns 'b'")
    with pytest.raises(lb.ArgumentError) as caught:
        label_rows(StandIn(fail=fails_at(1, error)), X)
    assert caught.value is error


def test_interrupted_it_keeps_what_was_said(tmp_path):
    teacher = StandIn(fail=fails_at(3, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        label_rows(teacher, X, cache=tmp_path, teacher_batch=60)
    again = StandIn()
    assert np.array_equal(label_rows(again, X, cache=tmp_path), TARGETS)
    assert again.asked == X[120:].tolist()


KILLED = """
import os, signal, sys
import numpy as np
from limbeck.teachers import query as labelling
from tests.teachers.stand_in import StandIn, label_rows
from tests.teachers.test_labelling import X

def fail(teacher):
    if teacher.calls == 4:
        os.kill(os.getpid(), signal.SIGKILL)

labelling.PATIENCE = -1.0  # each batch is written
label_rows(StandIn(fail=fail), X, cache=sys.argv[1], teacher_batch=50)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_it_has_stored_all_that_was_written(tmp_path):
    here = [str(Path(lb.__file__).parents[1]), str(Path(__file__).parents[2])]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path], check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(here)},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    teacher = StandIn()
    assert np.array_equal(label_rows(teacher, X, cache=tmp_path), TARGETS)
    assert teacher.asked == X[150:].tolist()


def bad(answer):
    class Bad(StandIn):
        def __call__(self, part):
            return answer(super().__call__(part), self.calls)

    return Bad()


ANSWERS = {
    "NaN": (
        lambda p, call: np.where(p == p[7, 1], np.nan, p),
        "NaN or infinity for 1 rows, as",
    ),
    "infinity": (
        lambda p, call: p / 0.0 if call > 1 else p,
        "NaN or infinity for 50 rows, as row 50",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_answers_that_do_not_fit_are_refused(case):
    answer, received = ANSWERS[case]
    with refused("teacher", received):
        label_rows(bad(answer), X, teacher_batch=50)


def test_good_answers_before_a_bad_one_stay(tmp_path):
    teacher = bad(lambda p, call: p if call < 3 else p * np.nan)
    with refused("teacher", "NaN"):
        label_rows(teacher, X, cache=tmp_path, teacher_batch=50)
    again = StandIn()
    label_rows(again, X, cache=tmp_path)
    assert again.asked == X[100:].tolist()


def test_where_the_disk_is_full_answers_are_still_returned_with_one_warning(
    tmp_path, clock, monkeypatch
):
    class Slow(StandIn):
        def __call__(self, part):
            clock.now += 5.0  # a write after each batch
            return super().__call__(part)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    teacher = Slow()
    with warns_about("No space left on device") as caught:
        found = label_rows(teacher, X, cache=tmp_path, teacher_batch=50)
    assert len(caught) == 1
    assert np.array_equal(found, TARGETS)
    assert len(teacher.asked) == 200
    monkeypatch.undo()
    label_rows(again := StandIn(), X, cache=tmp_path)
    assert len(again.asked) == 200


def test_a_damaged_cache_is_told_before_the_teacher_is_asked(tmp_path):
    label_rows(StandIn(), X, cache=tmp_path)
    for path in tmp_path.rglob(ROWS):
        path.write_bytes(path.read_bytes()[:-1])
    teacher = StandIn()
    with pytest.raises(lb.CheckpointError, match=rf"{ROWS} has .* bytes, too few"):
        label_rows(teacher, X, cache=tmp_path)
    assert teacher.calls == 0


def test_a_key_that_two_teachers_share_is_found_out(tmp_path):
    label_rows(StandIn(), X, cache=tmp_path, cache_key="mine")

    class Other(StandIn):
        classes = np.array(["b", "a", "c"])

    with raises_about(lb.CheckpointError, "names was", "cache_key"):
        label_rows(Other(), X, cache=tmp_path, cache_key="mine")


@pytest.mark.parametrize(
    ("options", "argument", "received"),
    [
        ({"teacher_batch": 0}, "teacher_batch", "^0$"),
        ({"retries": -1}, "retries", "^-1$"),
        ({"wait": -1.0}, "wait", "^-1"),
        ({"retry_on": "OSError"}, "retry_on", "'OSError'"),
        ({"retry_on": (OSError, KeyboardInterrupt)}, "retry_on", r"\(<class 'OSError'>, <class"),
        ({"cache": 7}, "cache", "^7$"),
    ],
)
def test_bad_arguments_are_named_before_the_teacher_is_asked(options, argument, received):
    teacher = StandIn()
    with refused(argument, received):
        label_rows(teacher, X, **options)
    assert teacher.calls == 0


def test_a_bar_counts_rows(monkeypatch):
    shown = []

    def tracked(rows, what, progress):
        shown.append((len(rows), what, progress))
        yield from rows

    monkeypatch.setattr(labelling, "tracked", tracked)
    label_rows(StandIn(), X[[0, 1, 0]], progress=False)
    assert shown == [(2, "querying the teacher", False)]


def test_a_teacher_that_ends_the_program_has_failed(tmp_path):
    def leave(teacher):
        if teacher.calls == 3:
            sys.exit(0)

    with raises_about(TeacherError, "SystemExit: 0", "cache") as caught:
        label_rows(StandIn(fail=leave), X, cache=tmp_path, teacher_batch=50)
    assert caught.value.cached == 100


def test_an_exception_that_cannot_be_shown_is_named():
    class HiddenError(Exception):
        def __str__(self):
            raise RuntimeError

    def fail(teacher):
        raise HiddenError

    with raises_about(TeacherError, "HiddenError"):
        label_rows(StandIn(fail=fail), X)


def test_what_takes_long_is_written_at_once(tmp_path):
    class Killed(BaseException):
        pass

    def slow(teacher):
        time.sleep(0.15)
        if teacher.calls == 3:  # as by a signal that cannot be handled: nothing is written any more
            monkey.setattr(labelling._Session, "_write", lambda session: None)
            raise Killed

    with pytest.MonkeyPatch.context() as monkey, pytest.raises(Killed):
        label_rows(StandIn(fail=slow), X, cache=tmp_path, teacher_batch=20)
    assert stored(tmp_path) == 40
