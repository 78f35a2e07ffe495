"""Decides, by a rule fixed in advance, whether a block of repeats was disturbed from outside the run.

Guarantee: pure and blind. The rule receives no times of epochs, steps or cells, only the changes of the machine's
counters over the block's measured stretches, pooled over all arms: it cannot know which arm was disturbed. It compares
shares of the pool. The run's own use is subtracted from a signal or disables it.

Pooling, instead of judging by the worst arm, keeps the ratio unbiased: given the total, a random disturbance affects
each arm in proportion to its length. Judged by the worst arm, blocks whose short arm was disturbed are discarded more
often, which moves the ratio of arms of 2 and 8 s by 1 to 2 % (tested).

What waiting cells of the run used is not from outside: it is reported instead (`neighbours`).

Signals (docs/lab/noise.md gives the reasons):

  steal            always from outside: the hypervisor ran something else while a CPU had work
  others' CPU      busy time less that of the run's own processes
  memory, I/O      pressure "full": all runnable tasks waited, the cell included. Attributed to others only while the
                   run itself uses little memory, or moves almost nothing to and from storage
  heat             throttling while others used more CPU than the run did

CPU pressure is never a reason: a cell with more threads than CPUs causes it by itself, and no counter says who waited;
others that take the CPU are visible in their use of it. Nor are the load average (it lags by a minute and includes the
cell), context switches, swapped pages and quota throttling (the cell is the first to use up its quota).

Limits: activity on CPUs the run may not use, in memory bandwidth and caches, and, beyond steal, on the host of a
virtual machine is not visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from keras_matrix.records.schema import Surroundings
from keras_matrix.records.text import percentage

# The default `precision_target`. At worst all of a block's 3 % fell on one of two equal arms: its log ratio moved by
# 6 %, the mean of five blocks, the fewest that give an interval, by 1.2 %, in a random direction. A lower limit would
# replace blocks for effects invisible in the result, and be within the resolution of the ticks.
STEAL_LIMIT = 0.03
OTHER_CPU_LIMIT = 0.03
STALL_LIMIT = 0.03
# CPU time is counted in ticks of 10 ms: over 1 s of it, rounding at the ends of stretches blurs a share by about 1 %.
MIN_CPU_S = 1.0
# A run that uses less than half of the memory it may use cannot by itself have exhausted it.
OWN_MEMORY_LIMIT = 0.5
# At a slow disk's 40 MB/s, 1 MiB a second occupies it for less than 3 % of the time, as STALL_LIMIT allows.
OWN_STORAGE_LIMIT_BYTES_PER_S = 1 << 20
NEIGHBOUR_LIMIT = OTHER_CPU_LIMIT


@dataclass(frozen=True, slots=True)
class CounterChanges:
    """The changes of the machine's counters over a stretch of time. None means not measured.

    CPU times are sums over the CPUs the run may use; `cpu_busy_s` includes programs and the kernel on their behalf, not
    interrupts. Pressure times are wall time: `some`, at least one task waited; `full`, all runnable tasks did.
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
    """Resources used by the run's own processes (cells, waiting cells and runner); None if unknown.

    `memory_share` is the resident memory of all of them over the memory they may use; `storage_bytes` counts bytes
    moved to and from storage, without those served by the page cache.
    """

    cpu_s: float | None = None
    memory_share: float | None = None
    storage_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingUse:
    """CPU time that a cell of the run used while another one worked; `cpu_s` is None if unknown."""

    name: str
    cpu_s: float | None


@dataclass(frozen=True, slots=True)
class MeasuredStretch:
    """One measured stretch of any arm, and the run's own use during it; `waiting` names the cells that waited."""

    stretch: CounterChanges
    own: OwnUse
    waiting: tuple[WaitingUse, ...] = ()


class Cause(StrEnum):
    """The causes of a disturbance. A closed set."""

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
        text = _TEXTS[self.cause].format(share=percentage(self.share))
        return f"{self.cause.value}: {text} (limit {percentage(self.limit)})"


def disturbed(block: Iterable[MeasuredStretch]) -> Disturbed | None:
    """Return the disturbance of a block from outside, beyond the limits; None if there is no known one.

    `block` contains every measured stretch of every arm, in any order. Of several causes the one furthest beyond its
    limit is returned, of equally far ones the first in `Cause`.
    """
    total = together(block)
    if total is None:
        return None
    shares = [(cause, share_of(total), limit) for cause, share_of, limit in _SHARES]
    disturbances = [
        Disturbed(cause, share, limit) for cause, share, limit in shares if share is not None and share > limit
    ]
    others_s, own_s = other_cpu_s(total), total.own.cpu_s
    if total.stretch.throttle_events and others_s is not None and own_s is not None and others_s > own_s:
        disturbances.append(Disturbed(Cause.HEAT))
    return max(
        disturbances,
        key=lambda disturbance: (
            disturbance.share / disturbance.limit if disturbance.share and disturbance.limit else 1.0
        ),
        default=None,
    )


def together(block: Iterable[MeasuredStretch]) -> MeasuredStretch | None:
    """Return several stretches as one; a figure missing in any of them is None. None without stretches.

    Times, events and bytes are summed, independently of the order; of memory shares the largest counts.
    """
    measured_stretches = list(block)
    if not measured_stretches:
        return None
    sums: dict[str, Any] = {
        f.name: _sum([getattr(measured_stretch.stretch, f.name) for measured_stretch in measured_stretches])
        for f in fields(CounterChanges)
    }
    own_uses = [measured_stretch.own for measured_stretch in measured_stretches]
    shares = [use.memory_share for use in own_uses]
    return MeasuredStretch(
        CounterChanges(**sums),
        OwnUse(
            cpu_s=_sum([use.cpu_s for use in own_uses]),
            memory_share=None if None in shares else max(share for share in shares if share is not None),
            storage_bytes=_sum([use.storage_bytes for use in own_uses]),
        ),
    )


def steal_share(stretch: CounterChanges) -> float | None:
    """Return the share of the time that the CPUs had work in which the hypervisor withheld them.

    Not the share of all time: of a program on one of 64 CPUs that lost a tenth of its time, that would show 0.2 %.
    """
    busy_s, irq_s, steal_s = stretch.cpu_busy_s, stretch.cpu_irq_s, stretch.cpu_steal_s
    if busy_s is None or irq_s is None or steal_s is None or not _resolved(stretch) or busy_s + irq_s + steal_s <= 0:
        return None
    return steal_s / (busy_s + irq_s + steal_s)


def other_cpu_s(measured_stretch: MeasuredStretch) -> float | None:
    """Return the CPU time of processes outside the run, kernel threads included."""
    busy_s, own_s = measured_stretch.stretch.cpu_busy_s, measured_stretch.own.cpu_s
    return None if busy_s is None or own_s is None else max(0.0, busy_s - own_s)


def other_cpu_share(measured_stretch: MeasuredStretch) -> float | None:
    """Return the CPU time of processes outside the run as a share of all CPU time."""
    others_s, total_s = other_cpu_s(measured_stretch), measured_stretch.stretch.cpu_total_s
    return others_s / total_s if others_s is not None and total_s and _resolved(measured_stretch.stretch) else None


def stall_share(full_s: float | None, stretch: CounterChanges) -> float | None:
    """Return pressure time as a share of the stretch."""
    return None if full_s is None or stretch.wall_s <= 0 else full_s / stretch.wall_s


def _resolved(stretch: CounterChanges) -> bool:
    """Return whether there was enough CPU time for ticks to resolve a share of it."""
    return stretch.cpu_total_s is not None and stretch.cpu_total_s >= MIN_CPU_S


def _memory(total: MeasuredStretch) -> float | None:
    memory_share = total.own.memory_share
    if memory_share is None or memory_share >= OWN_MEMORY_LIMIT:
        return None
    return stall_share(total.stretch.memory_full_s, total.stretch)


def _io(total: MeasuredStretch) -> float | None:
    moved_bytes, stretch = total.own.storage_bytes, total.stretch
    if moved_bytes is None or moved_bytes > OWN_STORAGE_LIMIT_BYTES_PER_S * stretch.wall_s:
        return None
    return stall_share(stretch.io_full_s, stretch)


_SHARES: tuple[tuple[Cause, Callable[[MeasuredStretch], float | None], float], ...] = (
    (Cause.STEAL, lambda total: steal_share(total.stretch), STEAL_LIMIT),
    (Cause.OTHER_CPU, other_cpu_share, OTHER_CPU_LIMIT),
    (Cause.MEMORY, _memory, STALL_LIMIT),
    (Cause.IO, _io, STALL_LIMIT),
)


def _sum(values: Sequence[float | None]) -> Any:
    """Return the sum, rounded once so that the order does not matter; integers stay integers."""
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values):
        return None
    return sum(known_values) if all(isinstance(value, int) for value in known_values) else math.fsum(known_values)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A waiting cell, and the share of all CPU time that it used."""

    name: str
    cpu_share: float

    def __str__(self) -> str:
        return f"{self.name} ({percentage(self.cpu_share)} of the CPUs)"


def neighbours(measured_stretches: Iterable[MeasuredStretch]) -> tuple[Neighbour, ...]:
    """Return the cells that waited during these stretches, busiest first; those of unknown use are left out.

    Cells with less than `MIN_CPU_S` of CPU time in total are left out too: ticks do not resolve a share of it.

    A waiting cell blocks in a read and uses no CPU, unless its workload left threads or processes running. Their use
    belongs to the run, so the block is not disturbed from outside and is not measured again: the next attempt would
    have the same neighbour. It is reported instead, on the records of the cells that were slowed down and of the cell
    that caused it.
    """
    used_s: dict[str, float] = {}
    total_s: dict[str, float] = {}
    for measured_stretch in measured_stretches:
        for cell in measured_stretch.waiting:
            if cell.cpu_s is not None and measured_stretch.stretch.cpu_total_s is not None:
                used_s[cell.name] = used_s.get(cell.name, 0.0) + cell.cpu_s
                total_s[cell.name] = total_s.get(cell.name, 0.0) + measured_stretch.stretch.cpu_total_s
    all_neighbours = [Neighbour(name, used_s[name] / total_s[name]) for name in used_s if total_s[name] >= MIN_CPU_S]
    return tuple(sorted(all_neighbours, key=lambda neighbour: (-neighbour.cpu_share, neighbour.name)))


def busy_neighbours(measured_stretches: Iterable[MeasuredStretch]) -> tuple[Neighbour, ...]:
    """Return those that used more than `NEIGHBOUR_LIMIT` of all CPU time, busiest first."""
    return tuple(neighbour for neighbour in neighbours(measured_stretches) if neighbour.cpu_share > NEIGHBOUR_LIMIT)


def share_while_waiting(name: str, measured_stretches: Iterable[MeasuredStretch]) -> float | None:
    """Return the share of all CPU time that this cell used during others' stretches; None if unknown."""
    return next((neighbour.cpu_share for neighbour in neighbours(measured_stretches) if neighbour.name == name), None)


def cause_of(reason: Disturbed, all_surroundings: Sequence[Surroundings]) -> str:
    """Return the text of a disturbance; if its cause is others' CPU use, with the busiest process outside the run.

    `all_surroundings` are the surroundings of the block's attempts; the most disturbed attempt names the process.
    """
    busiest = max(
        all_surroundings, key=lambda surroundings: surroundings.other_cpu_share or 0.0, default=Surroundings()
    ).busiest_process
    return f"{reason}; busiest: {busiest}" if reason.cause is Cause.OTHER_CPU and busiest else str(reason)


def neighbour_warnings(surroundings: Surroundings) -> list[str]:
    """Return the warnings of an attempt that neighbours slowed down, or that slowed its neighbours down."""
    warnings = []
    if surroundings.busy_neighbours:
        warnings.append(
            f"busy_neighbour: {', '.join(surroundings.busy_neighbours)} computed while waiting for its turn, so this "
            "cell's times are too long, and measuring again would not change that; end what that workload leaves "
            "running between its epochs, or measure without it (--backend, --filter)"
        )
    if (surroundings.waiting_cpu_share or 0) > NEIGHBOUR_LIMIT:
        warnings.append(
            f"busy_while_waiting: this cell used {percentage(surroundings.waiting_cpu_share or 0)} of the CPUs while "
            "it waited for its turn, and slowed down the others of its block, and itself while it works; end the "
            "threads and processes that its workload leaves running between its epochs"
        )
    return warnings


def busy_text(surroundings: Surroundings) -> str:
    """Return the warning that processes outside the run took CPU time, with the busiest of them if known."""
    busiest = f" (busiest: {surroundings.busiest_process})" if surroundings.busiest_process else ""
    return (
        f"busy: processes outside the run used {percentage(surroundings.other_cpu_share or 0)} of the "
        f"CPUs{busiest}; stop them"
    )
