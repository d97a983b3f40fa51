r"""The objective of a distillation: inputs, teacher, loss and student bound into one function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arrays import Batch, X, as_batch, floats, input_dtype, label, rows, strip_prefix
from limbeck.errors import ArgumentError, InexactTeacherError, shown
from limbeck.evaluation import View, close_taps
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Drawn, Draws, Loss, Probe
from limbeck.teachers.base import Teacher, infer_form, misfit, output_form


class IsolatedRandomness:
    r"""A seeded state that torch's global generator has within a `with` block, and only there."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.state = torch.Generator(device).manual_seed(seed).get_state()
        self.generator = torch.default_generator
        if device.type == "cuda":
            self.generator = torch.cuda.default_generators[device.index]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        outer = self.generator.get_state()
        self.generator.set_state(self.state)
        try:
            yield
        finally:
            self.state = self.generator.get_state()
            self.generator.set_state(outer)


Plan: TypeAlias = dict[str, Any]  # all random tensors of a step: of inputs, teacher, loss terms


class Objective(nn.Module):
    r"""⟨E(x, θ)⟩ over inputs x: `draw` does what is random, `forward` is a function of tensors."""

    def __init__(
        self,
        teacher: Teacher,
        student: nn.Module,
        inputs: Inputs,  # on the student's device
        loss: Loss,
        *,
        student_output: str = "auto",
        seed: int = 0,  # of the losses' draws
    ) -> None:
        super().__init__()
        self.student, self.inputs, self.loss = student, inputs, loss
        # no modules, so that their parameters are not this one's; its targets may get stored
        self.teacher = self.original_teacher = teacher
        self.coefficients = [c for c, _ in loss]
        self.terms = [term for _, term in loss]
        names = [term.name for term in self.terms]  # with a number behind those that repeat
        numbered = [f"{name}_{names[: i + 1].count(name)}" for i, name in enumerate(names)]
        self.names = [n if names.count(n) == 1 else m for n, m in zip(names, numbered, strict=True)]
        self.requires = frozenset[str]().union(*(term.requires for term in self.terms))
        self.device = next((p.device for p in student.parameters()), torch.device("cpu"))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.form = output_form("student_output", student, student_output)
        self._declared = student_output != "auto"
        inputs.bind(self.at)
        self._check_models()

    def _check_models(self) -> None:
        r"""Evaluate both models at a few inputs and refuse what does not fit, before any step."""
        needs = {term.needs for term in self.terms} - {""}
        if len(needs) > 1:
            expected = "losses on one kind of outputs: classes, values or densities"
            raise ArgumentError("loss", shown(self.loss), expected)
        need = next(iter(needs), "")
        if any(term.normalised for term in self.terms):
            self._refuse_unnormalised()
        self._refuse_biased_and_dependent()
        batch = as_batch(self.inputs.probe(8))
        n = rows(batch.x)
        randomness = IsolatedRandomness(self.device, self.generator.initial_seed())
        with torch.no_grad(), keep_buffers(self.student), randomness():
            if self.requires:
                self.teacher.infer_output(batch, need)
            before = randomness.generator.get_state()
            raw = self._student_raw(batch.x, need)
            draws = not torch.equal(before, randomness.generator.get_state())
            form, form_need, target = self.form, need, self.teacher.form if self.requires else ""
            if "values" in (need, target) and form == "logits" and not self._declared:
                form = "values"  # a net that ends in a linear layer is accepted for regression too
            elif not need and target in forms.FORMS[:3] and form == "auto":
                form_need = "probabilities"
            self.form = infer_form("student_output", "student", raw, form, form_need, n)
            if "derivatives" in self.requires:
                self.teacher.refuse_derivatives(repr(self.loss))
            student = View(self.student, batch.x, self.form)
            if need == "density":
                self.outputs = 1
            elif student.raw().ndim > 2:
                self.outputs = forms.values(student.raw()).shape[1]
            else:
                logs = need == "probabilities"
                self.outputs = (student.log_probabilities() if logs else student.values()).shape[1]
            teacher = self.teacher.view(batch, self.teacher.draw(n)) if self.requires else student
            teacher.who, student.who = "teacher", "student"
            with torch.random.fork_rng(devices=[]):  # modules of the losses start from this seed
                torch.default_generator.manual_seed(self.generator.initial_seed())
                extras = [term.bind(Probe(student, teacher, batch)) for term in self.terms]
        self.extras = nn.ModuleList([extra for extra in extras if extra is not None])
        self._like = batch.x
        self.randomness = randomness if draws else None

    def _student_raw(self, x: X, need: str) -> Tensor:
        dtype = input_dtype(self.student)
        for name, part in floats(x).items():
            if dtype is not None and part.dtype != dtype:
                raise ArgumentError(label("inputs", name), part.dtype, f"the student's {dtype}")
        try:
            if need == "density":
                return View(self.student, x, self.form).log_density()
            raw: Tensor = self.student(x)
            return raw
        except (RuntimeError, ArgumentError) as error:
            raise misfit("student", x, error) from error

    def _refuse_unnormalised(self) -> None:
        r"""Refuse students whose log density grows without bound under a loss that maximises it."""
        normalised = self._declared or (self.form != "auto" and hasattr(self.student, "log_prob"))
        if not normalised and (self.form == "auto" or hasattr(self.student, "log_unnormalized")):
            received = f"{type(self.student).__name__}, which has no method log_prob"
            expected = f"a normalised density for {self.loss!r}: a module with log_prob(x), or "
            expected += 'student_output="log_density" for one whose outputs are log densities'
            raise ArgumentError("student", received, expected)

    def _refuse_biased_and_dependent(self) -> None:
        r"""Refuse losses that the teacher biases, and students whose examples depend on others."""
        if self.requires and self.teacher.source is None:
            expected = f"a teacher, since {self.loss!r} compares with one"
            raise ArgumentError("teacher", None, expected)
        for term in self.terms:
            if term.bias and not self.teacher.exact:
                raise InexactTeacherError(
                    f"loss: {term!r} is biased with a teacher that gives one draw at a time: "
                    f"{term.bias}. Accepted: cross_entropy at temperature 1, square_error, "
                    'derivative_error in the plain domain with weight="uniform", or in the log '
                    'domain with weight="teacher".'
                )
        differentiates = any(term.differentiates for term in self.terms)
        for name, module in self.student.named_modules() if differentiates else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                received = f"the layer {name!r}, which mixes the examples of a batch while training"
                expected = "for derivative losses, a student whose examples are independent: "
                expected += "LayerNorm, or the layer in eval() mode"
                raise ArgumentError("student", received, expected)

    def draw(self, n: int | None) -> Plan:
        r"""All random tensors of one step at n inputs, or at the inputs' own next batch."""
        plan: Plan = {"inputs": self.inputs.draw(n)}  # type: ignore[arg-type]
        n = rows(self.batch(plan).x) if n is None else n
        if self.requires and self.teacher.opaque:
            plan["teacher"] = self.teacher.prepare(self.batch(plan))
        elif self.requires:
            plan["teacher"] = self.teacher.draw(n)
        draws = Draws(n, self.outputs, self._like, self.teacher.signs, self.generator)
        return plan | {"loss": [term.draw(draws) for term in self.terms]}

    def batch(self, plan: Plan) -> Batch:
        r"""The batch of a plan."""
        return as_batch(self.inputs.build(plan["inputs"]))

    def forward(self, plan: Plan) -> tuple[Tensor, ...]:
        r"""Each term's loss at each example, (n,), with its importance, without coefficients."""
        batch = self.batch(plan)
        values = self._terms(batch, self.teacher, plan.get("teacher"), plan["loss"])
        return values if batch.weight is None else tuple(batch.weight * term for term in values)

    def _terms(
        self, batch: Batch, teacher: Teacher, targets: object, draws: Iterable[Drawn]
    ) -> tuple[Tensor, ...]:
        student = View(self.student, batch.x, self.form)
        view = teacher.view(batch, targets) if self.requires else student
        pairs = zip(self.terms, draws, strict=True)
        return tuple([term(student, view, batch, drawn) for term, drawn in pairs])

    def total(self, values: tuple[Tensor, ...]) -> Tensor:
        r"""The loss of each example, (n,), from its terms."""
        return sum(c * term for c, term in zip(self.coefficients, values, strict=True))  # type: ignore[return-value]

    @torch.no_grad()
    def at(self, batch: Batch, teacher: Teacher | None = None) -> Tensor:
        r"""The present loss of each example of a batch, (n,), without its weight."""
        n, teacher = rows(batch.x), teacher or self.teacher
        targets = teacher.prepare(batch) if self.requires else None
        draws = Draws(n, self.outputs, self._like, teacher.signs, self.generator)
        with keep_buffers(self.student):
            drawn = [term.draw(draws) for term in self.terms]
            return self.total(self._terms(batch, teacher, targets, drawn))

    def release(self) -> None:
        r"""Restore modes and hooks of both models."""
        self.original_teacher.release()
        close_taps(self.student)

    def rng_state(self) -> dict[str, Tensor]:
        r"""The states of all generators: of losses, student, inputs and a live teacher."""
        state = {"loss.generator": self.generator.get_state()}
        if self.randomness is not None:
            state["student.generator"] = self.randomness.state
        state |= {f"inputs.{name}": value for name, value in self.inputs.state_dict().items()}
        return state | {f"teacher.{name}": t for name, t in self.teacher.state_dict().items()}

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["loss.generator"].cpu())
        if self.randomness is not None:
            self.randomness.state = state["student.generator"].cpu()
        self.inputs.load_state_dict(strip_prefix("inputs.", state))
        self.teacher.load_state_dict(strip_prefix("teacher.", state))


@contextmanager
def keep_buffers(module: nn.Module) -> Iterator[None]:
    r"""Restore a module's buffers, such as running statistics, after the block."""
    owners = [owner._buffers for owner in module.modules() if owner._buffers]
    places = [(place, dict(place)) for place in owners]
    copies = [(b, b.clone()) for place in owners for b in place.values() if b is not None]
    try:
        yield
    finally:
        for place, buffers in places:  # where the module has put other tensors
            place.update(buffers)
        with torch.no_grad():
            for buffer, before in copies:
                buffer.copy_(before)
