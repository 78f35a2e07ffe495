"""The usage of the run's own processes: their part of the machine's counters.

    before = sampler.read(), own_now(tree, pids, usable)
    ...
    after = sampler.read(), own_now(tree, pids, usable)
    watched = Watched(since(before[0], after[0]), own_since(before[1], after[1]))

`pids` are all of the run's processes, including the waiting ones and the runner; if one of them cannot be read, the
figure is None, since its usage would be attributed to others. Memory that processes share counts for each of them, so
that a share of memory is an upper limit.
Source: proc(5) for /proc/PID/stat, statm and io.
"""

from __future__ import annotations

import resource
from collections.abc import Collection

from keras_matrix.analysis.surroundings.disturbance import OwnUse
from keras_matrix.records.host.procfs import ProcTree, Unread, integer
from keras_matrix.runner.machine.surroundings.counters import PAGE_BYTES, moved, total
from keras_matrix.runner.machine.surroundings.processes import read_line


def own_now(tree: ProcTree, pids: Collection[int], usable_bytes: int | None) -> OwnUse:
    """Return what these processes and their ended children have used since they started, and the memory they hold.

    `usable_bytes` is what they may use (`records.host.system.usable_memory_bytes`); None if it is unknown.
    """
    resident = total(_resident_bytes(tree, pid) for pid in pids)
    return OwnUse(
        cpu_s=cpu_now(tree, pids),
        memory_share=resident / usable_bytes if resident is not None and usable_bytes else None,
        storage_bytes=total(_storage_bytes(tree, pid) for pid in pids),
    )


def own_since(before: OwnUse, after: OwnUse) -> OwnUse:
    """Return what was used between two readings of the same processes; for memory the larger share."""
    shares = [share for share in (before.memory_share, after.memory_share) if share is not None]
    return OwnUse(
        cpu_s=moved(before.cpu_s, after.cpu_s),
        memory_share=max(shares) if len(shares) == 2 else None,
        storage_bytes=moved(before.storage_bytes, after.storage_bytes),
    )


def cpu_now(tree: ProcTree, pids: Collection[int]) -> float | None:
    """Return the CPU time of these processes and their ended children since they started."""
    return total(line.whole_cpu_s if (line := read_line(tree, pid)) else None for pid in pids)


def ended_cpu_s() -> float:
    """Return the CPU time of this process and its ended children: all of a run without live child processes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(found.ru_utime + found.ru_stime for found in used)


def _resident_bytes(tree: ProcTree, pid: int) -> int | None:
    text = tree.text(f"/proc/{pid}/statm")
    pages = None if isinstance(text, Unread) else integer([*text.split(), "", ""][1])
    return None if pages is None else pages * PAGE_BYTES


def _storage_bytes(tree: ProcTree, pid: int) -> int | None:
    text = tree.text(f"/proc/{pid}/io")
    values = {} if isinstance(text, Unread) else dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    read, written = (integer(values.get(name, "")) for name in ("read_bytes", "write_bytes"))
    return None if read is None or written is None else read + written
