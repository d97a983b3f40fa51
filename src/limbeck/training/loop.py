r"""The training loop of all verbs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from limbeck.arrays import Batch, floats, part_of, rows, strip_prefix
from limbeck.errors import ArgumentError, CheckpointError, shown, warn
from limbeck.evaluation import evaluating
from limbeck.records import AnyNumber, check
from limbeck.storage import checkpoints, files
from limbeck.teachers.base import Teacher
from limbeck.training.config import Training
from limbeck.training.engines import Eager
from limbeck.training.objective import Objective, Plan, keep_buffers
from limbeck.training.result import Failure, History
from limbeck.training.update import Update


def diagnose(objective: Objective, plan: Plan, step: int) -> Failure:
    r"""The terms and inputs of a plan that are not finite, found by repeating the step."""
    batch, wrong = objective.batch(plan), list[str]()
    with keep_buffers(objective), torch.enable_grad():
        terms = dict(zip(objective.names, objective(plan), strict=True))
        bad = {name: ~term.isfinite() for name, term in terms.items() if not term.isfinite().all()}
        if bad:
            examples = torch.stack(list(bad.values())).any(0).nonzero().flatten().tolist()
            return Failure(step, list(bad), examples, batch)
        parameters = [p for p in objective.parameters() if p.requires_grad]
        for name, term in terms.items():
            options: Any = {"retain_graph": True, "materialize_grads": True}
            slopes = grad(term.mean(), parameters, **options) if term.requires_grad else ()
            wrong += [] if all(g.isfinite().all() for g in slopes) else [f"gradient of {name}"]
    return Failure(step, wrong or ["gradient"], [], batch)


@dataclass
class Plateau:
    r"""The best measure, and the number of measures since."""

    best: float = math.inf
    since: int = 0

    def update(self, measure: float) -> bool:
        r"""Whether a new measure is a new best."""
        margin = 1e-3 * abs(self.best) if math.isfinite(self.best) else 0.0  # less is no progress
        better = measure < self.best - margin
        self.best, self.since = (measure, 0) if better else (self.best, self.since + 1)
        return better


@dataclass(frozen=True)
class Step:
    r"""A step just done, as `steps()` gives it."""

    number: int
    run: Run

    @property
    def loss(self) -> float:
        r"""The mean loss of the step's batch."""
        return self.run.update.progress.last[-1].item()

    @property
    def terms(self) -> dict[str, float]:
        r"""The same for each term, before its coefficient."""
        means = self.run.update.progress.last.tolist()[:-1]
        return dict(zip(self.run.objective.names, means, strict=True))

    @property
    def student(self) -> nn.Module:
        return self.run.objective.student


FIELDS = {  # of a checkpoint's description
    "identity": dict[str, Any], "done": int, "steps": int, "evaluated": int, "seconds": float,
    "engine": dict[str, Any], "stop_reason": str | None, "history": dict[str, list[AnyNumber]],
    "plateau": tuple[AnyNumber, int] | None,
}  # fmt: skip
CHECK_INTERVAL = 50  # on a GPU, steps that may be queued before their losses are checked


@dataclass(repr=False, eq=False)
class Run:
    r"""One distillation: iterate over it to take its steps."""

    objective: Objective
    update: Update  # bound to the objective
    engine: Eager
    settings: Training  # checked
    identity: Mapping[str, Any]  # must be the same for a checkpoint to be resumed
    held_out: tuple[Batch, Teacher] | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.history, self.done, self.total = History(), 0, settings.steps
        self.seconds = 0.0  # wall-clock, with those before the run was resumed
        self.stop_reason: str | None = None
        self.failure: Failure | None = None
        if len(names := self.objective.names) > 1:  # columns of the history
            for name in set(settings.metrics or ()) & set(names):
                raise ArgumentError("metrics", shown(name), "names that are not the loss's terms")
        self.plateau = Plateau()
        self.best: dict[str, Tensor] = {}
        self.callbacks: Any = settings.callbacks or ()  # as Callback objects by now
        self.batch_size = settings.batch_size if isinstance(settings.batch_size, int) else None
        self._every = settings.every or max(1, settings.steps // 50)
        self._evaluated = 0  # the step of the last evaluation
        self._in_progress = False  # whether a step or an evaluation is half done
        self._stopping: tuple[str, BaseException | None] | None = None  # reason, error to raise
        self._resumable = False  # whether the same call again continues after the stop
        self._asynchronous = self.objective.device.type == "cuda"
        self._plans: deque[Plan] = deque(maxlen=CHECK_INTERVAL)
        self._folder = None if settings.checkpoint is None else Path(settings.checkpoint)
        self._last: Path | None = None  # the checkpoint that was written or read last
        if self._folder is not None:
            checkpoints.prepare(self._folder)
            self._resume(self._folder)
        self._written = self._state()

    def __iter__(self) -> Iterator[Step]:
        self._began = time.monotonic() - self.seconds
        self._saved = (self.done, time.monotonic())
        for callback in self.callbacks:
            callback.start({**self.identity, "steps": self.total}, self.history)
        try:
            if self.done and self.stop_reason is None:
                self._look_or_stop()  # the run may have been interrupted at an evaluation
            while self.stop_reason is None:
                self._step()
                if self.failure is None:
                    yield Step(self.done, self)
                if self._stopping is not None:
                    self._look_or_stop()
        except (KeyboardInterrupt, GeneratorExit):
            if not self._in_progress:
                self.save()
            raise
        finally:
            for callback in self.callbacks:
                callback.end(self.stop_reason)
        self.finish()
        if self._stopping is not None and self._stopping[1] is not None:
            raise self._stopping[1]

    def finish(self) -> None:
        r"""Write the last checkpoint; with patience, the student is then the best one measured."""
        self.save()
        if self.best:  # there is none if no measure was finite
            self.objective.student.load_state_dict(self.best)

    def outcome(self, **settings: Any) -> dict[str, Any]:
        r"""The fields of a `Result` after the student, with further settings."""
        engine, inputs = self.engine, floats(self.objective._like)
        shapes = {name: list(part.shape[1:]) for name, part in inputs.items()}
        about = {"steps": self.total, "device": str(self.objective.device), "input_shape": shapes}
        return {
            "history": self.history,
            "steps": self.done,
            "stop_reason": str(self.stop_reason),
            "seconds": self.seconds,
            "engine": engine.name,
            "settings": {**self.identity, **about, **settings},
            "failure": self.failure,
            "processes": engine.processes,
            "compile_seconds": engine.compile_seconds,
        }

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        r"""Stop after the present step and raise `error`; safe in threads and signal handlers."""
        if not isinstance(reason, str) or not reason:
            raise ArgumentError("reason", shown(reason), "a text with the reason")
        if self.stop_reason is None and self._stopping is None:
            self._stopping = (reason, error)

    def _step(self) -> None:
        self._in_progress = True
        if not self._asynchronous:  # the last plan is enough, and its memory is used again
            self._plans.clear()
        plan, randomness = self.objective.draw(self.batch_size), self.objective.randomness
        self._plans.append(plan)
        with nullcontext() if randomness is None else randomness():
            self.engine.step(plan)
        self.done += 1
        self._in_progress = False
        self.seconds = time.monotonic() - self._began
        ends = self._due or self._late or self._stopping is not None
        check = not self._asynchronous or ends or self.done % CHECK_INTERVAL == 0
        if check and not self.update.progress.finite.item():
            return self._fail()
        self._look_or_stop()
        if self._folder is not None:
            (step, moment), every = self._saved, self.settings.checkpoint_every
            late = time.monotonic() - moment >= self.settings.checkpoint_seconds
            if late or (every is not None and self.done - step >= every):
                self.save()

    @property
    def _due(self) -> bool:
        r"""Whether an evaluation is due after the present step, and has not been made."""
        due = self.done >= self.total or self.done % self._every == 0
        return due and self._evaluated < self.done

    @property
    def _late(self) -> bool:
        return self.settings.seconds is not None and self.seconds >= self.settings.seconds

    def _look_or_stop(self) -> None:
        if self._due:
            self._evaluate()
        if self.stop_reason is not None:
            return
        if self.done >= self.total:
            self.stop_reason = f"all {self.total:,} steps done"
        elif self._late:
            limit, compiling = f"{self.settings.seconds:g} s", self.engine.compile_seconds
            part = f", after {compiling:.1f} s of compilation" if compiling else ""
            self.stop_reason = f"time limit of {limit} reached at step {self.done:,}{part}"
            self._resumable = True
        elif self._stopping is not None:
            self.stop_reason, self._resumable = self._stopping[0], True

    def _evaluate(self) -> None:
        r"""Measure first and then record, so that an interrupted evaluation can be repeated."""
        entry = self.measure()
        self._in_progress = True
        self.update.progress.sums.zero_()
        self._evaluated = self.done
        self.history.append(**entry)
        if (patience := self.settings.patience) is not None:
            if self.plateau.update(entry["held_out"]):
                state = self.objective.student.state_dict()
                self.best = {name: tensor.clone() for name, tensor in state.items()}
            elif self.plateau.since >= patience:
                best = self.plateau.best
                self.stop_reason = f"plateau: the held-out loss (best {best:.4g}) stopped improving"
        self._in_progress = False
        for callback in self.callbacks:
            callback.on_evaluation(entry)

    def measure(self) -> dict[str, float]:
        r"""One entry of the history; the state of the run does not change."""
        progress, names = self.update.progress, self.objective.names
        means = (progress.sums / (self.done - self._evaluated)).tolist()
        entry: dict[str, float] = {"step": self.done, "loss": means[-1]}
        if len(names) > 1:  # a term may be called "loss" too: the total stays
            entry = entry | dict(zip(names, means, strict=False)) | entry
        entry["gradient_norm"] = progress.norm.item()
        with evaluating(self.objective.student):
            if self.held_out is not None:
                (batch, teacher), state = self.held_out, self.objective.rng_state()
                n, block = rows(batch.x), 1000
                parts = (part_of(batch, start, block) for start in range(0, n, block))
                losses = (self.objective.at(part, teacher).double().sum().item() for part in parts)
                try:
                    entry["held_out"] = sum(losses) / n
                finally:  # the random draws of later steps stay as they were
                    self.objective.load_rng_state(state)
            for name, metric in (self.settings.metrics or {}).items():
                entry[name] = float(metric(self.objective.student))
        return entry

    def _fail(self) -> None:
        good = int(self.update.progress.done.item())
        plan = self._plans[good - self.done]  # the last plan is that of step self.done
        self.done = good
        self.failure = diagnose(self.objective, plan, good + 1)
        which = "the best one measured" if self.best else "as it was before that step"
        self.stop_reason = f"{self.failure}; the student is {which}"
        warn(self.stop_reason)

    def _state(self) -> tuple[int, int, str | None]:
        return self.done, self._evaluated, self.stop_reason

    def save(self) -> None:
        r"""Write a checkpoint, if there is a folder for it and anything new."""
        if self._folder is None or self._state() == self._written:
            return
        if self.stop_reason is None and not self.update.progress.finite.item():
            self._fail()
        groups = {
            "student": self.objective.student.state_dict(),
            "update": self.update.tensors(),
            "draws": self.objective.rng_state(),
            "best": self.best,
        }
        tensors = {f"{g}.{name}": t for g, group in groups.items() for name, t in group.items()}
        about = {
            "identity": dict(self.identity),
            "done": self.done,
            "steps": self.total,
            "evaluated": self._evaluated,
            "seconds": self.seconds,
            "engine": self.engine.state(),
            "stop_reason": None if self._resumable else self.stop_reason,
            "history": self.history,
            "plateau": [self.plateau.best, self.plateau.since],
        }
        self._last = checkpoints.write(self._folder, self.done, tensors, about, self._last)
        self._saved, self._written = (self.done, time.monotonic()), self._state()

    def _resume(self, folder: Path) -> None:
        checkpoint = checkpoints.read(folder)
        if checkpoint is None:
            return
        path, tensors, device = checkpoint.path, checkpoint.tensors, self.objective.device
        about = check(FIELDS, checkpoint.about, path)
        if changed := files.differences(about["identity"], dict(self.identity)):
            changes = "; ".join(changed)
            raise CheckpointError(f"checkpoint: {folder} belongs to another run: {changes}")
        done, saved, steps = about["done"], about["steps"], self.total
        same_until = getattr(self.update, "same_until", None)
        finite = bool(tensors.get("update.progress.finite", True))  # one that failed takes no steps
        if finite and saved != steps and done and not (same_until and same_until(done, saved)):
            schedule = getattr(self.update, "schedule", self.update)
            name = getattr(schedule, "__qualname__", type(schedule).__name__)
            raise CheckpointError(
                f"checkpoint: {folder} is of a run of {saved:,} steps, and steps is {steps:,} now, "
                f"but its learning rates depend on the number of steps ({name}). Accepted: "
                f"steps={saved} to finish that run; a new folder; for runs to be prolonged, a "
                "schedule that does not depend on their number, as 'constant'"
            )
        files.load_weights(self.objective.student, strip_prefix("student.", tensors), path)
        self.update.load(strip_prefix("update.", tensors), path)
        self.objective.load_rng_state(strip_prefix("draws.", tensors))
        self.best = {k: v.to(device) for k, v in strip_prefix("best.", tensors).items()}
        self.engine.load(about["engine"])
        self.history, self._last = History(about["history"]), path
        self.done, self._evaluated, self.seconds = done, about["evaluated"], about["seconds"]
        self.plateau = Plateau(*(about["plateau"] or ()))
        if saved >= steps or not self.update.progress.finite.item():
            self.stop_reason = about["stop_reason"]
