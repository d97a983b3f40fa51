r"""Pictures in a page: well formed, with names of their own, described, in its colours."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from limbeck.report.canvas import COLOURS, INK, inline
from reproduction.canvas import canvas

pytest.importorskip("matplotlib")


def drawn(alt="A line.", title="title"):
    with canvas() as (figure, axes):
        for place, colour in enumerate(COLOURS):
            axes[0, 0].plot([0, 1], [0, place], "o-", color=colour, label=f"{place} <&>")
        axes[0, 0].imshow(np.eye(3), extent=(0, 1, 0, 1))
        axes[0, 0].set_title(title)
        axes[0, 0].legend()
        return inline(figure, alt)


def names(svg):
    return re.findall(r'\bid="([^"]*)"', svg)


def test_it_is_well_formed_and_described():
    alt = 'Values < 3 & "more".'
    root = ElementTree.fromstring(drawn(alt))
    assert root.get("role") == "img"
    title = root[0]
    assert title.tag.endswith("title")
    assert title.text == alt
    assert root.get("aria-labelledby") == title.get("id")
    assert root.get("viewBox").startswith("0 0 ")


def test_names_are_its_own_and_all_references_lead_somewhere():
    one, two = drawn(title="one"), drawn(title="two")
    assert len(names(one)) == len(set(names(one)))
    assert not set(names(one)) & set(names(two))
    for svg in (one, two):
        used = re.findall(r"url\(#([^)]*)\)", svg) + re.findall(r'href="#([^"]*)"', svg)
        assert used
        assert set(used) <= set(names(svg))


def test_colours_are_the_pages():
    svg = drawn()
    for place in range(len(COLOURS)):
        assert f"var(--c{place})" in svg
    assert "currentColor" in svg
    for colour in (*COLOURS, INK):
        assert colour.lower() not in svg.lower()
    assert "DejaVu" not in svg


def test_nothing_reaches_out_of_the_picture():
    svg = drawn()
    for target in re.findall(r'href="([^"]*)"', svg):
        assert target.startswith(("#", "data:image/png;base64,"))
    assert "<style" not in svg  # it would hold for the whole page
    assert "<script" not in svg


def test_dollars_are_not_mathematics():
    assert "$x^{$" in drawn(title="$x^{$")


def test_equal_figures_are_equal_pictures():
    assert drawn() == drawn()
