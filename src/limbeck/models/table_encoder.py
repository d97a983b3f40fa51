r"""From the tensors of a table to one matrix of features: standardised, indicated, embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError

__all__ = ["Coded", "Numeric", "TableEncoder"]

# categories up to which each has an indicator of its own
ONE_HOT = 16

# the largest embedding that is chosen automatically
WIDEST = 32


class Numeric(NamedTuple):
    r"""A float tensor (n,) of numbers, and the mask of missing ones, if there is one.

    Attributes:
        key: The tensor's name.
        mask: The mask's name, or None.
        mean: What is subtracted.
        scale: What the difference is divided by.
        fill: What a missing number is taken to be.
    """

    key: str
    mask: str | None
    mean: float
    scale: float
    fill: float


class Coded(NamedTuple):
    r"""An int64 tensor (n,) of codes: 0 to size − 1, then unknown, then missing.

    Attributes:
        key: The tensor's name.
        size: The number of categories.
        missing: Whether missing values have a feature of their own.
    """

    key: str
    size: int
    missing: bool


class TableEncoder(nn.Module):
    r"""Features (n, width) of a dict of tensors (n,).

    In this order: standardised numbers (those with masks first), indicators of missing numbers,
    indicators of categories and of missing ones, embeddings. An unknown category has no
    indicator set, or an embedding of its own, which starts at zero and stays there unless
    something unknown is seen in training.

    Arguments:
        numbers: What `Numeric` holds, for each number.
        categories: What `Coded` holds, for each category.
        embed: "auto", "one_hot", or the size of embeddings: see `Table.encoder`.
        generator: Where embeddings are drawn from; None draws the same ones each time.

    Attributes:
        width: The number of features.

    >>> encoder = TableEncoder([("age", None, 40.0, 10.0, 39.0)], [("town", 2, False)])
    >>> encoder({"age": torch.tensor([30.0, 60.0]), "town": torch.tensor([1, 2])})
    tensor([[-1.,  0.,  1.],
            [ 2.,  0.,  0.]])
    """

    mean: Tensor
    scale: Tensor
    fill: Tensor
    which: Tensor
    slots: Tensor

    def __init__(
        self,
        numbers: Sequence[tuple[str, str | None, float, float, float]],
        categories: Sequence[tuple[str, int, bool]],
        embed: str | int = "auto",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.numbers = sorted((Numeric(*n) for n in numbers), key=lambda n: n.mask is None)
        self.categories = [Coded(*c) for c in categories]
        self.embed = embed
        sizes = [embedding_size(c.size, embed) for c in self.categories]
        self.indicated = [c for c, size in zip(self.categories, sizes, strict=True) if not size]
        embedded = [(c, size) for c, size in zip(self.categories, sizes, strict=True) if size]
        self.embedded = [c.key for c, _ in embedded]
        self.masks = [n.mask for n in self.numbers if n.mask is not None]
        for name in ("mean", "scale", "fill"):
            measured = torch.tensor([float(getattr(n, name)) for n in self.numbers])
            self.register_buffer(name, measured)
        # of each indicator, the column of codes and the code that it stands for
        slots = [
            (column, code)
            for column, c in enumerate(self.indicated)
            for code in [*range(c.size), *([c.size + 1] if c.missing else [])]
        ]
        for k, name in enumerate(("which", "slots")):
            codes = torch.tensor([slot[k] for slot in slots], dtype=torch.int64)
            self.register_buffer(name, codes, persistent=False)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings = nn.ModuleList()
        for c, size in embedded:
            layer = nn.utils.skip_init(nn.Embedding, c.size + 2, size)
            drawn = torch.randn(c.size, size, generator=generator, device=generator.device)
            with torch.no_grad():
                layer.weight[: c.size] = drawn.to(layer.weight) * size**-0.5
                layer.weight[c.size :] = 0
            self.embeddings.append(layer)
        self.width = len(self.numbers) + len(self.masks) + len(slots)
        self.width += sum(size for _, size in embedded)

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        kind = self.mean.dtype
        parts = []
        if self.numbers:
            values = self._stacked(x, [n.key for n in self.numbers])  # (n, numbers)
            count = len(self.masks)
            if count:
                gone = self._stacked(x, self.masks)  # (n, masks)
                filled = torch.where(gone, self.fill[:count], values[:, :count])
                values = torch.cat([filled, values[:, count:]], 1)
            parts.append((values - self.mean) / self.scale)
            if count:
                parts.append(gone.to(kind))
        if self.indicated:
            codes = self._stacked(x, [c.key for c in self.indicated])
            parts.append((codes.index_select(1, self.which) == self.slots).to(kind))
        for key, embedding in zip(self.embedded, self.embeddings, strict=True):
            parts.append(embedding(_part(x, key)))
        return torch.cat(parts, 1)

    def _stacked(self, x: Mapping[str, Tensor], keys: Sequence[str]) -> Tensor:
        return torch.stack([_part(x, key) for key in keys], 1)

    def spec(self) -> dict[str, Any]:
        r"""All but the weights, as JSON can hold it."""
        return {
            "type": "TableEncoder",
            "numbers": [list(n) for n in self.numbers],
            "categories": [list(c) for c in self.categories],
            "embed": self.embed,
        }

    @classmethod
    def from_spec(
        cls, spec: Mapping[str, Any], *, generator: torch.Generator | None = None
    ) -> TableEncoder:
        r"""An encoder of the same shape, with embeddings freshly drawn."""
        fields = dict(spec)
        if set(fields) != {"type", "numbers", "categories", "embed"} or (
            fields.pop("type") != "TableEncoder"
        ):
            raise ArgumentError("spec", dict(spec), "what TableEncoder.spec() gives")
        return cls(**fields, generator=generator)

    def extra_repr(self) -> str:
        return (
            f"numbers={len(self.numbers)}, masks={len(self.masks)}, "
            f"categories={len(self.categories)}, width={self.width}"
        )


def embedding_size(categories: int, embed: str | int) -> int:
    r"""How many numbers stand for a category; 0 where each has an indicator instead.

    >>> embedding_size(16, "auto"), embedding_size(17, "auto"), embedding_size(10_000, "auto")
    (0, 8, 32)
    """
    expected = '"auto", "one_hot", or a whole number from 1'
    if isinstance(embed, str) and embed not in ("auto", "one_hot"):
        raise ArgumentError("embed", repr(embed), expected)
    if embed == "one_hot" or (embed == "auto" and categories <= ONE_HOT):
        return 0
    if embed == "auto":
        return min(WIDEST, round(1.6 * categories**0.56))
    size = whole_number("embed", embed, expected, least=1)
    return size if categories > ONE_HOT else 0


def _part(x: Mapping[str, Tensor], key: str) -> Tensor:
    if not isinstance(x, Mapping) or key not in x:
        received = f"no {key!r}" if isinstance(x, Mapping) else f"a {type(x).__name__}"
        raise ArgumentError("x", received, "a dict of tensors, as Table.encode gives it")
    return x[key]
