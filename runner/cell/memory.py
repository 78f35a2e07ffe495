"""The cell's own peak of resident host memory, reported as a fresh interpreter would have it.

A forked child maps its server's heap but not yet the pages of shared libraries it has not touched; a fresh process
would have read them in. What the server had mapped of files and the child has not is added.
"""

from __future__ import annotations

from pathlib import Path

# Limit and use of the control group that a container sees as its root: of version 2, and of version 1.
GROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

_server_file_bytes = 0


def mapped_file_bytes() -> int:
    """Return the resident bytes of this process that are backed by files."""
    return _status("RssFile") or 0


def set_server_file_bytes(count: int) -> None:
    """Tell a forked child what its server had mapped."""
    global _server_file_bytes  # noqa: PLW0603 - set once, by the fork, before anything else runs
    _server_file_bytes = count


def peak_resident_bytes() -> int | None:
    """Return the peak of this process, None where the kernel does not say."""
    peak = _status("VmHWM")
    return None if peak is None else peak + max(0, _server_file_bytes - mapped_file_bytes())


def available_bytes() -> int | None:
    """Return the memory that may still be taken without swapping, of the machine or of its container if less.

    None where neither is told.
    """
    told = [_kilobytes("/proc/meminfo", "MemAvailable"), *(_left(limit, used) for limit, used in GROUP)]
    return min((left for left in told if left is not None), default=None)


def _left(limit: str, used: str) -> int | None:
    try:
        return max(0, int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None  # no group of this version, or "max": no limit


def _status(name: str) -> int | None:
    return _kilobytes("/proc/self/status", name)


def _kilobytes(path: str, name: str) -> int | None:
    for line in Path(path).read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None
