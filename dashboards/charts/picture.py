"""Pictures: axes and marks as values, and `svg`, which writes them. Whatever the product draws is one of these.

A place is a number in the units of its picture, or a text in per cent of the width: such a picture fits any screen,
while dots stay round and text keeps its size. A mark names its role, which is its class in the style sheet, and no
colour: the style sheet has those of light and dark screens. A tip is what a mark says when one points at it.

Promise: every text is escaped, printable, and has no figure apart from its unit. Nothing is written that is the default
of SVG, a colour once for a picture of one backend, and no space: a page may have ten thousand dots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from html import escape

from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.text import printable

Place = float | str
CURVE_WIDTH, CURVE_HEIGHT = 1000, 100
SHAPES = '<circle id="{0}0"{1} r="4.2"/><path id="{0}1"{1} d="M0-5.4 5.4 0 0 5.4-5.4 0Z"/>' + (
    '<path id="{0}2"{1} d="M0-5.2 5 3.8H-5Z"/><rect id="{0}3"{1} x="-4" y="-4" width="8" height="8"/>'
    '<path id="{0}4"{1} d="M0 5.2 5-3.8H-5Z"/>'
)
DEFINED = "<defs>" + SHAPES.format("m", "") + SHAPES.format("h", ' class="hollow"') + "</defs>"
TRIANGLES = (2, 4)  # the slots whose dot has no element of its own
# The space between a figure and its unit, and between the two ends of an interval.
_WITHIN_FIGURE = re.compile(
    r"(?<=\d) (?=(?:%|[num]?s|[KMGT]iB|B|W|[kMGTP]?(?:FLOP|B)/s|samples/[sJ])(?!\w)|-?[\d.,]+\])"
)
MIDDLE = "50%"  # across, or of a picture that is as high as the text next to it
TO_MIDDLE = 4  # from the baseline of a text to the middle of its height


@dataclass(frozen=True, slots=True)
class Dot:
    """A value of the backend `slot`, filled or hollow."""

    x: Place
    y: Place
    slot: int
    tip: str = ""
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A straight line, in the colour of the backend `slot` if it has one."""

    x1: Place
    y1: Place
    x2: Place
    y2: Place
    role: str = ""
    slot: int | None = None
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle; `opacity` is that of its fill, "" for that of its role."""

    x: Place
    y: float
    width: Place
    height: float
    role: str
    slot: int | None = None
    tip: str = ""
    opacity: str = ""
    radius: int = 0


@dataclass(frozen=True, slots=True)
class Word:
    """Text on its baseline, or around the middle of its height if `y` is `MIDDLE`."""

    x: Place
    y: Place
    text: str
    role: str = ""
    anchor: str = "start"
    dx: int = 0
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Curves:
    """Paths in units of `CURVE_WIDTH` by `CURVE_HEIGHT`, which are stretched to the given rows, and their tips."""

    y: int
    height: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MarkGroup:
    """Marks with a common tip."""

    tip: str
    marks: Sequence[Dot | Segment]


@dataclass(frozen=True, slots=True)
class Inset:
    """A picture at a place in another one."""

    x: float
    y: float
    width: float
    picture: Picture


Mark = Dot | Segment | Area | Word | Curves | MarkGroup | Inset


@dataclass(frozen=True, slots=True)
class Picture:
    """Marks in front of axes; `title` is its tooltip, `summary` its description for screen readers.

    Screen readers pass over a picture with neither. `height` is None for one as high as the text next to it. `width` is
    that of its coordinates, None if its places are in per cent. `slot` is the backend of a picture of one backend.
    """

    height: float | None
    marks: list[Mark] = field(default_factory=list)
    axes: list[Mark] = field(default_factory=list)
    summary: str = ""
    title: str = ""
    role: str = "plot"
    width: float | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class PanelPicture:
    """A small picture with its caption, of the backend `slot` if it is of one; `wide` takes the full row."""

    title: str
    details: str
    picture: Picture
    slot: int | None = None
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ScaledPicture:
    """A picture with a width, drawn for wide and for narrow screens; a page shows the one that fits."""

    title: str
    wide: Picture
    narrow: Picture


def slot_of(backend: str) -> int:
    """Return the number of a backend's colour and shape."""
    return BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS)


def scale(axis: Axis) -> Picture:
    """Return the axis below pictures."""
    picture = Picture(38, summary=axis.title)
    for tick in axis.ticks():
        picture.axes.extend([Segment(tick.at, 0, tick.at, 5, "tick"), Word(tick.at, 18, tick.label)])
    picture.axes.append(Word(MIDDLE, 34, axis.title, "unit"))
    return picture


def unbroken(text: str) -> str:
    """Return a text as pages show it: printable, without a line break in a figure or an interval."""
    return _WITHIN_FIGURE.sub("\u00a0", printable(text))


def svg(picture: Picture) -> str:
    """Return a picture as an element of a page."""
    return _element(picture, "")


def document(picture: Picture, style: str) -> str:
    """Return a picture that has a width as a file of its own with its style sheet."""
    shapes = f"<style><![CDATA[{style}]]></style>{DEFINED}" + '<rect class="paper" width="100%" height="100%"/>'
    return _element(picture, ' xmlns="http://www.w3.org/2000/svg"', shapes)


def shapes() -> str:
    """Return the shapes of the dots, which a page has once."""
    return f'<svg class="shapes" width="0" height="0" aria-hidden="true" focusable="false">{DEFINED}</svg>'


@cache
def key(slot: int) -> str:
    """Return the shape of a backend, for a legend."""
    return f'<svg class="key s{slot}" aria-hidden="true"><use href="#m{slot}"/></svg>'


@cache
def swatch(role: str, size: int = 14) -> str:
    """Return a square in the colour of a role, for a legend."""
    size_attributes = f'width="{size}" height="{size}"'
    return f'<svg class="key" {size_attributes} aria-hidden="true"><rect class="{role}" {size_attributes}/></svg>'


def _element(picture: Picture, place: str, content: str = "") -> str:
    """Return a picture's element with these attributes, and its content after this one."""
    size_attributes = f' height="{_number(picture.height)}"' if picture.height else ""
    if picture.width is not None:
        view_box = f' viewBox="0 0 {_number(picture.width)} {_number(picture.height or 0)}"'
        size_attributes = (
            f'{view_box} width="{_number(picture.width)}"{size_attributes}' if place else f'{view_box} width="100%"'
        )
    elif picture.role and not place:
        size_attributes = f' width="100%"{size_attributes}'
    label = f' aria-label="{_text(picture.summary)}"' if picture.summary else ""
    accessibility = f' role="img"{label}' if picture.summary or picture.title else ' aria-hidden="true"'
    marks_text = "".join([_mark(mark, picture.slot) for mark in (*picture.axes, *picture.marks)])
    return (
        f"<svg{_class(picture.role, None)}{place}{size_attributes}{accessibility}>"
        f"{_title(picture.title)}{content}{marks_text}</svg>"
    )


def _mark(mark: Mark, slot: int | None) -> str:
    """Return a mark of a picture of this backend, if it is of one."""
    match mark:
        case Dot():
            return _dot(mark, slot)
        case Segment():
            ends = _at("x1", mark.x1) + _at("x2", mark.x2) + _at("y1", mark.y1) + _at("y2", mark.y2)
            return _tipped("line", _class(mark.role, mark.slot) + ends, mark.tip)
        case Word():
            return _word(mark)
        case Area():
            attributes = _at("x", mark.x) + _at("y", mark.y) + f' width="{_number(mark.width)}"'
            attributes += f' height="{_number(mark.height)}"' + _at("rx", mark.radius)
            fill_attribute = f' fill-opacity="{mark.opacity}"' if mark.opacity else ""
            return _tipped("rect", _class(mark.role, mark.slot) + attributes + fill_attribute, mark.tip)
        case MarkGroup():
            return f"<g>{_title(mark.tip)}{''.join([_mark(member, slot) for member in mark.marks])}</g>"
        case Curves():
            box_attributes = f'width="100%" height="{mark.height}" viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}"'
            path_elements = "".join([_tipped("path", f' class="curve" d="{path}"', tip) for path, tip in mark.paths])
            return f'<svg{_at("y", mark.y)} {box_attributes} preserveAspectRatio="none">{path_elements}</svg>'
        case Inset():
            place = _at("x", mark.x) + _at("y", mark.y) + f' width="{_number(mark.width)}"'
            return _element(mark.picture, place)


def _dot(dot: Dot, slot: int | None) -> str:
    """Return a dot; one of the picture's own backend has its colour and, but for triangles, its own element.

    For a browser each <use> of a shape is a tree of its own: where there are thousands, circles and rotated rectangles
    are drawn directly. The style sheet gives them their size, and their place in the middle of a height.
    """
    if dot.slot != slot:
        attributes = f' class="mark s{dot.slot}" href="#{"h" if dot.hollow else "m"}{dot.slot}"'
        return _tipped("use", f"{attributes}{_at('x', dot.x)}{_at('y', dot.y)}", dot.tip)
    tag, c = ("circle", "c") if slot == 0 else ("use", "") if slot in TRIANGLES else ("rect", "")
    attributes = (' class="hollow"' if dot.hollow else "") + (f' href="#m{slot}"' if tag == "use" else "")
    y_attribute = "" if dot.y == MIDDLE else f' {c}y="{_number(dot.y)}"'
    return _tipped(tag, f'{attributes} {c}x="{_number(dot.x)}"{y_attribute}', dot.tip)


def _word(word: Word) -> str:
    place = _at("x", word.x) + _at("y", word.y) + _at("dx", word.dx)
    shift_attribute = f' dy="{TO_MIDDLE}"' if word.y == MIDDLE else ""
    anchor_attribute = "" if word.anchor == "start" else f' text-anchor="{word.anchor}"'
    return (
        f"<text{_class(word.role, None)}{place}{shift_attribute}{anchor_attribute}>"
        f"{_text(word.text)}{_title(word.tip)}</text>"
    )


def _tipped(tag: str, attributes: str, tip: str) -> str:
    return f"<{tag}{attributes}>{_title(tip)}</{tag}>" if tip else f"<{tag}{attributes}/>"


def _title(text: str) -> str:
    return f"<title>{_text(text)}</title>" if text else ""


@lru_cache
def _class(role: str, slot: int | None) -> str:
    names = role if slot is None else f"{role} s{slot}"
    return f' class="{_text(names)}"' if names else ""


def _at(name: str, place: Place) -> str:
    return f' {name}="{_number(place)}"' if place else ""


def _number(place: Place) -> str:
    return place if isinstance(place, str) else f"{place:g}"


def _text(text: str) -> str:
    return escape(unbroken(text))
