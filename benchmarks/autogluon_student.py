r"""AutoGluon's own distillation of the same teacher, for `compress.py`: one fold in, one out.

It runs where AutoGluon is installed, which need not be where limbeck is. The teacher is the same
estimator on the same rows, as a model of AutoGluon's; the student is its net with two hidden
layers and about as many weights; all else is as `TabularPredictor.distill` has it.

    python benchmarks/autogluon_student.py FOLD.npz ANSWERS.npz
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings

import numpy as np
import pandas as pd
from autogluon.core.models import AbstractModel
from autogluon.tabular import TabularPredictor
from sklearn import ensemble

WIDTH = 24  # two layers of which are about (32, 16)


class Teacher(AbstractModel):
    r"""A forest or boosted trees of scikit-learn."""

    def _fit(self, X: pd.DataFrame, y: pd.Series, **settings: object) -> None:
        kind = "Regressor" if self.problem_type == "regression" else "Classifier"
        if self._get_model_params()["kind"] == "forest":
            self.model = getattr(ensemble, f"RandomForest{kind}")(300, random_state=0)
        else:
            made = getattr(ensemble, f"HistGradientBoosting{kind}")
            self.model = made(max_iter=300, random_state=0)
        self.model.fit(self.preprocess(X).to_numpy(np.float64), y)

    def _predict_proba(self, X: pd.DataFrame, **settings: object) -> np.ndarray:
        rows = self.preprocess(X, **settings).to_numpy(np.float64)
        if self.problem_type == "regression":
            return self.model.predict(rows)
        return self._convert_proba_to_unified_form(self.model.predict_proba(rows))


def table(X: np.ndarray, y: np.ndarray | None = None) -> pd.DataFrame:
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    return frame if y is None else frame.assign(y=y)


def main() -> None:
    source, target = sys.argv[1:]
    fold = np.load(source, allow_pickle=False)
    regression, seed = bool(fold["regression"]), int(fold["seed"])
    rows = table(fold["X"], fold["y"])
    kind = "regression" if regression else "binary" if rows.y.nunique() == 2 else "multiclass"
    order = np.random.default_rng(seed).permutation(len(rows))
    held, learnt = rows.iloc[order[: len(rows) // 10]], rows.iloc[order[len(rows) // 10 :]]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictor = TabularPredictor("y", problem_type=kind, path=folder, verbosity=0)
        predictor.fit(
            rows, tuning_data=rows, hyperparameters={Teacher: {"kind": str(fold["teacher"])}},
            fit_weighted_ensemble=False, num_cpus=1,
        )  # fmt: skip
        began = time.perf_counter()
        net = {"num_layers": 2, "hidden_size": WIDTH, "ag_args_fit": {"num_cpus": 1}}
        made = predictor.distill(learnt, held, hyperparameters={"NN_TORCH": net}, verbosity=0)
        seconds = time.perf_counter() - began
        student = next(name for name in made if name.startswith("NeuralNet"))
        X = table(fold["X_test"])
        answers = {
            who: predictor.predict(X, model=model).to_numpy()
            for who, model in (("teacher", predictor.model_names()[0]), ("student", student))
        }
    np.savez(target, **answers, seconds=seconds)


if __name__ == "__main__":
    main()
