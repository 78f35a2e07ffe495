"""A cell's share of a device's peaks as values of the table: of the best measured product, and of the stated peak."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.hardware.roofline import PeakShare
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, Value
from keras_matrix.dashboards.charts.roofline import bandwidth, rate
from keras_matrix.records.text import NOTHING, PERCENT, number


def of_measured_peak(shares: Sequence[PeakShare | None]) -> list[Value]:
    """Return each backend's share of the machine's best measured peak, with its rate next to it.

    If the backends of a row compute in several precisions, the precision of its peak is next to each share, and the
    rate is in the hint.
    """
    differ = len({share.place.precision for share in shares if share and share.place}) > 1
    return [_of_measured_peak(share, differ) for share in shares]


def of_stated_peak(share: PeakShare | None) -> Value:
    """Return a share of the peak that the maker states for the precision of the computation (MFU)."""
    if share is None or share.mfu is None or share.place is None:
        return NOT_MEASURED
    hint = f"of {rate(share.datasheet_flop_per_s)}, as the maker states it"
    return Value(number(share.mfu, PERCENT.size), share.place.precision, hint)


def of_bandwidth(share: PeakShare | None) -> Value:
    """Return the share of the memory's bandwidth at which our decoding step of a language model reads its weights."""
    if share is None or share.share_of_bandwidth is None:
        return NOT_MEASURED
    return Value(number(share.share_of_bandwidth, PERCENT.size), bandwidth(share.read_byte_per_s))


def _of_measured_peak(share: PeakShare | None, differ: bool) -> Value:
    if share is None or share.share_of_peak is None or share.achieved_flop_per_s is None:
        return Value(NOTHING, hint=(share.note if share else None) or "")
    precision = f" in {share.place.precision}" if share.place else ""
    hint = f"of {rate(share.peak_flop_per_s)}, the machine's best measured product{precision}"
    hint += f" ({share.peak_of})" if share.peak_of else ""
    reached = rate(share.achieved_flop_per_s)
    if differ and share.place:
        return Value(number(share.share_of_peak, PERCENT.size), share.place.precision, f"{reached}, {hint}")
    return Value(number(share.share_of_peak, PERCENT.size), reached, hint)
