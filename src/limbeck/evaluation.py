r"""Values and input derivatives of any model, each computed once and only if needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap
from torch.nn import functional as F

from limbeck import outputs as forms
from limbeck.arguments import Choice, Items, Text, UserObject, checked_arguments, choice
from limbeck.arrays import X, as_dict, floats, rows
from limbeck.errors import ArgumentError, NotDifferentiableError, shown


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    r"""Context with a module in evaluation mode; the mode of every layer is restored afterwards."""
    layers = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [layer.training for layer in layers]
    try:
        for layer in layers:  # directly: a module's `eval` may do what cannot be undone
            layer.training = False
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode


TAPS = "_limbeck_taps"  # the attribute of a module that holds our hooks
Parts: TypeAlias = dict[str, Tensor]  # floating-point inputs by name


def close_taps(model: object) -> None:
    r"""Remove the hooks by which hidden layers were read."""
    if isinstance(model, nn.Module):
        for _, hook in model.__dict__.pop(TAPS, {}).values():
            hook.remove()


class View:
    r"""A model at n inputs x, as losses see it; each quantity is computed once, when it is needed.

    It has I outputs and D differentiable inputs. The domain of a derivative is "log" (of log
    probabilities), "plain" or "density". Examples must be independent: then one pull-back of the
    batch gives each example's derivatives. A model's `log_probabilities`, `log_prob` or
    `log_unnormalized` are used, if it has them.
    """

    who = "model"  # what errors call it

    def __init__(self, model: Callable[..., Tensor], x: X, form: str) -> None:
        self.model, self.x, self.form = model, x, form
        self._known: dict[Any, Any] = {}

    def raw(self) -> Tensor:
        r"""The raw outputs of the model; for a density, its log density."""
        if "raw" not in self._known:
            self._known["raw"] = self._call(self.x)
        return self._known["raw"]

    def outputs(self, domain: str) -> Tensor:
        r"""Outputs (n, I) in the domain of a derivative."""
        if domain not in self._known:
            self._known[domain] = self._in_domain(domain, self.x, self.raw)
        return self._known[domain]

    def values(self) -> Tensor:
        r"""Outputs (n, I): probabilities if the model returns any form of them, else values."""
        return self.outputs("plain")

    def log_density(self) -> Tensor:
        r"""Log density (n,), normalised or not."""
        return self.outputs("density")[:, 0]

    def probabilities(self, temperature: float = 1.0) -> Tensor:
        r"""Probabilities (n, I)."""
        if temperature != 1.0:
            return self.log_probabilities(temperature).exp()
        if self.form == "values":
            return self.log_probabilities()  # which refuses
        return self.outputs("plain")

    def log_probabilities(self, temperature: float = 1.0) -> Tensor:
        r"""Log probabilities (n, I)."""
        logs = self.outputs("log")
        return logs if temperature == 1.0 else F.log_softmax(logs / temperature, dim=1)

    def derivatives(self, domain: str) -> Tensor:
        r"""Derivatives of every output with respect to every input, (n, I, D)."""
        if ("derivatives", domain) not in self._known:
            outputs, _ = self._linear(domain)
            count, size = outputs.shape
            basis = torch.eye(size, dtype=outputs.dtype, device=outputs.device)[:, None, :]
            jacobian = self.projected(domain, basis.expand(size, count, size))
            self._known["derivatives", domain] = jacobian
        return self._known["derivatives", domain]

    def projected(self, domain: str, cotangents: Tensor) -> Tensor:
        r"""Derivatives of k combinations of the outputs, cotangents (k, n, I), as (n, k, D)."""
        _, pull = self._linear(domain)
        if cotangents.shape[0] == 1:
            parts = pull(cotangents[0])[0]
            flat = [part.unsqueeze(-1).flatten(1).unsqueeze(1) for part in parts.values()]
        else:
            parts = vmap(pull, out_dims=1)(cotangents)[0]
            flat = [part.unsqueeze(-1).flatten(2) for part in parts.values()]  # (n,) is (n, 1)
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=2)

    def projection(self, domain: str, weight: str, signs: Tensor) -> tuple[Tensor, Tensor]:
        r"""As a target: cotangents (k, n, I) made of signs (k, n, I) in {0, 1}, and `projected`."""
        if weight == "teacher":
            scale = self.probabilities().clamp_min(0).sqrt()  # rounded ones may be below zero
        else:
            scale = torch.full_like(self.outputs(domain), signs.shape[-1] ** -0.5)
        cotangents = (2 * signs.to(scale.dtype) - 1) * scale
        return cotangents, self.projected(domain, cotangents)

    def directional(self, domain: str, directions: X) -> Tensor:
        r"""Derivatives of every output along one direction per input, (n, I)."""
        parts, function = self._function(domain)
        along = as_dict(directions)
        tangents = {
            name: along[name].expand_as(part) if name in along else torch.zeros_like(part)
            for name, part in parts.items()
        }
        return jvp(function, (parts,), (tangents,))[1]

    def hidden(self, name: str) -> Tensor:
        r"""The output of the submodule of that name; `close_taps` takes the hooks off again."""
        if ("hidden", name) in self._known:
            return self._known["hidden", name]
        model: object = self.model
        if not isinstance(model, nn.Module):
            raise ArgumentError("hints", f"a model of type {type(model).__name__}", "torch modules")
        taps = model.__dict__.setdefault(TAPS, {})
        if name not in taps:  # once: compilers can trace a hook, but not the adding of one
            named, outputs = dict(model.named_modules()), list[Tensor]()
            if name not in named:
                raise ArgumentError.unknown("hints", name, named.keys() - {""})
            hook = named[name].register_forward_hook(lambda module, x, y: outputs.append(y))
            taps[name] = outputs, hook
        outputs = taps[name][0]
        outputs.clear()
        model(self.x)
        return self._known.setdefault(("hidden", name), outputs.pop())

    def _linear(self, domain: str) -> tuple[Tensor, Callable[[Tensor], Any]]:
        if ("linear", domain) not in self._known:
            parts, function = self._function(domain)
            outputs, pull = vjp(function, parts)[:2]
            self._known.setdefault(domain, outputs)  # so that values need no second pass
            self._known["linear", domain] = outputs, pull
        return self._known["linear", domain]

    def _function(self, domain: str) -> tuple[Parts, Callable[[Parts], Tensor]]:
        parts = floats(self.x)
        if not parts:
            text = "inputs: no floating-point part, so nothing to differentiate with respect to"
            raise NotDifferentiableError(text)

        def function(parts: Parts) -> Tensor:
            x = parts[""] if isinstance(self.x, Tensor) else {**self.x, **parts}
            return self._in_domain(domain, x, lambda: self._call(x))

        return parts, function

    def _call(self, x: X) -> Tensor:
        return (_density_of(self.model) if self.form == "log_density" else self.model)(x)

    def _in_domain(self, domain: str, x: X, raw: Callable[[], Tensor]) -> Tensor:
        if domain == "log":
            log_probabilities = getattr(self.model, "log_probabilities", None)
            if log_probabilities is not None and self.form != "logits":
                return forms.check_class_axis(log_probabilities(x), self.who)
            y = forms.check_class_axis(raw(), self.who)
            return forms.log_probabilities(forms.values(y), self.form)
        if domain == "density":
            density = _density_of(self.model)
            log_p = raw() if density is self.model else density(x)
            if log_p.numel() != rows(x):
                received = f"outputs of shape {tuple(log_p.shape)} for {rows(x)} inputs"
                raise ArgumentError(self.who, received, "a log density for each input, (n,)")
            return log_p.reshape(rows(x), 1)
        if self.form not in forms.FORMS[:3]:
            return forms.values(raw())
        y = forms.values(forms.check_class_axis(raw(), self.who))
        y = forms.probabilities(y, self.form)
        return forms.columns(1 - y, y) if y.shape[1] == 1 else y


def _density_of(model: Callable[..., Tensor]) -> Callable[[X], Tensor]:
    named = (getattr(model, name, None) for name in ("log_prob", "log_unnormalized"))
    return next((method for method in named if method is not None), model)


class Evaluation(NamedTuple):
    r"""Values (n, I) and, if requested, derivatives (n, I, D) of a model at n inputs."""

    values: Tensor
    derivatives: Tensor | None = None


@checked_arguments
def evaluate(
    model: UserObject[Callable[[X], Tensor]],
    x: UserObject[X],
    quantities: Text | Items[Iterable[str]] = ("values",),
    *,
    output: Annotated[str, Choice(*forms.FORMS)] = "values",
    domain: Annotated[str, Choice("log", "plain")] = "plain",
) -> Evaluation:
    r"""Values of a model and, if requested, exact derivatives of every output with respect to x.

    Arguments:
        model: Any `nn.Module` or callable on tensors; it is used frozen, in evaluation mode.
        x: Inputs (n, ...), or a dict of such; derivatives are taken of its floating parts,
            flattened and side by side.
        quantities: "values", "derivatives", or both. Default: "values".
        output: The form of the model's outputs, one of `forms.FORMS`. Default: "values".
        domain: "plain", or "log" for log probabilities and their derivatives. Default: "plain".

    >>> evaluate(lambda x: x**2, torch.tensor([[3.0]]), ("values", "derivatives")).derivatives
    tensor([[[6.]]])
    """
    if not callable(model) or isinstance(model, type):
        raise ArgumentError("model", shown(model), "a module, or a function of tensors")
    parts = x.values() if isinstance(x, dict) else [x]
    if not all(isinstance(part, Tensor) and not part.is_meta for part in parts):
        raise ArgumentError("x", shown(x), "a tensor (n, ...), or a dict of such")
    for name in [quantities] if isinstance(quantities, str) else quantities:
        choice("quantities", name, ("derivatives", "values"))
    with evaluating(model):
        if "derivatives" in quantities and not depends_on_inputs(model, x):
            text = "model: its outputs carry no derivatives with respect to x (a forest, a remote "
            text += "model or detached tensors); request values only"
            raise NotDifferentiableError(text)
        with torch.no_grad():
            view = View(model, x, output)
            if not isinstance(raw := view.raw(), Tensor) or not raw.ndim:
                received = f"outputs {shown(raw)}"
                raise ArgumentError("model", received, "a tensor (n, ...) of outputs")
            derivatives = view.derivatives(domain) if "derivatives" in quantities else None
            return Evaluation(view.outputs(domain), derivatives)


def depends_on_inputs(model: Callable[[X], Tensor], x: X) -> bool:
    r"""Whether autograd can differentiate the model's outputs with respect to its inputs."""
    parts = {name: part.detach().requires_grad_() for name, part in floats(x).items()}
    if not parts:
        return False
    try:
        with torch.enable_grad():
            outputs = model(parts[""] if isinstance(x, Tensor) else {**x, **parts})
            if not (isinstance(outputs, Tensor) and outputs.requires_grad):
                return False
            gradients = torch.autograd.grad(outputs.sum(), list(parts.values()), allow_unused=True)
    except (RuntimeError, TypeError):  # e.g. `.numpy()` on a tensor that requires grad
        with torch.no_grad():
            model(x)  # which raises its own error, if something else is wrong
        return False
    return any(gradient is not None for gradient in gradients)
