"""The memory, the control groups and the container engine of this host: the one reader for all parts of the program.

The limit is the tightest of this process's control group and of all visible groups above it, in versions 1 and 2.
Inside a container only the groups up to its root are visible; a tighter limit above that root is unknown. Exhausted
memory of a device is recognised by the texts of frameworks and CUDA's libraries. Sources: proc(5); cgroups(7); the
kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from keras_matrix.records.host.procfs import ProcTree, Unread, integer, stated_bytes

MEMORY = "/proc/meminfo"
CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
CONTAINER_GROUPS = {"kubepods": "kubernetes", "docker": "docker", "lxc": "lxc", "libpod": "podman"}
HERE = ProcTree()
# Version 1 writes "no limit" as the largest multiple of a page that fits; no machine has 4 EiB.
NO_LIMIT_BYTES = 1 << 62
OUT_OF_MEMORY_TEXTS = (
    "RESOURCE_EXHAUSTED",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def container_engine(tree: ProcTree = HERE) -> str | None:
    """Return the container engine, by its marker file or the control group's name; None outside of containers."""
    for path, engine in CONTAINER_MARKS.items():
        if tree.at(path).exists():
            return engine
    groups = tree.text("/proc/self/cgroup")
    engines = [] if isinstance(groups, Unread) else [name for word, name in CONTAINER_GROUPS.items() if word in groups]
    return engines[0] if engines else None


def total_memory_bytes(tree: ProcTree = HERE) -> int | None:
    """Return the memory of the machine."""
    return _least(stated_bytes(tree, MEMORY, "MemTotal"))


def usable_memory_bytes(tree: ProcTree = HERE) -> int | None:
    """Return the memory that this process may use: the machine's, or its control group's limit if lower."""
    return _least(stated_bytes(tree, MEMORY, "MemTotal"), memory_limit_bytes(tree))


def free_memory_bytes(tree: ProcTree = HERE) -> int | None:
    """Return the memory that can be allocated without swapping, of the machine or of its control group if lower."""
    limit, used_bytes = memory_limit_bytes(tree), memory_used_bytes(tree)
    left_in_group = max(0, limit - used_bytes) if isinstance(limit, int) and isinstance(used_bytes, int) else None
    return _least(stated_bytes(tree, MEMORY, "MemAvailable"), left_in_group)


def _least(*sizes: int | Unread | None) -> int | None:
    return min((size for size in sizes if isinstance(size, int)), default=None)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The location of one controller's files for this process's group, and for the groups above it."""

    version: int
    mount: str
    path: str

    def folders(self) -> Iterator[str]:
        """Yield the group's own folder, then those above it up to the mount."""
        path = PurePosixPath(self.path.lstrip("/"))
        for part in (path, *path.parents):
            yield str(PurePosixPath(self.mount) / part)


def group(tree: ProcTree, controller: str, process: str = "self") -> ControlGroup | Unread:
    """Return a process's group for a controller, `cpu` or `memory`; `process` is its number, by default this one."""
    memberships, mounts = tree.text(f"/proc/{process}/cgroup"), tree.text("/proc/self/mountinfo")
    if isinstance(memberships, Unread):
        return memberships
    if isinstance(mounts, Unread):
        return mounts
    paths = dict(_memberships(memberships))
    version = 1 if controller in paths else 2
    path = paths.get(controller, paths.get(""))
    if path is None:
        return Unread(f"/proc/{process}/cgroup names no group for {controller}")
    for kind, mount, root, options in _mounts(mounts):
        if kind == ("cgroup" if version == 1 else "cgroup2") and (version == 2 or controller in options):
            control_group = ControlGroup(version, mount, _below(path, root))
            folder = next(control_group.folders())
            return control_group if tree.at(folder).is_dir() else Unread(f"{folder} does not exist")
    return Unread(f"no cgroup file system for {controller} is mounted")


def quota_cpus(tree: ProcTree) -> float | Unread | None:
    """Return how many CPUs' worth of time the tightest quota allows; None for no quota."""
    control_group = group(tree, "cpu")
    if isinstance(control_group, Unread):
        return control_group
    return _tightest(control_group, lambda folder: _quota(tree, control_group.version, folder))


def memory_limit_bytes(tree: ProcTree) -> int | Unread | None:
    """Return the tightest memory limit; None for no limit."""
    control_group = group(tree, "memory")
    if isinstance(control_group, Unread):
        return control_group
    name = "memory.max" if control_group.version == 2 else "memory.limit_in_bytes"
    limit = _tightest(control_group, lambda folder: _limit(tree, f"{folder}/{name}"))
    return int(limit) if isinstance(limit, float) else limit


def memory_used_bytes(tree: ProcTree) -> int | Unread:
    """Return the group's memory usage, without the page cache that the kernel would reclaim first."""
    control_group = group(tree, "memory")
    if isinstance(control_group, Unread):
        return control_group
    folder = next(control_group.folders())
    used_bytes = tree.number(f"{folder}/{'memory.current' if control_group.version == 2 else 'memory.usage_in_bytes'}")
    stat = tree.text(f"{folder}/memory.stat")
    if isinstance(used_bytes, Unread) or isinstance(stat, Unread):
        return used_bytes
    field_name = "inactive_file" if control_group.version == 2 else "total_inactive_file"
    lines = (line.partition(" ") for line in stat.splitlines())
    cache = [integer(value) for name, _, value in lines if name == field_name]
    return max(0, used_bytes - (cache[0] or 0)) if cache else used_bytes


def quota_folder(tree: ProcTree) -> str | None:
    """Return the folder whose `cpu.stat` counts how long the quota throttled this process's group."""
    control_group = group(tree, "cpu")
    return None if isinstance(control_group, Unread) else next(control_group.folders())


def _tightest(control_group: ControlGroup, read: Callable[[str], float | Unread | None]) -> float | Unread | None:
    """Return the smallest limit of the group and those above it.

    In version 2 a missing file means no limit: the root has no such file, nor does a group without the controller. In
    version 1 every group has it. An existing file that cannot be read makes the limit unknown.
    """
    values = [read(folder) for folder in control_group.folders()]
    unread = [
        limit for limit in values if isinstance(limit, Unread) and not (limit.absent and control_group.version == 2)
    ]
    limits = [limit for limit in values if isinstance(limit, float)]
    return unread[0] if unread else min(limits, default=None)


def _quota(tree: ProcTree, version: int, folder: str) -> float | Unread | None:
    if version == 2:
        text = tree.text(f"{folder}/cpu.max")
        if isinstance(text, Unread):
            return text
        quota, _, period = text.partition(" ")
    else:
        number = tree.number(f"{folder}/cpu.cfs_quota_us")
        if isinstance(number, Unread):
            return number
        quota, period = ("max" if number < 0 else str(number)), str(tree.number(f"{folder}/cpu.cfs_period_us"))
    if quota == "max":
        return None
    quota_us, period_us = integer(quota), integer(period)
    if quota_us is None or not period_us or quota_us < 0 or period_us < 0:
        return Unread(f"{folder} contains {quota[:20]!r} of {period[:20]!r}, not a quota")
    return quota_us / period_us


def _limit(tree: ProcTree, path: str) -> float | Unread | None:
    text = tree.text(path)
    if isinstance(text, Unread):
        return text
    if text == "max":
        return None
    number = integer(text)
    if number is None or number < 0:
        return Unread(f"{path} contains {text[:20]!r}, not a number")
    return None if number >= NO_LIMIT_BYTES else float(number)


def _memberships(text: str) -> Iterator[tuple[str, str]]:
    """Yield (controller, path); version 2 has the controller ''. Lines are `id:controller,controller:path`."""
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(","):
                yield controller, fields[2]


def _mounts(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield (type, mount point, root within the file system, options of the file system) for each line of mountinfo."""
    for line in text.splitlines():
        mount_text, separator, filesystem_text = line.partition(" - ")
        fields, kind = mount_text.split(), filesystem_text.split()
        if separator and len(fields) >= 5 and len(kind) >= 3:
            yield kind[0], fields[4], fields[3], kind[2].split(",")


def _below(path: str, root: str) -> str:
    """Return a group's path below the mounted root; the mount itself if the group is outside of it."""
    if ".." in path.split("/"):
        return ""
    if root == "/":
        return path
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else ""


def says_out_of_memory(text: str) -> bool:
    """Return whether an error's message reports that the device is out of memory."""
    return any(phrase in text for phrase in OUT_OF_MEMORY_TEXTS)
