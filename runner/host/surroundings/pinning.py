"""Which CPUs a cell's processes are held to: what `cpus` asks for, on this machine.

Promise: a count is met on one NUMA node, one CPU of each core before any second one, the lowest numbers first; the same
answer every time on the same machine. What is not there, or may not be used, is refused with what there is.

Memory needs no binding of its own: Linux gives a page from the node of the CPU that first touches it, and a process
that was held to a node's CPUs before its first import touches all of its pages there. A strict binding (`numactl -m`)
would end a cell that outgrows the node where this one spills over.
Source: of the kernel, Documentation/admin-guide/mm/numa_memory_policy.rst.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from keras_matrix.records.host import cpu_list
from keras_matrix.records.host.procfs import Tree, Unread
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.host.surroundings.processors import core_by_core, cpus_by_node, online


def pinned(asked: int | str, tree: Tree, allowed: Collection[int]) -> tuple[int, ...] | None:
    """Return the CPUs that `cpus` asks for, sorted; None for "all". `allowed` are those this process may use.

    Raises `UsageError` where they are not to be had here.
    """
    if asked == "all":
        return None
    return _listed(asked, tree, allowed) if isinstance(asked, str) else _counted(asked, tree, allowed)


def check(settings: Iterable[Settings]) -> None:
    """Raise `UsageError` for the first of these cells whose CPUs are not to be had here."""
    allowed = os.sched_getaffinity(0)
    for asked in dict.fromkeys(one.cpus for one in settings):
        pinned(asked, Tree(), allowed)


def most_cores(tree: Tree, allowed: Collection[int]) -> int:
    """Return the largest count that takes no two CPUs of one core: the cores of the node that has the most."""
    return max(core_by_core(tree, cpus)[1] for cpus in _nodes(tree, allowed).values())


def _listed(asked: str, tree: Tree, allowed: Collection[int]) -> tuple[int, ...]:
    wanted = cpu_list.parse(asked) or []
    if not (lacking := [cpu for cpu in wanted if cpu not in allowed]):
        return tuple(sorted(set(wanted)))
    there = online(tree)
    if not isinstance(there, Unread) and (absent := [cpu for cpu in lacking if cpu not in there]):
        raise UsageError(f"cpus: {asked}: {_named(absent)} not on this machine, which has {_told(there)}")
    raise UsageError(
        f"cpus: {asked}: {_named(lacking)} not given to this process, whose cpuset or affinity holds {_told(allowed)}"
    )


def _counted(asked: int, tree: Tree, allowed: Collection[int]) -> tuple[int, ...]:
    nodes = {node: core_by_core(tree, cpus) for node, cpus in _nodes(tree, allowed).items()}
    fitting = [(cores < asked, node) for node, (cpus, cores) in nodes.items() if len(cpus) >= asked]
    if not fitting:
        told = ", ".join(f"node {node} has {len(cpus)} ({_told(cpus)})" for node, (cpus, _) in nodes.items())
        raise UsageError(
            f"cpus: {asked}: no NUMA node has so many that this process may use: {told}; ask for fewer, or list them"
        )
    return tuple(sorted(nodes[min(fitting)[1]][0][:asked]))


def _nodes(tree: Tree, allowed: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Return the CPUs by node; all on one where the kernel knows no nodes."""
    found = cpus_by_node(tree, allowed)
    return {0: tuple(sorted(allowed))} if isinstance(found, Unread) else found


def _named(cpus: Collection[int]) -> str:
    return f"CPU {next(iter(cpus))} is" if len(cpus) == 1 else f"CPUs {_told(cpus)} are"


def _told(cpus: Collection[int]) -> str:
    return str(next(iter(cpus))) if len(cpus) == 1 else cpu_list.text(cpus)
