"""What this process and its children have read and computed so far, from /proc, and what their block device delivered.

Read before and after an epoch, never between two steps. `None` means not known: a child that ended meanwhile took its
count of bytes with it; its CPU time is known once its parent has waited for it.

The page cache of a pipeline's files: evicted before each epoch of a cold cell, filled before those of a warm one.

A module of its own: it is a seam, the readings of other processes and of the page cache.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.host.procfs import ProcTree, Unread, integer
from keras_matrix.records.host.system import free_memory_bytes

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
IDLE_S = 0.1
IDLE_LIMIT_S = 5.0
IDLE_CPU_SHARE = 0.25
IDLE_BYTES = 64 << 10  # reading these counters takes a few KiB
# In /proc/PID/stat after the name: user and system time, and those of children that were waited for.
CPU_FIELDS = slice(11, 15)


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Bytes and calls of one process: `read_bytes` came from storage, `rchar` through read calls."""

    read_bytes: int
    rchar: int
    syscr: int


@dataclass(frozen=True, slots=True)
class TreeCounters:
    """The counters at one moment; `reads` by process."""

    cpu_time_s: float | None
    reads: dict[int, ReadCounts] = field(default_factory=dict)
    device_reads: int | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """What the process tree used between two snapshots."""

    cpu_time_s: float | None = None
    storage_read_bytes: int | None = None
    file_read_bytes: int | None = None
    file_reads: int | None = None
    device_reads: int | None = None


class ProcessTree:
    """This process and its descendants."""

    def __init__(self, files: Sequence[Path] = (), tree: ProcTree | None = None, pid: int | None = None) -> None:
        self._tree, self._pid = tree or ProcTree(), pid or os.getpid()
        self._device = _statistics_path(files)

    def snapshot(self) -> TreeCounters:
        """Read the counters now."""
        pids = [self._pid, *self._descendants(self._pid)]
        times_s = [self._cpu_time_s(pid) for pid in pids]
        return TreeCounters(
            sum(time_s for time_s in times_s if time_s is not None) if times_s[0] is not None else None,
            {pid: counts for pid in pids if (counts := self._reads(pid)) is not None},
            self._device_reads(),
        )

    def await_idle(self, quiet_s: float, pause: Callable[[float], None] = time.sleep) -> bool:
        """Return once the processes hardly read and compute any more, because every queue is full; False at the limit.

        They must do so for `quiet_s`, at most for the limit: a worker that waits for slow storage is as quiet until its
        batch is there. A process that rests would otherwise read ahead during the turn of another one, from the same
        storage and often the same files.
        """
        previous_snapshot, quiet, quiet_rounds = (
            self.snapshot(),
            0,
            math.ceil(round(min(quiet_s, IDLE_LIMIT_S) / IDLE_S, 6)),
        )
        for _ in range(round(IDLE_LIMIT_S / IDLE_S)):
            pause(IDLE_S)
            snapshot = self.snapshot()
            used, previous_snapshot = used_between(previous_snapshot, snapshot), snapshot
            rests = (used.cpu_time_s or 0.0) < IDLE_CPU_SHARE * IDLE_S and (used.file_read_bytes or 0) < IDLE_BYTES
            quiet = quiet + 1 if rests else 0
            if quiet >= quiet_rounds:
                return True
        return False

    def _descendants(self, pid: int) -> list[int]:
        children: list[int] = []
        for thread in self._tree.names(f"/proc/{pid}/task", "[0-9]*"):
            text = self._tree.text(f"/proc/{pid}/task/{thread}/children")
            if not isinstance(text, Unread):
                children += [int(word) for word in text.split()]
        return children + [descendant for child in children for descendant in self._descendants(child)]

    def _cpu_time_s(self, pid: int) -> float | None:
        text = self._tree.text(f"/proc/{pid}/stat")
        if isinstance(text, Unread):
            return None
        ticks = [integer(word) for word in text.rpartition(")")[2].split()[CPU_FIELDS]]
        return TICK_S * sum(tick for tick in ticks if tick is not None)

    def _reads(self, pid: int) -> ReadCounts | None:
        text = self._tree.text(f"/proc/{pid}/io")
        if isinstance(text, Unread):
            return None
        values = dict(line.split(": ") for line in text.splitlines() if ": " in line)
        try:
            return ReadCounts(*(int(values[name]) for name in ("read_bytes", "rchar", "syscr")))
        except (KeyError, ValueError):
            return None

    def _device_reads(self) -> int | None:
        if self._device is None:
            return None
        text = self._tree.text(self._device)
        if isinstance(text, Unread) or not text:
            return None
        return integer(text.split()[0])


def used_between(before: TreeCounters, after: TreeCounters) -> Used:
    """Return what was used between two snapshots."""
    is_known = before.reads.keys() <= after.reads.keys() and bool(after.reads)
    zero = ReadCounts(0, 0, 0)

    def grown(name: str) -> int | None:
        if not is_known:
            return None
        pairs = [(before.reads.get(pid, zero), counts_after) for pid, counts_after in after.reads.items()]
        return sum(
            int(getattr(counts_after, name)) - int(getattr(counts_before, name))
            for counts_before, counts_after in pairs
        )

    cpu_known = before.cpu_time_s is not None and after.cpu_time_s is not None
    devices_known = before.device_reads is not None and after.device_reads is not None
    return Used(
        max(0.0, (after.cpu_time_s or 0.0) - (before.cpu_time_s or 0.0)) if cpu_known else None,
        grown("read_bytes"),
        grown("rchar"),
        grown("syscr"),
        (after.device_reads or 0) - (before.device_reads or 0) if devices_known else None,
    )


def total(figures: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part is not known, or without parts."""
    all_figures = list(figures)
    return (
        None if not all_figures or None in all_figures else sum(figure for figure in all_figures if figure is not None)
    )


def _statistics_path(files: Sequence[Path]) -> str | None:
    """Return the file with the counters of the block device that stores the first of these files; None without one."""
    for path in files[:1]:
        try:
            number = path.stat().st_dev
        except OSError:
            return None
        return f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat" if os.major(number) else None
    return None


@dataclass(slots=True)
class PageCache:
    """The page cache of these files, and what was done to it; `evicted` is the fewest files of any epoch."""

    files: Sequence[Path]
    cold: bool = False
    evicted: int | None = None
    resident_shares: list[float | None] = field(default_factory=list)
    fits: bool | None = None

    def prepare(self) -> None:
        """Evict the files before an epoch of a cold cell; in a warm cell read them, so that it reads no storage.

        A warm cell reads again what another one, measured in turn with it, has evicted. Files that do not fit into
        half of the available memory would evict each other: they are left as they are.
        """
        if not self.files:
            return
        from keras_matrix.models.inputs.stored.page_cache import evict, resident_share, warm

        if self.cold:
            count = evict(self.files)
            self.evicted = count if self.evicted is None else min(count, self.evicted)
        elif self._fits():
            warm(self.files)
        if self.cold or not self.resident_shares:
            self.resident_shares.append(resident_share(self.files))

    def _fits(self) -> bool:
        if self.fits is None:
            self.fits = _size_bytes(self.files) <= (free_memory_bytes() or 0) // 2
        return self.fits

    @property
    def resident_share(self) -> float | None:
        """The share of the files in the cache when epochs began, the highest one; None if one cannot be read."""
        known_shares = [share for share in self.resident_shares if share is not None]
        return max(known_shares, default=None) if len(known_shares) == len(self.resident_shares) else None

    @property
    def cold_meaning(self) -> str | None:
        """What "cold" means for these epochs; None in a warm cell."""
        if not self.cold or self.evicted is None:
            return None
        from keras_matrix.models.inputs.stored.page_cache import cold_meaning

        return cold_meaning(self.files, self.evicted, self.resident_share)


def _size_bytes(files: Sequence[Path]) -> int:
    total = 0
    for path in files:
        with contextlib.suppress(OSError):  # it vanished: reading it is the pipeline's error
            total += path.stat().st_size
    return total
