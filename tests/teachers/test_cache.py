r"""The teacher cache: answers by the content of teacher and input, whole or by their largest."""

import copy
import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limbeck as lb
from limbeck.teachers.cache import META, TeacherCache, as_cache
from limbeck.teachers.keys import row_keys
from tests.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 2))
KEYS = row_keys(X)
P = RNG.dirichlet(np.full(5, 0.3), 6)


def only_folder(root):
    (folder,) = root.iterdir()
    return folder


def test_answers_are_found_by_teacher_and_input(tmp_path):
    cache = TeacherCache(tmp_path)
    cache.answers("one", (5,)).put(KEYS[:4], P[:4])
    cache.answers("two", (5,)).put(KEYS[2:], P[:4])
    found, values = cache.answers("one", (5,)).get(KEYS[::-1])
    assert found.tolist() == [False, False, True, True, True, True]
    assert np.array_equal(values, P[3::-1].astype(np.float32))
    assert cache.answers("two", (5,)).get(KEYS)[0].tolist() == [False] * 2 + [True] * 4
    assert not cache.answers("three", (5,)).get(KEYS)[0].any()
    assert len(cache.answers("one", (5,))) == 4


def test_nothing_is_made_before_there_is_something_to_keep(tmp_path):
    answers = TeacherCache(tmp_path / "new").answers("teacher", (5,))
    assert not answers.get(KEYS)[0].any()
    answers.put(KEYS[:0], P[:0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_kept_in_the_dtype_asked_for(tmp_path, dtype):
    answers = TeacherCache(tmp_path, dtype=dtype).answers("teacher", (5,))
    answers.put(KEYS, P)
    values = answers.get(KEYS)[1]
    assert values.dtype == dtype
    assert np.array_equal(values, P.astype(dtype))
    assert np.array_equal(answers.as_stored(P), values)


def test_derivatives_are_kept_beside_values(tmp_path):
    cache = TeacherCache(tmp_path)
    jacobians = RNG.standard_normal((6, 5, 2))
    cache.answers("teacher", (5,)).put(KEYS, P)
    cache.answers("teacher", (5, 2), kind="derivatives").put(KEYS, jacobians)
    again = TeacherCache(tmp_path)
    found, values = again.answers("teacher", (5, 2), kind="derivatives").get(KEYS[4:])
    assert found.all()
    assert np.array_equal(values, jacobians[4:].astype(np.float32))
    assert np.array_equal(again.answers("teacher", (5,)).get(KEYS)[1], P.astype(np.float32))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_of_the_largest_k_all_is_exact_and_the_rest_is_shared_evenly(tmp_path, k):
    answers = TeacherCache(tmp_path, top_k=k).answers("teacher", (5,))
    answers.put(KEYS, P)
    found, values = TeacherCache(tmp_path, top_k=k).answers("teacher", (5,)).get(KEYS[::-1])
    assert found.all()
    np.testing.assert_allclose(values.sum(1), 1, rtol=0, atol=1e-15)
    for kept, true in zip(values, P[::-1].astype(np.float32), strict=True):
        largest = np.argsort(true)[::-1][:k]
        others = np.setdiff1d(np.arange(5), largest)
        assert np.array_equal(kept[largest], true[largest])
        assert len(set(kept[others].tolist())) == 1
        assert kept[others[0]] <= kept[largest].min() * (1 + 1e-6)
    assert np.array_equal(answers.as_stored(P[::-1]), values)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=12), st.integers(1, 11))
def test_the_largest_k_total_one_for_any_probabilities(tmp_path_factory, weights, k):
    total = sum(weights)
    p = (
        np.array([weights]) / total
        if total > 1e-6
        else np.full((1, len(weights)), 1 / len(weights))
    )
    answers = TeacherCache(tmp_path_factory.mktemp("cache"), k).answers("teacher", p.shape[1:])
    kept = answers.as_stored(p)
    np.testing.assert_allclose(kept.sum(), 1, atol=1e-6)
    assert (kept >= 0).all()
    order = np.argsort(-p[0].astype(np.float32), kind="stable")[:k]
    assert np.array_equal(kept[0][order], p[0].astype(np.float32)[order])


def test_the_largest_of_many_classes_take_little_room(tmp_path):
    many = RNG.dirichlet(np.full(1000, 0.01), 50)
    TeacherCache(tmp_path, top_k=10).answers("teacher", (1000,)).put(row_keys(np.arange(50)), many)
    size = sum(path.stat().st_size for path in only_folder(tmp_path).glob("*.npy"))
    assert size < 50 * (10 * 8 + 24) + 1000  # headers and all, and not 200,000


def test_as_many_as_there_are_is_all(tmp_path):
    TeacherCache(tmp_path, top_k=5).answers("teacher", (5,)).put(KEYS, P)
    found, values = TeacherCache(tmp_path).answers("teacher", (5,)).get(KEYS)
    assert found.all()
    assert np.array_equal(values, P.astype(np.float32))


@pytest.mark.parametrize(
    "values", [P * 2, P - 0.1, np.where(P.max(1, keepdims=True) == P, 2, -0.25)]
)
def test_the_largest_of_what_is_no_distribution_are_refused(tmp_path, values):
    answers = TeacherCache(tmp_path, top_k=2).answers("teacher", (5,))
    with refused("top_k", "do not sum to 1"):
        answers.put(KEYS, values)
    derivatives = TeacherCache(tmp_path, top_k=2).answers("teacher", (5,), kind="derivatives")
    derivatives.put(KEYS, values)
    assert np.array_equal(derivatives.get(KEYS)[1], values.astype(np.float32))


def test_keeping_less_does_not_hide_what_was_stored_whole(tmp_path):
    TeacherCache(tmp_path).answers("teacher", (5,)).put(KEYS, P)
    assert not TeacherCache(tmp_path, top_k=2).answers("teacher", (5,)).get(KEYS)[0].any()
    assert not TeacherCache(tmp_path, dtype="float64").answers("teacher", (5,)).get(KEYS)[0].any()
    assert TeacherCache(tmp_path).answers("teacher", (5,)).get(KEYS)[0].all()


@pytest.mark.parametrize("key", ["../../up", "a/b\\c", "", "ünï cödé", "x" * 500, ".", "con:"])
def test_any_key_has_a_folder_of_its_own(tmp_path, key):
    if not key:
        with refused("cache_key", "''"):
            TeacherCache(tmp_path).answers(key, (5,))
        return
    TeacherCache(tmp_path / "cache").answers(key, (5,)).put(KEYS, P)
    assert TeacherCache(tmp_path / "cache").answers(key, (5,)).get(KEYS)[0].all()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert json.loads((only_folder(tmp_path / "cache") / META).read_text())["teacher"] == key


def test_other_outputs_or_names_for_the_same_teacher_are_refused(tmp_path):
    TeacherCache(tmp_path).answers("teacher", (5,), list("abcde")).put(KEYS, P)
    for cache in (TeacherCache(tmp_path), TeacherCache(tmp_path)):
        with pytest.raises(lb.CheckpointError, match=r"shape was \[5\] and is \[4\]"):
            cache.answers("teacher", (4,), list("abcd")).get(KEYS)
        with pytest.raises(lb.CheckpointError, match=r"names was \['a'.*Give another cache_key"):
            cache.answers("teacher", (5,), list("abced")).put(KEYS, P)
        assert cache.answers("teacher", (5,), list("abcde")).get(KEYS)[0].all()


META_DAMAGE = {
    "not JSON": ("{", "cannot be read"),
    "not ours": ('{"a": 1}', "has the format None"),
    "a list": ("[1]", "has the format 'list'"),
    "of later days": ('{"format": "limbeck-teacher-cache-9"}', "limbeck-teacher-cache-9"),
}


@pytest.mark.parametrize("case", META_DAMAGE)
def test_a_damaged_description_is_named(tmp_path, case):
    TeacherCache(tmp_path).answers("teacher", (5,)).put(KEYS, P)
    text, message = META_DAMAGE[case]
    (only_folder(tmp_path) / META).write_text(text)
    with pytest.raises(lb.CheckpointError, match=rf"meta\.json .*{message}"):
        TeacherCache(tmp_path).answers("teacher", (5,)).get(KEYS)


def test_answers_without_a_description_are_refused(tmp_path):
    TeacherCache(tmp_path).answers("teacher", (5,)).put(KEYS, P)
    (only_folder(tmp_path) / META).unlink()
    with pytest.raises(lb.CheckpointError, match=r"meta\.json is missing"):
        TeacherCache(tmp_path).answers("teacher", (5,)).put(KEYS, P)


def test_a_folder_that_was_removed_meanwhile_is_made_anew(tmp_path):
    answers = TeacherCache(tmp_path).answers("teacher", (5,))
    answers.put(KEYS[:3], P[:3])
    assert answers.get(KEYS)[0].sum() == 3
    shutil.rmtree(only_folder(tmp_path))
    answers.put(KEYS[3:], P[3:])
    assert (
        TeacherCache(tmp_path).answers("teacher", (5,)).get(KEYS)[0].tolist()
        == [False] * 3 + [True] * 3
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_is_the_folder_not_what_is_in_memory(tmp_path, copied):
    cache = TeacherCache(tmp_path, top_k=3, dtype="float64")
    cache.answers("teacher", (5,)).put(KEYS, P)
    assert cache.answers("teacher", (5,)).get(KEYS)[0].all()
    other = copied(cache)
    assert (other.folder, other.top_k, other.dtype) == (tmp_path, 3, "float64")
    assert other._open == {}
    assert len(pickle.dumps(cache)) < 1000
    assert other.answers("teacher", (5,)).get(KEYS)[0].all()


def test_answers_are_opened_once(tmp_path):
    cache = TeacherCache(tmp_path)
    assert cache.answers("teacher", (5,)) is cache.answers("teacher", (5,))


def test_bad_arguments_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    answers = TeacherCache(tmp_path / "cache").answers("teacher", (5,))
    cases = [
        (lambda: TeacherCache(tmp_path / "file"), "cache", "which is a file", ""),
        (lambda: TeacherCache(tmp_path, top_k=0), "top_k", "^0$", ""),
        (lambda: TeacherCache(tmp_path, top_k=1.5), "top_k", "^1.5$", ""),
        (lambda: TeacherCache(tmp_path, dtype="float16"), "dtype", "'float16'", ""),
        (lambda: as_cache(3), "cache", "^3$", ""),
        (lambda: as_cache(""), "cache", "''", ""),
        (lambda: answers.put(KEYS, P[:, :4]), "values", r"\(6, 4\)", r"\(n, 5\)"),
        (lambda: answers.put(KEYS[:2], P), "values", "6 answers", "2"),
        (lambda: answers.put(KEYS, P * np.nan), "values", "not finite", ""),
        (lambda: answers.put(KEYS, P * 1e39), "values", "float32", 'dtype="float64"'),
    ]
    for call, argument, received, expected in cases:
        with refused(argument, received, expected=expected):
            call()
    assert not (tmp_path / "cache").exists()


def test_a_path_is_a_cache(tmp_path):
    assert as_cache(None) is None
    assert as_cache(str(tmp_path)).folder == as_cache(tmp_path).folder == tmp_path
    cache = TeacherCache(tmp_path)
    assert as_cache(cache) is cache
    assert str(tmp_path) in repr(cache)
