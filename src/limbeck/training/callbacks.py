r"""Where the numbers of a run can go: a CSV file, TensorBoard, MLflow."""

from __future__ import annotations

import csv
import errno
import importlib.util
import io
import json
import re
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.storage.files import write_text
from limbeck.training.settings import Callback, History, name_of

__all__ = ["CSVLogger", "Callback", "MLflow", "TensorBoard"]

FULL = (errno.ENOSPC, errno.EDQUOT)
r"""Errors of a full disk, which may be emptied again; others are the user's to mend."""


class Logger(Callback):
    r"""A callback that writes figures somewhere.

    What cannot work is refused before the first step. What fails later, or for want of space, is
    warned of once, and the training goes on without the log. Subclasses give `_open`, `_write`
    and `_close`.
    """

    _gone = False

    def _open(self, name: str, settings: Mapping[str, Any], history: History) -> None:
        r"""Begin the log of a run of a name, or go on with it after the history's last step."""
        raise NotImplementedError

    def _write(self, entry: Mapping[str, float]) -> None:
        r"""Log one look."""
        raise NotImplementedError

    def _close(self, stop_reason: str | None) -> None:
        r"""End the log of the run."""

    def start(self, settings: Mapping[str, Any], history: History) -> None:
        self._gone = False
        try:
            self._open(name_of(settings), settings, history)
        except OSError as error:
            if error.errno not in FULL:
                raise ArgumentError(
                    "callbacks", f"{self!r} ({error})", "a place to write"
                ) from error
            self._give_up(error)

    def look(self, entry: Mapping[str, float]) -> None:
        self._tried(lambda: self._write(entry))

    def end(self, stop_reason: str | None) -> None:
        self._tried(lambda: self._close(stop_reason))

    def _tried(self, action: Callable[[], None]) -> None:
        if self._gone:
            return
        try:
            action()
        except Exception as error:  # of any library, disk or network
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._gone = True
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"{self!r} logs no more ({reason}); the training goes on without it", stacklevel=2
        )


def last_step(history: History) -> int:
    r"""The step of the last look that a run goes on from; −1 of a new run."""
    return int(history["step"][-1]) if history.get("step") else -1


def needed(module: str, extra: str) -> None:
    r"""Refuse to begin without an optional library."""
    if importlib.util.find_spec(module) is None:
        raise LimbeckError(f"callbacks: {module} is needed: pip install 'limbeck[{extra}]'")


FIRST = ["run", "step"]


class CSVLogger(Logger):
    r"""Writes each look as a row of a CSV file, as it comes.

    The column "run" names what was asked for: a run that goes on, or is made again with the same
    settings, takes the place of its own later rows, and rows of other runs stay. Settings are in
    a file of the same name that ends in .json.

    Arguments:
        path: The file.

    >>> CSVLogger("log.csv")
    CSVLogger('log.csv')
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix == ".json":
            raise ArgumentError("path", str(path), "a name that does not end in .json, as .csv")

    def __repr__(self) -> str:
        return f"CSVLogger({str(self.path)!r})"

    def _open(self, name: str, settings: Mapping[str, Any], history: History) -> None:
        self.name, after = name, last_step(history)
        self.columns, rows = self._read()
        kept = [row for row in rows if row["run"] != name or int(row["step"]) <= after]
        self._rewrite(kept)
        about = self.path.with_suffix(".json")
        known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        text = json.dumps({**known, name: dict(settings)}, indent=1, default=str)
        _whole(about, text + "\n")

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
            return list(FIRST), []
        with open(self.path, encoding="utf-8", newline="") as file:
            found = csv.DictReader(file)
            columns, rows = list(found.fieldnames or FIRST), list(found)
        if columns[:2] != FIRST:
            received = f"{self.path}, which is another file"
            raise ArgumentError("callbacks", received, "a new file, or one of a CSVLogger")
        # the last row may have been cut off
        return columns, [row for row in rows if None not in row.values()]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        _whole(self.path, text.getvalue())


def _whole(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except CheckpointError as error:
        raise error.__cause__ or error from None


TAG = "limbeck.run"
r"""By which a run that goes on is found again."""

LONGEST = 500
r"""Characters of a parameter, which every version of MLflow takes."""


class MLflow(Logger):
    r"""Logs each look as metrics of an MLflow run, and the settings as its parameters.

    A run that goes on is taken up again; steps that it has already are not logged twice.

    Arguments:
        experiment: The experiment's name; it is made if it is not there.
        uri: Where MLflow keeps its runs, such as "sqlite:///mlflow.db" or the address of a
            server; None leaves it to MLflow (its environment variable MLFLOW_TRACKING_URI).
        tags: Further tags of the runs.
    """

    def __init__(
        self,
        experiment: str = "limbeck",
        uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        needed("mlflow", "mlflow")
        self.experiment, self.uri, self.tags = experiment, uri, dict(tags or {})
        self._client: Any = None

    def __repr__(self) -> str:
        return f"MLflow({self.experiment!r})"

    def _open(self, name: str, settings: Mapping[str, Any], history: History) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            self._client = MlflowClient(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(self.experiment)
            place = (
                self._client.create_experiment(self.experiment)
                if found is None
                else found.experiment_id
            )
            self._seen: set[int] = set()
            self._id = self._taken_up(place, name) if last_step(history) >= 0 else None
            if self._id is None:
                self._id = self._begun(place, name, settings)
        except MlflowException as error:
            expected = "a store that MLflow can use"
            raise ArgumentError("callbacks", f"{self!r} ({error})", expected) from error

    def _taken_up(self, place: str, name: str) -> str | None:
        wanted = f"tags.`{TAG}` = '{name}'"
        order = ["attributes.start_time DESC"]
        found = self._client.search_runs([place], wanted, max_results=1, order_by=order)
        if not found:
            return None
        number: str = found[0].info.run_id
        self._client.update_run(number, status="RUNNING")
        self._seen = {int(m.step) for m in self._client.get_metric_history(number, "loss")}
        return number

    def _begun(self, place: str, name: str, settings: Mapping[str, Any]) -> str:
        tags = {TAG: name, "mlflow.runName": name, **self.tags}
        number: str = self._client.create_run(place, tags=tags).info.run_id
        for key, value in settings.items():
            self._client.log_param(number, key, str(value)[:LONGEST])
        return number

    def _write(self, entry: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        step = int(entry["step"])
        if step in self._seen:
            return
        now = int(time.time() * 1000)
        metrics = [
            Metric(re.sub(r"[^\w\-. /]", "_", key), float(value), now, step)
            for key, value in entry.items()
            if key != "step"
        ]
        self._client.log_batch(self._id, metrics=metrics)
        self._seen.add(step)

    def _close(self, stop_reason: str | None) -> None:
        if stop_reason is not None:
            self._client.set_tag(self._id, "limbeck.stopped", stop_reason[:LONGEST])
        status = "KILLED" if stop_reason is None else "FINISHED"
        self._client.set_terminated(self._id, status)


class TensorBoard(Logger):
    r"""Writes each look as scalars, and the settings once as text.

    Every run has a folder of its own, named by what was asked for. One that goes on hides what
    was logged after the step it goes on from.

    Arguments:
        folder: What `tensorboard --logdir` will be given.
    """

    def __init__(self, folder: str | Path = "runs") -> None:
        needed("tensorboard", "tensorboard")
        self.folder = Path(folder)
        self._writer: Any = None

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"

    def _open(self, name: str, settings: Mapping[str, Any], history: History) -> None:
        from torch.utils.tensorboard import SummaryWriter

        after, place = last_step(history), self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(place), purge_step=after + 1)
        if after < 0:
            rows = [f"| {key} | {value} |" for key, value in settings.items()]
            text = "\n".join(["| setting | value |", "| --- | --- |", *rows])
            self._writer.add_text("settings", text, 0)
        self._writer.flush()

    def _write(self, entry: Mapping[str, float]) -> None:
        for key, value in entry.items():
            if key != "step":
                self._writer.add_scalar(key, value, int(entry["step"]))
        self._writer.flush()

    def _close(self, stop_reason: str | None) -> None:
        if stop_reason is not None:
            self._writer.add_text("stopped", stop_reason)
        self._writer.close()
