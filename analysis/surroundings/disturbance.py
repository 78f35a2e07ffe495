"""The rule, fixed beforehand, by which a block of repeats counts as disturbed from outside the run.

Promise: pure, and blind. It is given no times of epochs, steps or cells, only what the machine's own counters moved by
during the block's measured stretches, all arms in one bag: it cannot know which arm was hit. It compares shares of the
whole bag. What the run's own processes used is subtracted or disarms the signal.

That the shares are those of the bag and not of the worst arm is what keeps the ratio unbiased: given the total, a
disturbance that comes at random falls on each arm in proportion to its length. Judged by the worst arm, blocks whose
short arm was hit are thrown out more often, which moves the ratio of arms of 2 and 8 s by 1 to 2 % (tested).

Signals and what they can tell (docs/noise.md holds the reasoning):

  steal            outside by nature: the hypervisor ran something else while a CPU had work
  others' CPU      busy time less what the run's own processes used
  memory, I/O      pressure "full": everything that wanted to run stood still, the cell too. Attributed to others only
                   while the run itself holds little memory, or moves next to nothing to and from storage
  heat             throttling while others used more CPU than the run did

CPU pressure is never a reason: a cell with more threads than CPUs makes it by itself, and no counter says whose wait it
was; others that take the CPU show in their use of it. Nor are the load average (it lags by a minute and holds the cell
too), context switches, swapped pages and quota throttling (whoever runs under the quota uses it up, first the cell).

Not known here: what happens on CPUs the run may not use, in memory bandwidth and caches, on the host under a virtual
machine beyond its steal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

# The default `precision_target`. At worst all of a block's 3 % fell on one of two equal arms: its log ratio moved by
# 6 %, the mean of five blocks, the fewest that give an interval, by 1.2 %, in a direction that chance chose. A lower
# limit would replace blocks for what cannot be seen in the result, and be within what the ticks blur.
STEAL_LIMIT = 0.03
OTHER_CPU_LIMIT = 0.03
STALL_LIMIT = 0.03
# CPU time is told in ticks of 10 ms: over 1 s of it, the ends of the stretches of a block blur a share by about 1 %.
MIN_CPU_S = 1.0
# A run that holds less than half of the memory it may use cannot by itself have exhausted it.
OWN_MEMORY_LIMIT = 0.5
# At a slow disk's 40 MB/s, 1 MiB a second keeps it occupied for less than 3 % of the time: what STALL_LIMIT allows.
OWN_STORAGE_LIMIT_BYTES_PER_S = 1 << 20


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the machine's counters moved by over a stretch of time. None means not measured.

    CPU times are sums over the CPUs the run may use; `cpu_busy_s` holds programs and the kernel on their behalf, not
    interrupts. Pressure times are wall time: `some`, at least one task waited; `full`, all that wanted to run did.
    """

    wall_s: float
    cpu_total_s: float | None = None
    cpu_busy_s: float | None = None
    cpu_irq_s: float | None = None
    cpu_steal_s: float | None = None
    cpu_some_s: float | None = None
    memory_some_s: float | None = None
    memory_full_s: float | None = None
    io_some_s: float | None = None
    io_full_s: float | None = None
    quota_throttled_s: float | None = None
    throttle_events: int | None = None
    swapped_in_bytes: int | None = None
    swapped_out_bytes: int | None = None
    context_switches: int | None = None


@dataclass(frozen=True, slots=True)
class OwnUse:
    """What the run's own processes (the cells', the waiting ones' and the runner's) used meanwhile; None: unknown.

    `memory_share` is the resident memory of all of them over the memory they may use; `storage_bytes` what they had
    moved to and from storage, not what the page cache served.
    """

    cpu_s: float | None = None
    memory_share: float | None = None
    storage_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingUse:
    """CPU time that a cell of the run used while another one worked; `cpu_s` is None where it is not known."""

    name: str
    cpu_s: float | None


@dataclass(frozen=True, slots=True)
class Watched:
    """One measured stretch of any arm, and what the run used during it; `waiting` names the cells that waited."""

    stretch: Stretch
    own: OwnUse
    waiting: tuple[WaitingUse, ...] = ()


class Cause(StrEnum):
    """What disturbed a block. A closed set."""

    STEAL = "steal"
    OTHER_CPU = "other_cpu"
    MEMORY = "memory_pressure"
    IO = "io_pressure"
    HEAT = "throttling"


_TEXTS = {
    Cause.STEAL: "the hypervisor withheld {share} of the time the CPUs had work",
    Cause.OTHER_CPU: "processes outside the run used {share} of the CPUs",
    Cause.MEMORY: "everything waited for memory {share} of the time, which the run does not fill",
    Cause.IO: "everything waited for storage {share} of the time, which the run does not use",
    Cause.HEAT: "the CPU was throttled while processes outside the run used most of it",
}


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Why a block counts as disturbed. `share` and `limit` are None for throttling."""

    cause: Cause
    share: float | None = None
    limit: float | None = None

    def __str__(self) -> str:
        if self.share is None or self.limit is None:
            return f"{self.cause.value}: {_TEXTS[self.cause]}"
        text = _TEXTS[self.cause].format(share=percent(self.share))
        return f"{self.cause.value}: {text} (limit {percent(self.limit)})"


def disturbed(block: Iterable[Watched]) -> Disturbed | None:
    """Return what disturbed a block from outside, beyond the limits; None when nothing did or nothing can be told.

    `block` holds every measured stretch of every arm, in any order. Of several causes the one furthest beyond its limit
    is named, of equally far ones the first in `Cause`.
    """
    whole = together(block)
    if whole is None:
        return None
    found = [_beyond(cause, share(whole), limit) for cause, share, limit in _SHARES]
    if _others_heat(whole):
        found.append(Disturbed(Cause.HEAT))
    return max((reason for reason in found if reason is not None), key=_excess, default=None)


def together(block: Iterable[Watched]) -> Watched | None:
    """Return several stretches as one; a figure that any of them lacks is None. None for no stretch.

    Times, events and bytes add up, the same in every order; of memory, which the run holds, the largest share counts.
    """
    parts = list(block)
    if not parts:
        return None
    sums: dict[str, Any] = {f.name: _sum([getattr(part.stretch, f.name) for part in parts]) for f in fields(Stretch)}
    own = [part.own for part in parts]
    shares = [use.memory_share for use in own]
    return Watched(
        Stretch(**sums),
        OwnUse(
            cpu_s=_sum([use.cpu_s for use in own]),
            memory_share=None if None in shares else max(share for share in shares if share is not None),
            storage_bytes=_sum([use.storage_bytes for use in own]),
        ),
    )


def percent(share: float) -> str:
    """Return a share as `3.1 %`."""
    return f"{100 * share:.1f} %"


def steal_share(stretch: Stretch) -> float | None:
    """Return which share of the time that the CPUs had work the hypervisor withheld.

    Not the share of all time: of a program on one of 64 CPUs that lost a tenth of its time, that would show 0.2 %.
    """
    busy_s, irq_s, steal_s = stretch.cpu_busy_s, stretch.cpu_irq_s, stretch.cpu_steal_s
    if busy_s is None or irq_s is None or steal_s is None or not _resolved(stretch) or busy_s + irq_s + steal_s <= 0:
        return None
    return steal_s / (busy_s + irq_s + steal_s)


def other_cpu_s(watched: Watched) -> float | None:
    """Return the CPU time of processes outside the run, kernel threads included."""
    busy_s, own_s = watched.stretch.cpu_busy_s, watched.own.cpu_s
    return None if busy_s is None or own_s is None else max(0.0, busy_s - own_s)


def other_cpu_share(watched: Watched) -> float | None:
    """Return the CPU time of processes outside the run as a share of all the CPU time there was."""
    others_s, total_s = other_cpu_s(watched), watched.stretch.cpu_total_s
    return others_s / total_s if others_s is not None and total_s and _resolved(watched.stretch) else None


def stall_share(full_s: float | None, stretch: Stretch) -> float | None:
    """Return pressure time as a share of the stretch."""
    return None if full_s is None or stretch.wall_s <= 0 else full_s / stretch.wall_s


def _resolved(stretch: Stretch) -> bool:
    """Say whether there was enough CPU time for ticks to tell a share of it."""
    return stretch.cpu_total_s is not None and stretch.cpu_total_s >= MIN_CPU_S


def _beyond(cause: Cause, share: float | None, limit: float) -> Disturbed | None:
    return Disturbed(cause, share, limit) if share is not None and share > limit else None


def _excess(reason: Disturbed) -> float:
    return 1.0 if reason.share is None or reason.limit is None else reason.share / reason.limit


def _memory(whole: Watched) -> float | None:
    held = whole.own.memory_share
    if held is None or held >= OWN_MEMORY_LIMIT:
        return None
    return stall_share(whole.stretch.memory_full_s, whole.stretch)


def _io(whole: Watched) -> float | None:
    moved, stretch = whole.own.storage_bytes, whole.stretch
    if moved is None or moved > OWN_STORAGE_LIMIT_BYTES_PER_S * stretch.wall_s:
        return None
    return stall_share(stretch.io_full_s, stretch)


def _others_heat(whole: Watched) -> bool:
    others_s, own_s = other_cpu_s(whole), whole.own.cpu_s
    return bool(whole.stretch.throttle_events) and others_s is not None and own_s is not None and others_s > own_s


_SHARES: tuple[tuple[Cause, Callable[[Watched], float | None], float], ...] = (
    (Cause.STEAL, lambda whole: steal_share(whole.stretch), STEAL_LIMIT),
    (Cause.OTHER_CPU, other_cpu_share, OTHER_CPU_LIMIT),
    (Cause.MEMORY, _memory, STALL_LIMIT),
    (Cause.IO, _io, STALL_LIMIT),
)


def _sum(values: Sequence[float | None]) -> Any:
    """Return the sum, rounded once so that the order does not matter; whole numbers stay whole."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known) if all(isinstance(value, int) for value in known) else math.fsum(known)
