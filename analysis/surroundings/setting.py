"""How the machine is set up, judged: clocks, limits, rights, place. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.analysis.surroundings.findings import Check, Limit, MachineFinding, Rating, judged, unread
from keras_matrix.analysis.surroundings.readings import Limits, Readings
from keras_matrix.records.host.procfs import Unread

GIB = 1 << 30
MEMORY_USED = Limit(0.80, 0.95)
# Under these drivers `powersave` still moves the clock with the load; under the others it holds the lowest.
DYNAMIC_POWERSAVE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
# Read through a device, at about a microsecond a time.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")


def setting_findings(readings: Readings) -> Iterator[MachineFinding]:
    """Yield what is found of how the machine is set up."""
    for rule in (
        _governor,
        _turbo,
        _smt,
        _cpu_limit,
        _memory_limit,
        _rights,
        _numa,
        _virtualisation,
        _clock_source,
        _aslr,
    ):
        yield rule(readings)


def _governor(readings: Readings) -> MachineFinding:
    names, driver = readings.clocks.governors, readings.clocks.driver
    if isinstance(names, Unread):
        return unread(Check.GOVERNOR, names)
    told = ", ".join(names) + ("" if isinstance(driver, Unread) else f" ({driver})")
    dynamic = not isinstance(driver, Unread) and driver in DYNAMIC_POWERSAVE
    if names == ("performance",):
        verdict = Rating.FINE
    else:
        verdict = Rating.BAD if "powersave" in names and not dynamic else Rating.DOUBTFUL
    return judged(Check.GOVERNOR, verdict, told, "cpupower frequency-set -g performance")


def _turbo(readings: Readings) -> MachineFinding:
    turbo = readings.clocks.turbo
    if isinstance(turbo, Unread):
        return unread(Check.TURBO, turbo)
    if turbo:
        seen = "on: the clock depends on heat and on what the other cores do"
        advice = "turn it off: write 1 to intel_pstate/no_turbo, or 0 to cpufreq/boost"
        return MachineFinding(Check.TURBO, Rating.DOUBTFUL, seen, advice)
    return MachineFinding(Check.TURBO, Rating.FINE, "off")


def _smt(readings: Readings) -> MachineFinding:
    smt = readings.clocks.smt
    if isinstance(smt, Unread):
        return unread(Check.SMT, smt)
    if smt == "active":
        seen = "on, and CPUs this process may use share a core"
        return MachineFinding(Check.SMT, Rating.DOUBTFUL, seen, _pin("one CPU of each core", readings))
    return MachineFinding(Check.SMT, Rating.FINE, smt)


def _cpu_limit(readings: Readings) -> MachineFinding:
    limits = readings.limits
    told = f"{limits.cpus_allowed} CPUs may be used"
    if not isinstance(limits.cpus_online, Unread):
        told = f"{limits.cpus_allowed} of {limits.cpus_online} CPUs may be used"
    if isinstance(limits.quota_cpus, Unread):
        return unread(Check.CPU_LIMIT, Unread(f"quota: {limits.quota_cpus.why}; {told}"))
    if limits.quota_cpus is None:
        return MachineFinding(Check.CPU_LIMIT, Rating.FINE, f"{told}, no quota")
    return _quota(limits, limits.quota_cpus, told)


def _quota(limits: Limits, quota: float, told: str) -> MachineFinding:
    seen = f"{told}, by a quota of {quota:.2g} CPUs"
    if quota >= limits.cpus_allowed:
        return MachineFinding(Check.CPU_LIMIT, Rating.FINE, seen)
    # The kernel stops every thread for the rest of each period once the quota is used up: times become bimodal.
    advice = "replace the quota by a set of CPUs (docker: --cpuset-cpus for --cpus)"
    return MachineFinding(Check.CPU_LIMIT, Rating.BAD, f"{seen}: it is stopped when that is used up", advice)


def _memory_limit(readings: Readings) -> MachineFinding:
    limit, used = readings.limits.memory_limit_bytes, readings.limits.memory_used_bytes
    if isinstance(limit, Unread):
        return unread(Check.MEMORY_LIMIT, limit)
    if limit is None:
        return MachineFinding(Check.MEMORY_LIMIT, Rating.FINE, "none but the machine's")
    if isinstance(used, Unread):
        return unread(Check.MEMORY_LIMIT, Unread(f"{used.why}; the limit is {limit / GIB:.1f} GiB"))
    share = used / limit if limit else 1.0
    seen = f"{used / GIB:.1f} of {limit / GIB:.1f} GiB used"
    return judged(Check.MEMORY_LIMIT, MEMORY_USED.verdict(share), seen, "raise the limit, or free memory")


def _rights(readings: Readings) -> MachineFinding:
    place = readings.place
    where = f"in a container ({place.container})" if place.container else "outside a container, as far as one can see"
    if not place.missing_rights:
        return MachineFinding(Check.RIGHTS, Rating.FINE, f"{where}; nothing needed is forbidden")
    seen = f"{where}; {'; '.join(place.missing_rights)}"
    advice = "run outside the container, or give it the right" if place.container else "ask for the right"
    return MachineFinding(Check.RIGHTS, Rating.DOUBTFUL, seen, advice)


def _numa(readings: Readings) -> MachineFinding:
    nodes = readings.place.numa_nodes
    if isinstance(nodes, Unread):
        return unread(Check.NUMA, nodes)
    if len(nodes) > 1:
        seen = f"the CPUs this process may use lie on {len(nodes)} nodes"
        return MachineFinding(Check.NUMA, Rating.DOUBTFUL, seen, _pin("one node", readings))
    return MachineFinding(Check.NUMA, Rating.FINE, "one node")


def _pin(where: str, readings: Readings) -> str:
    return f"hold each cell to {where}: --set cpus={readings.place.cores_of_a_node or 'N'}"


def _virtualisation(readings: Readings) -> MachineFinding:
    kind = readings.place.hypervisor
    if isinstance(kind, Unread):
        return unread(Check.VIRTUALISATION, kind)
    if kind is None:
        return MachineFinding(Check.VIRTUALISATION, Rating.FINE, "no hypervisor shows")
    seen = f"under a hypervisor ({kind}): other guests show as steal at most"
    return MachineFinding(
        Check.VIRTUALISATION, Rating.DOUBTFUL, seen, "measure on a machine of its own for small effects"
    )


def _clock_source(readings: Readings) -> MachineFinding:
    name = readings.clocks.clock_source
    if isinstance(name, Unread):
        return unread(Check.CLOCK_SOURCE, name)
    verdict = Rating.DOUBTFUL if name in SLOW_CLOCKS else Rating.FINE
    return judged(Check.CLOCK_SOURCE, verdict, name, "boot with clocksource=tsc where the CPU's is stable")


def _aslr(readings: Readings) -> MachineFinding:
    if isinstance(readings.place.aslr, Unread):
        return unread(Check.ASLR, readings.place.aslr)
    if readings.place.aslr == 0:
        seen = "off: every process has the same layout, and a difference may be that layout's"
        return MachineFinding(Check.ASLR, Rating.DOUBTFUL, seen, "sysctl kernel.randomize_va_space=2")
    return MachineFinding(Check.ASLR, Rating.FINE, "on: repeats draw their own layout, and the spread holds it")
