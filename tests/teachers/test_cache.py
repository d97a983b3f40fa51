r"""The teacher cache: answers by the content of teacher and input."""

import copy
import json
import pickle
import shutil

import numpy as np
import pytest

import limbeck as lb
from limbeck.teachers.cache import META, ROWS, TeacherCache, as_cache
from limbeck.teachers.keys import row_keys
from tests.refusals import raises_about, refused

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
    assert np.array_equal(values, P[3::-1])
    assert cache.answers("two", (5,)).get(KEYS)[0].tolist() == [False] * 2 + [True] * 4
    assert not cache.answers("three", (5,)).get(KEYS)[0].any()


def test_rows_of_another_teacher_are_refused(tmp_path):
    cache = TeacherCache(tmp_path)
    one, two = cache.answers("one", (5,)), cache.answers("two", (5,))
    one.put(KEYS, P)
    two.put(KEYS, 1 - P)
    shutil.copy(one.folder / ROWS, two.folder / ROWS)
    with raises_about(lb.CheckpointError, "has other rows than were written"):
        two.get(KEYS)
    assert one.get(KEYS)[0].all()


def test_nothing_is_made_before_there_is_something_to_keep(tmp_path):
    answers = TeacherCache(tmp_path / "new").answers("teacher", (5,))
    assert not answers.get(KEYS)[0].any()
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_kept_exactly(tmp_path):
    answers = TeacherCache(tmp_path).answers("teacher", (5,))
    answers.put(KEYS, P * 1e300)
    values = answers.get(KEYS)[1]
    assert values.dtype == np.float64
    assert np.array_equal(values, P * 1e300)


def test_derivatives_are_kept_beside_values(tmp_path):
    cache = TeacherCache(tmp_path)
    jacobians = RNG.standard_normal((6, 5, 2))
    cache.answers("teacher", (5,)).put(KEYS, P)
    cache.answers("teacher", (5, 2), kind="derivatives").put(KEYS, jacobians)
    again = TeacherCache(tmp_path)
    found, values = again.answers("teacher", (5, 2), kind="derivatives").get(KEYS[4:])
    assert found.all()
    assert np.array_equal(values, jacobians[4:])
    assert np.array_equal(again.answers("teacher", (5,)).get(KEYS)[1], P)


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
        with raises_about(lb.CheckpointError, "shape was [5] and is [4]"):
            cache.answers("teacher", (4,), list("abcd")).get(KEYS)
        with raises_about(lb.CheckpointError, "names was ['a'", "cache_key"):
            cache.answers("teacher", (5,), list("abced")).put(KEYS, P)
        assert cache.answers("teacher", (5,), list("abcde")).get(KEYS)[0].all()


META_DAMAGE = {
    "not JSON": ("{", "cannot be read"),
    "not ours": ('{"a": 1}', "format was None and is 'limbeck"),
    "a list": ("[1]", "format was None and is 'limbeck"),
    "of an older version": ('{"format": "limbeck-teacher-cache-1"}', "cache-1' and is 'limb"),
    "of the version before": ('{"format": "limbeck-teacher-cache-2"}', "cache-2' and is 'limb"),
    "of later days": ('{"format": "limbeck-teacher-cache-9"}', "limbeck-teacher-cache-9"),
}


@pytest.mark.parametrize("case", META_DAMAGE)
def test_a_damaged_description_is_named(tmp_path, case):
    TeacherCache(tmp_path).answers("teacher", (5,)).put(KEYS, P)
    text, value = META_DAMAGE[case]
    (only_folder(tmp_path) / META).write_text(text)
    with raises_about(lb.CheckpointError, META, value):
        TeacherCache(tmp_path).answers("teacher", (5,)).get(KEYS)


def test_answers_without_a_description_are_refused(tmp_path):
    TeacherCache(tmp_path).answers("teacher", (5,)).put(KEYS, P)
    (only_folder(tmp_path) / META).unlink()
    with raises_about(lb.CheckpointError, META):
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
    cache = TeacherCache(tmp_path)
    cache.answers("teacher", (5,)).put(KEYS, P)
    assert cache.answers("teacher", (5,)).get(KEYS)[0].all()
    other = copied(cache)
    assert other.folder == tmp_path
    assert len(pickle.dumps(cache)) < 1000
    assert other.answers("teacher", (5,)).get(KEYS)[0].all()


def test_bad_arguments_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    cases = [
        (lambda: TeacherCache(tmp_path / "file"), "cache", "which is a file", ""),
        (lambda: as_cache(3), "cache", "^3$", ""),
        (lambda: as_cache(""), "cache", "''", ""),
    ]
    for call, argument, received, expected in cases:
        with refused(argument, received, expected=expected):
            call()


def test_a_path_is_a_cache(tmp_path):
    assert as_cache(None) is None
    assert as_cache(str(tmp_path)).folder == as_cache(tmp_path).folder == tmp_path
    cache = TeacherCache(tmp_path)
    assert as_cache(cache) is cache
    assert str(tmp_path) in repr(cache)
