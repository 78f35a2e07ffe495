"""A cell's share of a device's peaks in words: of the best measured product, and of what the maker states (MFU)."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.hardware.roofline import PeakShare
from keras_matrix.dashboards.charts.format import DASH, number

GIGA = 1e9
Words = tuple[str, str, str]
"""The figure, what stands beside it, and the hint."""


def of_measured_peak(shares: Sequence[PeakShare | None]) -> list[Words]:
    """Return each backend's share of the machine's best measured peak, with what was reached beside it.

    Where the backends of a row compute in several precisions, each figure has the one of its peak beside it, and
    what was reached in the hint.
    """
    differ = len({share.place.precision for share in shares if share and share.place}) > 1
    return [_of_measured_peak(share, differ) for share in shares]


def of_stated_peak(shares: Sequence[PeakShare | None]) -> list[Words]:
    """Return each backend's share of the peak that the maker states for the precision in which it computes."""
    return [_of_stated_peak(share) for share in shares]


def _of_measured_peak(share: PeakShare | None, differ: bool) -> Words:
    if share is None or share.share_of_peak is None or share.achieved_flop_per_s is None:
        return DASH, "", (share.note if share else None) or ""
    precision = f" in {share.place.precision}" if share.place else ""
    hint = f"of {number(share.peak_flop_per_s, GIGA)} GFLOP/s, the machine's best measured product{precision}"
    hint += f" ({share.peak_of})" if share.peak_of else ""
    reached = f"{number(share.achieved_flop_per_s, GIGA)} GFLOP/s"
    if differ and share.place:
        return number(share.share_of_peak * 100), share.place.precision, f"{reached}, {hint}"
    return number(share.share_of_peak * 100), reached, hint


def _of_stated_peak(share: PeakShare | None) -> Words:
    if share is None or share.mfu is None or share.place is None:
        return DASH, "", ""
    hint = f"of {number(share.datasheet_flop_per_s, GIGA)} GFLOP/s, as the maker states it"
    return number(share.mfu * 100), share.place.precision, hint
