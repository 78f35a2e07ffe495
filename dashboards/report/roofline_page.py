"""The roofline written out: one picture as SVG, or a page of all of them with their tables.

Promise: pure; the same values give the same text. Neither asks another place for anything or runs a script, and names
are shown as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.analysis.hardware.roofline import OwnGemm, PeakShare, Roofline, Slope
from keras_matrix.dashboards.charts.format import DASH, integer, memory, share
from keras_matrix.dashboards.charts.roofline import NARROW, WIDE, bandwidth, draw, rate, scenes
from keras_matrix.dashboards.report.page import TEMPLATES, policy, stylesheet, templates

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under their heads; `words` counts the first columns that hold words."""

    heads: list[str]
    rows: list[list[str]]
    words: int = 1


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above the pictures."""

    title: str
    machine: str
    measured: str


def render_svg(found: Roofline) -> str:
    """Return the first picture as an SVG document. Raises `ValueError` where there is nothing to draw."""
    shown = scenes(found)
    if not shown:
        raise ValueError("no peak was measured that a cell could stand under")
    one = draw(shown[0], WIDE)
    return templates().get_template("roofline.svg").render(one=one, style=_style())


def render_page(found: Roofline, heading: Heading) -> str:
    """Return the page: the pictures, then the figures they were drawn from."""
    from markupsafe import Markup

    style = _style()
    shown = scenes(found)
    return (
        templates()
        .get_template("roofline.html")
        .render(
            style=Markup(style),
            policy=policy(style),
            heading=heading,
            pictures=[(draw(scene, WIDE), draw(scene, NARROW)) for scene in shown],
            cells=cell_table(found.shares),
            own=own_table(found.own),
            memory=memory_table(found.slopes),
            notes=found.notes,
        )
    )


def cell_table(shares: Sequence[PeakShare]) -> Table:
    """Return a row a cell."""
    heads = ["work", "backend", "FLOPs a step", "reached", "peak", "share of peak", "of own product"]
    heads += ["FLOPs per byte, at most", "MFU", "remark"]
    return Table(heads, [_cell_row(one) for one in shares], words=2)


def own_table(own: Sequence[OwnGemm]) -> Table:
    """Return a row a backend, precision and number of CPUs: its own matrix product against the best."""
    heads = ["device", "precision", "backend", "CPUs", "best", "median", "calls", "of the best backend’s"]
    rows = [
        [
            one.place.device,
            one.place.precision,
            one.backend,
            integer(one.place.threads),
            rate(one.best_flop_per_s),
            rate(one.median_flop_per_s),
            integer(one.calls),
            share(one.share_of_best),
        ]
        for one in own
    ]
    return Table(heads, rows, words=3)


def memory_table(slopes: Sequence[Slope]) -> Table:
    """Return a row a device and number of CPUs."""
    heads = ["device", "timed with", "CPUs", "triad, best", "triad, median", "calls", "copy, best", "arrays of"]
    rows = [
        [
            one.device,
            one.by,
            integer(one.threads),
            bandwidth(one.best_byte_per_s),
            bandwidth(one.median_byte_per_s),
            integer(one.calls),
            bandwidth(one.copy_byte_per_s),
            memory(one.array_bytes),
        ]
        for one in slopes
    ]
    return Table(heads, rows, words=2)


def _cell_row(one: PeakShare) -> list[str]:
    between = f" ({share(one.low)} to {share(one.high)})" if one.low is not None and one.high is not None else ""
    intensity = one.intensity_flop_per_byte
    return [
        one.title,
        one.backend,
        integer(one.flops_per_step),
        rate(one.achieved_flop_per_s),
        rate(one.peak_flop_per_s) + (f" ({one.peak_of})" if one.peak_of else ""),
        share(one.share_of_peak) + between,
        share(one.share_of_own_gemm),
        DASH if intensity is None else f"{intensity:,.1f}",
        share(one.mfu),
        one.note or "",
    ]


def _style() -> str:
    return stylesheet() + (TEMPLATES / "roofline.css").read_text(encoding="utf-8")
