"""The memory and the container engine of this host: the one reader for all parts of the program.

Sources: proc(5); cgroups(7), by `records.host.cgroups`. A limit above a container's own control group is not visible.
"""

from __future__ import annotations

from keras_matrix.records.host.cgroups import memory_limit_bytes, memory_used_bytes
from keras_matrix.records.host.procfs import ProcTree, Unread, stated_bytes

MEMORY = "/proc/meminfo"
CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
CONTAINER_GROUPS = {"kubepods": "kubernetes", "docker": "docker", "lxc": "lxc", "libpod": "podman"}
HERE = ProcTree()


def container_engine(tree: ProcTree = HERE) -> str | None:
    """Return the container engine, by its marker file or the control group's name; None outside of containers."""
    for path, engine in CONTAINER_MARKS.items():
        if tree.at(path).exists():
            return engine
    groups = tree.text("/proc/self/cgroup")
    found = [] if isinstance(groups, Unread) else [name for word, name in CONTAINER_GROUPS.items() if word in groups]
    return found[0] if found else None


def total_memory_bytes(tree: ProcTree = HERE) -> int | None:
    """Return the memory of the machine."""
    return _least(stated_bytes(tree, MEMORY, "MemTotal"))


def usable_memory_bytes(tree: ProcTree = HERE) -> int | None:
    """Return the memory that this process may use: the machine's, or its control group's limit if lower."""
    return _least(stated_bytes(tree, MEMORY, "MemTotal"), memory_limit_bytes(tree))


def free_memory_bytes(tree: ProcTree = HERE) -> int | None:
    """Return the memory that can be allocated without swapping, of the machine or of its control group if lower."""
    limit, used = memory_limit_bytes(tree), memory_used_bytes(tree)
    left = max(0, limit - used) if isinstance(limit, int) and isinstance(used, int) else None
    return _least(stated_bytes(tree, MEMORY, "MemAvailable"), left)


def _least(*sizes: int | Unread | None) -> int | None:
    return min((size for size in sizes if isinstance(size, int)), default=None)
