"""What the run's own processes have used: the part of the machine's counters that is nobody else's doing.

    before = sampler.read(), own_now(tree, pids, usable)
    ...
    after = sampler.read(), own_now(tree, pids, usable)
    watched = Watched(since(before[0], after[0]), own_since(before[1], after[1]))

Promise: `pids` are all of the run's processes, the waiting ones and the runner too; if one of them does not tell,
the figure is None, since what it used would be taken for others' use.
Not known here: memory that processes share counts in each of them, so a share of memory is rather too large.
Source: proc(5) for /proc/PID/stat, statm and io.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection

from keras_matrix.analysis.surroundings.disturbance import OwnUse
from keras_matrix.records.host.procfs import Tree, Unread, integer
from keras_matrix.runner.host.surroundings.counters import moved, total
from keras_matrix.runner.host.surroundings.processes import read_line

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_now(tree: Tree, pids: Collection[int], usable_bytes: int | None) -> OwnUse:
    """Return what these processes and their ended children have used since they started, and the memory they hold.

    `usable_bytes` is what they may use (`records.host.system.usable_memory_bytes`); None where that is not known.
    """
    resident = total(_resident_bytes(tree, pid) for pid in pids)
    return OwnUse(
        cpu_s=cpu_now(tree, pids),
        memory_share=resident / usable_bytes if resident is not None and usable_bytes else None,
        storage_bytes=total(_storage_bytes(tree, pid) for pid in pids),
    )


def own_since(before: OwnUse, after: OwnUse) -> OwnUse:
    """Return what was used between two readings of the same processes; of memory the larger share held."""
    shares = [share for share in (before.memory_share, after.memory_share) if share is not None]
    return OwnUse(
        cpu_s=moved(before.cpu_s, after.cpu_s),
        memory_share=max(shares) if len(shares) == 2 else None,
        storage_bytes=moved(before.storage_bytes, after.storage_bytes),
    )


def cpu_now(tree: Tree, pids: Collection[int]) -> float | None:
    """Return the CPU time of these processes and their ended children since they started."""
    return total(_cpu_s(tree, pid) for pid in pids)


def ended_cpu_s() -> float:
    """Return what this process and its ended children have used: all of a run whose processes end with each reading."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(found.ru_utime + found.ru_stime for found in used)


def _cpu_s(tree: Tree, pid: int) -> float | None:
    line = read_line(tree, pid)
    return None if line is None else line.whole_cpu_s


def _resident_bytes(tree: Tree, pid: int) -> int | None:
    text = tree.text(f"/proc/{pid}/statm")
    pages = None if isinstance(text, Unread) else integer([*text.split(), "", ""][1])
    return None if pages is None else pages * PAGE_BYTES


def _storage_bytes(tree: Tree, pid: int) -> int | None:
    text = tree.text(f"/proc/{pid}/io")
    told = {} if isinstance(text, Unread) else dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    read, written = (integer(told.get(name, "")) for name in ("read_bytes", "write_bytes"))
    return None if read is None or written is None else read + written
