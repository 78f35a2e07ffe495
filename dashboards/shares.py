"""A cell's share of a device's peaks in words: of the best measured product, and of what the maker states (MFU)."""

from __future__ import annotations

from analysis.roofline import Share
from dashboards.format import DASH, number

GIGA = 1e9
Words = tuple[str, str, str]
"""The figure, what stands beside it, and the hint."""


def of_measured_peak(share: Share | None) -> Words:
    """Return the share of the machine's best measured peak, with what was reached beside it."""
    if share is None or share.share_of_peak is None or share.achieved_flop_per_s is None:
        return DASH, "", (share.note if share else None) or ""
    precision = f" in {share.place.precision}" if share.place else ""
    hint = f"of {number(share.peak_flop_per_s, GIGA)} GFLOP/s, the machine's best measured product{precision}"
    hint += f" ({share.peak_of})" if share.peak_of else ""
    return number(share.share_of_peak * 100), f"{number(share.achieved_flop_per_s, GIGA)} GFLOP/s", hint


def of_stated_peak(share: Share | None) -> Words:
    """Return the share of the peak that the maker states for the precision in which the cell computes."""
    if share is None or share.mfu is None or share.place is None:
        return DASH, "", ""
    hint = f"of {number(share.datasheet_flop_per_s, GIGA)} GFLOP/s, as the maker states it"
    return number(share.mfu * 100), share.place.precision, hint
