"""Prints every few seconds what an installation has left to download: python ci/report_downloads.py LOG PREFIX

It reads what uv or pip writes into the log, and ends when its standard input is closed. See ci/setup.
"""

from __future__ import annotations

import re
import select
import sys
from pathlib import Path

INTERVAL_S = 5.0
MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def left(log: str) -> str | None:
    """What the last installer has left: uv's files over 1 MiB, their sum and the largest; the package pip fetches."""
    installer, output = re.split(r"(?m)^--- (\w+)$", f"--- uv\n{log}")[-2:]
    if installer == "pip":
        collected = re.findall(r"(?m)^Collecting (\S+)", output)
        return f"{len(collected)} packages collected, now {collected[-1]}" if collected else None
    sizes = {
        name: float(size) * MIB[unit]
        for name, size, unit in re.findall(r"(?m)^Downloading (\S+) \(([\d.]+)([KMG]iB)\)", output)
    }
    for name in re.findall(r"(?m)^ *Downloaded (\S+)", output):
        sizes.pop(name, None)
    if not sizes:
        return None
    more = f" and {len(sizes) - 1} more" if len(sizes) > 1 else ""
    return f"{sum(sizes.values()):.0f} MiB to download: {max(sizes, key=sizes.__getitem__)}{more}"


def main(log: Path, prefix: str) -> None:
    """Print a line whenever it differs from the last one."""
    previous = None
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        line = left(log.read_text(encoding="utf-8", errors="replace"))
        if line is not None and line != previous:
            print(f"{prefix}{line}", flush=True)
        previous = line


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
