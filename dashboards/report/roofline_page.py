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


def render_svg(roofline: Roofline) -> str:
    """Return the first picture as an SVG document. Raises `ValueError` if there is nothing to draw."""
    shown_scenes = scenes(roofline)
    if not shown_scenes:
        raise ValueError("no roof to draw: no peak was measured; measure with: runner roofline --measure")
    return (
        document(replace(draw(shown_scenes[0]), title=shown_scenes[0].title, role="roofline"), stylesheet("roofline"))
        + "\n"
    )


def render_page(roofline: Roofline, heading: Heading) -> str:
    """Return the page: the pictures, then the figures they were drawn from."""
    return rendered(
        "roofline.html",
        stylesheet("roofline"),
        heading=f"roofline, {heading.title}",
        about=heading,
        pictures=[drawn(scene) for scene in scenes(roofline)],
        cells=cell_table(roofline.shares),
        own=own_table(roofline.own),
        memory=memory_table(roofline.slopes),
        notes=roofline.notes,
    )


def cell_table(shares: Sequence[PeakShare]) -> TextTable:
    """Return a row per cell."""
    columns: Columns[PeakShare] = {
        "work": lambda share: share.title,
        "backend": lambda share: share.backend,
        "FLOPs a step": lambda share: integer(share.flops_per_step),
        "reached": lambda share: rate(share.achieved_flop_per_s),
        "peak": lambda share: rate(share.peak_flop_per_s) + (f" ({share.peak_of})" if share.peak_of else ""),
        "share of peak": _share_of_peak,
        "of own product": lambda share: percentage(share.share_of_own_gemm),
        "FLOPs per byte, at most": _intensity,
        "MFU": lambda share: percentage(share.mfu),
        "remark": lambda share: share.note or "",
    }
    return _table(columns, shares, words=2)


def own_table(products: Sequence[Product]) -> TextTable:
    """Return a row per backend, precision and number of CPUs: its own matrix product against the best."""
    columns: Columns[Product] = {
        "device": lambda product: product.place.device,
        "precision": lambda product: product.place.precision,
        "backend": lambda product: product.backend,
        "CPUs": lambda product: integer(product.place.threads),
        "best": lambda product: rate(product.best_flop_per_s),
        "median": lambda product: rate(product.median_flop_per_s),
        "calls": lambda product: integer(product.calls),
        "of the best backend’s": lambda product: percentage(product.share_of_best),
    }
    return _table(columns, products, words=3)


def memory_table(slopes: Sequence[Slope]) -> TextTable:
    """Return a row per device and number of CPUs."""
    columns: Columns[Slope] = {
        "device": lambda slope: slope.device,
        "timed with": lambda slope: slope.by,
        "CPUs": lambda slope: integer(slope.threads),
        "triad, best": lambda slope: bandwidth(slope.best_byte_per_s),
        "triad, median": lambda slope: bandwidth(slope.median_byte_per_s),
        "calls": lambda slope: integer(slope.calls),
        "copy, best": lambda slope: bandwidth(slope.copy_byte_per_s),
        "arrays of": lambda slope: bytes_text(slope.array_bytes),
    }
    return _table(columns, slopes, words=2)


def _table(columns: Columns[T], rows: Sequence[T], words: int) -> TextTable:
    return TextTable(list(columns), [[text(row) for text in columns.values()] for row in rows], words)


def _share_of_peak(share: PeakShare) -> str:
    return percentage(share.share_of_peak, share.low, share.high)


def _intensity(share: PeakShare) -> str:
    return NOTHING if share.intensity_flop_per_byte is None else f"{share.intensity_flop_per_byte:,.1f}"
