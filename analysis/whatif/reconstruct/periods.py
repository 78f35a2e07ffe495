"""How long each step took, where a device works behind the thread that gives it work.

Thread and device have a clock each. A thread that only launches runs ahead of its device, until the device's queue is
full; a device that had work left over runs after its thread. So neither the marks of the thread nor the time from a
launch to its kernel is the time of a step. A step of the device lasts from the end of the last work of the step before
to the end of its own. Both clocks tick once a step, so that in the long run they are equal. In a short trace they
differ by what fills or empties the queue between them: then the device's is right, which has the results.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.whatif.reconstruct.pieces import RankTrace, Window

# Clocks that differ by less than this are equal; then the marks are used, which show where each step began.
EQUAL = 0.001


def set_periods(traces: Sequence[RankTrace], kept: Sequence[int]) -> None:
    """Set the periods of the steps of all ranks; `kept` are the positions of the steps that are not left out."""
    by_device = [_of_device(trace, kept) for trace in traces]
    counted = range(min(1, len(kept) - 1), len(kept))
    marked_ns = max(sum(trace.windows[kept[index]].time_ns for index in counted) for trace in traces)
    device_ns = max(
        (sum(periods[index].time_ns for index in counted) for periods in by_device if periods), default=marked_ns
    )
    if abs(device_ns - marked_ns) <= EQUAL * marked_ns:
        return
    for trace, periods in zip(traces, by_device, strict=True):
        if periods:
            for step, period in zip(kept, periods, strict=True):
                trace.periods[step] = period


def _of_device(trace: RankTrace, kept: Sequence[int]) -> list[Window]:
    """Return the steps by the device's clock; nothing if one of them has no work of a device."""
    periods: list[Window] = []
    ends: list[int | None] = []
    for step in range(len(trace.windows)):
        pieces = [piece for lane in trace.streams for piece in trace.lanes[lane][step]]
        ends.append(max((piece.end_ns for piece in pieces), default=None))
        if step not in kept:
            continue
        if (end_ns := ends[step]) is None:
            return []
        begin_ns = ends[step - 1] if step else None
        if begin_ns is None:  # nothing is known of the step before: no shorter than its mark and its own work
            begin_ns = min(end_ns - trace.windows[step].time_ns, *(piece.start_ns for piece in pieces))
        periods.append(Window(min(begin_ns, end_ns - 1), end_ns))
    return periods
