r"""`Teacher`: a frozen source of targets, live or opaque, as the training loop calls it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arguments import Choice, Flag, UserObject, checked_arguments
from limbeck.arrays import Batch, X, as_dict, rows, to_numpy
from limbeck.errors import ArgumentError, NotDifferentiableError, shown
from limbeck.evaluation import View, close_taps, depends_on_inputs, evaluating


class Teacher:
    r"""A frozen source of targets: the base of all teachers, made of a callable on tensors.

    Arguments:
        source: An `nn.Module` or a callable on x; None for losses that need no teacher.
        output: The form of its outputs, one of `outputs.FORMS`. Default: "auto", inferred.
        exact: False if each call returns the targets of one random draw (a running chain).
            Default: None, exact unless there is a `draw`.
        differentiable: Whether it has input derivatives. Default: None, inferred.
        draw: For live teachers, `draw(n)` returns tensors, and source is called as
            `source(x, drawn)`; everything random or stateful belongs there. Default: None.
    """

    opaque = False  # whether it must be called outside the compiled step

    @checked_arguments
    def __init__(
        self,
        source: UserObject[Callable[..., Tensor] | None],
        output: Annotated[str, Choice(*forms.FORMS, "auto")] = "auto",
        *,
        exact: Flag | None = None,
        differentiable: Flag | None = None,
        draw: UserObject[Callable[[int], Any] | None] = None,
    ) -> None:
        self.source, self._draw = source, draw
        self.stochastic = draw is not None  # whether an input has other targets at another time
        self.exact = draw is None if exact is None else exact
        self.form = output_form("teacher_output", source, output)
        self.differentiable = differentiable
        self._modes = ExitStack()  # which restores those of the source's layers

    def infer_output(self, batch: Batch, needs: str) -> None:
        r"""Infer form and differentiability at a few inputs, and refuse what does not fit."""
        if self.source is None:
            return
        n = rows(batch.x)
        try:
            raw = self.view(batch, self.draw(n)).raw()
        except (RuntimeError, ArgumentError) as error:
            raise misfit("teacher", batch.x, error) from error
        self.form = infer_form("teacher_output", "teacher", raw, self.form, needs, n)
        if self.differentiable is None:
            drawn = self.draw(n)
            self.differentiable = depends_on_inputs(
                lambda x: self.view(Batch(x), drawn).raw(), batch.x
            )

    def draw(self, n: int) -> Any:
        r"""The random part of the targets at n inputs, or None."""
        return None if self._draw is None else self._draw(n)

    def signs(self, k: int, n: int, outputs: int, generator: torch.Generator) -> Tensor:
        r"""Random signs (k, n, I) in {0, 1} for k projections."""
        size, device = (k, n, outputs), generator.device
        return torch.randint(0, 2, size, generator=generator, device=device, dtype=torch.float32)

    def prepare(self, batch: Batch) -> Any:
        r"""What `view` needs at a batch: the random part, or an opaque teacher's targets."""
        return self.draw(rows(batch.x))

    def view(self, batch: Batch, drawn: object = None) -> View:
        r"""The teacher at a batch, as losses see it."""
        source = self.source
        assert source is not None
        model = source if drawn is None else lambda x: source(x, drawn)
        return View(model, batch.x, self.form)

    def refuse_derivatives(self, loss: str) -> None:
        r"""Raise if a derivative loss cannot be used."""
        if not self.differentiable:
            raise NotDifferentiableError(
                f"teacher: {loss} needs input derivatives, and {self} has none: its outputs do "
                "not depend on x through torch. Use a loss on values, smooth it by noise on the "
                "inputs, or distil it first into a differentiable surrogate."
            )

    def to(self, device: torch.device) -> None:
        r"""Move to the student's device and switch to evaluation mode."""
        if isinstance(self.source, nn.Module):
            self.source.to(device)
            self._modes.enter_context(evaluating(self.source))

    def release(self) -> None:
        r"""Restore the modes of the teacher's layers, and remove limbeck's hooks."""
        self._modes.close()
        close_taps(self.source)

    def state_dict(self) -> dict[str, Tensor]:
        get = getattr(self.source, "state_dict", None)
        return {} if self._draw is None or get is None else dict(get())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state:
            self.source.load_state_dict(state)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return f"the teacher ({type(self.source).__name__})"


class Opaque(Teacher):
    r"""A teacher on NumPy arrays: a forest, a boosted model, a remote call. It has no derivatives.

    Arguments:
        function: Maps an array (n, ...), or a dict of arrays, to an array (n,) or (n, I).
        output: The form of its outputs. Default: "auto", inferred.
        exact: False if each call returns one random draw, which is right only on average.
            Default: True.
    """

    opaque = True

    @checked_arguments
    def __init__(
        self, function: UserObject[Callable[..., Any]],
        output: Annotated[str, Choice(*forms.FORMS, "auto")] = "auto", *, exact: Flag = True,
    ) -> None:  # fmt: skip
        form = output_form("teacher_output", function, output)
        super().__init__(self._call, form, exact=exact, differentiable=False)
        self.function = function

    def _call(self, x: X) -> Tensor:
        arrays = {name: to_numpy(part) for name, part in as_dict(x).items()}
        sample = next(iter(as_dict(x).values()))
        outputs = as_outputs(self.function(arrays.get("", arrays)), len(sample))
        dtype = sample.dtype if sample.is_floating_point() else torch.get_default_dtype()
        return torch.as_tensor(outputs).to(device=sample.device, dtype=dtype)

    def prepare(self, batch: Batch) -> Tensor:
        return self._call(batch.x)

    def view(self, batch: Batch, drawn: Any = None) -> View:
        return View(self._call if drawn is None else (lambda x: drawn), batch.x, self.form)

    def __repr__(self) -> str:
        owner = getattr(self.function, "__self__", None)
        name = getattr(self.function, "__name__", "callable")
        return f"the teacher ({name if owner is None else type(owner).__name__})"


def as_outputs(raw: object, n: int) -> np.ndarray:
    r"""A teacher's outputs as an array (n,) or (n, K)."""
    raw = to_numpy(raw)
    if hasattr(raw, "toarray"):
        raw = raw.toarray()
    try:
        outputs = np.asarray(raw)
    except ValueError:  # rows of different lengths
        expected = f"({n},) or ({n}, K)"
        raise ArgumentError("teacher", "outputs of different lengths", expected) from None
    if outputs.ndim not in (1, 2) or len(outputs) != n or outputs.shape[-1] == 0:
        received = f"outputs of shape {outputs.shape} for {n} rows"
        if outputs.dtype == object and outputs.ndim == 0:
            received = f"an output of type {type(raw).__name__}"
        raise ArgumentError("teacher", received, f"an array ({n},) or ({n}, K)")
    return outputs if outputs.flags.writeable else outputs.copy()  # torch takes no read-only ones


def as_teacher(value: object, output: str = "auto") -> Teacher:
    r"""A teacher made of a module or callable (live), an estimator (opaque), or None (none)."""
    if isinstance(value, Teacher):
        return value
    if value is None:
        return Teacher(None)
    if isinstance(value, type):
        raise ArgumentError("teacher", f"the class {value.__name__}", "an object of the class")
    model: Any = value
    for method, form in (("predict_proba", "probabilities"), ("predict", "values")):
        if not isinstance(model, nn.Module) and hasattr(model, method):
            return Opaque(getattr(model, method), form if output == "auto" else output)
    if callable(model) or output_form("teacher_output", model, output) == "log_density":
        return Teacher(model, output)
    expected = "a torch module, a callable on tensors, an estimator with predict_proba or predict, "
    expected += "a density with log_prob or log_unnormalized, None; several as lb.Ensemble([...])"
    raise ArgumentError("teacher", f"an object of type {type(value).__name__}", expected)


def misfit(who: str, x: X, error: Exception) -> ArgumentError:
    r"""The error for a model that fails on inputs."""
    parts = (f"{key} {tuple(part.shape)} of {part.dtype}" for key, part in as_dict(x).items())
    received = f"inputs {', '.join(map(str.strip, parts))}, on which it fails: {error}"
    return ArgumentError(who, received, "inputs that fit it")


def output_form(argument: str, model: object, output: str) -> str:
    r"""The form of a model's outputs: the user's setting, or else the model's `output_form`."""
    if output == "auto":
        output = getattr(model, "output_form", None) or "auto"
        if output == "auto" and any(hasattr(model, m) for m in ("log_prob", "log_unnormalized")):
            output = "log_density"
    known = (*forms.FORMS, "auto")
    if not isinstance(output, str) or output not in known:
        raise ArgumentError.unknown(argument, output, known)
    return output


def infer_form(argument: str, who: str, raw: object, form: str, needs: str, n: int) -> str:
    r"""The form of raw outputs at n inputs; ambiguous ones are refused where it matters."""
    if not isinstance(raw, Tensor):
        raise ArgumentError(who, f"outputs of type {type(raw).__name__}", "one tensor (n, outputs)")
    if raw.shape[:1] != (n,):
        received = f"outputs of shape {tuple(raw.shape)} for {n} inputs"
        raise ArgumentError(who, received, f"({n}, ...)")
    if needs == "probabilities":
        forms.check_class_axis(raw, who)
    if form == "auto":
        form = forms.recognise(raw) or "auto"
    finite = raw.isfinite() | (raw == -math.inf if form == "log_probabilities" else False)
    if not finite.all():
        raise ArgumentError(who, "outputs with NaN or infinity", "finite outputs at these inputs")
    of_classes = form in forms.FORMS[:3]
    if needs == "probabilities" and not of_classes:
        received, expected = repr(form), "logits, probabilities or log probabilities"
        if form == "auto":
            received = "outputs that could be logits or plain values"
            expected = f'{argument}="logits", "probabilities" or "log_probabilities"'
        raise ArgumentError(argument, received, f"{expected}, which this loss needs")
    if needs == "density" and of_classes:
        raise ArgumentError(argument, shown(form), "log densities, which this loss needs")
    if form == "auto":
        form = "log_density" if needs == "density" else "values"
    # several axes are for losses that know which axis holds the classes
    if form in ("probabilities", "log_probabilities") and raw.ndim <= 2:
        forms.check_probabilities(forms.probabilities(raw, form), argument)
    return form
