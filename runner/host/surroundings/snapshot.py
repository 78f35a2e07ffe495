"""Everything that is read of the machine, before and while a measurement runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from keras_matrix.analysis.surroundings.disturbance import OwnUse
from keras_matrix.analysis.surroundings.readings import Limits, Meanwhile, Placement, Readings
from keras_matrix.records.host.cgroups import memory_limit_bytes, memory_used_bytes, quota_cpus
from keras_matrix.records.host.procfs import Tree, Unread
from keras_matrix.records.host.system import container_engine
from keras_matrix.runner.host.gpus.state import gpus_and_driver
from keras_matrix.runner.host.surroundings.counters import Sampler, since
from keras_matrix.runner.host.surroundings.memory import swap
from keras_matrix.runner.host.surroundings.pinning import most_cores
from keras_matrix.runner.host.surroundings.processes import missing_rights, others, processes
from keras_matrix.runner.host.surroundings.processors import clocks, heat, hypervisor, numa_nodes, online
from keras_matrix.runner.host.surroundings.self_usage import ended_cpu_s

LOAD = "/proc/loadavg"


def look(tree: Tree, cpus: Collection[int], measure: Callable[[], Sequence[float]]) -> Readings:
    """Read the machine, and watch it while `measure` runs, which returns a log ratio for each of its pairs."""
    load, started = _load(tree), heat(tree, cpus)
    meanwhile, ratios = watch(tree, cpus, measure)
    gpus, driver = gpus_and_driver(tree)
    return Readings(
        clocks=clocks(tree, cpus),
        heat=started,
        limits=limits(tree, cpus),
        place=place(tree, cpus),
        swap=swap(tree),
        load=load,
        meanwhile=meanwhile,
        gpus=gpus,
        driver=driver,
        pair_log_ratios=tuple(ratios),
    )


def watch(
    tree: Tree, cpus: Collection[int], measure: Callable[[], Sequence[float]]
) -> tuple[Meanwhile, Sequence[float]]:
    """Return what the machine did while `measure` ran, and what that returned."""
    with Sampler(cpus, tree.root) as sampler:
        seen, own_s, before = processes(tree), ended_cpu_s(), sampler.read()
        ratios = measure()
        stretch, own = since(before, sampler.read()), OwnUse(cpu_s=ended_cpu_s() - own_s)
    return Meanwhile(stretch, own, others(seen, processes(tree), {os.getpid()}, stretch.wall_s)), ratios


def limits(tree: Tree, cpus: Collection[int]) -> Limits:
    """Return what this process may use."""
    there = online(tree)
    known = there if isinstance(there, Unread) else len(there)
    return Limits(len(cpus), known, quota_cpus(tree), memory_limit_bytes(tree), memory_used_bytes(tree))


def place(tree: Tree, cpus: Collection[int]) -> Placement:
    """Return where this process runs."""
    return Placement(
        hypervisor=hypervisor(tree),
        container=container_engine(tree),
        numa_nodes=numa_nodes(tree, cpus),
        aslr=tree.number("/proc/sys/kernel/randomize_va_space"),
        missing_rights=missing_rights(tree),
        cores_of_a_node=most_cores(tree, cpus),
    )


def _load(tree: Tree) -> float | Unread:
    text = tree.text(LOAD)
    if isinstance(text, Unread):
        return text
    whole, _, part = (text.split() or [""])[0].partition(".")
    if not (whole.isascii() and whole.isdigit() and part.isascii() and part.isdigit()):
        return Unread(f"{LOAD} holds {text[:20]!r}, not numbers")
    return float(f"{whole}.{part}")
