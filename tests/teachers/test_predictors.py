r"""AutoGluon's predictors, by a stand-in with the members that limbeck uses."""

import numpy as np
import pytest

import limbeck as lb
from limbeck.compression.dispatch import as_row_teacher
from tests.refusals import refused

pandas = pytest.importorskip("pandas")

FRAME = pandas.DataFrame({"a": np.linspace(-2, 2, 40), "b": ["x", "y"] * 20})


class Predictor:
    r"""As `TabularPredictor`: frames in, frames out, columns in another order than its labels."""

    quantile_levels = (0.1, 0.5, 0.9)

    def __init__(self, problem_type):
        self.problem_type = problem_type
        self.class_labels = ["no", "yes"] if problem_type == "binary" else None

    def features(self):
        return ["a", "b"]

    def predict_proba(self, data, as_pandas=True):
        assert list(data.columns) == self.features()
        p = 1 / (1 + np.exp(-data["a"].astype(float) - (data["b"] == "x")))
        return pandas.DataFrame({"yes": p, "no": 1 - p})

    def predict(self, data, as_pandas=True):
        value = data["a"].astype(float)
        if self.problem_type == "regression":
            return value
        return pandas.DataFrame({level: value + level for level in self.quantile_levels})


def test_columns_of_probabilities_are_those_of_the_labels():
    teacher = as_row_teacher(Predictor("binary"), FRAME)
    assert (teacher.task, teacher.classes.tolist()) == ("classification", ["no", "yes"])
    np.testing.assert_allclose(
        teacher(FRAME)[:, 1], Predictor("binary").predict_proba(FRAME)["yes"]
    )
    np.testing.assert_array_equal(teacher(FRAME.to_numpy(object)), teacher(FRAME))
    assert teacher.fingerprint() is None  # its models are elsewhere, on disk
    with refused("task", "regression", expected="'classification'"):
        as_row_teacher(Predictor("binary"), FRAME, task="regression")


@pytest.mark.parametrize(("kind", "outputs"), [("regression", 1), ("quantile", 3)])
def test_values_and_quantiles(kind, outputs):
    teacher = as_row_teacher(Predictor(kind), FRAME)
    assert (teacher.task, teacher.outputs) == ("regression", outputs)
    result = lb.compress(Predictor(kind), FRAME, (4,), inputs="data", steps=20, progress=False)
    assert result.predict(FRAME).shape == ((40,) if outputs == 1 else (40, 3))
