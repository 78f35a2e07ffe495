"""Aligns the clocks of ranks.

Ranks of one machine whose files contain marks with the machine's monotonic clock need nothing else: a mark is never
early, so that the smallest difference is the most accurate. The clocks of others are aligned by the ends of
collectives, at which all ranks of a group end together: the median of the differences, since single ends are late where
a thread waits for a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from keras_matrix.analysis.whatif.reconstruct.pieces import RankTrace


@dataclass(frozen=True, slots=True)
class Clock:
    """What a file says of its clock: pairs of its own and the machine's time, the machine, and its time base."""

    marks: Sequence[tuple[int, int]]
    host: str | None
    base_ns: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """What is added to each rank's clock, relative to the first rank's, and what is not known of it."""

    offsets_ns: tuple[int, ...]
    caveats: tuple[str, ...] = ()


def align(traces: Sequence[RankTrace], clocks: Sequence[Clock]) -> Alignment:
    """Return the offsets of the ranks."""
    if len(traces) < 2:
        return Alignment((0,) * len(traces))
    if all(clock.marks for clock in clocks) and len({clock.host for clock in clocks}) == 1:
        ahead = [min(own - machine for own, machine in clock.marks) for clock in clocks]
        return Alignment(tuple(ahead[0] - one for one in ahead))
    bases = [clock.base_ns - clocks[0].base_ns for clock in clocks]
    ends = [_ends(trace) for trace in traces]
    offsets = [0]
    unknown = []
    for trace, base_ns, own in zip(traces[1:], bases[1:], ends[1:], strict=True):
        shared = ends[0].keys() & own.keys()
        if shared:
            offsets.append(round(median(ends[0][key] - own[key] for key in shared)))
        else:
            offsets.append(base_ns)
            unknown.append(trace.rank)
    caveat = f"the clocks of ranks {unknown} are not aligned: they share no collective with rank {traces[0].rank}"
    return Alignment(tuple(offsets), (caveat,) if unknown else ())


def _ends(trace: RankTrace) -> Mapping[tuple[str, int, int], int]:
    """Return the ends of a rank's collectives by their group, ordinal and step. A broadcast's root ends early."""
    return {
        (piece.call.group, piece.call.ordinal, step): piece.end_ns
        for step in range(len(trace.windows))
        for piece in trace.pieces(step)
        if piece.call is not None and piece.call.operation != "broadcast" and len(piece.call.ranks) > 1
    }
