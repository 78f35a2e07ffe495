"""The CPUs of this machine: clocks, throttling, temperature, nodes, and which ones a cell is bound to.

A count is satisfied on one NUMA node, with one CPU of each core before any second one, the lowest numbers first, so
that the result is the same every time on a machine. CPUs that do not exist or may not be used are refused.

Memory needs no separate binding: Linux allocates a page on the node of the CPU that first touches it, and a process
that was bound to a node's CPUs before its first import touches all of its pages there. A strict binding (`numactl -m`)
would end a cell that outgrows the node, which here spills over.
Source: of the kernel, Documentation/admin-guide/mm/numa_memory_policy.rst.
Sources: of the kernel, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst, driver-api/thermal/sysfs-api.rst
and ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from keras_matrix.analysis.surroundings.readings import Clocks, Heat, Zone
from keras_matrix.records.host import device_lists
from keras_matrix.records.host.platform import PLATFORM, Facility
from keras_matrix.records.host.procfs import ProcTree, Unread, integer
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import UsageError

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
    nodes = cpus_by_node(tree, cpus)
    return nodes if isinstance(nodes, Unread) else tuple(nodes)


def cpus_by_node(tree: ProcTree, cpus: Collection[int]) -> dict[int, tuple[int, ...]] | Unread:
    """Return these CPUs by their node, without nodes of memory alone."""
    cpus_by_number = {}
    for name in tree.names(NODES, "node[0-9]*"):
        node_cpus = _listed(tree, f"{NODES}/{name}/cpulist")
        if isinstance(node_cpus, Unread):
            return node_cpus
        number = integer(name.removeprefix("node"))
        if number is not None and (own_cpus := tuple(cpu for cpu in node_cpus if cpu in cpus)):
            cpus_by_number[number] = own_cpus
    return dict(sorted(cpus_by_number.items())) if cpus_by_number else Unread(f"{NODES} is not there", absent=True)


def core_by_core(tree: ProcTree, cpus: Collection[int]) -> tuple[tuple[int, ...], int]:
    """Return these CPUs with one of each core first, and the number of cores.

    If the kernel does not report which share a core, each counts as a separate core.
    """
    first_cpus: list[int] = []
    second_cpus: list[int] = []
    for cpu in sorted(cpus):
        siblings = _listed(tree, f"{CPU}/cpu{cpu}/topology/thread_siblings_list")
        is_shared = not isinstance(siblings, Unread) and bool({*siblings} & {*first_cpus})
        (second_cpus if is_shared else first_cpus).append(cpu)
    return (*first_cpus, *second_cpus), len(first_cpus)


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
    numbers = device_lists.parse_cpus(text)
    return Unread(f"{path} holds {text[:20]!r}, not a list") if numbers is None else tuple(numbers)


def _governors(tree: ProcTree, cpus: Collection[int]) -> tuple[str, ...] | Unread:
    governors = set()
    for cpu in sorted(cpus):
        text = tree.text(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor")
        if isinstance(text, Unread):
            return text
        governors.add(text[:20])
    return tuple(sorted(governors))


def _turbo(tree: ProcTree) -> bool | Unread:
    """Read Intel's switch, which is inverted, or the general one."""
    no_turbo = tree.number(f"{CPU}/intel_pstate/no_turbo")
    if no_turbo in (0, 1):
        return no_turbo == 0
    boost = tree.number(f"{CPU}/cpufreq/boost")
    if isinstance(boost, Unread):
        return boost
    return boost == 1 if boost in (0, 1) else Unread(f"{CPU}/cpufreq/boost holds {boost}, neither 0 nor 1")


def _smt(tree: ProcTree, cpus: Collection[int]) -> str | Unread:
    """Return `active` if two of these CPUs share a core, else why not."""
    for cpu in sorted(cpus):
        siblings = _listed(tree, f"{CPU}/cpu{cpu}/topology/thread_siblings_list")
        if isinstance(siblings, Unread):
            return siblings
        if len(set(siblings) & set(cpus)) > 1:
            return "active"
    control = tree.text(f"{CPU}/smt/control")
    kernel_text = "" if isinstance(control, Unread) else f" (kernel: {control[:20]})"
    return f"no two of the CPUs share a core{kernel_text}"


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
    zones = []
    for name in tree.names(THERMAL, "thermal_zone[0-9]*"):
        temperature, kind = tree.number(f"{THERMAL}/{name}/temp"), tree.text(f"{THERMAL}/{name}/type")
        if not isinstance(temperature, Unread):
            label = name if isinstance(kind, Unread) else kind[:20]
            zones.append(Zone(label, temperature / 1000, _limit_c(tree, f"{THERMAL}/{name}")))
    return tuple(zones) or Unread(f"{THERMAL} has no zone that reports its temperature", absent=True)


def _limit_c(tree: ProcTree, zone: str) -> float | None:
    limits = []
    for trip in range(MAX_TRIPS):
        kind, limit = tree.text(f"{zone}/trip_point_{trip}_type"), tree.number(f"{zone}/trip_point_{trip}_temp")
        # A trip point at or below 0 is disabled.
        if kind in LIMITING_TRIPS and not isinstance(limit, Unread) and limit > 0:
            limits.append(limit / 1000)
    return min(limits, default=None)


def pinned(cpus: int | str, tree: ProcTree, allowed: Collection[int]) -> tuple[int, ...] | None:
    """Return the requested CPUs, sorted; None for "all". `allowed` are those this process may use.

    Raises `UsageError` if they are not available here.
    """
    if cpus == "all":
        return None
    return _listed_cpus(cpus, tree, allowed) if isinstance(cpus, str) else _counted(cpus, tree, allowed)


def check(settings: Iterable[Settings]) -> None:
    """Raise `UsageError` for the first of these cells whose CPUs are not available here."""
    allowed_cpus = PLATFORM.usable_cpus()
    for cpus in dict.fromkeys(cell_settings.cpus for cell_settings in settings):
        if cpus != "all" and (why := PLATFORM.lacks(Facility.AFFINITY)):
            raise UsageError(f"cpus: {cpus}: {why}, so that no process can be bound to CPUs; use cpus: all")
        pinned(cpus, ProcTree(), allowed_cpus)


def most_cores(tree: ProcTree, allowed: Collection[int]) -> int:
    """Return the largest count without two CPUs of one core: the cores of the node that has the most."""
    return max(core_by_core(tree, cpus)[1] for cpus in _nodes(tree, allowed).values())


def _listed_cpus(cpus_text: str, tree: ProcTree, allowed_cpus: Collection[int]) -> tuple[int, ...]:
    cpus = device_lists.parse_cpus(cpus_text) or []
    if not (lacking := [cpu for cpu in cpus if cpu not in allowed_cpus]):
        return tuple(sorted(set(cpus)))
    online_cpus = online(tree)
    if not isinstance(online_cpus, Unread) and (absent := [cpu for cpu in lacking if cpu not in online_cpus]):
        raise UsageError(f"cpus: {cpus_text}: {_named(absent)} not on this machine, which has {_text(online_cpus)}")
    raise UsageError(
        f"cpus: {cpus_text}: {_named(lacking)} not available to this process, whose cpuset or affinity is "
        f"{_text(allowed_cpus)}"
    )


def _counted(count: int, tree: ProcTree, allowed_cpus: Collection[int]) -> tuple[int, ...]:
    nodes = {node: core_by_core(tree, cpus) for node, cpus in _nodes(tree, allowed_cpus).items()}
    fitting_nodes = [(core_count < count, node) for node, (cpus, core_count) in nodes.items() if len(cpus) >= count]
    if not fitting_nodes:
        usable_text = ", ".join(f"node {node} has {len(cpus)} ({_text(cpus)})" for node, (cpus, _) in nodes.items())
        raise UsageError(
            f"cpus: {count}: no NUMA node has so many that this process may use: {usable_text}; use fewer, or list them"
        )
    return tuple(sorted(nodes[min(fitting_nodes)[1]][0][:count]))


def _nodes(tree: ProcTree, allowed_cpus: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Return the CPUs by node; all on one node if the kernel reports no nodes."""
    nodes = cpus_by_node(tree, allowed_cpus)
    return {0: tuple(sorted(allowed_cpus))} if isinstance(nodes, Unread) else nodes


def _named(cpus: Collection[int]) -> str:
    return f"CPU {next(iter(cpus))} is" if len(cpus) == 1 else f"CPUs {_text(cpus)} are"


def _text(cpus: Collection[int]) -> str:
    return str(next(iter(cpus))) if len(cpus) == 1 else device_lists.cpu_text(cpus)
