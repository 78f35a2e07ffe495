"""Memory and swap space, from /proc/meminfo. Source: proc(5)."""

from __future__ import annotations

from analysis.surroundings.readings import Swap, Unread
from runner.surroundings.cgroups import memory_limit_bytes
from runner.surroundings.tree import Tree, whole_number


def swap(tree: Tree) -> Swap | Unread:
    """Return the swap space of the machine."""
    total, free = _bytes(tree, "SwapTotal"), _bytes(tree, "SwapFree")
    if isinstance(total, Unread):
        return total
    if isinstance(free, Unread):
        return free
    return Swap(max(0, total - free), total)


def usable_bytes(tree: Tree) -> int | None:
    """Return the memory this process may use: the machine's, or less by a limit; None where neither is told."""
    told = (_bytes(tree, "MemTotal"), memory_limit_bytes(tree))
    return min((size for size in told if isinstance(size, int)), default=None)


def _bytes(tree: Tree, key: str) -> int | Unread:
    text = tree.text("/proc/meminfo")
    if isinstance(text, Unread):
        return text
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == key:
            kibibytes = whole_number((value.split() or [""])[0])
            return kibibytes * 1024 if kibibytes is not None else Unread(f"/proc/meminfo: {key} is no number")
    return Unread(f"/proc/meminfo has no {key}", absent=True)
