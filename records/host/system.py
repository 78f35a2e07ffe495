"""The memory of this host and the container engine it runs under, as every part of the program needs to know them.

Sources: proc(5); cgroups(7), by `records.host.cgroups`. A limit set above a container's own control group is not
visible.
"""

from __future__ import annotations

from keras_matrix.records.host.cgroups import memory_limit_bytes, memory_used_bytes
from keras_matrix.records.host.procfs import Tree, Unread, stated_bytes

MEMORY = "/proc/meminfo"
CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
CONTAINER_GROUPS = {"kubepods": "kubernetes", "docker": "docker", "lxc": "lxc", "libpod": "podman"}
HERE = Tree()


def container_engine(tree: Tree = HERE) -> str | None:
    """Return the container engine by the file it leaves or the name of the control group; None for no sign of one."""
    for path, engine in CONTAINER_MARKS.items():
        if tree.at(path).exists():
            return engine
    groups = tree.text("/proc/self/cgroup")
    found = [] if isinstance(groups, Unread) else [name for word, name in CONTAINER_GROUPS.items() if word in groups]
    return found[0] if found else None


def total_memory_bytes(tree: Tree = HERE) -> int | None:
    """Return the memory of the machine."""
    return _least(stated_bytes(tree, MEMORY, "MemTotal"))


def usable_memory_bytes(tree: Tree = HERE) -> int | None:
    """Return the memory this process may use: the machine's, or its control group's limit if less."""
    return _least(stated_bytes(tree, MEMORY, "MemTotal"), memory_limit_bytes(tree))


def free_memory_bytes(tree: Tree = HERE) -> int | None:
    """Return the memory that may still be taken without swapping, of the machine or of its control group if less."""
    limit, used = memory_limit_bytes(tree), memory_used_bytes(tree)
    left = max(0, limit - used) if isinstance(limit, int) and isinstance(used, int) else None
    return _least(stated_bytes(tree, MEMORY, "MemAvailable"), left)


def _least(*sizes: int | Unread | None) -> int | None:
    return min((size for size in sizes if isinstance(size, int)), default=None)
