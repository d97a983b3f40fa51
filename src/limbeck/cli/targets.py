r"""Unnormalised densities and their students, as people name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck.cli import references
from limbeck.errors import ArgumentError

__all__ = ["STUDENTS", "events", "proposal_of", "student_for", "target_of"]

FILES = (".npz", ".mat", ".safetensors")
STUDENTS = ("nade", "deep-nade", "made")


def target_of(text: str) -> Any:
    r"""The user's own energy, or the RBM of a file."""
    if references.is_reference(text):
        return references.load(text, "target")
    if Path(text).suffix.lower() not in FILES:
        accepted = f"module:name of your own code, or an RBM's file: {', '.join(FILES)}"
        raise ArgumentError("target", repr(text), accepted)
    from limbeck.models.rbm import RBM

    try:
        return RBM.load(text)
    except ArgumentError as error:
        if error.argument != "path":
            raise
        raise ArgumentError("target", error.received, error.accepted) from error


def proposal_of(text: str) -> Any:
    r"""A density to estimate with: a result's student, or the user's own object."""
    if references.is_reference(text):
        return references.load(text, "--proposal")
    from limbeck.cli.export import restored
    from limbeck.cli.folder import result_folder

    return restored(result_folder(Path(text))).student


def student_for(target: Any, kind: str | None, hidden: int | None, seed: int) -> Any:
    r"""A student of a target: by name, of the user's own, or None for limbeck's choice.

    Arguments:
        target: What it is to be like.
        kind: "nade", "deep-nade", "made", or module:name.
        hidden: Hidden units; None is as many as limbeck takes by itself.
        seed: Seeds the first weights.
    """
    if kind is not None and references.is_reference(kind):
        if hidden is not None:
            raise ArgumentError("--hidden", hidden, "nothing, for a student of your own")
        return references.load(kind, "student")
    if kind is None and hidden is None:
        return None
    kind = kind or "nade"
    if kind not in STUDENTS:
        raise ArgumentError.unknown("--student", kind, (*STUDENTS, "module:name"))
    import torch

    import limbeck as lb
    from limbeck.generative.pairing import default_student

    usual = default_student(target, seed)
    units = usual.hidden if hidden is None else hidden
    make: Any = {"nade": lb.NADE, "deep-nade": lb.DeepNADE, "made": lb.MADE}[kind]
    generator = torch.Generator().manual_seed(seed)
    like = next(usual.parameters())
    return make(
        target.support.size, units, support=target.support, dtype=like.dtype, generator=generator
    )


def events(path: Path | None, target: Any, argument: str) -> Any:
    r"""Events of a file (n, *shape), on the support of the target; None of no file."""
    if path is None:
        return None
    import torch

    from limbeck.cli.reading import array

    found = torch.as_tensor(array(path, argument))
    support = getattr(target, "support", None)
    if support is None:
        return found
    if found[0].numel() != support.size:
        received = f"{path}, with rows of {found[0].numel()} numbers"
        raise ArgumentError(argument, received, f"rows of {support.size}, as the target has them")
    return support.check(found.reshape(len(found), *support.shape), argument)
