r"""Unnormalised densities and their students, as people name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck.cli import references
from limbeck.cli.paths import is_there
from limbeck.errors import ArgumentError

__all__ = ["STUDENTS", "check_proposal", "events", "proposal_of", "student_for", "target_of"]

FILES = (".npz", ".mat", ".safetensors")
STUDENTS = ("nade", "deep-nade", "made")


def target_of(text: str) -> Any:
    r"""The user's own energy, or the RBM of a file."""
    if references.is_reference(text):
        return references.load(text, "target")
    if Path(text).suffix.lower() not in FILES:
        accepted = f"module:name of your own code, or an RBM's file: {', '.join(FILES)}"
        raise ArgumentError("target", repr(text), accepted)
    from limbeck.cli.reading import MAGIC
    from limbeck.models.rbm import RBM

    path = Path(text)
    is_there(path, "target", f"an RBM's file: {', '.join(FILES)}")
    if path.suffix.lower() == ".npz" and path.is_file():
        with open(path, "rb") as file:
            if not file.read(len(MAGIC[0])).startswith(MAGIC):
                accepted = "an RBM's file, with W, a and b"
                raise ArgumentError("target", f"{path}, which is no npz file", accepted)
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

    try:
        return restored(result_folder(Path(text))).student
    except ArgumentError as error:
        if error.argument != "result":
            raise
        accepted = f"{error.accepted}, or module:name"
        raise ArgumentError("--proposal", error.received, accepted) from error


def check_proposal(proposal: Any, target: Any) -> None:
    r"""Refuse a proposal that is no density over the target's support."""
    from limbeck.generative.pairing import check_student

    try:
        check_student(proposal, target, samples=True)
    except ArgumentError as error:
        raise ArgumentError("--proposal", error.received, error.accepted) from error


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
