r"""`condense`: draws of a posterior, stored or still to come, in; a small predictive model out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from limbeck.arguments import whole, whole_number
from limbeck.condensation.assembling import as_loss
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.conditional import Making, condense_conditional
from limbeck.condensation.densities import check_options, condense_density
from limbeck.condensation.precomputed import condense_predictions
from limbeck.condensation.teachers import is_online
from limbeck.errors import ArgumentError
from limbeck.losses.base import Loss
from limbeck.posteriors.read import as_draws

__all__ = ["condense"]

THESIS = {"optimizer": "sgd", "lr": 1.0, "schedule": "linear", "batch_size": 10}
r"""The source text's settings; its number of steps is the default one anyway."""


def condense(
    posterior: Any = None,
    predict: Callable[..., Any] | None = None,
    inputs: Any = None,
    *,
    components: int = 10,
    student: nn.Module | None = None,
    loss: Loss | str = "auto",
    online: bool | str = "auto",
    predictions: Any = None,
    support: Any = "auto",
    weighted: bool = False,
    var_names: str | Sequence[str] | None = None,
    burn_in: int = 0,
    thin: int = 1,
    layout: str = "auto",
    covariance: str = "full",
    samples: int = 10_000,
    restarts: int | None = None,
    steps: int = 5_000,
    batch_size: int | str = "auto",
    pool: int | str | None = "auto",
    share: int | str = "auto",
    held_out: Any = "auto",
    preset: str = "auto",
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: bool = True,
    **options: Any,
) -> Condensed:
    r"""Distil the predictions of all draws of a posterior into one small model.

    With stored draws the teacher is the average over all of them (batch). With a stream it is one
    fresh draw an input (online), and memory does not grow with the number of draws. If a stream
    ends early, raises, or gives a batch with NaN or of another shape, the student so far is given
    back, and `stop_reason` tells; but for the first, there is a warning as well. Before the first
    step these are errors.

    Arguments:
        posterior: The draws: an array (draw, dim), a dict of arrays (chain, draw, ...), an ArviZ
            object, a file, or an iterator of batches; see `limbeck.posteriors.read.as_draws`.
        predict: A function of one draw (a vector, or a dict of tensors) and all of x, that gives
            one of limbeck's distributions for each input; without inputs, a function of a draw
            that gives one density. `limbeck.condensation.models` has ready-made ones.
        inputs: Where predictions are to be alike: anything that `limbeck.inputs` takes; None for
            a density without inputs.
        components: Pseudo-draws of the student, or components of a density.
        student: A module: of logits (n, K) for classes, of (mean, log scale) for real numbers, of
            log rates for counts, or of limbeck's distributions; None makes a `SampleBag`, or a
            `GaussianMixture` without inputs. It is trained in place.
        loss: "cross_entropy" (the default), "derivative_error", or from `limbeck.losses`.
        online: Whether to use one draw an input; "auto" does so with streams and with stored draws
            of more than a gigabyte.
        predictions: What the draws say of the inputs, computed elsewhere: probabilities (S, n) or
            (S, n, K), averages of them (n,) or (n, K), or a distribution with such parameters.
        support: Where variables of a bag are to stay; see `SampleBag`.
        weighted: Whether the components of a bag have trained weights.
        var_names: Variables to take, or, as "~name", to leave out.
        burn_in: How many draws of each chain to leave out at the beginning.
        thin: Take every so manieth draw of each chain.
        layout: What the first axes of arrays are; see `limbeck.posteriors.read.as_draws`.
        covariance: Without inputs, the kind of covariances: "full", "diagonal", "spherical".
        samples: Without inputs, the number of samples that batch EM fits a mixture to.
        restarts: Without inputs, the starts of EM, of which the best is kept; by default 10, and 4
            online.
        steps: The number of steps.
        batch_size: Inputs a step; 200 by default. A torch DataLoader as inputs keeps its own size.
        pool: Batch only: how many inputs are drawn, once, from a source that does not end, so that
            the average over all draws need not be taken anew for each; None draws fresh inputs at
            each step. "auto" is 5,000 to 50,000, fewer for more draws, and none of a loader whose
            batches have no one size.
        share: Online only: by how many of the draws of a minibatch each input is predicted. More
            take noise away at the cost of predictions; their mean and the memory are the same. 1
            is the source text's way; "auto" is up to 16.
        held_out: Inputs that the student is not trained on and that it is measured at, in
            `new_inputs` of the result, with a `limbeck.HeldOutWarning` where it is clearly worse
            there. "auto" holds out a fifth of the different rows of a data set, from 5 to 1,000,
            and none of fewer than 20; equal rows stay together. A number is the fraction to hold
            out. Inputs of your own are measured at in place of rows, and the loss on them is
            recorded, except beside a stream that cannot go back. A source that does not end is
            measured at a fresh draw. 0 or None trains on all rows, and the result says that it is
            unchecked at new inputs. With `patience` the held-out rows also decide when to stop,
            and the result says so.
        preset: "thesis" for the source text's settings: plain gradient descent with a rate from 1
            to 0, batches of 10 fresh inputs, a bag that starts at standard normal numbers.
        seed: Seeds everything.
        device: Where to run; "auto" is a GPU if there is one.
        progress: Whether to show bars, if a terminal is there.
        options: Further arguments of `limbeck.distill`: optimizer, schedule, lr, engine, metrics,
            checkpoint, patience, ….
    """
    check_options(options)
    if preset not in ("auto", "thesis"):
        raise ArgumentError.unknown("preset", preset, ("auto", "thesis"))
    thesis = preset == "thesis"
    options |= {"steps": whole("steps", steps), "batch_size": batch_size}
    options |= {"seed": whole_number("seed", seed, "a whole number"), "device": device}
    options["progress"] = progress
    if thesis:
        own = isinstance(inputs, DataLoader) or getattr(inputs, "own_batches", False)
        settled = {k: v for k, v in THESIS.items() if k != "batch_size" or not own}
        options = settled | {k: v for k, v in options.items() if v != "auto" or k == "device"}
        options.setdefault("batch_size", "auto")
        pool, share = (None if pool == "auto" else pool), (1 if share == "auto" else share)
    draws = None
    if posterior is not None:
        draws = as_draws(posterior, var_names=var_names, burn_in=burn_in, thin=thin, layout=layout)
    how = ("normal", False) if thesis else ("draws", True)
    making = Making(components, support, weighted, *how)
    if predictions is not None:
        return condense_predictions(
            predictions, inputs, predict, draws, student, as_loss(loss), making, held_out,
            options,
        )  # fmt: skip
    if draws is None or predict is None:
        name, what = (
            ("posterior", "draws") if draws is None else ("predict", "a function of a draw")
        )
        raise ArgumentError(name, None, f"{what}; or predictions= of the draws at the inputs")
    flows = is_online(online, draws)
    if inputs is None:
        if not (held_out is None or isinstance(held_out, str | int | float)):
            options["held_out"] = held_out
        return condense_density(
            draws, predict, student, components, covariance, samples, restarts, flows, options
        )
    return condense_conditional(
        draws, predict, inputs, student, as_loss(loss), flows, making, pool, share, held_out,
        options,
    )  # fmt: skip
