"""Lists of CPUs as the kernel writes them: `0-3,8`.

One spelling a list: sorted, ranges closed up; a CPU alone is `3-3`, since a bare `3` in a matrix file is a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Where a cell's processes find the CPUs they are held to, before they import anything that makes threads.
VARIABLE = "KERAS_BENCHMARK_CPUS"
PATTERN = r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*"
MOST = 1 << 16
_LIST = re.compile(PATTERN)


def parse(text: str) -> list[int] | None:
    """Return the numbers of a list, none of an empty text; None where it is no list, or a number is beyond MOST."""
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
    """Return the one spelling of some CPUs."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    if len(runs) == 1:
        return f"{runs[0][0]}-{runs[0][1]}"
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
