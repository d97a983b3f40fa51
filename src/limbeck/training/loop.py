r"""The loop: one for all three uses of distillation."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from limbeck.arrays import Batch, part_of, rows
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.evaluation import evaluating
from limbeck.storage import files
from limbeck.training.objective import Objective, Plan
from limbeck.training.settings import HeldOut, History, Plateau, Settings
from limbeck.training.update import Progress, Update

if TYPE_CHECKING:
    from limbeck.training.engines import Engine

__all__ = ["Failure", "Run", "Step", "diagnose", "measured"]


@dataclass(frozen=True)
class Failure:
    r"""A loss or gradient that was not finite.

    Attributes:
        step: The step at which it was met; the student is as it was before.
        terms: The loss terms that were not finite, or whose gradients were not.
        examples: The places in the batch.
        batch: The batch itself.
    """

    step: int
    terms: list[str]
    examples: list[int]
    batch: Batch

    def __str__(self) -> str:
        at = f"inputs {_few(self.examples)} of the batch" if self.examples else "the whole batch"
        if self.examples and self.batch.index is not None:
            at += f" (rows {_few(self.batch.index[self.examples].tolist())} of the data)"
        return f"non-finite {', '.join(self.terms)} at step {self.step}, at {at}"


def diagnose(objective: Objective, plan: Plan, step: int) -> Failure:
    r"""Find which terms and which inputs of a plan are not finite, by doing the step again."""
    buffers = dict(objective.named_buffers())

    def again(parameters: dict[str, Tensor]) -> tuple[Tensor, ...]:
        copies = {name: buffer.clone() for name, buffer in buffers.items()}  # a look moves none
        return functional_call(objective, {**parameters, **copies}, (plan,))

    with torch.no_grad():
        found = again({})
    batch = objective.batch(plan)
    bad = {name: ~each.isfinite() for name, each in zip(objective.names, found, strict=True)}
    terms = [name for name, where in bad.items() if where.any()]
    if terms:
        where = torch.stack([bad[name] for name in terms]).any(0)
        return Failure(step, terms, where.nonzero().flatten().tolist(), batch)
    leaves = {name: p.detach() for name, p in objective.named_parameters() if p.requires_grad}
    for i, name in enumerate(objective.names):
        gradients = grad(lambda p, i=i: again(p)[i].mean())(leaves)
        if not all(g.isfinite().all() for g in gradients.values()):
            terms.append(f"gradient of {name}")
    return Failure(step, terms or ["gradient"], [], batch)


def _few(numbers: list[int], most: int = 8) -> str:
    more = f", … ({len(numbers)} in all)" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


BLOCK = 1000
r"""Held-out inputs that are evaluated at once."""


def measured(
    objective: Objective, progress: Progress, settings: Settings, done: int, last: int
) -> dict[str, float]:
    r"""One entry of the history; the run is left as it is.

    Arguments:
        objective: What is minimised.
        progress: What the update wrote down since the last look.
        settings: What else is measured: `held_out` and `metrics`.
        done: The steps done.
        last: The steps that were done at the last look.
    """
    means = (progress.sums / (done - last)).tolist()
    entry: dict[str, float] = {"step": done, "loss": means[-1]}
    if len(objective.names) > 1:  # a term may be called "loss" too: the total stays
        entry = entry | dict(zip(objective.names, means, strict=False)) | entry
    entry["gradient_norm"] = progress.norm.item()
    with evaluating(objective.student):
        if settings.held_out is not None:
            entry["held_out"] = _held_out(objective, settings.held_out)
        for name, metric in (settings.metrics or {}).items():
            entry[name] = float(metric(objective.student))
    return entry


def _held_out(objective: Objective, held_out: HeldOut) -> float:
    r"""The mean loss; what it draws at random leaves the draws of later steps as they were."""
    batch, teacher = held_out
    state = objective.rng_state()
    total = 0.0
    try:
        for start in range(0, rows(batch.x), BLOCK):
            part = part_of(batch, start, BLOCK)
            total += objective.at(part, teacher).double().sum().item()
    finally:
        objective.load_rng_state(state)
    return total / rows(batch.x)


LOOK_BEHIND = 50
r"""On a GPU, how many steps may be under way before anyone asks whether all is well."""


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
        last = self.run.update.progress.last.tolist()
        return dict(zip(self.run.objective.names, last, strict=False))

    @property
    def student(self) -> nn.Module:
        return self.run.objective.student


class Run:
    r"""One distillation: iterate over it to take its steps.

    Arguments:
        objective: What is minimised.
        update: How the student changes, bound to the objective.
        engine: How a step runs.
        settings: How long, and what else.
    """

    def __init__(
        self, objective: Objective, update: Update, engine: Engine, settings: Settings
    ) -> None:
        self.objective, self.update, self.engine, self.settings = (
            objective,
            update,
            engine,
            settings,
        )
        self.history = History()
        self.done, self.spent = 0, 0.0
        self.stop_reason: str | None = None
        self.failure: Failure | None = None
        self.plateau = None if settings.patience is None else Plateau(settings.patience)
        self.best: dict[str, Tensor] = {}
        self._looked = 0
        self._torn = False  # whether a step or a look is half done
        self._asked: tuple[str, BaseException | None] | None = None  # to stop, and what to raise
        self._for_now = False  # whether the same call goes on after it
        self._asynchronous = objective.device.type == "cuda"
        self._plans: deque[Plan] = deque(maxlen=LOOK_BEHIND)
        if settings.checkpoint is not None:
            files.check_folder(settings.checkpoint)
            self._resume(settings.checkpoint)
        self._written = self._state()

    @property
    def total(self) -> int:
        r"""The number of steps that the run has in all."""
        return self.settings.steps

    def __iter__(self) -> Iterator[Step]:
        self._began = time.monotonic() - self.spent
        self._saved = (self.done, time.monotonic())
        asked = {**(self.settings.identity or {}), "steps": self.settings.steps}
        for callback in self.settings.callbacks:
            callback.start(asked, self.history)
        try:
            if self.done and self.stop_reason is None:
                self._look_or_stop()  # the run may have been interrupted at a look
            while self.stop_reason is None:
                self._step()
                if self.failure is None:
                    yield Step(self.done, self)
                if self._asked is not None:
                    self._look_or_stop()
        except (KeyboardInterrupt, GeneratorExit):
            if not self._torn:
                self.save()
            raise
        finally:
            for callback in self.settings.callbacks:
                callback.end(self.stop_reason)
        self.save()
        if self._asked is not None and self._asked[1] is not None:
            raise self._asked[1]

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        r"""Ask the run to stop; from anywhere, also another thread or a signal's handler.

        The step under way is finished, and a look that is due is taken. Callbacks are told the
        reason, a checkpoint is written if there is a folder for it, and the run ends as after its
        last step. The same call again goes on from there. The first reason stays, and a run that
        has stopped is left as it is.

        Arguments:
            reason: Why, in words: the run's `stop_reason`.
            error: What is raised once all that is done, if whoever takes the steps is not to go on.
        """
        if not isinstance(reason, str) or not reason:
            raise ArgumentError("reason", repr(reason), "words that say why")
        if self.stop_reason is None and self._asked is None:
            self._asked = (reason, error)

    @property
    def seconds(self) -> float:
        r"""Wall-clock seconds so far, over all sittings."""
        return self.spent

    def _step(self) -> None:
        self._torn = True
        if not self._asynchronous:  # the last will do, and its memory is used again while hot
            self._plans.clear()
        plan = self.objective.draw(self.settings.batch_size)
        self._plans.append(plan)
        if self.objective.randomness is None:
            self.engine.step(plan)
        else:
            with self.objective.randomness():
                self.engine.step(plan)
        self.done += 1
        self._torn = False
        self.spent = time.monotonic() - self._began
        ends = self._due or self._late or self._asked is not None
        asks = not self._asynchronous or ends or self.done % LOOK_BEHIND == 0
        if asks and not self.update.progress.alive.item():
            return self._fail()
        self._look_or_stop()
        if self._save_due:
            self.save()
        return None

    @property
    def _due(self) -> bool:
        r"""Whether a look is due after the present step, and has not been taken."""
        last = self.done >= self.settings.steps
        return self._looked < self.done and (last or self.done % self.settings.every == 0)

    @property
    def _late(self) -> bool:
        return self.settings.seconds is not None and self.spent >= self.settings.seconds

    def _look_or_stop(self) -> None:
        if self._due:
            self._look()
        if self.stop_reason is None:
            if self.done >= self.settings.steps:
                self.stop_reason = f"all {self.settings.steps:,} steps done"
            elif self._late:
                seconds = f"{self.settings.seconds:g}"
                compiling = self.engine.compile_seconds
                of_it = f", after {compiling:.1f} s of compilation" if compiling else ""
                self.stop_reason = f"time: {seconds} s were up at step {self.done:,}{of_it}"
                self._for_now = True
            elif self._asked is not None:
                self.stop_reason, self._for_now = self._asked[0], True

    def _look(self) -> None:
        r"""Measure first and write down then, so that an interrupted look can be taken again."""
        progress = self.update.progress
        entry = measured(self.objective, progress, self.settings, self.done, self._looked)
        self._torn = True
        progress.sums.zero_()
        self._looked = self.done
        self.history.append(**entry)
        if self.plateau is not None:
            if self.plateau.look(entry["held_out"]):
                self.best = _copied(self.objective.student.state_dict())
            elif self.plateau.reached:
                if self.best:  # none was, if no measure was finite
                    self.objective.student.load_state_dict(self.best)
                best = f"{self.plateau.best:.4g}"
                self.stop_reason = f"plateau: the held-out loss was {best} and got no better"
        self._torn = False
        for callback in self.settings.callbacks:
            callback.look(entry)

    def _fail(self) -> None:
        good = int(self.update.progress.done.item())
        plan = self._plans[good - self.done]  # the last plan is that of step self.done
        self.done = good
        self.failure = diagnose(self.objective, plan, good + 1)
        self.stop_reason = f"{self.failure}; the student is as it was before that step"
        warnings.warn(self.stop_reason, stacklevel=2)

    @property
    def _save_due(self) -> bool:
        if self.settings.checkpoint is None:
            return False
        step, moment = self._saved
        every = self.settings.checkpoint_every
        late = time.monotonic() - moment >= self.settings.checkpoint_seconds
        return late or (every is not None and self.done - step >= every)

    def _state(self) -> tuple[int, int, str | None]:
        return self.done, self._looked, self.stop_reason

    def save(self) -> None:
        r"""Write a checkpoint, if a folder was given and there is anything new."""
        if self.settings.checkpoint is None or self._state() == self._written:
            return
        if self.stop_reason is None and not self.update.progress.alive.item():
            self._fail()
        tensors = {
            **{f"student.{k}": v for k, v in self.objective.student.state_dict().items()},
            **{f"update.{k}": v for k, v in self.update.tensors().items()},
            **{f"draws.{k}": v for k, v in self.objective.rng_state().items()},
            **{f"best.{k}": v for k, v in self.best.items()},
        }
        about = {
            "identity": dict(self.settings.identity or {}),
            "done": self.done,
            "steps": self.settings.steps,
            "looked": self._looked,
            "seconds": self.spent,
            "engine": self.engine.state(),
            "stop_reason": None if self._for_now else self.stop_reason,
            "history": dict(self.history),
            "plateau": None if self.plateau is None else [self.plateau.best, self.plateau.since],
        }
        files.write(self.settings.checkpoint / files.FILE, tensors, about)
        self._saved, self._written = (self.done, time.monotonic()), self._state()

    def _resume(self, folder: Path) -> None:
        path = folder / files.FILE
        if not path.exists():
            return
        tensors, about = files.read(path)
        present = dict(self.settings.identity or {})
        if found := files.differences(about["identity"], present):
            raise CheckpointError(
                f"checkpoint: {folder} belongs to another run: {'; '.join(found)}"
            )
        if bool(tensors.get("update.progress.alive", True)):  # a run that failed takes no steps
            self._refuse_other_steps(folder, about["done"], about["steps"])
        files.load_weights(self.objective.student, files.under("student.", tensors), path)
        self.update.load(files.under("update.", tensors), path)
        self.objective.load_rng_state(files.under("draws.", tensors))
        self.best = {
            k: v.to(self.objective.device) for k, v in files.under("best.", tensors).items()
        }
        self.engine.load(about.get("engine", {}))
        self.history = History(about["history"])
        self.done, self._looked, self.spent = about["done"], about["looked"], about["seconds"]
        if self.plateau is not None and about["plateau"] is not None:
            self.plateau.best, self.plateau.since = about["plateau"]
        if about["steps"] >= self.settings.steps or not self.update.progress.alive.item():
            self.stop_reason = about["stop_reason"]

    def _refuse_other_steps(self, folder: Path, done: int, saved: int) -> None:
        r"""Refuse another number of steps, if the steps done would have been others with it."""
        steps = self.settings.steps
        same = getattr(self.update, "same_until", None)
        if saved == steps or not done or (same is not None and same(done, saved)):
            return
        schedule = getattr(self.update, "schedule", self.update)
        name = getattr(schedule, "__qualname__", type(schedule).__name__)
        raise CheckpointError(
            f"checkpoint: {folder} is of a run of {saved:,} steps, and steps is {steps:,} now. "
            f"Its learning rates depend on the number of steps ({name}), so that a run of "
            f"{steps:,} steps would have taken other steps from the start. Accepted: "
            f"steps={saved} to finish that run; a new folder for a run of {steps:,} steps, from "
            "the same student or the trained one; for runs that are to be prolonged, a schedule "
            "that does not depend on their number, as 'constant' or 'robbins-monro'"
        )


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
