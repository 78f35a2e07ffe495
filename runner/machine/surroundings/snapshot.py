"""All readings of the machine, before and during a measurement."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence

from keras_matrix.analysis.surroundings.disturbance import OwnUse
from keras_matrix.analysis.surroundings.readings import Meanwhile, ProcessPlacement, Readings, ResourceLimits, Swap
from keras_matrix.records.host.procfs import ProcTree, Unread, stated_bytes
from keras_matrix.records.host.system import MEMORY, container_engine, memory_limit_bytes, memory_used_bytes, quota_cpus
from keras_matrix.runner.machine.gpus.state import gpus_and_driver
from keras_matrix.runner.machine.surroundings.counters import Sampler, since
from keras_matrix.runner.machine.surroundings.pinning import most_cores
from keras_matrix.runner.machine.surroundings.processes import ended_cpu_s, missing_rights, others, processes
from keras_matrix.runner.machine.surroundings.processors import clocks, heat, hypervisor, numa_nodes, online

LOAD = "/proc/loadavg"
DECIMAL = re.compile(r"[0-9]+[.][0-9]+")


def look(tree: ProcTree, cpus: Collection[int], measure: Callable[[], Sequence[float]]) -> Readings:
    """Read the machine, before and while `measure` runs, which returns a log ratio for each of its pairs."""
    load, started = _load(tree), heat(tree, cpus)
    meanwhile, ratios = watch(tree, cpus, measure)
    gpus, driver = gpus_and_driver(tree)
    return Readings(
        clocks=clocks(tree, cpus),
        heat=started,
        limits=_limits(tree, cpus),
        place=ProcessPlacement(
            hypervisor=hypervisor(tree),
            container=container_engine(tree),
            numa_nodes=numa_nodes(tree, cpus),
            aslr=tree.number("/proc/sys/kernel/randomize_va_space"),
            missing_rights=missing_rights(tree),
            cores_of_a_node=most_cores(tree, cpus),
        ),
        swap=swap(tree),
        load=load,
        meanwhile=meanwhile,
        gpus=gpus,
        driver=driver,
        pair_log_ratios=tuple(ratios),
    )


def watch(
    tree: ProcTree, cpus: Collection[int], measure: Callable[[], Sequence[float]]
) -> tuple[Meanwhile, Sequence[float]]:
    """Return the machine's activity while `measure` ran, and its result."""
    with Sampler(cpus, tree.root) as sampler:
        listed, own_s, before = processes(tree), ended_cpu_s(), sampler.read()
        ratios = measure()
        stretch, own = since(before, sampler.read()), OwnUse(cpu_s=ended_cpu_s() - own_s)
    return Meanwhile(stretch, own, others(listed, processes(tree), {os.getpid()}, stretch.wall_s)), ratios


def _limits(tree: ProcTree, cpus: Collection[int]) -> ResourceLimits:
    found = online(tree)
    known = found if isinstance(found, Unread) else len(found)
    return ResourceLimits(len(cpus), known, quota_cpus(tree), memory_limit_bytes(tree), memory_used_bytes(tree))


def swap(tree: ProcTree) -> Swap | Unread:
    """Return the swap space of the machine (proc(5), meminfo)."""
    total, free = stated_bytes(tree, MEMORY, "SwapTotal"), stated_bytes(tree, MEMORY, "SwapFree")
    if isinstance(total, Unread):
        return total
    return free if isinstance(free, Unread) else Swap(max(0, total - free), total)


def _load(tree: ProcTree) -> float | Unread:
    text = tree.text(LOAD)
    if isinstance(text, Unread):
        return text
    word = (text.split() or [""])[0]
    return float(word) if DECIMAL.fullmatch(word) else Unread(f"{LOAD} holds {text[:20]!r}, not numbers")
