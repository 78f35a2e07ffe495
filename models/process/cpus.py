"""Divides the CPUs of a machine among worker processes."""

from __future__ import annotations

import os


def take_share(rank: int, size: int) -> int:
    """Bind this process to its share of the CPUs, if there is at least one for each; return how many it may use."""
    cpus = sorted(os.sched_getaffinity(0))
    share = len(cpus) // size
    if share and size > 1:
        os.sched_setaffinity(0, cpus[rank * share : (rank + 1) * share])
    return max(1, share)
