r"""Encoding of a table's tensors as one matrix of features: scaled, one-hot, embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.arguments import integer
from limbeck.errors import ArgumentError, shown
from limbeck.models.checks import Generator, Specified, matrix

ONE_HOT = 16  # categories up to which each has an indicator


class Numeric(NamedTuple):
    r"""A float tensor (n,) of numbers, and the mask of missing ones, if there is one."""

    key: str  # the tensor's name
    mask: str | None  # the mask's name
    mean: float  # subtracted
    scale: float  # divides the difference
    fill: float  # replaces a missing number


class Coded(NamedTuple):
    r"""An int64 tensor (n,) of codes: 0 to size − 1, then unknown, then missing."""

    key: str  # the tensor's name
    size: int  # the number of categories
    missing: bool  # whether missing values have their own feature


class TableEncoder(Specified):
    r"""Features (n, width) of a dict of tensors (n,), or of the columns of an array.

    In this order: standardised numbers (those with masks first), numbers between knots, indicators
    of missing numbers, indicators of categories and of missing ones, embeddings. Between the knots
    a and b a number x has the feature (x − a) / (b − a), at least 0 and at most 1, so that a layer
    can be any piecewise linear function of x. With `clip` a number beyond its knots counts as the
    last of them. An unknown category has no indicator, or an embedding that starts at zero.
    `numbers` has the fields of `Numeric`, `categories` those of `Coded`; `embed` is as of
    `Table.encoder`; `knots` has those of each number, ascending. With `columns` the inputs are an
    array (n, columns), and keys are numbers of columns, without gaps and codes.

    >>> encoder = TableEncoder([("age", None, 40.0, 10.0, 39.0)], [("town", 2, False)])
    >>> encoder({"age": torch.tensor([30.0]), "town": torch.tensor([1])})
    tensor([[-1.,  0.,  1.]])
    """

    fields: ClassVar[Mapping[str, Any]] = {
        "numbers": list[tuple[str, str | None, float, float, float]],
        "categories": list[tuple[str, int, bool]], "embed": str | int,
        "knots": list[list[float]], "columns": int, "clip": bool,
    }  # fmt: skip
    optional: ClassVar[Sequence[str]] = ("knots", "columns", "clip")

    def __init__(
        self, numbers: Sequence[tuple[str, str | None, float, float, float]],
        categories: Sequence[tuple[str, int, bool]], embed: str | int = "auto", *,
        knots: Sequence[Sequence[float]] = (), columns: int = 0, clip: bool = False,
        generator: Generator = None,
    ) -> None:  # fmt: skip
        super().__init__()
        bends = knots or [()] * len(numbers)
        pairs = sorted(zip(numbers, bends, strict=True), key=lambda pair: pair[0][1] is None)
        self.numbers, self.knots = [Numeric(*n) for n, _ in pairs], [list(k) for _, k in pairs]
        self.categories = [Coded(*c) for c in categories]
        for c in self.categories:
            integer("categories", c.size, "numbers of categories from 0", least=0)
        self.embed, self.columns = embed, columns
        if columns and (
            categories or {n.key for n in self.numbers} - set(map(str, range(columns)))
        ):
            received = f"{len(categories)} categories, {len(numbers)} numbers"
            raise ArgumentError("columns", received, f"numbers of {columns} columns alone")
        sized = [(c, embedding_size(c.size, embed)) for c in self.categories]
        self.indicated = [c for c, size in sized if not size]
        embedded = [(c, size) for c, size in sized if size]
        self.embedded = [c.key for c, _ in embedded]
        self.masks = [n.mask for n in self.numbers if n.mask is not None]
        parts = ([float(getattr(n, part)) for n in self.numbers] for part in Numeric._fields[2:])
        self.mean, self.scale, self.fill = (nn.Buffer(torch.tensor(part)) for part in parts)
        self.set_clip(clip)

        def fixed(values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
            return nn.Buffer(torch.tensor(values, dtype=dtype), persistent=False)

        between = [(k, a, b - a) for k, row in enumerate(self.knots) for a, b in pairwise(row)]
        if any(distance <= 0 for _, _, distance in between):
            raise ArgumentError("knots", "numbers that are not ascending", "ascending numbers")
        # of each feature between knots, the number, the lower knot and the distance
        self.source = fixed([row[0] for row in between])
        self.lower, self.distance = (
            fixed([row[k] for row in between], torch.float32) for k in (1, 2)
        )
        # of each indicator, the column of codes and the code that it stands for
        slots = [
            (column, code)
            for column, c in enumerate(self.indicated)
            for code in [*range(c.size), *([c.size + 1] if c.missing else [])]
        ]
        self.which, self.slots = (fixed([slot[k] for slot in slots]) for k in range(2))
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings = nn.ModuleList()
        for c, size in embedded:
            drawn = torch.randn(c.size, size, generator=generator, device=generator.device)
            weights = F.pad(drawn * size**-0.5, (0, 0, 0, 2)).to(torch.get_default_device())
            self.embeddings.append(nn.Embedding.from_pretrained(weights, freeze=False))
        # of numbers among the columns of an array
        self.place = fixed([int(number.key) for number in self.numbers] if columns else [])
        features = len(self.numbers) + len(between) + len(self.masks) + len(slots)
        self.width = features + sum(size for _, size in embedded)

    def set_clip(self, clip: bool) -> None:
        r"""From now on, let a number beyond its knots count as the last of them, or as it is."""
        self.clip = clip
        pairs = [(k[0], k[-1]) if clip and k else (-torch.inf, torch.inf) for k in self.knots]
        ends = torch.tensor(pairs, device=self.mean.device).reshape(-1, 2)
        scaled = (ends.T - self.mean) / self.scale
        self.low, self.high = (nn.Buffer(end, persistent=False) for end in scaled)

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        embed, sizes = fields["embed"], [size for _, size, _ in fields["categories"]]
        return sum(size * max(1, embedding_size(max(0, size), embed)) for size in sizes)

    def forward(self, x: Mapping[str, Tensor] | Tensor) -> Tensor:
        kind = self.mean.dtype
        parts: list[Tensor] = []
        if self.numbers:
            if self.columns:
                values = matrix(x, self.columns).index_select(1, self.place)
            else:
                values = _stack(x, [n.key for n in self.numbers])  # (n, numbers)
            count = len(self.masks)
            if count:
                missing = _stack(x, self.masks)  # (n, masks)
                filled = torch.where(missing, self.fill[:count], values[:, :count])
                values = torch.cat([filled, values[:, count:]], 1)
            parts.append(((values - self.mean) / self.scale).clamp(self.low, self.high))
            if len(self.source):
                places = values.index_select(1, self.source)
                parts.append(((places - self.lower) / self.distance).clamp(0, 1))
            if count:
                parts.append(missing.to(kind))
        if self.indicated:
            codes = _stack(x, [c.key for c in self.indicated])
            parts.append((codes.index_select(1, self.which) == self.slots).to(kind))
        pairs = zip(self.embeddings, self.embedded, strict=True)
        parts += [embedding(_part(x, key)) for embedding, key in pairs]
        return torch.cat(parts, 1)

    def spec(self) -> dict[str, Any]:
        numbers, categories = list(map(list, self.numbers)), list(map(list, self.categories))
        return super().spec() | {"numbers": numbers, "categories": categories}

    def extra_repr(self) -> str:
        counts = {name: len(getattr(self, name)) for name in ("numbers", "masks", "categories")}
        return ", ".join(f"{k}={v}" for k, v in {**counts, "width": self.width}.items())


def embedding_size(categories: int, embed: str | int) -> int:
    r"""The size of a category's embedding; 0 where each has an indicator instead."""
    expected = '"auto", "one_hot", or a whole number from 1'
    if isinstance(embed, str) and embed not in ("auto", "one_hot"):
        raise ArgumentError("embed", shown(embed), expected)
    if embed == "one_hot" or (embed == "auto" and categories <= ONE_HOT):
        return 0
    if embed == "auto":
        return min(32, round(1.6 * categories**0.56))
    size = integer("embed", embed, expected, least=1)
    return size if categories > ONE_HOT else 0


def _stack(x: Mapping[str, Tensor] | Tensor, keys: Sequence[str]) -> Tensor:
    return torch.stack([_part(x, key) for key in keys], 1)


def _part(x: Mapping[str, Tensor] | Tensor, key: str) -> Tensor:
    if not isinstance(x, Mapping) or key not in x:
        received = f"no {key!r}" if isinstance(x, Mapping) else f"a {type(x).__name__}"
        raise ArgumentError("x", received, "a dict of tensors, as Table.encode gives it")
    return x[key]
