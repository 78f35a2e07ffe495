"""Rules on how the machine is set up: clocks, limits, rights, place. Pure."""

from __future__ import annotations

from keras_matrix.analysis.surroundings.findings import Check, Judgement, Limit, NotReadError, Rating, known
from keras_matrix.analysis.surroundings.readings import Readings
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.text import bytes_text

MEMORY_USED = Limit(0.80, 0.95)
# Under these drivers `powersave` still moves the clock with the load; under the others it selects the lowest.
DYNAMIC_POWERSAVE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
# Read through a device, at about a microsecond a time.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")


def _governor(readings: Readings) -> Judgement:
    names, driver = known(readings.clocks.governors), readings.clocks.driver
    text = ", ".join(names) + ("" if isinstance(driver, Unread) else f" ({driver})")
    dynamic = not isinstance(driver, Unread) and driver in DYNAMIC_POWERSAVE
    if names == ("performance",):
        rating = Rating.FINE
    else:
        rating = Rating.BAD if "powersave" in names and not dynamic else Rating.DOUBTFUL
    return rating, text, "cpupower frequency-set -g performance"


def _turbo(readings: Readings) -> Judgement:
    if not known(readings.clocks.turbo):
        return Rating.FINE, "off", ""
    advice = "turn it off: write 1 to intel_pstate/no_turbo, or 0 to cpufreq/boost"
    return Rating.DOUBTFUL, "on: the clock depends on heat and on the load of the other cores", advice


def _smt(readings: Readings) -> Judgement:
    smt = known(readings.clocks.smt)
    if smt != "active":
        return Rating.FINE, smt, ""
    return Rating.DOUBTFUL, "on, and CPUs this process may use share a core", _pin("one CPU of each core", readings)


def _cpu_limit(readings: Readings) -> Judgement:
    limits, quota = readings.limits, readings.limits.quota_cpus
    online = "" if isinstance(limits.cpus_online, Unread) else f" of {limits.cpus_online}"
    text = f"{limits.cpus_allowed}{online} CPUs may be used"
    if isinstance(quota, Unread):
        raise NotReadError(f"quota: {quota.why}; {text}")
    if quota is None:
        return Rating.FINE, f"{text}, no quota", ""
    text += f", by a quota of {quota:.2g} CPUs"
    if quota >= limits.cpus_allowed:
        return Rating.FINE, text, ""
    # The kernel stops every thread for the rest of each period once the quota is used up: times become bimodal.
    advice = "replace the quota by a set of CPUs (docker: --cpuset-cpus for --cpus)"
    return Rating.BAD, f"{text}: threads are stopped when it is used up", advice


def _memory_limit(readings: Readings) -> Judgement:
    limit, used = known(readings.limits.memory_limit_bytes), readings.limits.memory_used_bytes
    if limit is None:
        return Rating.FINE, "no limit below the machine's memory", ""
    if isinstance(used, Unread):
        raise NotReadError(f"{used.why}; the limit is {bytes_text(limit)}")
    rating = MEMORY_USED.verdict(used / limit if limit else 1.0)
    return rating, f"{bytes_text(used)} of {bytes_text(limit)} used", "raise the limit, or free memory"


def _rights(readings: Readings) -> Judgement:
    place = readings.place
    where = f"in a container ({place.container})" if place.container else "no container detected"
    if not place.missing_rights:
        return Rating.FINE, f"{where}; all needed rights are available", ""
    advice = "run outside the container, or give it the right" if place.container else "ask for the right"
    return Rating.DOUBTFUL, f"{where}; {'; '.join(place.missing_rights)}", advice


def _numa(readings: Readings) -> Judgement:
    nodes = known(readings.place.numa_nodes)
    if len(nodes) <= 1:
        return Rating.FINE, "one node", ""
    return Rating.DOUBTFUL, f"the CPUs this process may use are on {len(nodes)} nodes", _pin("one node", readings)


def _pin(where: str, readings: Readings) -> str:
    return f"bind each cell to {where}: --set cpus={readings.place.cores_of_a_node or 'N'}"


def _virtualisation(readings: Readings) -> Judgement:
    kind = known(readings.place.hypervisor)
    if kind is None:
        return Rating.FINE, "no hypervisor detected", ""
    text = f"under a hypervisor ({kind}): other guests are visible only as steal"
    return Rating.DOUBTFUL, text, "measure small effects on a dedicated machine"


def _clock_source(readings: Readings) -> Judgement:
    name = known(readings.clocks.clock_source)
    rating = Rating.DOUBTFUL if name in SLOW_CLOCKS else Rating.FINE
    return rating, name, "boot with clocksource=tsc if the CPU's is stable"


def _aslr(readings: Readings) -> Judgement:
    if known(readings.place.aslr):
        return Rating.FINE, "on: each repeat draws its own layout, and the spread includes its effect", ""
    text = "off: every process has the same layout, and a difference may be that layout's"
    return Rating.DOUBTFUL, text, "sysctl kernel.randomize_va_space=2"


SETTING = {
    Check.GOVERNOR: _governor,
    Check.TURBO: _turbo,
    Check.SMT: _smt,
    Check.CPU_LIMIT: _cpu_limit,
    Check.MEMORY_LIMIT: _memory_limit,
    Check.RIGHTS: _rights,
    Check.NUMA: _numa,
    Check.VIRTUALISATION: _virtualisation,
    Check.CLOCK_SOURCE: _clock_source,
    Check.ASLR: _aslr,
}
