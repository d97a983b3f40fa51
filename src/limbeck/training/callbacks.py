r"""Callbacks of a run, and those that log its numbers: to a CSV file, TensorBoard or MLflow."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from limbeck.arguments import Listed, PathLike, Text, checked_arguments
from limbeck.environment import import_extra
from limbeck.errors import ArgumentError, LimbeckError, first_line, shown, warn
from limbeck.storage.disk import write_file
from limbeck.text import markdown, markdown_table
from limbeck.training.result import History

__all__ = ["CSVLogger", "Callback", "MLflow", "TensorBoard"]


class Callback:
    r"""Called at the start of a run, at each evaluation and at its end; each method is optional.

    A verb may make several runs, one after the other. If a stream of draws ends early, one more
    evaluation is made, and the run ends with that reason.
    """

    def start(self, settings: Mapping[str, Any], history: History) -> None:
        r"""Before the first step: the settings, and the history so far if the run resumes."""

    def on_evaluation(self, entry: Mapping[str, float]) -> None:
        r"""At each evaluation: "step", "loss", terms and metrics, as in the history."""

    def end(self, stop_reason: str | None) -> None:
        r"""After the last step; None if it was interrupted."""


EntryFunction: TypeAlias = Callable[[Mapping[str, float]], object]  # of an evaluation's entry
Callbacks: TypeAlias = Callback | EntryFunction | Iterable[Callback | EntryFunction] | None


def as_callbacks(value: Callbacks) -> tuple[Callback, ...]:
    r"""One or several callbacks as a tuple of `Callback`."""
    values = Listed()("callbacks", value) if isinstance(value, Iterable) else [value]
    return tuple(_as_callback(each) for each in values if value is not None)


def _as_callback(value: Any) -> Callback:
    if isinstance(value, Callback):
        return value
    if not callable(value) or isinstance(value, type):
        expected = "limbeck.training.callbacks, or functions of a dict of numbers"
        raise ArgumentError("callbacks", shown(value), expected)
    callback = Callback()
    callback.on_evaluation = value  # type: ignore[method-assign]
    return callback


def name_of(settings: Mapping[str, Any]) -> str:
    r"""A short name for a run, the same for the same settings."""
    text = json.dumps({k: v for k, v in settings.items() if k != "steps"}, default=str)
    kind = str(settings.get("student", "run")).split(" ")[0]
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def replayed(
    callbacks: Callbacks, settings: Mapping[str, Any], history: History, stop_reason: str
) -> None:
    r"""Call callbacks for a run without steps of its own, once it is over."""
    for callback in as_callbacks(callbacks):
        callback.start(settings, History())
        for row in range(len(next(iter(history.values()), []))):
            callback.on_evaluation({name: values[row] for name, values in history.items()})
        callback.end(stop_reason)


class Logger(Callback):
    r"""Writes numbers to a `place`; after a failure it warns once and training continues."""

    place: object = ""  # where it writes
    _failed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.place)!r})"

    def _open(self, name: str, settings: Mapping[str, Any], last_step: int) -> None:
        r"""Begin the log of a run (last step −1), or continue it after the last step."""
        raise NotImplementedError

    def _write(self, entry: Mapping[str, float]) -> None:
        raise NotImplementedError

    def _close(self, stop_reason: str | None) -> None:
        r"""End the log of the run."""

    def start(self, settings: Mapping[str, Any], history: History) -> None:
        self._failed = False
        try:
            self._open(name_of(settings), settings, int((history.get("step") or [-1])[-1]))
        except LimbeckError:
            raise
        except Exception as error:  # of any library, disk or network
            if getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
                return self._give_up(error)  # a full disk may be emptied again
            raise ArgumentError("callbacks", f"{self!r} ({error})", "a place to write") from error

    def on_evaluation(self, entry: Mapping[str, float]) -> None:
        self._try(self._write, entry)

    def end(self, stop_reason: str | None) -> None:
        self._try(self._close, stop_reason)

    def _try(self, action: Callable[..., None], argument: object) -> None:
        try:
            if not self._failed:
                action(argument)
        except Exception as error:  # of any library, disk or network
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        text = f"{self!r} stopped logging ({first_line(error)}); training continues without it"
        warn(text)


class CSVLogger(Logger):
    r"""Writes each evaluation as a row of a CSV file.

    The column "run" identifies the settings, which are in a .json file of the same name. A run that
    is resumed, or repeated with the same settings, replaces its own later rows.

    Arguments:
        path: The file.
    """

    @checked_arguments
    def __init__(self, path: PathLike) -> None:
        self.place = self.path = Path(path)
        if self.path.suffix == ".json":
            raise ArgumentError("path", str(path), "a name that does not end in .json, as .csv")

    def _open(self, name: str, settings: Mapping[str, Any], last_step: int) -> None:
        self.name = name
        self.columns, rows = self._read()
        self._rewrite([row for row in rows if row["run"] != name or int(row["step"]) <= last_step])
        about = self.path.with_suffix(".json")
        known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        text = json.dumps(known | {name: dict(settings)}, indent=1, default=str)
        write_file(about, f"{text}\n".encode())

    def _write(self, entry: Mapping[str, float]) -> None:
        row = {"run": self.name, **entry, "step": int(entry["step"])}
        if new := [key for key in row if key not in self.columns]:
            rows = self._read()[1]
            self.columns += new
            self._rewrite(rows)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        if not self.path.exists():
            return ["run", "step"], []
        with open(self.path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = list(reader.fieldnames or ["run", "step"]), list(reader)
        if columns[:2] != ["run", "step"]:
            received = f"{self.path}, which is another file"
            raise ArgumentError("callbacks", received, "a new file, or one of a CSVLogger")
        # the last row may have been cut off
        return columns, [row for row in rows if None not in row.values()]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        write_file(self.path, text.getvalue().encode())


TAG = "limbeck.run"  # by which a resumed run recognises its log
MAX_CHARACTERS = 500  # of a parameter, which every version of MLflow takes


class MLflow(Logger):
    r"""Logs each evaluation as metrics of an MLflow run, and the settings as its parameters.

    A resumed run continues its MLflow run, and no step is logged twice.

    Arguments:
        experiment: The experiment's name; it is made if it does not exist. Default: "limbeck".
        uri: Such as "sqlite:///mlflow.db", or a server's address. Default: MLflow's own.
    """

    @checked_arguments
    def __init__(self, experiment: Text = "limbeck", uri: Text | None = None) -> None:
        import_extra("mlflow", "mlflow", "callbacks: MLflow needs")
        self.place = self.experiment = experiment
        self.uri = uri

    def _open(self, name: str, settings: Mapping[str, Any], last_step: int) -> None:
        from mlflow.tracking import MlflowClient

        client: Any = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        runs = client.search_runs([experiment], f"tags.`{TAG}` = '{name}'")  # the newest first
        if runs and last_step >= 0:
            self._id = runs[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = client.create_run(experiment, tags={TAG: name}, run_name=name).info.run_id
            for key, value in settings.items():
                client.log_param(self._id, key, str(value)[:MAX_CHARACTERS])
        self._logged = {int(m.step) for m in client.get_metric_history(self._id, "loss")}
        self._client = client

    def _write(self, entry: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        step, now = int(entry["step"]), int(time.time() * 1000)
        if step in self._logged:
            return
        named = {re.sub(r"[^\w\-. /]", "_", k): float(v) for k, v in entry.items() if k != "step"}
        metrics = [Metric(key, value, now, step) for key, value in named.items()]
        self._client.log_batch(self._id, metrics=metrics)
        self._logged.add(step)

    def _close(self, stop_reason: str | None) -> None:
        if stop_reason is not None:
            self._client.set_tag(self._id, "limbeck.stopped", stop_reason[:MAX_CHARACTERS])
        self._client.set_terminated(self._id, "KILLED" if stop_reason is None else "FINISHED")


class TensorBoard(Logger):
    r"""Writes each evaluation as scalars, and the settings once as text.

    Every run has its own folder, named by its settings. A resumed run hides the entries that were
    logged after the step from which it resumes.

    Arguments:
        folder: The folder for `tensorboard --logdir`. Default: "runs".
    """

    @checked_arguments
    def __init__(self, folder: PathLike = "runs") -> None:
        import_extra("tensorboard", "tensorboard", "callbacks: TensorBoard needs")
        self.place = self.folder = Path(folder)

    def _open(self, name: str, settings: Mapping[str, Any], last_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter
        self._writer = writer(str(self.folder / name), purge_step=last_step + 1)
        if last_step < 0:
            table = markdown_table(("setting", "value"), settings.items())
            self._writer.add_text("settings", table, 0)
        self._writer.flush()

    def _write(self, entry: Mapping[str, float]) -> None:
        for key, value in entry.items():
            if key != "step":
                self._writer.add_scalar(key, value, int(entry["step"]))
        self._writer.flush()

    def _close(self, stop_reason: str | None) -> None:
        if stop_reason is not None:
            self._writer.add_text("stopped", markdown(stop_reason))
        self._writer.close()
