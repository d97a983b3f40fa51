r"""Runs in MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from limbeck.callbacks.logger import Logger, last_step, needed
from limbeck.core.history import History
from limbeck.errors import ArgumentError

__all__ = ["MLflow"]

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
            accepted = "a store that MLflow can use"
            raise ArgumentError("callbacks", f"{self!r} ({error})", accepted) from error

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
