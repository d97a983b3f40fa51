r"""What is said of chapter 3's numbers, from results made up."""

import math

import pytest

from reproduction.chapter3_findings import TEXT, figures, logistic, mixtures


def entry(observations, pooled, **students):
    means = {name.replace("_", ", "): {"mean": value} for name, value in students.items()}
    return {"observations": observations, "pooled": {"kl": pooled}, "students": means}


def test_online_mixtures_are_judged_at_every_size():
    good = {"batch_text": 0.004, "online_text": 0.005}
    good |= {"batch_parallel": 0.004, "online_parallel": 0.001}
    fine = [entry(2, 0.0, **good), entry(5, 0.001, **good)]
    assert [each.held for each in mixtures(fine)] == [True] * 4
    worse = [*fine, entry(10, 0.0, **good | {"online_text": 0.0115})]
    found = mixtures(worse)
    assert [each.held for each in found] == [True, True, False, False]
    assert found[2].numbers == "online minus all chains is at most 0.0115 nats, at 10 observations"
    assert "at most 0.0055 nats, at 10 observations" in found[3].numbers  # 0.0115 − 1.5 · 0.004
    at_the_edge = [entry(2, 0.002, **good | {"online_text": 0.0079})]  # 1.5 · 0.004 + 0.0019
    assert mixtures(at_the_edge)[3].held


def sets(*own):
    return [{"errors": dict(each)} for each in own]


def test_figures_are_means_with_standard_errors():
    found = figures(sets({"a": (0.1, 0.4, 0.2), "b": (1.0, 1.0, 1.0)}, {"a": (0.3, 0.2, 0.2)}))
    mean = found["a"]["mean"]
    assert (mean.mean, mean.low, mean.high) == (pytest.approx(0.2), 0.1, 0.3)
    assert mean.error == pytest.approx(0.2 / math.sqrt(2) / math.sqrt(2))
    assert found["a"]["near"].error == 0
    assert found["b"]["maximum"] == (1.0, None, 1.0, 1.0)


GOOD = {
    "CE batch": (0.01, 0.2, 0.04), "CE online": (0.012, 0.2, 0.04),
    "DSE batch": (0.007, 0.2, 0.02), "DSE online": (0.01, 0.2, 0.02),
    "limbeck": (0.01, 0.045, 0.004),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, None),
        ({"CE online": (0.0151, 0.2, 0.04)}, (0, 2)),
        ({"DSE online": (0.01, 0.2, 0.05)}, (1,)),
        ({"DSE online": (0.0106, 0.2, 0.02)}, (2,)),
        ({"limbeck": (0.0111, 0.045, 0.004)}, (3,)),
        ({"limbeck": (0.01, 0.051, 0.004)}, (3,)),
    ],
)
def test_bags_are_judged_by_means_over_data_sets(change, broken):
    found = logistic(figures(sets(GOOD | change, GOOD | change)))
    assert [i for i, each in enumerate(found) if not each.held] == list(broken or ())
    assert all(name in found[0].numbers for name in TEXT)


def test_every_way_to_be_online_is_judged_by_itself():
    ways = {
        "CE online, independent draws": (0.011, 0.2, 0.04),
        "DSE online, independent draws": (0.0106, 0.2, 0.02),
        "CE online, shared draws": (0.009, 0.2, 0.04),
        "DSE online, shared draws": (0.007, 0.2, 0.02),
    }
    found = logistic(figures(sets(GOOD | ways)))
    judged = {each.claim: each for each in found if "times that of batch" in each.claim}
    assert [each.held for each in judged.values()] == [True, False, True]
    assert [each.numbers.split()[4] for each in judged.values()] == ["1.43", "1.51", "1.00"]
    assert len({each.claim for each in found}) == len(found) == 6
