r"""What a report says: honest, and built of what is known alone."""

import numpy as np
import pytest

from limbeck.compression.fidelity.cost import Cost
from limbeck.compression.fidelity.report import fidelity


def answers(n, wrong):
    r"""Sure answers to n questions whose answer is 0, of which some are wrong."""
    p = np.tile([0.99, 0.01], (n, 1))
    p[list(wrong)] = [0.01, 0.99]
    return p


def report(teacher=range(10), student=range(18), n=1000, labels=True, **options):
    y = np.zeros(n, int) if labels else None
    given = {name: options.pop(name, None) for name in ("baseline", "trees")}
    given = {name: answers(n, wrong) for name, wrong in given.items() if wrong is not None}
    taught, made = answers(n, teacher), answers(n, student)
    return fidelity("classification", taught, made, y, **given, **options)


UNCHECKED = "; unchecked (fewer than 30 rows): class 1 (0)."
r"""All labels are 0, so nothing can be told about the other class."""

SLOW, QUICK = (
    Cost(9000, 2_100_000, {1: 0.0061, 1000: 0.08}),
    Cost(30, 10_000, {1: 1e-4, 1000: 0.01}),
)


def test_a_good_student():
    found = report(teacher_cost=SLOW, student_cost=QUICK)
    assert found.sentence() == (
        "The student keeps 99.2% of the teacher's accuracy (98.2% against 99.0%), agrees with it "
        "on 99.2% and is 61× faster at batch 1 (8.0× at 1,000) and 210× smaller" + UNCHECKED
    )


def test_a_student_that_is_worse_slower_and_larger():
    found = report(student=range(300), teacher_cost=QUICK, student_cost=SLOW)
    assert found.sentence() == (
        "The student keeps only 70.7% of the teacher's accuracy (70.0% against 99.0%), agrees with "
        "it on 71.0% and is 61× slower at batch 1 (8.0× at 1,000) and 210× larger" + UNCHECKED
    )


def test_speed_may_differ_by_batch():
    student = Cost(latency={1: 1e-4, 1000: 0.12})
    said = report(teacher_cost=SLOW, student_cost=student).sentence()
    assert said.endswith("is 61× faster at batch 1 and 1.5× slower at batch 1,000" + UNCHECKED)
    equal = Cost(bytes=2_100_000, latency={1: 0.0061, 1000: 0.0401})
    said = report(teacher_cost=SLOW, student_cost=equal).sentence()
    words = "is as fast at batch 1 and 2.0× faster at batch 1,000 and as large"
    assert said.endswith(words + UNCHECKED)


def test_only_what_is_known_is_said():
    said = report().sentence()
    assert said.endswith("(98.2% against 99.0%) and agrees with it on 99.2%" + UNCHECKED)
    said = report(teacher_cost=SLOW, student_cost=None).sentence()
    assert said.endswith("agrees with it on 99.2%" + UNCHECKED)
    said = report(labels=False, teacher_cost=SLOW, student_cost=QUICK).sentence()
    assert said == (
        "The student agrees with the teacher on 99.2% of 1,000 rows and is 61× faster at batch 1 "
        "(8.0× at 1,000) and 210× smaller; unchecked (fewer than 30 rows): the teacher's class "
        "1 (10)."
    )


def test_a_student_that_is_better_keeps_more_than_all():
    assert "keeps 100.5% of the teacher's accuracy (99.5% against 99.0%)" in str(
        report(student=range(5))
    )


@pytest.mark.parametrize(
    ("baseline", "trees", "answer"),
    [
        (range(100), None, "Yes: the student has accuracy 98.20 ± 0.42% against 90.00 ± 0.95% of "),
        (range(100), range(200), "Yes: the student has accuracy 98.20 ± 0.42% against 90.00 "),
        (range(100), range(0), "No: the student has accuracy 98.20 ± 0.42% against 100.0% of "),
        (range(21), None, "Unclear: "),  # less than two errors better
        (range(18), None, "No: "),  # the same
    ],
)
def test_one_sentence_says_whether_the_teacher_was_needed(baseline, trees, answer):
    found = report(baseline=baseline, trees=trees)
    assert found.need().startswith(f"Did you need the teacher? {answer}")
    assert found.need() in str(found)
    assert found.to_dict()["need"] == found.need()
    of = "trees on labels" if "100.0%" in answer else "labels alone"
    assert f" of {of} (" in found.need()


def test_without_labels_it_cannot_be_told_whether_the_teacher_was_needed():
    assert report().need() == ""
    found = report(baseline=range(100), labels=False)
    assert found.need().endswith("Unclear without true labels of the test rows.")


def test_a_class_that_only_the_teacher_teaches_is_a_need():
    y = np.repeat([0, 1], [960, 40])
    p = np.where(y, 0.8, 0.1)
    alone = np.where(np.arange(1000) >= 995, 0.8, np.where(y, 0.4, 0.02))  # hits 5 of 40
    models = [np.stack([1 - q, q], 1) for q in (p, np.where(np.arange(1000) == 961, 0.4, p), alone)]
    found = fidelity("classification", *models[:2], y, baseline=models[2])
    assert "recall of class 1 97.5 ± 2.5% against 12.5 ± 5.2% of labels alone" in found.need()


def test_almost_all_is_not_all():
    found = report(teacher=range(0), student=range(1), n=10_000)
    assert "keeps 99.99% of the teacher's accuracy (99.99% against 100.0%)" in found.sentence()


def test_regression_and_labels_have_their_own_words():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(500, 1))
    teacher, student = y + 0.1 * rng.normal(size=y.shape), y + 0.12 * rng.normal(size=y.shape)
    said = fidelity("regression", teacher, student, y).sentence()
    assert said.startswith("The student keeps 99.")
    assert "% of the teacher's R² (0.98" in said
    assert "and follows it with R² 0.97" in said
    said = fidelity("regression", teacher, student).sentence()
    assert said.startswith("The student follows the teacher with R² 0.97")
    assert said.endswith("on 500 rows.")
    said = fidelity("regression", np.ones(4), [1.5, 1, 1, 1]).sentence()
    assert said == "The student differs from the teacher by 0.125 on average on 4 rows."
    p = rng.uniform(size=(50, 2))
    said = fidelity("multilabel", p, p, np.round(p)).sentence()
    assert "and agrees with it on 100.0% of labels; unchecked (fewer than 30 rows): " in said
    said = fidelity("multilabel", p, p).sentence()
    assert said.startswith("The student agrees with the teacher on 100.0% of labels in 50 rows; ")


def rows(text):
    return {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in text.splitlines()
        if line.startswith("│") and (cells := line.strip("│").split("│"))
    }


def test_the_table_has_a_column_for_each_model():
    found = report(
        baseline=range(100), teacher_cost=SLOW, student_cost=QUICK, names={"teacher": "forest"}
    )
    text = str(found)
    head = next(line for line in text.splitlines() if "forest" in line)
    assert [cell.strip() for cell in head.strip("┃").split("┃")] == [
        "", "forest", "student", "student − teacher", "labels alone",
    ]  # fmt: skip
    known = rows(text)
    assert known["accuracy"] == ["99.00 ± 0.31%", "98.20 ± 0.42%", "-0.80 ± 0.28", "90.00 ± 0.95%"]
    assert known["agreement with teacher"] == ["", "99.20 ± 0.28%", "", "91.00 ± 0.91%"]
    assert known["parameters"] == ["9,000", "30", "300× fewer", "–"]
    assert known["bytes on disk"] == ["2.1 MB", "10 kB", "210× smaller", "–"]
    assert known["latency at batch 1"] == ["6.1 ms", "100 µs", "61× faster", "–"]
    assert known["latency at batch 1,000"] == ["80 ms", "10 ms", "8.0× faster", "–"]
    assert max(map(len, text.split("The student")[0].splitlines())) <= 100


def test_columns_without_content_are_left_out():
    text = str(report(labels=False))
    assert "student − teacher" not in text
    assert rows(text)["agreement with teacher"] == ["99.20 ± 0.28%"]


def test_groups_are_listed_and_of_many_the_worst():
    few = report(groups={"part": np.arange(1000) // 500})
    assert rows(str(few))["part"] == ["0", "500", "98.00 ± 0.63%", "96.40 ± 0.83%", "-1.60 ± 0.56"]
    many = report(groups={"part": [f"p{i // 20:02}" for i in range(1000)]})
    text = str(many)
    assert "(the 16 worst of 50)" in text
    assert rows(text)["part"][0] == "p00"


def test_many_groups_that_are_worse_are_counted():
    n = 2000
    part = np.array([f"p{i // 100:02}" for i in range(n)])
    wrong = [i for i in range(800) if i % 100 < 50]
    found = report(teacher=[], student=wrong, n=n, groups={"part": part})
    assert len(found.worse) == 8
    text = str(found)
    assert "; and 3 more." in text
    assert "part = p00 (accuracy 50.0% against 100.0%: -50.0 ± 5.0 points, 100 rows)" in text
