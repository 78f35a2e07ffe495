"""Pictures as SVG: what each mark becomes, and that nothing else writes a drawing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest

from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.picture import (
    MIDDLE,
    Area,
    Curves,
    Dot,
    Inset,
    Mark,
    MarkGroup,
    Picture,
    Segment,
    Word,
    document,
    key,
    scale,
    shapes,
    svg,
    swatch,
)
from keras_matrix.records.text import MILLISECOND
from tests.dashboards.charts.drawn import drawn

ROOT = Path(__file__).parents[3]
PRODUCT = ("records", "models", "analysis", "uploader", "dashboards", "runner")
ELEMENT = re.compile(r"<(svg|use|circle|rect|path|line|polyline|polygon|text|g)[ />{]")
HOSTILE = "</text></title><script>alert(1)</script>\x1b[1m\"'&"
DOT = Dot("1.00%", 7, 1)
DRAWN = [
    (Dot("1.00%", 7, 1, "tip"), '<use class="mark s1" href="#m1" x="1.00%" y="7"><title>tip</title></use>'),
    (Dot(3.5, 7.0, 2, hollow=True), '<use class="mark s2" href="#h2" x="3.5" y="7"/>'),
    (Segment("0%", 0, "100%", 4.5, "rule"), '<line class="rule" x1="0%" x2="100%" y2="4.5"/>'),
    (Segment(1, 2, 3, 4, "cap", 0, "a"), '<line class="cap s0" x1="1" x2="3" y1="2" y2="4"><title>a</title></line>'),
    (
        Word(5, 18, "12 ms", "size", "end", -5),
        '<text class="size" x="5" y="18" dx="-5" text-anchor="end">12\u00a0ms</text>',
    ),
    (Word("0%", MIDDLE, "why"), '<text x="0%" y="50%" dy="4">why</text>'),
    (Word(0, 9, "a", tip="b"), '<text y="9">a<title>b</title></text>'),
    (Area("2%", 1, "3%", 40, "band", radius=2), '<rect class="band" x="2%" y="1" width="3%" height="40" rx="2"/>'),
    (
        Area(0, 0, 8, 46, "field data", tip="t", opacity="0.50"),
        '<rect class="field data" width="8" height="46" fill-opacity="0.50"><title>t</title></rect>',
    ),
    (MarkGroup("epochs", [DOT]), '<g><title>epochs</title><use class="mark s1" href="#m1" x="1.00%" y="7"/></g>'),
    (
        Curves(6, 64, (("M0 1L2 3", "a curve"),)),
        '<svg y="6" width="100%" height="64" viewBox="0 0 1000 100" preserveAspectRatio="none">'
        '<path class="curve" d="M0 1L2 3"><title>a curve</title></path></svg>',
    ),
    (
        Inset(70, 302, 715, Picture(22, role="dates")),
        '<svg class="dates" x="70" y="302" width="715" height="22" aria-hidden="true"></svg>',
    ),
]


@pytest.mark.parametrize(("mark", "element"), DRAWN)
def test_mark_is_its_element_without_what_is_the_default(mark: Mark, element: str) -> None:
    """Mutation: the anchor is always written."""
    empty = svg(Picture(10))
    assert svg(Picture(10, [mark])) == empty.replace("></svg>", f">{element}</svg>")


def test_every_kind_of_mark_is_in_the_table_above() -> None:
    assert {type(mark) for mark, _ in DRAWN} == set(get_args(Mark))


@pytest.mark.parametrize(
    ("slot", "element"),
    [
        (0, '<circle cx="1%" cy="5"/><circle class="hollow" cx="1%"/>'),
        (1, '<rect x="1%" y="5"/><rect class="hollow" x="1%"/>'),
        (2, '<use href="#m2" x="1%" y="5"/><use class="hollow" href="#m2" x="1%"/>'),
        (3, '<rect x="1%" y="5"/><rect class="hollow" x="1%"/>'),
    ],
)
def test_dots_of_a_picture_of_one_backend_have_no_colour_of_their_own(slot: int, element: str) -> None:
    dots: list[Mark] = [Dot("1%", 5, slot), Dot("1%", MIDDLE, slot, hollow=True)]
    assert svg(Picture(None, dots, title="jax", role="", slot=slot)) == (
        f'<svg role="img"><title>jax</title>{element}</svg>'
    )


def test_axes_are_drawn_behind_marks() -> None:
    drawn_first, drawn_last = Word(1, 1, "axis"), Word(1, 1, "mark")
    assert re.findall(r">(\w+)</text>", svg(Picture(5, [drawn_last], [drawn_first]))) == ["axis", "mark"]


@pytest.mark.parametrize(
    ("picture", "head"),
    [
        (Picture(9), '<svg class="plot" width="100%" height="9" aria-hidden="true">'),
        (Picture(9, summary="a"), '<svg class="plot" width="100%" height="9" role="img" aria-label="a">'),
        (
            Picture(5.5, summary="a", role="roofline", width=100.0),
            '<svg class="roofline" viewBox="0 0 100 5.5" width="100%" role="img" aria-label="a">',
        ),
    ],
)
def test_picture_without_a_description_is_passed_over_by_screen_readers(picture: Picture, head: str) -> None:
    assert svg(picture) == f"{head}</svg>"


def test_no_text_becomes_markup() -> None:
    """Mutation: the tip of a dot is not escaped."""
    marks: list[Mark] = [
        Dot(1, 1, 0, HOSTILE),
        Segment(1, 1, 1, 1, HOSTILE, tip=HOSTILE),
        Word(1, 1, HOSTILE, HOSTILE, tip=HOSTILE),
        Area(1, 1, 1, 1, HOSTILE, tip=HOSTILE),
        Curves(1, 1, (("M0 0", HOSTILE),)),
        MarkGroup(HOSTILE, []),
        Inset(1, 1, 1, Picture(1, summary=HOSTILE)),
    ]
    element = ElementTree.fromstring(svg(Picture(1, marks, summary=HOSTILE, title=HOSTILE, role=HOSTILE)))
    assert {one.tag for one in element.iter()} == {"svg", "title", "use", "line", "text", "rect", "path", "g"}
    shown = HOSTILE.replace("\x1b[1m", "")
    assert {one.text for one in element.iter() if one.text} == {shown}
    assert {one.get("aria-label") for one in element.iter("svg")} == {shown, None}
    assert {one.get("class") for one in element.iter() if one.tag in ("line", "rect", "text")} == {shown}


def test_file_has_its_style_its_shapes_and_a_background() -> None:
    text = document(Picture(20, [DOT], title="one & two", width=40), "a > b { fill: red; }")
    element = ElementTree.fromstring(text)
    names = [one.tag.rpartition("}")[2] for one in element]
    assert names == ["title", "style", "defs", "rect", "use"]
    assert (element.get("viewBox"), element.get("width"), element.get("height")) == ("0 0 40 20", "40", "20")
    assert element.findtext("{*}style") == "a > b { fill: red; }"
    used = set(re.findall(r'href="#(\w+)"', text))
    assert used <= set(re.findall(r'id="(\w+)"', text))


def test_legend_has_the_shapes_of_the_page() -> None:
    defined = set(re.findall(r'id="(\w+)"', shapes()))
    assert defined == {f"{kind}{slot}" for kind in "mh" for slot in range(5)}
    assert [re.findall(r'href="#(\w+)"', key(slot)) for slot in range(5)] == [[f"m{slot}"] for slot in range(5)]
    assert '<rect class="stall-fetch" width="14" height="14"/>' in swatch("stall-fetch")


def test_scale_has_every_tick_and_the_title_of_its_axis() -> None:
    axis = axes.fitted([0.010, 0.012], "time per step, ms", MILLISECOND)
    picture = scale(axis)
    assert [word.text for word in drawn(picture, Word)] == [*(tick.label for tick in axis.ticks()), axis.title]
    assert [line.x1 for line in drawn(picture, Segment, "tick")] == [tick.at for tick in axis.ticks()]
    assert picture.summary == axis.title


def test_one_module_writes_every_drawing_of_the_product() -> None:
    """Mutation: a template has a <circle> of its own."""
    files = [
        path for room in PRODUCT for ext in ("py", "html", "svg", "js") for path in (ROOT / room).rglob(f"*.{ext}")
    ]
    assert len(files) > 600
    assert len([path for path in files if path.suffix == ".html"]) > 20
    drawing = {path for path in files if ELEMENT.search(path.read_text(encoding="utf-8"))}
    assert {path.relative_to(ROOT).as_posix() for path in drawing} == {"dashboards/charts/picture.py"}
