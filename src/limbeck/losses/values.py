r"""Losses on values: outputs, probabilities, logits, labels, hidden units and densities."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from limbeck import outputs as forms
from limbeck.arguments import Finite, Positive, Text, checked_arguments
from limbeck.arrays import Batch
from limbeck.errors import ArgumentError, shown
from limbeck.evaluation import View
from limbeck.losses.base import Drawn, Loss, Probe


class square_error(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""½‖f − t‖², on probabilities if the models return any form of them, else on values."""

    requires = frozenset({"values"})
    compares = "values"

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        return (student.values() - teacher.values()).square().sum(1) / 2


class cross_entropy(Loss):  # noqa: N801
    r"""−T² Σ_i t_i log f_i, both softened by the temperature T.

    The factor T² keeps the gradients' size when T changes (Hinton et al. 2015).

    Arguments:
        temperature: T, above zero. Unless it is 1, the gradient is not affine in the targets.
            Default: 1.
    """

    requires = frozenset({"values"})
    needs = "probabilities"
    compares = "classes"

    @checked_arguments
    def __init__(self, temperature: Positive = 1.0) -> None:
        self.temperature = temperature
        if temperature != 1:
            self.bias = "softened probabilities of single draws do not average to those of the mean"

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        targets = teacher.probabilities(self.temperature)
        return self.temperature**2 * -(targets * student.log_probabilities(self.temperature)).sum(1)


class logit_error(Loss):  # noqa: N801
    r"""½‖z_f − z_t‖² with z the centred logits (Ba & Caruana 2014), for models in any form."""

    requires = frozenset({"values"})
    needs = "probabilities"
    compares = "classes"
    bias = "logits are logarithms, and the mean of logarithms is not the logarithm of the mean"

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        difference = student.log_probabilities() - teacher.log_probabilities()
        return (difference - difference.mean(1, keepdim=True)).square().sum(1) / 2


class label_cross_entropy(Loss):  # noqa: N801
    r"""−log f_y at the true labels: class numbers (n,), or probabilities (n, I)."""

    needs = "probabilities"

    def bind(self, probe: Probe) -> None:
        labels, outputs = _labels(probe.batch), probe.student.log_probabilities().shape[-1]
        shape = tuple(labels.shape)
        if labels.is_floating_point():
            if shape[1:] != (outputs,):
                raise ArgumentError("y", f"shape {shape}", f"(n, {outputs}) probabilities")
            return
        if labels.ndim > 1:
            raise ArgumentError("y", f"shape {shape}", "(n,) class numbers")
        low, high = labels.min().item(), labels.max().item()
        if low < 0 or high >= outputs:
            received = f"class numbers from {low} to {high}"
            raise ArgumentError("y", received, f"class numbers from 0 to {outputs - 1}")

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        labels, logs = _labels(batch), student.log_probabilities()
        if labels.is_floating_point():
            return -(labels * logs).sum(-1)
        return F.nll_loss(logs, labels.long(), reduction="none")


class label_square_error(Loss):  # noqa: N801
    r"""½‖f − y‖² at the true labels, for regression."""

    needs = "values"

    def bind(self, probe: Probe) -> None:
        labels, values = _labels(probe.batch), probe.student.values()
        received, shape = f"shape {tuple(labels.shape)}", probe.student.raw().shape
        if labels.numel() != values.numel():
            raise ArgumentError("y", received, f"shape {tuple(values.shape)}")
        if not forms.same_layout(labels.shape, shape):
            raise ArgumentError("y", received, f"shape {tuple(shape)}, as the student's outputs")

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        values = student.values()
        return (values - _labels(batch).reshape(values.shape)).square().sum(1) / 2


def _labels(batch: Batch) -> Tensor:
    if batch.y is None:
        expected = "inputs with labels, such as Dataset(X, y), for this loss"
        raise ArgumentError("inputs", "no labels", expected)
    return batch.y


class multilabel_cross_entropy(Loss):  # noqa: N801
    r"""Σ_k softplus(z_k) − t_k z_k: a cross entropy for each of K independent labels.

    The student's values z (n, K) are the labels' logits, the teacher's values t (n, K) their
    probabilities; both are of the form "values", since they do not sum to one over k.
    """

    requires = frozenset({"values"})
    needs = "values"
    compares = "values"

    def bind(self, probe: Probe) -> None:
        for argument, view, refused, kind in (
            ("student_output", probe.student, forms.FORMS[:3], "logits"),
            ("teacher_output", probe.teacher, forms.FORMS[:1], "probabilities"),
        ):
            if view.form in refused:
                expected = f"'values', the {kind} of labels that do not exclude each other"
                raise ArgumentError(argument, shown(view.form), expected)
        super().bind(probe)
        forms.check_probabilities(probe.teacher.values().reshape(-1, 1), "teacher")  # one by one

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        z = student.values()
        return (F.softplus(z) - teacher.values() * z).sum(1)


class hints(Loss):  # noqa: N801
    r"""½‖r(h_student) − h_teacher‖², with a regressor r that is trained too and then dropped.

    Arguments:
        teacher_layer: The name of a submodule of the teacher, as in `named_modules()`.
        student_layer: The name of a submodule of the student.
        regressor: A module from the student's to the teacher's hidden units. Default: one linear
            layer of the right size.
    """

    requires = frozenset({"hidden"})

    @checked_arguments
    def __init__(
        self, teacher_layer: Text, student_layer: Text, regressor: nn.Module | None = None
    ) -> None:
        self.teacher_layer, self.student_layer = teacher_layer, student_layer
        self.initial = self.regressor = regressor

    def bind(self, probe: Probe) -> nn.Module | None:
        target = probe.teacher.hidden(self.teacher_layer).flatten(1)
        source = probe.student.hidden(self.student_layer).flatten(1)
        sizes = source.shape[1], target.shape[1]
        regressor = nn.Linear(*sizes) if self.initial is None else self.initial
        self.regressor = regressor.to(device=source.device, dtype=source.dtype)
        try:
            predicted = self.regressor(source).flatten(1)
        except RuntimeError as error:
            received = f"a module that fails on the units of {self.student_layer!r}: {error}"
            expected = f"one that takes {source.shape[1]} inputs"
            raise ArgumentError("regressor", received, expected) from error
        if predicted.shape != target.shape:
            expected = f"{target.shape[1]} outputs, the units of {self.teacher_layer!r}"
            raise ArgumentError("regressor", f"{predicted.shape[1]} outputs", expected)
        return self.regressor

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        assert self.regressor is not None  # made by bind
        predicted: Tensor = self.regressor(student.hidden(self.student_layer).flatten(1))
        target = teacher.hidden(self.teacher_layer).flatten(1)
        return (predicted.flatten(1) - target).square().sum(1) / 2


class _LogDensities(Loss):
    r"""A loss on the log densities of both models."""

    requires = frozenset({"values"})
    needs = "density"
    bias = "log densities are not averages over draws"


class kl(Loss):  # noqa: N801
    r"""KL(p ‖ f) up to a constant: −log f(x) at inputs x drawn from the teacher."""

    needs = "density"
    normalised = True

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        return -student.log_density()


class log_density_error(_LogDensities):  # noqa: N801
    r"""½(log f(x) − log p̃(x) + c)² at inputs drawn from the teacher.

    Its minimum is at f = p for every c ≤ log Z, since it equals
    E⁰ + (log Z − c)·KL(p ‖ f) + ½(log Z − c)²; as c → −∞ it becomes the KL divergence.

    Arguments:
        c: At most log Z; for discrete x, for example the largest known log p̃(x). Default: 0.
    """

    @checked_arguments
    def __init__(self, c: Finite = 0.0) -> None:
        self.c = c

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        return (student.log_density() - teacher.log_density() + self.c).square() / 2


class reverse_kl(_LogDensities):  # noqa: N801
    r"""KL(f ‖ p) up to log Z, at inputs x that are samples of the student itself.

    The value at an example is r(x) = log f(x) − log p̃(x), whose mean is KL(f ‖ p) − log Z. Since
    the samples depend on the parameters, the gradient is REINFORCE's, (r(x) − b) ∂log f(x), where
    b is the mean of r over the other examples of the batch, 0 in a batch of one.
    """

    storable = False
    normalised = True

    def bind(self, probe: Probe) -> None:
        if probe.batch.index is not None:
            expected = "samples of the student itself: limbeck.inputs.Samples(student)"
            raise ArgumentError("inputs", "rows of a data set, for reverse_kl", expected)

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        log_f = student.log_density()
        r = (log_f - teacher.log_density()).detach()
        others = len(r) - 1
        advantage = (r - r.mean()) * (len(r) / others) if others else r
        surrogate = advantage * log_f
        return r + surrogate - surrogate.detach()


class score_matching(_LogDensities):  # noqa: N801
    r"""½‖∂log f(x) − ∂log p̃(x)‖², for continuous x whose density is positive everywhere."""

    differentiates = True
    requires = frozenset({"derivatives"})
    domain = "density"

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        residual = student.derivatives("density") - teacher.derivatives("density")  # (n, 1, D)
        return residual.square().sum((1, 2)) / 2
