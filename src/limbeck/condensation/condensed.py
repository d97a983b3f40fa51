r"""The result of `condense`: a small student, diagnostics of the draws, its report."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from rich.table import Table
from torch import nn

from limbeck.arguments import Count, PathLike, Seed, UserObject, Whole, checked_arguments
from limbeck.arrays import X, as_part, as_parts, floats, rows
from limbeck.condensation.agreement import Agreement, agreement
from limbeck.condensation.held_out import MAX_COVARIANCE_ERROR, NewInputs
from limbeck.condensation.models import model_spec, named_model
from limbeck.condensation.pool import PoolDivergence
from limbeck.condensation.predict_function import (
    Means,
    OutputFamily,
    PairDensity,
    PredictFunction,
    Wrapped,
    unpair,
)
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import WarnOnce, bytes_of, marginal, stored_draws
from limbeck.distributions.conversion import check
from limbeck.errors import ArgumentError, PseudoDrawWarning, warn
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.posteriors.draws import Diagnostics, Draws, Structure
from limbeck.posteriors.read import as_draws
from limbeck.posteriors.stream import Stream, StreamBroken, StreamEnded
from limbeck.progress import watched
from limbeck.records import damaged, encode, of_file
from limbeck.storage.disk import Content
from limbeck.storage.folders import Files
from limbeck.teachers.base import Teacher
from limbeck.training.config import Training
from limbeck.training.distill import prepare
from limbeck.training.loop import Run
from limbeck.training.result import FORMAT, STUDENT, Result, from_files, read_files
from limbeck.verdict import Verdict

Predict: TypeAlias = Callable[..., Any]  # of a draw and inputs
ABOUT = "condensation.json"
FIELDS = {
    **dict.fromkeys(("head", "bag", "diagnostics", "new_inputs"), dict[str, Any] | None),
    "notes": list[str], "used": int, "draw_bytes": int,
}  # fmt: skip
MIN_EFFECTIVE_DRAWS = 50
LARGE_DIVERGENCE = 0.01  # nats: by Pinsker's inequality, probabilities may be off by 0.07
SAVED = ("notes", "used", "draw_bytes")  # attributes that are saved as they are


@dataclass(repr=False)
class Condensed(Result):
    r"""A condensed posterior: a `limbeck.Result` with diagnostics of the draws.

    Attributes:
        diagnostics: R̂ and effective sizes of the draws, with reasons to distrust them; or None.
        notes: Remarks on the draws and on `predict`, one sentence each.
        used: The number of draws used; those of a stored posterior count once.
        draw_bytes: The bytes of the draws in memory at one time.
        head: How the student's outputs are interpreted; None for a density without inputs.
        calling: The user's `predict`; None for `predictions=` and in a loaded result.
        posterior: The draws; None in the same cases.
        new_inputs: How good the student is at inputs that it was not trained on.
    """

    diagnostics: Diagnostics | None = None
    notes: list[str] = field(default_factory=list)
    used: int = 0
    draw_bytes: int = 0
    head: OutputFamily | None = None
    calling: PredictFunction | None = None
    posterior: Draws | Stream | None = None
    new_inputs: NewInputs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.student, SampleBag):
            self.student._trained = True  # pseudo-draws are no draws of the posterior any more

    @property
    def bytes(self) -> int:
        r"""The bytes of the student."""
        return sum(tensor.nbytes for tensor in self.student.state_dict().values())

    @property
    def verdict(self) -> Verdict:
        r"""Whether to trust it: converged draws, no overfitting, enough components and draws."""
        doubts, unchecked = list[str](), list[str]()
        if (draws := self.diagnostics) is not None:
            doubts += [f"the draws have not converged: {reason}" for reason in draws.reasons]
            sizes = draws.ess[draws.ess.isfinite()]
            if not draws.reasons and len(sizes) and float(sizes.min()) < MIN_EFFECTIVE_DRAWS:
                name = draws.names[int(draws.ess.nan_to_num(math.inf).argmin())]
                size = f"the effective size of {name} is {float(sizes.min()):.3g}"
                doubts.append(f"the draws have not converged: {size}")
        if (new := self.new_inputs) is None:
            return Verdict(tuple(doubts), ("not compared with the draws at new inputs",))
        if new.state == "doubtful":
            doubts.append(f"overfitting: {new.reason}")
        elif new.state == "unchecked":
            unchecked.append(new.reason)
        gap = new.best if new.held_out is None else new.held_out.mean - 2 * new.held_out.std_error
        if new.state != "doubtful" and gap is not None and gap > LARGE_DIVERGENCE:
            where = "the inputs" if new.held_out is None else "new inputs"
            doubts.append(f"too few components: the divergence is {gap:.2g} nats at {where}")
        if new.covariance is not None and new.covariance > MAX_COVARIANCE_ERROR:
            least = f"at least {new.needed:,} components are needed for a tenth"
            doubts.append(f"covariances of several inputs are off by {new.covariance:.0%}; {least}")
        if new.noise is not None and LARGE_DIVERGENCE < new.noise < math.inf:
            words = f"averages over other draws would differ by about {new.noise:.2g} nats"
            doubts.append(f"too few draws: {words}")
        return Verdict(tuple(doubts), tuple(unchecked))

    @torch.no_grad()
    def predict(self, x: UserObject[object] = None) -> Any:
        r"""The distribution of y at inputs x, an array, a tensor or a dict of such.

        It is right at each single input; samples at several inputs are independent of each other,
        and give one `limbeck.PseudoDrawWarning`. Without inputs it is the density itself.
        """
        if self.head is None:
            return self.student
        once = self.__dict__.setdefault("_once", WarnOnce())
        return marginal(self.head.read(self.student(self._to_student(x))), once)

    @checked_arguments
    def report(
        self, x: UserObject[object] = None, y: UserObject[object] = None, *,
        posterior: UserObject[object] = None, draws: Annotated[int, Whole(2)] = 10_000,
    ) -> Agreement:  # fmt: skip
        r"""Compare the student with the average over all draws: errors, divergence, bytes, time.

        Arguments:
            x: Inputs, preferably unseen in training. Default: None, for a density without inputs,
                which is compared at samples of the average.
            y: Outcomes at x, if known, whose log probabilities are compared. Default: None.
            posterior: Draws to average over. Default: those that were condensed, or further ones of
                a stream; a loaded result has none.
            draws: Number of draws to take from a stream. Default: 10,000.
        """
        if self.calling is None and not isinstance(self.student, SampleBag):
            expected = "a result of draws and predict; compare result.predict(x) with predictions"
            raise ArgumentError("report", "a result of predictions=, without a model", expected)
        average = self.posterior if posterior is None else as_draws(posterior)
        if average is None:
            raise ArgumentError("posterior", None, "the draws, which are not saved with a result")
        try:
            known = stored_draws(average, draws)
        except StreamEnded as end:
            received = f"a stream without {draws:,} further draws ({end})"
            expected = "posterior=, draws to compare with; or fewer draws= of a longer stream"
            raise ArgumentError("posterior", received, expected) from end
        like = next(self.student.parameters())
        stored = known.to(like.device, like.dtype)
        sizes = bytes_of(stored.count, stored.structure, like.dtype), self.bytes
        outcomes = None if y is None else as_part(y, "y").values.to(like.device)
        inputs = None if self.head is None else self._to_student(x)
        calling = self.calling
        if calling is None:
            assert isinstance(self.student, SampleBag)
            calling = PredictFunction(self.student.predict, stored.take([0, 1]), inputs)
        student = self.student if inputs is None else self.predict
        result = agreement(calling, stored, student, inputs, outcomes, sizes)
        return replace(result, new_inputs=self.new_inputs)

    @checked_arguments
    def to_arviz(
        self, x: UserObject[object], y: UserObject[object] = None, *,
        samples: Count = 1000, seed: Seed = 0,
    ) -> Any:  # fmt: skip
        r"""Samples of the student's predictions as an ArviZ object, with the outcomes if given.

        The group posterior_predictive has y (1, samples, n, ...), observed_data the outcomes. The
        samples are joint ones if the bag was condensed with `joint=True`.

        Arguments:
            x: Inputs (n, ...).
            y: Outcomes at x. Default: None.
            samples: Number of samples. Default: 1,000.
            seed: The seed of the samples. Default: 0.
        """
        import arviz

        generator = torch.Generator().manual_seed(seed)
        if isinstance(self.student, SampleBag) and self.student.joint:
            drawn = self.student.sample_jointly(self._to_student(x), samples, generator)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PseudoDrawWarning)
                drawn = self.predict(x).sample((samples,), generator)
        groups: dict[str, Any] = {"posterior_predictive": {"y": drawn[None].cpu().numpy()}}
        if y is not None:
            groups["observed_data"] = {"y": as_part(y, "y").values.cpu().numpy()}
        by_name = "posterior_predictive" in inspect.signature(arviz.from_dict).parameters
        return arviz.from_dict(**groups) if by_name else arviz.from_dict(groups)

    def to_files(self) -> dict[str, Content]:
        bag = None
        if isinstance(self.student, SampleBag):
            bag = self.student.structure.spec() | {"predict": model_spec(self.student.predict)}
            bag["joint"] = self.student.joint
        about = {
            "head": None if self.head is None else asdict(self.head),
            "bag": bag,
            "diagnostics": None if self.diagnostics is None else self.diagnostics.record(),
            "new_inputs": None if self.new_inputs is None else self.new_inputs.record(),
            **{name: getattr(self, name) for name in SAVED},
        }
        return super().to_files() | {ABOUT: encode(about)}

    @classmethod
    @checked_arguments
    def load(
        cls,
        folder: PathLike,
        student: nn.Module | None = None,
        *,
        predict: UserObject[Predict | None] = None,
    ) -> Condensed:
        r"""Load a saved result; it can predict and be exported, but has no draws.

        Arguments:
            folder: A folder that `save` wrote.
            student: A new instance of your own module. Default: None, for bags.
            predict: Your own function of (draw, x) of a bag. Default: None, for ready-made models.
        """
        return cls.from_files(read_files(folder), student, predict=predict)

    @classmethod
    def from_files(
        cls, saved: Files, student: nn.Module | None = None, *,
        predict: UserObject[Predict | None] = None,
    ) -> Condensed:  # fmt: skip
        r"""A result of the files of a saved one; arguments as of `load`."""
        folder, path = saved.folder, saved.path(ABOUT)
        about = saved.fields(ABOUT, FIELDS)
        bag, head = about["bag"], about["head"]
        values: dict[str, Any] = {name: about[name] for name in SAVED}
        try:
            if (spec := about["diagnostics"]) is not None:
                for name in ("r_hat", "ess"):  # of lists with None for NaN
                    spec[name] = torch.tensor(np.array(spec[name], dtype=np.float64))
                values["diagnostics"] = Diagnostics(**spec)
            if head is not None:
                new_inputs = NewInputs.from_record(about["new_inputs"])
                values |= {"head": OutputFamily(**head), "new_inputs": new_inputs}
            known = None if bag is None else named_model(bag["predict"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise damaged(path, f"cannot be read ({error!r})") from error
        function = known if predict is None else predict
        if bag is not None and student is None:
            if function is None:
                received = f"None, and {folder} is a bag of the user's own function"
                raise ArgumentError("predict", received, "predict=, the function of (draw, x)")
            tensors = saved.tensors(STUDENT, FORMAT)[0]
            with of_file(path):
                like = Structure.from_spec(bag)
            student = SampleBag.from_tensors(function, like, tensors)
            student.joint = bag.get("joint") is True
        elif predict is not None:
            received = f"a function for {folder}, whose student calls none"
            raise ArgumentError("predict", received, "None")
        result = from_files(saved, student)
        if predict is not None and isinstance(result.student, SampleBag):
            _check_bag(result.student, values.get("head"), result.settings.get("input_shape") or {})
        values |= {each.name: getattr(result, each.name) for each in fields(Result)}
        return cls(**values)

    def portable(self) -> Any:
        r"""The exportable form: means of y, probabilities of classes, or a log density."""
        import limbeck  # exporting stands above the verbs, and is called by the front door

        doubts = () if self.diagnostics is None else tuple(self.diagnostics.reasons)
        about: dict[str, Any] = {"draws": f"{self.used:,}"} if self.used else {}
        if self.new_inputs is not None:
            about |= dict(self.new_inputs.lines())
            if self.new_inputs.state != "trustworthy":
                reason = self.new_inputs.reason
                doubts += (f"{reason[:1].upper()}{reason[1:]}.",)
        what: tuple[Any, ...] = ()
        if self.head is not None:
            form = "probabilities" if self.head.classes else "means"
            what = (Means(self.student, self.head), form)
        return limbeck.export.of_result(self, *what, verb="condense", doubts=doubts, about=about)

    def table(self) -> Table:
        r"""The result as a table."""
        table = super().table()
        table.title = "condensation"
        if self.draw_bytes:
            table.add_row("draws", f"{self.used:,}, {self.draw_bytes:,} bytes in memory")
        table.add_row("bytes", f"{self.bytes:,}")
        if self.diagnostics is not None and len(self.diagnostics.r_hat):
            values = (self.diagnostics.r_hat, self.diagnostics.ess)
            r_hat, ess = (value[value.isfinite()].tolist() for value in values)
            most = f"at most {max(r_hat):.3f}" if r_hat else "not known"
            least = f"at least {min(ess):,.0f}" if ess else "not known: too few draws"
            table.add_row("R̂, effective size", f"{most}, {least}")
            for reason in self.diagnostics.reasons:
                table.add_row("doubt", reason)
        for line in self.new_inputs.lines() if self.new_inputs else ():
            table.add_row(*line)
        if self.head is not None:
            table.add_row("verdict", str(self.verdict))
        for note in self.notes:
            table.add_row("note", note)
        return table

    def _to_student(self, x: object) -> X:
        r"""Inputs of any kind on the student's device and of its floating type."""
        like = next(self.student.parameters())
        parts = {name: part.values.to(like.device) for name, part in as_parts(x, "x").items()}
        inputs = parts | {n: p.to(like.dtype) for n, p in parts.items() if p.is_floating_point()}
        return inputs.get("", inputs)


def run_steps(
    teacher: Teacher | None, student: nn.Module, inputs: Inputs, loss: Loss, training: Training,
    enough: float = -math.inf,
) -> tuple[Run, dict[str, Any]]:  # fmt: skip
    r"""All steps, or as many as the draws allow; and the fields of a `Result` after the student.

    A held-out loss of at most `enough` ends the training too.
    """
    if training.metrics and isinstance(student, Wrapped):  # they are of the student itself
        metrics = {k: lambda _, f=f: f(student.student) for k, f in training.metrics.items()}
        training = replace(training, metrics=metrics)
    run = prepare(teacher, student, inputs, loss, training)
    try:
        for _ in watched(run, training.progress, "condensing"):
            if run.plateau.best <= enough:
                run.stop(f"the held-out loss is below {enough:.2g}, the error of the draws")
    except StreamEnded as end:
        if not run.done:
            raise
        if run._evaluated < run.done:
            run._evaluate()
        run.finish()
        run.stop_reason = f"{end}, at step {run.done:,} of {run.total:,}"
        for callback in run.callbacks:
            callback.end(run.stop_reason)
        if isinstance(end, StreamBroken):
            warn(f"{run.stop_reason}; the student trained so far is returned")
    finally:
        run.objective.release()
    if not isinstance(student, PairDensity | PoolDivergence):
        return run, run.outcome()
    x = floats(unpair(run.objective._like).x)
    return run, run.outcome(input_shape={n: list(part.shape[1:]) for n, part in x.items()})


def check_student(result: Condensed, x: X) -> None:
    r"""Warn of a student whose predictions are not valid at inputs x."""
    try:
        check(result.predict(x), rows(x), "student")
    except ArgumentError as error:
        hint = "support= keeps variables of a bag positive or within bounds"
        warn(f"{error}; {hint}")


def _check_bag(bag: SampleBag, head: OutputFamily | None, shapes: dict[str, Any]) -> None:
    r"""Refuse a function that does not fit the saved pseudo-draws, or predicts another kind."""
    if set(shapes) != {""} or head is None:
        return
    x = torch.randn(3, *shapes[""], generator=torch.Generator().manual_seed(0))
    expected = f"the function of (draw, x) that was condensed, which gave {head.kind}"
    try:
        with torch.no_grad():
            kind = OutputFamily.of(bag(x)).kind
    except Exception as error:  # of the user's own function
        received = f"a function that fails at the saved draws ({error})"
        raise ArgumentError("predict", received, expected) from error
    if kind != head.kind:
        raise ArgumentError("predict", f"a function that gives {kind}", expected)
