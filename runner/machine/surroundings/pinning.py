"""The CPUs that a cell's processes are bound to: those that `cpus` requests, on this machine.

A count is satisfied on one NUMA node, with one CPU of each core before any second one, the lowest numbers first, so
that the result is the same every time on a machine. CPUs that do not exist or may not be used are refused.

Memory needs no separate binding: Linux allocates a page on the node of the CPU that first touches it, and a process
that was bound to a node's CPUs before its first import touches all of its pages there. A strict binding (`numactl -m`)
would end a cell that outgrows the node, which here spills over.
Source: of the kernel, Documentation/admin-guide/mm/numa_memory_policy.rst.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from keras_matrix.records.host import device_lists
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.machine.surroundings.processors import core_by_core, cpus_by_node, online


def pinned(cpus: int | str, tree: ProcTree, allowed: Collection[int]) -> tuple[int, ...] | None:
    """Return the requested CPUs, sorted; None for "all". `allowed` are those this process may use.

    Raises `UsageError` if they are not available here.
    """
    if cpus == "all":
        return None
    return _listed(cpus, tree, allowed) if isinstance(cpus, str) else _counted(cpus, tree, allowed)


def check(settings: Iterable[Settings]) -> None:
    """Raise `UsageError` for the first of these cells whose CPUs are not available here."""
    allowed = os.sched_getaffinity(0)
    for cpus in dict.fromkeys(one.cpus for one in settings):
        pinned(cpus, ProcTree(), allowed)


def most_cores(tree: ProcTree, allowed: Collection[int]) -> int:
    """Return the largest count without two CPUs of one core: the cores of the node that has the most."""
    return max(core_by_core(tree, cpus)[1] for cpus in _nodes(tree, allowed).values())


def _listed(listed: str, tree: ProcTree, allowed: Collection[int]) -> tuple[int, ...]:
    wanted = device_lists.parse_cpus(listed) or []
    if not (lacking := [cpu for cpu in wanted if cpu not in allowed]):
        return tuple(sorted(set(wanted)))
    present = online(tree)
    if not isinstance(present, Unread) and (absent := [cpu for cpu in lacking if cpu not in present]):
        raise UsageError(f"cpus: {listed}: {_named(absent)} not on this machine, which has {_text(present)}")
    raise UsageError(
        f"cpus: {listed}: {_named(lacking)} not available to this process, whose cpuset or affinity is {_text(allowed)}"
    )


def _counted(count: int, tree: ProcTree, allowed: Collection[int]) -> tuple[int, ...]:
    nodes = {node: core_by_core(tree, cpus) for node, cpus in _nodes(tree, allowed).items()}
    fitting = [(cores < count, node) for node, (cpus, cores) in nodes.items() if len(cpus) >= count]
    if not fitting:
        usable = ", ".join(f"node {node} has {len(cpus)} ({_text(cpus)})" for node, (cpus, _) in nodes.items())
        raise UsageError(
            f"cpus: {count}: no NUMA node has so many that this process may use: {usable}; use fewer, or list them"
        )
    return tuple(sorted(nodes[min(fitting)[1]][0][:count]))


def _nodes(tree: ProcTree, allowed: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Return the CPUs by node; all on one node if the kernel reports no nodes."""
    found = cpus_by_node(tree, allowed)
    return {0: tuple(sorted(allowed))} if isinstance(found, Unread) else found


def _named(cpus: Collection[int]) -> str:
    return f"CPU {next(iter(cpus))} is" if len(cpus) == 1 else f"CPUs {_text(cpus)} are"


def _text(cpus: Collection[int]) -> str:
    return str(next(iter(cpus))) if len(cpus) == 1 else device_lists.cpu_text(cpus)
