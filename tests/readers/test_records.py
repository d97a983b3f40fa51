r"""The checker of records: the field is named, and nothing is converted on the way."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from limbeck.errors import CheckpointError
from limbeck.records import check_depth, of_file, read_record, read_value
from tests.refusals import refused


@dataclass
class Inner:
    size: int
    label: str | None = None


@dataclass
class Outer:
    name: str
    kind: Literal["a", "b"]
    share: float
    parts: list[Inner]
    pair: tuple[int, str] = (1, "x")
    sizes: dict[str, int] = field(default_factory=dict)
    rest: Any = None


GOOD = {"name": "n", "kind": "a", "share": 1, "parts": [{"size": 3}, {"size": 4, "label": "q"}]}


def test_a_record_comes_from_its_fields():
    record = read_record(Outer, GOOD | {"pair": [2, "y"], "sizes": {"z": 1}, "rest": [1]}, "r")
    assert record == Outer("n", "a", 1.0, [Inner(3), Inner(4, "q")], (2, "y"), {"z": 1}, [1])
    assert type(record.share) is float


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"name": 3}, "r.name"),
        ({"kind": "c"}, "r.kind"),
        ({"kind": ["a"]}, "r.kind"),
        ({"share": "1"}, "r.share"),
        ({"share": True}, "r.share"),
        ({"share": float("inf")}, "r.share"),
        ({"share": 10**400}, "r.share"),
        ({"parts": {}}, "r.parts"),
        ({"parts": [3]}, r"r.parts[0]"),
        ({"parts": [{"size": 3}, {"size": 3.0}]}, r"r.parts[1].size"),
        ({"parts": [{"size": True}]}, r"r.parts[0].size"),
        ({"parts": [{"size": 2**63}]}, r"r.parts[0].size"),
        ({"parts": [{"size": 1, "label": 2}]}, r"r.parts[0].label"),
        ({"parts": [{"label": ""}]}, r"r.parts[0].size"),
        ({"pair": [1]}, "r.pair"),
        ({"pair": [1, 2]}, r"r.pair[1]"),
        ({"sizes": {"z": None}}, "r.sizes.z"),
        ({"other": 1}, "r"),
    ],
)
def test_the_field_that_is_wrong_is_named(change, argument):
    with refused(argument) as caught:
        read_record(Outer, GOOD | change, "r")
    assert len(str(caught.value)) < 200
    with pytest.raises(CheckpointError, match=r"^a\.json: r"), of_file("a.json"):
        read_record(Outer, GOOD | change, "r")


def test_depth_is_limited():
    deep = None
    for _ in range(100_000):
        deep = [deep]
    with refused("x", "nested too deep"):
        check_depth(deep, "x")


def test_lists_are_no_strings():
    with refused("x"):
        read_value("abc", list[str], "x")
    assert read_value([1, 2], tuple[int, ...], "x") == (1, 2)
    assert read_value([1], list[int] | dict[str, Any], "x") == [1]
