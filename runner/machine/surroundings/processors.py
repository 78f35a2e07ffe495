"""The CPUs in /proc and /sys: clocks, throttling, temperature, nodes, and the hypervisor.

Sources: of the kernel, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst, driver-api/thermal/sysfs-api.rst
and ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Collection

from keras_matrix.analysis.surroundings.readings import Clocks, Heat, Zone
from keras_matrix.records.host import device_lists
from keras_matrix.records.host.procfs import ProcTree, Unread, integer

CPU = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
THERMAL = "/sys/class/thermal"
# Trip points of these types slow the machine down or stop it; `active` only starts a fan.
LIMITING_TRIPS = ("passive", "hot", "critical")
MAX_TRIPS = 16


def clocks(tree: ProcTree, cpus: Collection[int]) -> Clocks:
    """Return what determines the speed of these CPUs."""
    return Clocks(
        governors=_governors(tree, cpus),
        driver=tree.text(f"{CPU}/cpu{min(cpus)}/cpufreq/scaling_driver"),
        turbo=_turbo(tree),
        smt=_smt(tree, cpus),
        clock_source=tree.text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def heat(tree: ProcTree, cpus: Collection[int]) -> Heat:
    """Return the throttling since boot, and the thermal zones."""
    return Heat(_throttle_events(tree, cpus), _zones(tree))


def online(tree: ProcTree) -> tuple[int, ...] | Unread:
    """Return the CPUs that are online."""
    return _listed(tree, f"{CPU}/online")


def numa_nodes(tree: ProcTree, cpus: Collection[int]) -> tuple[int, ...] | Unread:
    """Return the nodes that these CPUs belong to."""
    found = cpus_by_node(tree, cpus)
    return found if isinstance(found, Unread) else tuple(found)


def cpus_by_node(tree: ProcTree, cpus: Collection[int]) -> dict[int, tuple[int, ...]] | Unread:
    """Return these CPUs by their node, without nodes of memory alone."""
    found = {}
    for name in tree.names(NODES, "node[0-9]*"):
        listed = _listed(tree, f"{NODES}/{name}/cpulist")
        if isinstance(listed, Unread):
            return listed
        number = integer(name.removeprefix("node"))
        if number is not None and (ours := tuple(cpu for cpu in listed if cpu in cpus)):
            found[number] = ours
    return dict(sorted(found.items())) if found else Unread(f"{NODES} is not there", absent=True)


def core_by_core(tree: ProcTree, cpus: Collection[int]) -> tuple[tuple[int, ...], int]:
    """Return these CPUs with one of each core first, and the number of cores.

    If the kernel does not report which share a core, each counts as a separate core.
    """
    first: list[int] = []
    second: list[int] = []
    for cpu in sorted(cpus):
        siblings = _listed(tree, f"{CPU}/cpu{cpu}/topology/thread_siblings_list")
        shared = not isinstance(siblings, Unread) and bool({*siblings} & {*first})
        (second if shared else first).append(cpu)
    return (*first, *second), len(first)


def hypervisor(tree: ProcTree) -> str | Unread | None:
    """Return the hypervisor; None if the CPU reports that there is none."""
    info = tree.text("/proc/cpuinfo")
    if isinstance(info, Unread):
        return info
    flags = next((line.partition(":")[2].split() for line in info.splitlines() if line.startswith("flags")), None)
    kind = tree.text("/sys/hypervisor/type")
    product = tree.text("/sys/class/dmi/id/sys_vendor")
    name = next((text for text in (kind, product) if not isinstance(text, Unread) and text), "of an unknown kind")
    if flags is None:
        return name if not isinstance(kind, Unread) else Unread("/proc/cpuinfo has no flags on this architecture")
    return name if "hypervisor" in flags else None


def _listed(tree: ProcTree, path: str) -> tuple[int, ...] | Unread:
    text = tree.text(path)
    if isinstance(text, Unread):
        return text
    found = device_lists.parse_cpus(text)
    return Unread(f"{path} holds {text[:20]!r}, not a list") if found is None else tuple(found)


def _governors(tree: ProcTree, cpus: Collection[int]) -> tuple[str, ...] | Unread:
    found = set()
    for cpu in sorted(cpus):
        text = tree.text(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor")
        if isinstance(text, Unread):
            return text
        found.add(text[:20])
    return tuple(sorted(found))


def _turbo(tree: ProcTree) -> bool | Unread:
    """Read Intel's switch, which is inverted, or the general one."""
    off = tree.number(f"{CPU}/intel_pstate/no_turbo")
    if off in (0, 1):
        return off == 0
    on = tree.number(f"{CPU}/cpufreq/boost")
    if isinstance(on, Unread):
        return on
    return on == 1 if on in (0, 1) else Unread(f"{CPU}/cpufreq/boost holds {on}, neither 0 nor 1")


def _smt(tree: ProcTree, cpus: Collection[int]) -> str | Unread:
    """Return `active` if two of these CPUs share a core, else why not."""
    for cpu in sorted(cpus):
        siblings = _listed(tree, f"{CPU}/cpu{cpu}/topology/thread_siblings_list")
        if isinstance(siblings, Unread):
            return siblings
        if len(set(siblings) & set(cpus)) > 1:
            return "active"
    control = tree.text(f"{CPU}/smt/control")
    kernel = "" if isinstance(control, Unread) else f" (kernel: {control[:20]})"
    return f"no two of the CPUs share a core{kernel}"


def _throttle_events(tree: ProcTree, cpus: Collection[int]) -> int | Unread:
    counts = []
    for cpu in sorted(cpus):
        for kind in ("core", "package"):
            count = tree.number(f"{CPU}/cpu{cpu}/thermal_throttle/{kind}_throttle_count")
            if isinstance(count, Unread):
                return count
            counts.append(count)
    return sum(counts)


def _zones(tree: ProcTree) -> tuple[Zone, ...] | Unread:
    found = []
    for name in tree.names(THERMAL, "thermal_zone[0-9]*"):
        temperature, kind = tree.number(f"{THERMAL}/{name}/temp"), tree.text(f"{THERMAL}/{name}/type")
        if not isinstance(temperature, Unread):
            label = name if isinstance(kind, Unread) else kind[:20]
            found.append(Zone(label, temperature / 1000, _limit_c(tree, f"{THERMAL}/{name}")))
    return tuple(found) or Unread(f"{THERMAL} has no zone that reports its temperature", absent=True)


def _limit_c(tree: ProcTree, zone: str) -> float | None:
    limits = []
    for trip in range(MAX_TRIPS):
        kind, limit = tree.text(f"{zone}/trip_point_{trip}_type"), tree.number(f"{zone}/trip_point_{trip}_temp")
        # A trip point at or below 0 is disabled.
        if kind in LIMITING_TRIPS and not isinstance(limit, Unread) and limit > 0:
            limits.append(limit / 1000)
    return min(limits, default=None)
