r"""Scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limbeck.callbacks.logger import Logger, last_step, needed
from limbeck.core.history import History

__all__ = ["TensorBoard"]


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
