"""From the readings of a machine to all findings about it. Pure.

First the rules on how the machine is set up: clocks, limits, rights, place; then those on its activity while it is
watched: other processes, pressure, heat, swap.

The smallest difference that a machine can show, from the scatter between alternating identical arms.

The estimand is the log ratio of two adjacent measurements, one value a pair; between identical arms it is zero, so all
variation is scatter. The difference for n pairs is `analysis.stats.blocks.minimum_detectable_effect`: the smallest true
ratio that a two-sided paired t test at the 5 % level finds in 80 % of cases.

Sources: J. Cohen, "Statistical Power Analysis for the Behavioral Sciences" (2nd ed. 1988), chapter 2. The bounds are
the chi-square interval of a standard deviation whose mean is known, here zero.

Limit: another program may scatter differently from the measured one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, minimum_detectable_effect
from keras_matrix.analysis.surroundings import disturbance
from keras_matrix.analysis.surroundings.readings import (
    Check,
    Judgement,
    Limit,
    MachineFinding,
    NotReadError,
    Rating,
    Readings,
    apply,
    gpu_findings,
    known,
)
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.text import bytes_text, percentage

MEMORY_USED = Limit(0.80, 0.95)
# Under these drivers `powersave` still moves the clock with the load; under the others it selects the lowest.
DYNAMIC_POWERSAVE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
# Read through a device, at about a microsecond a time.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
# `bad` begins where the disturbance rule replaces a block: such a machine would have every block replaced.
STEAL = Limit(0.005, disturbance.STEAL_LIMIT)
OTHER_CPU = Limit(0.01, disturbance.OTHER_CPU_LIMIT)
STALL = Limit(0.001, disturbance.STALL_LIMIT)
# The measurement has a thread for each CPU, which by themselves need not wait.
CPU_PRESSURE = Limit(0.01, 0.10)
LOAD_PER_CPU = Limit(0.25, 1.0)
RESOLUTION = Limit(0.03, 0.10)  # in 10 pairs; 3 % is the default `precision_target`
MARGIN_C = Limit(-10.0, 0.0)  # temperature less the zone's own limit
UNCOUNTED = Unread("its counters are missing, not this machine's, or hardly moved")
NO_PRESSURE = Unread("this kernel reports no pressure (CONFIG_PSI, boot with psi=1)")
MIN_PAIRS = MIN_BLOCKS
PLANNED_PAIRS = (10, 30)


def examine(readings: Readings) -> list[MachineFinding]:
    """Return every finding: first the detectable difference and current disturbances, then how the machine is set."""
    return [*apply(ACTIVITY | SETTING, readings), *gpu_findings(readings.gpus)]


def _governor(readings: Readings) -> Judgement:
    names, driver = known(readings.clocks.governors), readings.clocks.driver
    text = ", ".join(names) + ("" if isinstance(driver, Unread) else f" ({driver})")
    is_dynamic = not isinstance(driver, Unread) and driver in DYNAMIC_POWERSAVE
    if names == ("performance",):
        rating = Rating.FINE
    else:
        rating = Rating.BAD if "powersave" in names and not is_dynamic else Rating.DOUBTFUL
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
    online_text = "" if isinstance(limits.cpus_online, Unread) else f" of {limits.cpus_online}"
    text = f"{limits.cpus_allowed}{online_text} CPUs may be used"
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
    limit, used_bytes = known(readings.limits.memory_limit_bytes), readings.limits.memory_used_bytes
    if limit is None:
        return Rating.FINE, "no limit below the machine's memory", ""
    if isinstance(used_bytes, Unread):
        raise NotReadError(f"{used_bytes.why}; the limit is {bytes_text(limit)}")
    rating = MEMORY_USED.verdict(used_bytes / limit if limit else 1.0)
    return rating, f"{bytes_text(used_bytes)} of {bytes_text(limit)} used", "raise the limit, or free memory"


def _rights(readings: Readings) -> Judgement:
    place = readings.place
    place_text = f"in a container ({place.container})" if place.container else "no container detected"
    if not place.missing_rights:
        return Rating.FINE, f"{place_text}; all needed rights are available", ""
    advice = "run outside the container, or give it the right" if place.container else "ask for the right"
    return Rating.DOUBTFUL, f"{place_text}; {'; '.join(place.missing_rights)}", advice


def _numa(readings: Readings) -> Judgement:
    nodes = known(readings.place.numa_nodes)
    if len(nodes) <= 1:
        return Rating.FINE, "one node", ""
    return Rating.DOUBTFUL, f"the CPUs this process may use are on {len(nodes)} nodes", _pin("one node", readings)


def _pin(target: str, readings: Readings) -> str:
    return f"bind each cell to {target}: --set cpus={readings.place.cores_of_a_node or 'N'}"


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


def _resolution(readings: Readings) -> Judgement:
    ratios = readings.pair_log_ratios
    measured_resolution = resolution(ratios)
    if measured_resolution is None:
        text = f"not measured: needs {MIN_PAIRS} pairs, got {len(ratios)}"
        return Rating.UNREAD, text, "give it more time with --seconds"
    first_difference = measured_resolution.detectable[0]
    text = (
        f"two identical arms, {measured_resolution.pairs} pairs: "
        f"{percentage(first_difference.difference, first_difference.low, first_difference.high)} "
        f"in {first_difference.pairs} pairs"
    )
    return RESOLUTION.verdict(first_difference.difference), text, "fix what is bad below, or plan for more repeats"


def _other_cpu(readings: Readings) -> Judgement:
    meanwhile = readings.meanwhile
    share = _counted(disturbance.other_cpu_share(disturbance.MeasuredStretch(known(meanwhile.stretch), meanwhile.own)))
    text = f"other processes used {percentage(share)} of the CPUs"
    if isinstance(meanwhile.others, Unread):
        text += f"; which: not readable: {meanwhile.others.why}"
    elif meanwhile.others:
        text += "; busiest: " + ", ".join(map(str, meanwhile.others))
    return OTHER_CPU.verdict(share), text, "stop them"


def _steal(readings: Readings) -> Judgement:
    share = _counted(disturbance.steal_share(known(readings.meanwhile.stretch)))
    text = f"the hypervisor withheld {percentage(share)} of the time the CPUs had work"
    return STEAL.verdict(share), text, "measure at another time or on a dedicated machine"


def _counted(share: float | None, uncounted: Unread = UNCOUNTED) -> float:
    return known(uncounted if share is None else share)


def _pressure(field: str, limit: Limit, resource: str, advice: str) -> Callable[[Readings], Judgement]:
    def rule(readings: Readings) -> Judgement:
        stretch = known(readings.meanwhile.stretch)
        share = _counted(disturbance.stall_share(getattr(stretch, field), stretch), NO_PRESSURE)
        return limit.verdict(share), f"something waited for {resource} {percentage(share)} of the time", advice

    return rule


def _load(readings: Readings) -> Judgement:
    load, cpu_count = known(readings.load), readings.limits.cpus_allowed
    return (
        LOAD_PER_CPU.verdict(load / cpu_count),
        f"{load:.2f} over the last minute, on {cpu_count} CPUs",
        "wait until it falls",
    )


def _throttling(readings: Readings) -> Judgement:
    stretch, since_start = readings.meanwhile.stretch, known(readings.heat.throttle_events)
    advice = "cool the machine, or limit its clocks to what it can sustain"
    if not isinstance(stretch, Unread) and stretch.throttle_events:
        return Rating.BAD, f"{stretch.throttle_events} times while the machine was watched", advice
    if since_start:
        text = f"{since_start} times since the machine started, not while it was watched"
        return Rating.DOUBTFUL, text, advice
    return Rating.FINE, "never since the machine started", ""


def _temperature(readings: Readings) -> Judgement:
    zones = known(readings.heat.zones)
    limited = [(zone.temperature_c - zone.limit_c, zone) for zone in zones if zone.limit_c is not None]
    if not limited:
        warmest = max(zones, key=lambda zone: zone.temperature_c)
        raise NotReadError(f"limits; now {warmest.temperature_c:.0f} C in {warmest.name}")
    margin_c, nearest = max(limited, key=lambda pair: pair[0])
    text = f"{nearest.temperature_c:.0f} C in {nearest.name}, which slows down at {nearest.limit_c:.0f} C"
    return MARGIN_C.verdict(margin_c), text, "let the machine cool, repair its cooling"


def _swap(readings: Readings) -> Judgement:
    swap, stretch = known(readings.swap), readings.meanwhile.stretch
    if swap.total_bytes == 0:
        return Rating.FINE, "no swap space", ""
    text = f"{bytes_text(swap.used_bytes)} of {bytes_text(swap.total_bytes)} in use"
    rate = None if isinstance(stretch, Unread) else _swap_rate_bytes_per_s(stretch)
    text += "; rate: not readable" if rate is None else f", {bytes_text(rate)}/s in and out"
    rating = Rating.BAD if rate else Rating.DOUBTFUL if swap.used_bytes else Rating.FINE
    return rating, text, "free memory, then empty it: swapoff -a && swapon -a"


def _swap_rate_bytes_per_s(stretch: disturbance.CounterChanges) -> float | None:
    swapped_in, swapped_out = stretch.swapped_in_bytes, stretch.swapped_out_bytes
    return (
        None
        if swapped_in is None or swapped_out is None or stretch.wall_s <= 0
        else (swapped_in + swapped_out) / stretch.wall_s
    )


ACTIVITY = {
    Check.RESOLUTION: _resolution,
    Check.OTHER_CPU: _other_cpu,
    Check.STEAL: _steal,
    Check.LOAD: _load,
    Check.CPU_PRESSURE: _pressure("cpu_some_s", CPU_PRESSURE, "a CPU", "stop other processes"),
    Check.MEMORY_PRESSURE: _pressure("memory_some_s", STALL, "memory", "free memory"),
    Check.IO_PRESSURE: _pressure("io_some_s", STALL, "storage", "stop what reads and writes"),
    Check.THROTTLING: _throttling,
    Check.TEMPERATURE: _temperature,
    Check.SWAP: _swap,
}


@dataclass(frozen=True, slots=True)
class Detectable:
    """The relative difference that `pairs` pairs can show: 0.03 is 3 %. The bounds follow from those of the scatter."""

    pairs: int
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Resolution:
    """The scatter of a pair's log ratio, estimated from `pairs` pairs, and the differences detectable with it."""

    pairs: int
    scatter: float
    detectable: tuple[Detectable, ...]


def resolution(log_ratios: Sequence[float], planned: Sequence[int] = PLANNED_PAIRS) -> Resolution | None:
    """Return the machine's resolution from the log ratios of identical arms, one a pair; None below `MIN_PAIRS`."""
    count = len(log_ratios)
    if count < MIN_PAIRS:
        return None
    scatter = math.sqrt(math.fsum(value * value for value in log_ratios) / count)
    return Resolution(count, scatter, tuple(_detectable(scatter, count, pairs) for pairs in planned))


def resolution_text(measured_resolution: Resolution | None, pairs: int) -> str:
    """Return the detectable differences, from so many measured pairs, in one sentence."""
    if measured_resolution is None:
        return f"no estimate: needs {MIN_PAIRS} pairs, got {pairs}"
    differences_text = ", ".join(
        f"{percentage(d.difference)} in {d.pairs} pairs" for d in measured_resolution.detectable
    )
    return f"this machine can show a difference of {differences_text}"


def _detectable(scatter: float, count: int, pairs: int) -> Detectable:
    from keras_matrix.analysis.stats.special import chdtri  # the inverse of the survival function; slow to import

    tail = (1 - CONFIDENCE) / 2
    scatters = (scatter * math.sqrt(count / chdtri(count, p)) for p in (tail, 1 - tail))
    low, high = (minimum_detectable_effect(bound, pairs) for bound in scatters)
    centre = minimum_detectable_effect(scatter, pairs)
    if centre is None or low is None or high is None:
        raise ValueError(f"pairs: must be at least {MIN_PAIRS}, got {pairs}")
    return Detectable(pairs, centre, low, high)
