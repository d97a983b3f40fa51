r"""A user's log density of draws, as a density over unconstrained coordinates."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import warnings
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import map_tensors
from limbeck.distributions.conversion import validation
from limbeck.errors import ArgumentError
from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Structure, spread
from limbeck.supports import Real


class LogDensity:
    r"""log p̃ of unconstrained rows: a log density of draws, and the volume of their coordinates.

    The function may take one draw or many: both are tried. It is a target over real rows, where
    errors and NaN count as a density of zero; at the draws themselves they are refused.

    Arguments:
        function: The user's log density.
        structure: Names and shapes of the draws' variables.
        coordinates: Their unconstrained coordinates.
        rows: Draws (n, numbers of a draw), in float64.
        dtype: The floating type of the draws; another is tried if the function fails.
    """

    def __init__(
        self, function: Callable[..., Any], structure: Structure, coordinates: Coordinates,
        rows: Tensor, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.function, self.structure, self.coordinates = function, structure, coordinates
        self.support = Real(coordinates.dim)
        self.failures = 0  # rows at which it raised or was not a number
        examples = rows[spread(len(rows), 6)]
        self._example = examples[0]
        self._keywords = False  # whether the variables of a draw are its arguments
        with contextlib.suppress(TypeError, ValueError):  # without a signature
            names = set(inspect.signature(function).parameters)
            self._keywords = not structure.vector and names == set(structure.names)
        # "batch": with all draws at once; "map": by vmap; "loop": draw by draw; of this type
        self._call: tuple[str, torch.dtype] = self._find_call(examples, dtype)
        try:
            with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
                examples = examples.clone().requires_grad_()
                torch.autograd.grad(self._evaluate(examples, self._call).sum(), examples)
            self.differentiable = True
        except Exception:  # of the user's code, such as NumPy functions
            self.differentiable = False

    @property
    def batched(self) -> bool:
        r"""Whether many draws are evaluated at once."""
        return self._call[0] != "loop"

    def _find_call(self, rows: Tensor, dtype: torch.dtype) -> tuple[str, torch.dtype]:
        other = torch.float32 if dtype == torch.float64 else torch.float64
        reason: Exception | None = None  # why it cannot be called draw by draw
        for kind, how in itertools.product((dtype, other), ("batch", "map", "loop")):
            call = (how, kind)
            try:
                log, part = self._evaluate(rows, call), self._evaluate(rows[:3], call)
            except Exception as error:  # of the user's code
                reason = error if how == "loop" and reason is None else reason
            else:
                if torch.allclose(log[:3], part, 1e-4, 1e-4, equal_nan=True):
                    return call
        if isinstance(reason, ArgumentError):
            raise reason
        received = f"{type(reason).__name__}: {' '.join(str(reason).split())[:300]}"
        received = received if reason else "other values for a part of the draws"
        expected = f"a function of draws, of {self.structure}"
        raise ArgumentError("log_density", received, expected) from reason

    def _evaluate(self, rows: Tensor, call: tuple[str, torch.dtype]) -> Tensor:
        r"""The user's numbers (n,) at rows of draws, in float64."""

        def function(draws: Any) -> Tensor:
            with validation(True):  # or values outside of a support would have a density
                log = self.function(**draws) if self._keywords else self.function(draws)
            return log if isinstance(log, Tensor) else torch.as_tensor(np.asarray(log))

        def one(draws: Any) -> Tensor:
            log = function(draws)
            if log.numel() != 1:
                received = f"shape {tuple(log.shape)} for one draw"
                raise ArgumentError("log_density", received, "one number, a sum over the data")
            return log.reshape(())

        how, dtype = call
        draws = self.structure.unflatten(rows.to(dtype))
        if how == "map":
            log = torch.func.vmap(one)(draws)
        elif how == "loop":
            several = (map_tensors(itemgetter(i), draws) for i in range(len(rows)))
            log = torch.stack([one(draw) for draw in several])
        else:
            log = function(draws)
        log = log[:, 0] if log.shape == (len(rows), 1) else log
        if log.shape != (len(rows),):
            received = f"shape {tuple(log.shape)} for {len(rows)} draws"
            raise ArgumentError("log_density", received, f"shape ({len(rows)},)")
        if not log.is_floating_point():
            raise ArgumentError("log_density", f"values of {log.dtype}", "real numbers")
        return log.double()

    @torch.no_grad()
    def at_draws(self, rows: Tensor) -> Tensor:
        r"""log densities (n,) of draws themselves, which must be numbers or −∞."""
        try:
            blocks = rows.split(max(1, 2**22 // rows.shape[1]))
            log = torch.cat([self._evaluate(block, self._call) for block in blocks])
        except ArgumentError:
            raise
        except Exception as error:  # of the user's code
            received = f"{type(error).__name__} at some draws: {' '.join(str(error).split())[:300]}"
            raise ArgumentError("log_density", received, "numbers at all draws") from error
        wrong = log.isnan() | (log == math.inf)
        if count := int(wrong.sum()):
            received = f"{log[wrong][0].item()} at {count:,} of {len(log):,} draws"
            expected = "numbers, or −∞ outside the support"
            raise ArgumentError("log_density", received, expected)
        if not (log > -math.inf).any():
            raise ArgumentError("log_density", "−∞ at all draws", "a density above zero there")
        return log

    def log_unnormalized(self, u: Tensor) -> Tensor:
        r"""log p̃(u), (n,), of unconstrained rows; −∞ where it cannot be evaluated."""
        rows, volume = self.coordinates.constrained(u)
        # not evaluated where numbers are too large or small: errors of users' functions are slow
        inside = rows.isfinite().all(1) & volume.isfinite()
        rows = torch.where(inside[:, None], rows, self._example)
        log = torch.where(inside, self._protected(rows) + volume, -math.inf)
        bad = log.isnan() | (log == math.inf)
        self.failures += int(bad.sum())
        return torch.where(bad, -math.inf, log)

    def _protected(self, rows: Tensor) -> Tensor:
        r"""log densities (n,), −∞ at the rows where the function raises."""
        try:
            return self._evaluate(rows, self._call)
        except Exception:  # of the user's code, such as a scale of zero
            if len(rows) > 1:
                return torch.cat([self._protected(part) for part in rows.tensor_split(2)])
            self.failures += 1
            return 0 * rows.nan_to_num(0.0, 0.0, 0.0).sum(1) - math.inf  # with a derivative of 0

    @torch.no_grad()
    def unused(self, rows: Tensor) -> list[str]:
        r"""Unbounded variables of draws (n, …) that the log density does not depend on."""
        u = self.coordinates.unconstrained(rows[spread(len(rows), 8)])
        before, _ = self.coordinates.constrained(u)
        names = list[str]()
        for coordinate in spread(self.coordinates.dim, 500):
            changed = u.clone()
            changed[:, coordinate] = u[:, coordinate].roll(1)
            after, _ = self.coordinates.constrained(changed)
            same = self._protected(before) == self._protected(after)
            if same.all() and not (changed == u).all():
                names.append(self.coordinates.owner(coordinate))
        bounded = {part.name for part in self.coordinates.parts if part.bounded}
        return [name for name in dict.fromkeys(names) if name not in bounded]
