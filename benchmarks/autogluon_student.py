r"""AutoGluon's own distillation of the same teacher: one folder with a fold in, its answers out.

It runs where AutoGluon is installed, which need not be where limbeck is. The teacher is the same
fitted model, as a model of AutoGluon's; the student is its net with two hidden layers and about as
many weights; all else is as `TabularPredictor.distill` has it, in 300 s at most. The folder has
`train.parquet`, with the labels in its last column, `test.parquet`, `teacher.joblib`, `about.json`.

    python benchmarks/autogluon_student.py FOLDER
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from autogluon.core.models import AbstractModel
from autogluon.features.generators import IdentityFeatureGenerator
from autogluon.tabular import TabularPredictor


class Teacher(AbstractModel):
    r"""The fitted model of a file, which takes rows with the types that it knows."""

    def _fit(self, X: pd.DataFrame, y: pd.Series, **settings: object) -> None:
        folder = Path(self._get_model_params()["folder"])
        self.model = joblib.load(folder / "teacher.joblib")
        self.known = pd.read_parquet(folder / "test.parquet").iloc[:1]

    def _predict_proba(self, X: pd.DataFrame, **settings: object) -> np.ndarray:
        rows = self.as_known(self.preprocess(X, **settings))
        if self._get_model_params()["arrays"]:
            rows = rows.to_numpy(np.float64)
        if self.problem_type == "regression":
            return self.model.predict(rows)
        return self._convert_proba_to_unified_form(self.model.predict_proba(rows))

    def as_known(self, X: pd.DataFrame) -> pd.DataFrame:
        r"""Rows in the original types; AutoGluon leaves out columns of one value."""
        columns = {}
        for name, dtype in self.known.dtypes.items():
            column = X[name] if name in X else pd.Series(self.known[name].iloc[0], X.index)
            if dtype.kind == "M" and column.dtype.kind != "M":
                column = pd.to_datetime(column.round(), unit="s", utc=True)
            column = column.round() if dtype.kind in "iu" else column
            columns[name] = column.astype(dtype)
        return pd.DataFrame(columns)


def as_features(X: pd.DataFrame) -> pd.DataFrame:
    r"""Categories for strings and seconds for dates, which AutoGluon's net takes."""
    columns = {}
    for name, column in X.items():
        if column.dtype.kind == "M":
            column = (column - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "s")
        columns[name] = column.astype("category") if column.dtype == object else column
    return pd.DataFrame(columns)


def main() -> None:
    folder = Path(sys.argv[1])
    about = json.loads((folder / "about.json").read_text())
    rows, new = (pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "test"))
    label, rows = rows.columns[-1], as_features(rows)
    kind = "binary" if rows[label].nunique() == 2 else "multiclass"
    kind = "regression" if about["regression"] else kind
    order = np.random.default_rng(about["seed"]).permutation(len(rows))
    held, learnt = rows.iloc[order[: len(rows) // 10]], rows.iloc[order[len(rows) // 10 :]]
    with tempfile.TemporaryDirectory() as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictor = TabularPredictor(label, problem_type=kind, path=path, verbosity=0)
        settings = {"folder": str(folder), "arrays": about["arrays"]}
        predictor.fit(
            rows, tuning_data=rows, hyperparameters={Teacher: settings}, num_cpus=1,
            fit_weighted_ensemble=False, feature_generator=IdentityFeatureGenerator(),
        )  # fmt: skip
        began = time.perf_counter()
        net = {"num_layers": 2, "hidden_size": about["width"], "ag_args_fit": {"num_cpus": 1}}
        options = {"hyperparameters": {"NN_TORCH": net}, "time_limit": 300, "verbosity": 0}
        made = predictor.distill(learnt, held, **options)
        seconds = time.perf_counter() - began
        student = next(name for name in made if name.startswith("NeuralNet"))
        X = as_features(new)
        answers = {
            who: np.asarray(predictor.predict_proba(X, model=model, as_multiclass=True))
            if kind != "regression" else predictor.predict(X, model=model).to_numpy()[:, None]
            for who, model in (("teacher", predictor.model_names()[0]), ("student", student))
        }  # fmt: skip
    np.savez(folder / "answers.npz", **answers, seconds=seconds)


if __name__ == "__main__":
    main()
