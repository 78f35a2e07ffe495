"""When operations ended, where the event of the end is late.

The event of the end of an asynchronous operation waits for a thread: in XLA up to the whole time of a following
all-reduce, in TensorFlow some milliseconds after a collective. What needs the result cannot have begun before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from keras_matrix.analysis.whatif.build.xplane.reading import Interval, Profile, union
from keras_matrix.analysis.whatif.build.xplane.rows import Row, Rows

# A device that did nothing during so much of a collective, and begins to work in the rest of it, had waited for it.
IDLE, REST = 0.5, 0.1


def end_before_use(befores: Iterable[tuple[Row, Row]]) -> None:
    """Let an operation end before what depends on it begins; `befores` are pairs of an operation and an earlier one."""
    for row, other in befores:
        for step, (run, before) in enumerate(zip(row.runs, other.runs, strict=True)):
            if run and before and before.start_ns <= run.start_ns < before.end_ns:
                other.runs[step] = before._replace(end_ns=run.start_ns)


def end_before_work(rows: Rows, profiles: Iterable[Profile], lanes: Iterable[str]) -> None:
    """Let collectives that no program describes end when the device begins to work again, on these lanes."""
    described = {name for profile in profiles for name in profile.programs}
    collectives = [
        row for own in rows.lanes.values() for row in own if row.is_collective and row.identity.program not in described
    ]
    if not collectives:
        return
    busy = union(
        (run.start_ns, run.end_ns)
        for lane in lanes
        for row in rows.lanes[lane]
        for run in row.runs
        if run and not row.is_collective
    )
    for row in collectives:
        for step, run in enumerate(row.runs):
            if run and (end_ns := _work_after(busy, (run.start_ns, run.end_ns))):
                row.runs[step] = run._replace(end_ns=end_ns)


def _work_after(busy: list[Interval], collective: Interval) -> int | None:
    """Return when work begins near the end of a collective, after the device did nothing for most of it."""
    begin_ns, end_ns = collective
    length_ns = end_ns - begin_ns
    at = bisect_right(busy, (end_ns, 0)) - 1
    while at >= 0 and busy[at][0] > end_ns - REST * length_ns:
        idle_ns = busy[at][0] - max(begin_ns, busy[at - 1][1] if at else begin_ns)
        if idle_ns > IDLE * length_ns:
            return busy[at][0]
        at -= 1
    return None
