"""Swap space, from /proc/meminfo. Source: proc(5)."""

from __future__ import annotations

from keras_matrix.analysis.surroundings.readings import Swap
from keras_matrix.records.host.procfs import Tree, Unread, stated_bytes
from keras_matrix.records.host.system import MEMORY


def swap(tree: Tree) -> Swap | Unread:
    """Return the swap space of the machine."""
    total, free = stated_bytes(tree, MEMORY, "SwapTotal"), stated_bytes(tree, MEMORY, "SwapFree")
    if isinstance(total, Unread):
        return total
    if isinstance(free, Unread):
        return free
    return Swap(max(0, total - free), total)
