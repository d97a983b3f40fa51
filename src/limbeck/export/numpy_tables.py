r"""Tables as lines of NumPy: columns in, features out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from limbeck.compression.tables.columns import Category, Number
from limbeck.export.numpy_script import Script
from limbeck.models.table_encoder import TableEncoder

__all__ = ["READER", "TABLES", "beginning", "described"]

READER = '''
def read(given, column):
    """The numbers or codes of one column, and which are missing."""
    if "categories" in column:
        codes = {value: code for code, value in enumerate(column["categories"])}
        text, found = isinstance(column["categories"][0], str), []
        for value in np.asarray(given, object).tolist():
            gone = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
            if not gone and isinstance(value, str) != text:
                raise ValueError(f"{column['name']}: got {value!r}, of another kind than before")
            if gone and not column["gaps"]:
                raise ValueError(f"{column['name']}: got a missing value; the data had none")
            found.append(len(codes) + 1 if gone else codes.get(value, len(codes)))
        return np.array(found, int), None
    if column["date"]:
        dates = np.asarray(given, "datetime64[us]")  # in UTC
        value = np.where(np.isnat(dates), np.nan, dates.astype("int64") / 1e6)
    else:
        value = [np.nan if v is None or type(v).__name__ == "NAType" else v for v in given]
        if any(isinstance(v, str) for v in value):
            raise ValueError(f"{column['name']}: accepted are numbers")
        value = np.array(value, float)
    gone = np.isnan(value)
    if np.isinf(value).any() or (gone.any() and not column["mask"]):
        raise ValueError(f"{column['name']}: accepted are finite numbers, as the data had")
    return np.where(gone, column["fill"], value - column["origin"]).astype(np.float32), gone
'''
r"""What scripts of tables define."""


def described(table: Any) -> list[dict[str, Any]]:
    r"""What a script must know of the columns that vary."""
    found = []
    for column in table.varying:
        own = {"name": column.name, "key": column.key}
        if isinstance(column, Category):
            own |= {"categories": list(column.categories), "gaps": bool(column.missing)}
        else:
            assert isinstance(column, Number)
            own |= {"date": column.kind == "date", "mask": column.mask}
            own |= {"fill": column.fill, "origin": column.origin}
        found.append(own)
    return found


def beginning(script: Script, table: Any) -> None:
    r"""The lines from columns by name to the table's tensors."""
    script.array("columns", np.array(json.dumps(described(table))))
    script.add("h = {}")
    script.add('for column in json.loads(str(W["columns"])):')
    script.add('    h[column["key"]], gone = read(frame[column["name"]], column)')
    script.add('    if column.get("mask"):')
    script.add('        h[column["mask"]] = gone')


def _encoder(script: Script, module: TableEncoder, prefix: str) -> None:
    exact = ".astype(np.float32)" if script.single else ""
    script.add("f = []")
    if module.numbers:
        keys, count = [each.key for each in module.numbers], len(module.masks)
        mean, scale, fill = (
            script.array(prefix + name, getattr(module, name)) + exact
            for name in ("mean", "scale", "fill")
        )
        script.add(f"v = np.stack([h[key] for key in {keys!r}], 1)")
        if count:
            script.add(f"gone = np.stack([h[key] for key in {module.masks!r}], 1)")
            filled = f"np.where(gone, {fill}[:{count}], v[:, :{count}])"
            script.add(f"v = np.hstack([{filled}, v[:, {count}:]])")
        script.add(f"f.append((v - {mean}) / {scale})")
        if count:
            script.add("f.append(gone)")
    if module.indicated:
        keys = [each.key for each in module.indicated]
        which, slots = (
            script.array(prefix + name, getattr(module, name)) for name in ("which", "slots")
        )
        script.add(f"v = np.stack([h[key] for key in {keys!r}], 1)")
        script.add(f"f.append(v[:, {which}] == {slots})")
    for number, (key, layer) in enumerate(zip(module.embedded, module.embeddings, strict=True)):
        weight: Any = layer.weight
        script.add(f"f.append({script.array(f'{prefix}{number}.embedding', weight)}[h[{key!r}]])")
    script.add("h = np.hstack(f)")


TABLES: dict[type, Any] = {TableEncoder: _encoder}
r"""By type of module, what writes its lines."""
