r"""What estimators that learn from a teacher share: arguments, fitting, clones, pickles."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from limbeck.arrays import X, map_tensors
from limbeck.compression.compress import compress
from limbeck.compression.compressed import Compressed
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import files
from limbeck.tables.columns import measured
from limbeck.teachers.keys import count
from limbeck.teachers.row_teacher import RowTeacher
from limbeck.training.result import spec_of

__all__ = [
    "Distilled",
    "all_floats",
    "carried",
    "forest",
    "is_fitted",
    "is_frame",
    "load",
    "save",
    "settled",
]

TREES = 100
r"""Trees of the forest that is fitted where no teacher is given."""


def is_frame(X: Any) -> bool:
    r"""Whether rows come as a data frame, whose columns have types of their own."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def all_floats(X: Any) -> bool:
    r"""Whether all columns of a data frame are of floating-point numbers."""
    return not _other(X, "f")


def is_fitted(teacher: Any) -> bool:
    r"""Whether a teacher predicts as it is; of a list, whether all do."""
    if teacher is None:
        return False
    if isinstance(teacher, list | tuple):
        return all(map(is_fitted, teacher))
    if callable(own := getattr(teacher, "is_fitted", None)):  # CatBoost has its own word for it
        return bool(own())
    if not isinstance(teacher, BaseEstimator):
        return True
    try:
        check_is_fitted(teacher)
    except NotFittedError:
        return False
    return True


def carried(teacher: Any) -> Any:
    r"""The teacher that a clone gets: the same one if it is fitted, else an unfitted copy."""
    if teacher is None or is_fitted(teacher):
        return teacher
    if isinstance(teacher, list | tuple):
        return type(teacher)(map(carried, teacher))
    return clone(teacher)


def settled(teacher: Any, X: Any, y: Any, regression: bool, seed: int) -> Any:
    r"""A fitted teacher. What is not fitted is cloned and fitted to the labels.

    Arguments:
        teacher: Of any kind, or None for a forest.
        X: The rows.
        y: Their labels, or None.
        regression: Whether labels are values.
        seed: Seeds the forest.
    """
    if is_fitted(teacher):
        return teacher
    if y is None:
        name = "None" if teacher is None else f"an unfitted {type(teacher).__name__}"
        expected = "fit(X, y), or a fitted teacher"
        received = f"None, with {name} for a teacher, which requires y to be passed, but the target"
        raise ArgumentError("y", f"{received} y is None", expected)
    if isinstance(teacher, list | tuple):
        return [settled(each, X, y, regression, seed) for each in teacher]
    made = forest(X, regression, seed) if teacher is None else clone(teacher)
    return made.fit(X, y)


def forest(X: Any, regression: bool, seed: int) -> Any:
    r"""A random forest for rows of this kind; all columns of a frame become numbers first."""
    kind = RandomForestRegressor if regression else RandomForestClassifier
    trees = kind(TREES, random_state=seed)
    if not is_frame(X):
        return trees
    words = _other(X, "biufM")
    # pandas' own numbers and flags have gaps of another kind than NaN
    own = [name for name in X.columns if name not in words and not _plain(X[name].dtype)]
    if not words and not own:
        return trees
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
    )
    columns = make_column_transformer(
        (codes, words), (FunctionTransformer(in_numbers), own), remainder="passthrough"
    )
    return make_pipeline(columns, trees)


def in_numbers(frame: Any) -> np.ndarray:
    r"""Columns of numbers, flags and dates as numbers (n, D); NaN where values are missing."""
    found = [measured(frame[name], frame[name].dtype.kind == "M", f"X[{name!r}]") for name in frame]
    return np.stack(found, axis=1)


def _plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind != "M"


def _other(X: Any, kinds: str) -> list[Any]:
    r"""Names of a frame's columns whose types are none of NumPy's kinds, such as "f"."""
    return [name for name in X.columns if getattr(X[name].dtype, "kind", "O") not in kinds]


ABOUT = "estimator.json"
E = TypeVar("E")


def save(estimator: Any, folder: str | Path) -> Path:
    r"""Write a fitted estimator: its result, and those of its arguments that JSON can hold."""
    folder = Path(estimator.result_.save(folder))
    names = getattr(estimator, "feature_names_in_", None)
    about = {
        "type": type(estimator).__name__,
        "arguments": {
            name: value
            for name, value in estimator.get_params(deep=False).items()
            if _is_plain(value)
        },
        "features": estimator.n_features_in_,
        "names": None if names is None else names.tolist(),
        "framed": estimator._framed,
    }
    files.write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")
    return folder


def load(kind: type[E], folder: str | Path, student: Any = None) -> E:
    r"""Read an estimator back; it predicts, and has forgotten its teacher.

    Arguments:
        kind: The estimator's class.
        folder: What `save` wrote.
        student: An empty copy of a module of the user's own.
    """
    folder = Path(folder)
    if not (folder / ABOUT).exists():
        raise ArgumentError("folder", str(folder), f"a folder with {ABOUT}, as save writes it")
    result = Compressed.load(folder, student)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["type"] != kind.__name__:
            raise ArgumentError("folder", f"a {about['type']}", f"a saved {kind.__name__}")
        made: Any = kind(**{name: _tuple(value) for name, value in about["arguments"].items()})
        made.n_features_in_, made._framed = int(about["features"]), bool(about["framed"])
        if about["names"] is not None:
            made.feature_names_in_ = np.array(about["names"], dtype=object)
    except ArgumentError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"folder: {folder / ABOUT} cannot be read ({error!r})") from error
    made._settle(result)
    return made


def _is_plain(value: Any) -> bool:
    r"""Whether JSON holds a value; sizes are tuples, which it has as lists."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


FEW = 1000
r"""Rows below which a fit is quick: inputs are not chosen by trying, and are fewer."""

INPUTS_EACH, STEPS_EACH, FEWEST_STEPS = 20, 2, 100
r"""For each of few rows: inputs that the teacher is asked about, and steps."""

SETTINGS = (
    "student", "loss", "inputs", "size", "steps", "label_weight", "teacher_folds", "keep",
    "max_bytes", "device", "progress",
)  # fmt: skip
r"""Arguments that `compress` takes too."""

SHORT, SHORT_RATE = 500, 0.02
r"""Steps below which the rate is higher, and that rate."""

RATES = {"lr", "optimizer", "update", "preset"}
r"""Options of the training that settle the rate."""

CHOSEN = ("inputs", "student")
r"""What is chosen by rows held out, if it is "auto"."""

OUTPUT = ("output", "weights", "stack", "classes", "task")
r"""What `as_predictor` may be told of a teacher."""


class Distilled(BaseEstimator):
    r"""What the classifier and the regressor share."""

    regression = False

    def __init__(
        self,
        teacher: Any = None,
        student: Any = (50, 30),
        *,
        loss: Any = "auto",
        inputs: Any = "auto",
        size: int | None = None,
        steps: int | None = None,
        label_weight: float = 0.0,
        teacher_folds: int | None = None,
        keep: float = 0.99,
        max_bytes: int | None = None,
        random_state: Any = 0,
        device: Any = "auto",
        progress: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.teacher, self.student, self.loss, self.inputs = teacher, student, loss, inputs
        self.size, self.steps, self.label_weight = size, steps, label_weight
        self.teacher_folds, self.keep, self.max_bytes = teacher_folds, keep, max_bytes
        self.random_state, self.device, self.progress = random_state, device, progress
        self.options = options

    def fit(self, X: Any, y: Any = None) -> Self:
        r"""Fit the teacher to the labels, unless it is fitted, and the student to the teacher.

        Arguments:
            X: Rows: an array, a sparse matrix, a data frame with columns of any kind.
            y: Labels. A fitted teacher needs none; those it gets are mixed in with `label_weight`.
        """
        learns = not is_fitted(self.teacher)
        # the forest needs no columns by name; any other teacher may
        self._framed = is_frame(X) and (self.teacher is not None or not all_floats(X))
        X = self._rows(X, reset=True)
        y = self._labels(y, strict=learns)
        if y is not None:
            check_consistent_length(X, y)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31))
        self.teacher_ = settled(self.teacher, X, y, self.regression, int(seed))
        given = dict(self.options or {})
        told = {name: given.pop(name) for name in OUTPUT if name in given}
        predictor = self._predictor(self.teacher_, X, told)
        chosen = self._settings(count(X)) | {"seed": int(seed)}
        for name in given.keys() & (chosen.keys() - {"held_out", "lr"}):
            raise ArgumentError("options", f"{name!r}", f"the estimator's own argument for {name}")
        self._settle(compress(predictor, X, labels=y, **chosen | given))
        return self

    def predict(self, X: Any) -> np.ndarray:
        r"""Classes (n,), indicators (n, K) of several labels, or values (n,) or (n, K)."""
        check_is_fitted(self)
        return self._exact.predict(self._rows(X))

    def report(self, X: Any, y: Any = None, **options: Any) -> Any:
        r"""Teacher and student side by side on other rows, as `Compressed.report`."""
        check_is_fitted(self)
        return self.result_.report(self._rows(X), y, **options)

    def save(self, folder: str | Path) -> Path:
        r"""Write the student (safetensors) and the rest (JSON) into a folder; no teacher."""
        check_is_fitted(self)
        return save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, student: Any = None) -> Self:
        r"""Read an estimator back; it predicts, and has forgotten its teacher.

        Arguments:
            folder: What `save` wrote.
            student: An empty copy of a module of the user's own; limbeck's models need none.
        """
        return load(cls, folder, student)

    def set_params(self, **params: Any) -> Self:
        inside = [name for name in params if name.startswith("teacher__")]
        if inside and "teacher" not in params and is_fitted(self.teacher):
            expected = "a teacher that is not fitted, sklearn.clone(teacher), to be fitted with it"
            raise ArgumentError(inside[0], "a setting of a fitted teacher", expected)
        found: Self = super().set_params(**params)
        return found

    def __sklearn_clone__(self) -> Self:
        bare = copy.copy(self)
        bare.teacher = None
        made: Self = super(Distilled, bare).__sklearn_clone__()
        made.teacher = carried(self.teacher)
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = find_spec("pandas") is not None  # rows with gaps are tables
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        result = state.get("result_")
        if result is not None and result.problem is not None:
            # what the teacher said is not needed again, and what says it may be a local function
            bare = replace(
                result.problem, given=None, held_out_given=None, labels=None, folds=None,
                fixed_targets=None, _known={},
            )  # fmt: skip
            state = state | {"result_": replace(result, problem=bare)}
        return state

    def _settle(self, result: Compressed) -> None:
        r"""Take the result of a fit, or one that was read back."""
        self.result_ = result
        if result.classes is not None:
            self.classes_ = result.classes
        ours = spec_of(result.student) is not None
        exact = Exact(result.student) if ours else result.student
        self._exact = replace(result, student=exact, problem=None, recipe=None, labels=None)

    def _rows(self, X: Any, reset: bool = False) -> Any:
        if not self._framed:
            return validate_data(
                self, X, reset=reset, accept_sparse="csr", allow_nd=True,
                ensure_all_finite="allow-nan",
            )  # fmt: skip
        validate_data(self, X, reset=reset, skip_check_array=True)
        if is_frame(X):
            return X
        import pandas

        return pandas.DataFrame(np.asarray(X), columns=self.feature_names_in_).infer_objects()

    def _labels(self, y: Any, strict: bool) -> np.ndarray | None:
        r"""Labels as an array; checked as scikit-learn does if the teacher is fitted to them."""
        if y is None:
            return None
        y = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return self._checked(y) if strict else y

    def _checked(self, y: np.ndarray) -> np.ndarray:
        r"""Labels that a teacher can be fitted to."""
        raise NotImplementedError

    def _predictor(self, teacher: Any, X: Any, told: dict[str, Any]) -> RowTeacher:
        r"""The teacher as a predictor for the estimator's task."""
        raise NotImplementedError

    def _taught(self, X: Any) -> np.ndarray:
        r"""What the teacher predicts."""
        check_is_fitted(self)
        if self.result_.problem is None:
            raise ArgumentError("y", None, "labels: an estimator that was read back has no teacher")
        found: np.ndarray = self.result_.problem.teacher.predict(self._rows(X))
        return found

    def _settings(self, n: int) -> dict[str, Any]:
        r"""Arguments of `compress`, with modest ones in place of "auto" where rows are few."""
        found = {name: getattr(self, name) for name in SETTINGS}
        if n < FEW:
            if isinstance(self.inputs, str) and self.inputs == "auto":
                found["inputs"] = "munge" if n > 1 else "data"
            if self.size is None:
                found["size"] = min(10_000, INPUTS_EACH * n)
            if self.steps is None:
                found["steps"] = max(FEWEST_STEPS, STEPS_EACH * n)
        auto = [isinstance(found[name], str) and found[name] == "auto" for name in CHOSEN]
        if not any(auto):
            found["held_out"] = 0.0  # there is nothing to be compared
        own = isinstance(self.student, nn.Module) or RATES & set(self.options or {})
        if found["steps"] is not None and found["steps"] < SHORT and not own:
            found["lr"] = SHORT_RATE
        return found


class Exact(nn.Module):
    r"""A student in double precision: what it says of a row does not depend on the rows beside it.

    Arguments:
        student: The student, of which a copy is made.
    """

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = copy.deepcopy(student).double()
        self.output_form = getattr(student, "output_form", None)

    def forward(self, x: X) -> Tensor:
        doubled = map_tensors(lambda t: t.double() if t.is_floating_point() else t, x)
        found: Tensor = self.student(doubled)
        return found
