"""The roofline as one picture in SVG, or as a page with all pictures and their tables.

Pure functions. The page loads nothing and runs no script, and names are shown as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from keras_matrix.analysis.roofline import PeakShare, Product, Roofline, Slope
from keras_matrix.dashboards.charts.picture import document
from keras_matrix.dashboards.charts.roofline import bandwidth, draw, drawn, rate, scenes
from keras_matrix.dashboards.report.page import rendered, stylesheet
from keras_matrix.records.text import NOTHING, bytes_text, integer, percentage

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]  # the text of a column, by its heading


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of text below their headings; the first `words` columns are row headings."""

    heads: list[str]
    rows: list[list[str]]
    words: int = 1


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of the page."""

    title: str
    machine: str
    measured: str


def render_svg(found: Roofline) -> str:
    """Return the first picture as an SVG document. Raises `ValueError` if there is nothing to draw."""
    shown = scenes(found)
    if not shown:
        raise ValueError("no roof to draw: no peak was measured; measure with: runner roofline --measure")
    return document(replace(draw(shown[0]), title=shown[0].title, role="roofline"), stylesheet("roofline")) + "\n"


def render_page(found: Roofline, heading: Heading) -> str:
    """Return the page: the pictures, then the figures they were drawn from."""
    return rendered(
        "roofline.html",
        stylesheet("roofline"),
        heading=f"roofline, {heading.title}",
        about=heading,
        pictures=[drawn(scene) for scene in scenes(found)],
        cells=cell_table(found.shares),
        own=own_table(found.own),
        memory=memory_table(found.slopes),
        notes=found.notes,
    )


def cell_table(shares: Sequence[PeakShare]) -> TextTable:
    """Return a row per cell."""
    columns: Columns[PeakShare] = {
        "work": lambda one: one.title,
        "backend": lambda one: one.backend,
        "FLOPs a step": lambda one: integer(one.flops_per_step),
        "reached": lambda one: rate(one.achieved_flop_per_s),
        "peak": lambda one: rate(one.peak_flop_per_s) + (f" ({one.peak_of})" if one.peak_of else ""),
        "share of peak": _share_of_peak,
        "of own product": lambda one: percentage(one.share_of_own_gemm),
        "FLOPs per byte, at most": _intensity,
        "MFU": lambda one: percentage(one.mfu),
        "remark": lambda one: one.note or "",
    }
    return _table(columns, shares, words=2)


def own_table(own: Sequence[Product]) -> TextTable:
    """Return a row per backend, precision and number of CPUs: its own matrix product against the best."""
    columns: Columns[Product] = {
        "device": lambda one: one.place.device,
        "precision": lambda one: one.place.precision,
        "backend": lambda one: one.backend,
        "CPUs": lambda one: integer(one.place.threads),
        "best": lambda one: rate(one.best_flop_per_s),
        "median": lambda one: rate(one.median_flop_per_s),
        "calls": lambda one: integer(one.calls),
        "of the best backend’s": lambda one: percentage(one.share_of_best),
    }
    return _table(columns, own, words=3)


def memory_table(slopes: Sequence[Slope]) -> TextTable:
    """Return a row per device and number of CPUs."""
    columns: Columns[Slope] = {
        "device": lambda one: one.device,
        "timed with": lambda one: one.by,
        "CPUs": lambda one: integer(one.threads),
        "triad, best": lambda one: bandwidth(one.best_byte_per_s),
        "triad, median": lambda one: bandwidth(one.median_byte_per_s),
        "calls": lambda one: integer(one.calls),
        "copy, best": lambda one: bandwidth(one.copy_byte_per_s),
        "arrays of": lambda one: bytes_text(one.array_bytes),
    }
    return _table(columns, slopes, words=2)


def _table(columns: Columns[T], found: Sequence[T], words: int) -> TextTable:
    return TextTable(list(columns), [[text(one) for text in columns.values()] for one in found], words)


def _share_of_peak(one: PeakShare) -> str:
    return percentage(one.share_of_peak, one.low, one.high)


def _intensity(one: PeakShare) -> str:
    return NOTHING if one.intensity_flop_per_byte is None else f"{one.intensity_flop_per_byte:,.1f}"
