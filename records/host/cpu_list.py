"""Lists of CPUs in the kernel's format: `0-3,8`.

Each list has one canonical text: sorted, with merged ranges; a single CPU is `3-3`, since `3` in a matrix is a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Environment variable with a cell's CPUs, which its processes apply before importing anything that creates threads.
VARIABLE = "KERAS_BENCHMARK_CPUS"
PATTERN = r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*"
MOST = 1 << 16
_LIST = re.compile(PATTERN)


def parse(text: str) -> list[int] | None:
    """Return the numbers of a list, empty for an empty text; None if it is invalid or a number is beyond MOST."""
    if not text:
        return []
    if not _LIST.fullmatch(text):
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST:
            return None
        found += range(low, high + 1)
    return found if len(found) <= MOST else None


def text(cpus: Iterable[int]) -> str:
    """Return the canonical text of some CPUs."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    if len(runs) == 1:
        return f"{runs[0][0]}-{runs[0][1]}"
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
