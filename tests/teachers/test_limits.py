r"""Slow and remote teachers: limits, a rate, threads, and labels that are kept and used."""

import threading

import numpy as np
import pytest

import limbeck as lb
from limbeck.teachers import query as querying
from limbeck.teachers.query import Query, TeacherError
from tests.refusals import raises_about, refused, warns_about
from tests.teachers.stand_in import StandIn, label_rows, probabilities

X = np.random.default_rng(0).standard_normal((300, 2))
QUICK = {"task": "classification", "steps": 20, "student": (4,), "progress": False}


class Service:
    r"""The probability of class 1; it counts rows and can lose its connection."""

    def __init__(self, rows_until_it_fails=10**9):
        self.rows, self.limit, self.seen = 0, rows_until_it_fails, []

    def __call__(self, X):
        if self.rows + len(X) > self.limit:
            raise ConnectionError("gone")
        self.rows += len(X)
        self.seen += X.tolist()
        return 1 / (1 + np.exp(-X.sum(1)))


class Clock:
    r"""Time that passes only where it is told to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(querying, "time", clock := Clock())
    return clock


@pytest.mark.parametrize("workers", [1, 3])
def test_a_limit_holds_over_all_queries_of_an_object(workers, tmp_path):
    teacher = StandIn()
    query = Query(tmp_path, max_queries=120, teacher_batch=7, query_workers=workers, progress=False)
    first = query.label_some(teacher, X[:100])
    second = query.label_some(teacher, X)
    assert first.error is None
    assert first.known.all()
    assert second.known.sum() == len(teacher.asked) == 120
    np.testing.assert_allclose(second.targets[second.known], probabilities(X[:120]), atol=1e-6)
    with raises_about(TeacherError, "max_queries=120", "180 of 300") as e:
        query.label(teacher, X)
    assert e.value.cached == 120
    again = StandIn()  # a further call continues, and asks for nothing twice
    label_rows(again, X, cache=tmp_path, progress=False)
    assert len(again.asked) == 180


def test_several_workers_give_the_same_targets_in_the_same_order():
    barrier = threading.Barrier(2, timeout=20)  # it opens when two calls run at the same time

    class Together(StandIn):
        def __call__(self, part):
            barrier.wait()
            return probabilities(part)

    found = label_rows(Together(), X, query_workers=2, teacher_batch=50, progress=False)
    np.testing.assert_array_equal(found, probabilities(X))


def test_what_other_workers_have_labelled_is_kept_after_an_error(tmp_path):
    class Broken(StandIn):
        def __call__(self, part):
            if part[0].tolist() == X[100].tolist():
                raise KeyError("age")
            return probabilities(part)

    with raises_about(TeacherError, "rows 100 to 149 of X") as caught:
        label_rows(Broken(), X, cache=tmp_path, query_workers=3, teacher_batch=50, progress=False)
    assert caught.value.cached >= 100


def test_an_interruption_keeps_what_was_labelled(tmp_path):
    teacher = StandIn(
        fail=lambda t: (_ for _ in ()).throw(KeyboardInterrupt) if t.calls == 3 else 0
    )
    with raises_about(KeyboardInterrupt, "100 of 300"):
        label_rows(teacher, X, cache=tmp_path, teacher_batch=50, progress=False)


def test_calls_wait_for_the_rate(clock):
    starts = []

    class Timed(StandIn):
        def __call__(self, part):
            starts.append((clock.now, len(part)))
            return super().__call__(part)

    label_rows(Timed(), X[:40], queries_per_second=4, progress=False)
    assert all(n <= 8 for _, n in starts)
    # never more rows than the rate allows, from the first call to any later one
    total = np.cumsum([n for _, n in starts])
    assert all(done <= 4 * now + 1e-9 for (now, _), done in zip(starts[1:], total, strict=False))
    assert clock.now == pytest.approx(8.0)


def test_no_call_begins_after_the_time(clock):
    class Slow(StandIn):
        def __call__(self, part):
            clock.now += 3.0
            return super().__call__(part)

    query = Query(query_seconds=10.0, teacher_batch=20, progress=False)
    teacher = Slow()
    found = query.label_some(teacher, X)
    assert found.known.sum() == 80
    assert "query_seconds=10 are over" in str(found.error)


def test_compress_trains_on_what_a_budget_pays_for():
    service = Service()
    result = lb.compress(service, X, max_queries=150, **QUICK)
    assert service.rows == 150
    assert len({tuple(row) for row in service.seen}) == 150  # none of them twice
    assert result.notes[0] == (
        "Note: the student learned from 150 of 300 rows of X and 0 generated inputs, which the "
        "teacher labelled (max_queries=150)."
    )
    assert result.inputs == "data"
    inside = [row.tolist() in X.tolist() for row in np.array(service.seen)]
    assert all(inside)


def test_rows_come_before_generated_inputs():
    service = Service()
    result = lb.compress(service, X, max_queries=400, **QUICK)
    assert 300 < service.rows <= 400  # generated inputs may equal rows
    assert "all 300 rows of X and 100 generated inputs" in result.notes[0]
    assert {tuple(row) for row in service.seen[:300]} == {tuple(row) for row in X}
    before = service.rows
    report = result.report(X[:50])  # a call of its own, without the limit; the teacher is not timed
    assert service.rows == before + 50
    assert report.costs["teacher"].latency == {}


def test_a_student_of_any_size_within_a_budget():
    service = Service()
    options = QUICK | {"student": "auto", "keep": 0.5}
    result = lb.compress(service, X, max_queries=250, held_out_fraction=0.2, **options)
    assert service.rows == 250
    assert "250 of 300 rows" in result.notes[0]


@pytest.mark.parametrize(("fails", "rows"), [(200, 196), (310, 300), (350, 300)])
def test_a_lost_connection_leaves_a_student_of_the_rest(fails, rows, tmp_path):
    options = QUICK | {"cache": tmp_path, "cache_key": "service", "teacher_batch": 10}
    with warns_about("ConnectionError: gone"):
        result = lb.compress(Service(fails), X, retries=0, **options)
    share = "all 300" if rows == 300 else f"{rows} of 300"
    assert f"{share} rows of X" in result.notes[0]
    assert "the teacher failed (ConnectionError)" in result.notes[0]
    again = Service()
    lb.compress(again, X, inputs="data", **options)  # only what is missing, and the first 16
    assert again.rows == 300 - rows + 16


def test_too_few_labels_are_refused():
    with raises_about(TeacherError, 100):
        lb.compress(Service(), X, max_queries=50, **QUICK)
    with raises_about(TeacherError, "first rows of X", "ConnectionError"):
        lb.compress(Service(0), X, retries=0, **QUICK)


def test_limits_and_inputs_of_ones_own_are_refused():
    with refused("max_queries", expected="inputs by name"):
        lb.compress(Service(), X, max_queries=200, inputs=lb.inputs.Dataset(X), **QUICK)


def test_the_first_query_is_repeated_after_a_connection_error(clock):
    calls = []

    def flaky(X):
        calls.append(len(X))
        if len(calls) == 1:
            raise ConnectionError("gone")
        return 1 / (1 + np.exp(-X.sum(1)))

    lb.compress(flaky, X, inputs="data", **QUICK)
    assert calls[:2] == [16, 16]


def test_notes_tell_of_negative_counts_and_crossed_quantiles():
    options = {"steps": 1, "student": (4,), "inputs": "data", "progress": False}
    counts = lb.compress(lambda X: 1e-3 + np.exp(9 * X[:, 0]), X, task="regression", **options)
    assert "negative, where the teacher's are positive" in counts.notes[0]
    quantiles = lb.compress(
        lambda X: X[:, :1] + 1e-6 * np.arange(3), X, task="regression", **options
    )
    assert "not in ascending order" in quantiles.notes[0]
