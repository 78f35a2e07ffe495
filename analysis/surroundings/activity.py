"""What the machine does while it is watched, judged: others' use of it, pressure, heat, swap. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.analysis.surroundings.disturbance import (
    OTHER_CPU_LIMIT,
    STALL_LIMIT,
    STEAL_LIMIT,
    Stretch,
    Watched,
    other_cpu_share,
    percent,
    stall_share,
    steal_share,
)
from keras_matrix.analysis.surroundings.findings import Check, Limit, MachineFinding, Rating, judged, unread
from keras_matrix.analysis.surroundings.readings import Meanwhile, Readings
from keras_matrix.analysis.surroundings.resolution import MIN_PAIRS, resolution
from keras_matrix.records.host.procfs import Unread

MIB, GIB = 1 << 20, 1 << 30
# `bad` begins where the rule of disturbance replaces a block: such a machine would have every block replaced.
STEAL = Limit(0.005, STEAL_LIMIT)
OTHER_CPU = Limit(0.01, OTHER_CPU_LIMIT)
STALL = Limit(0.001, STALL_LIMIT)
# The measuring has a thread for each CPU, which by themselves need not wait.
CPU_PRESSURE = Limit(0.01, 0.10)
LOAD_PER_CPU = Limit(0.25, 1.0)
RESOLUTION = Limit(0.03, 0.10)  # in 10 pairs; 3 % is the default `precision_target`
MARGIN_C = Limit(-10.0, 0.0)  # temperature less the zone's own limit
UNCOUNTED = Unread("its counters are not there, not this machine's, or hardly moved")


def activity_findings(readings: Readings) -> Iterator[MachineFinding]:
    """Yield what is found of what the machine does."""
    yield _resolution(readings)
    yield _other_cpu(readings.meanwhile)
    yield _steal(readings.meanwhile)
    yield _load(readings)
    yield from _pressures(readings.meanwhile)
    yield _throttling(readings)
    yield _temperature(readings)
    yield _swap(readings)


def _resolution(readings: Readings) -> MachineFinding:
    ratios = readings.pair_log_ratios
    found = resolution(ratios)
    if found is None:
        seen = f"not measured: of the {MIN_PAIRS} pairs it takes, {len(ratios)} were done"
        return MachineFinding(Check.RESOLUTION, Rating.UNREAD, seen, "give it more time with --seconds")
    first = found.detectable[0]
    seen = (
        f"two identical arms, {found.pairs} pairs: {percent(first.difference)} in {first.pairs} pairs "
        f"(between {percent(first.low)} and {percent(first.high)})"
    )
    verdict = RESOLUTION.verdict(first.difference)
    return judged(Check.RESOLUTION, verdict, seen, "mend what is bad below, or plan for more repeats")


def _other_cpu(meanwhile: Meanwhile) -> MachineFinding:
    stretch = meanwhile.stretch
    share = stretch if isinstance(stretch, Unread) else other_cpu_share(Watched(stretch, meanwhile.own))
    if share is None or isinstance(share, Unread):
        return unread(Check.OTHER_CPU, share or UNCOUNTED)
    seen = f"other processes used {percent(share)} of the CPUs"
    if isinstance(meanwhile.others, Unread):
        seen += f"; which: not readable: {meanwhile.others.why}"
    elif meanwhile.others:
        seen += "; busiest: " + ", ".join(map(str, meanwhile.others))
    return judged(Check.OTHER_CPU, OTHER_CPU.verdict(share), seen, "stop them")


def _steal(meanwhile: Meanwhile) -> MachineFinding:
    stretch = meanwhile.stretch
    share = stretch if isinstance(stretch, Unread) else steal_share(stretch)
    if share is None or isinstance(share, Unread):
        return unread(Check.STEAL, share or UNCOUNTED)
    seen = f"the hypervisor withheld {percent(share)} of the time the CPUs had work"
    advice = "measure at another hour or on a machine of its own"
    return judged(Check.STEAL, STEAL.verdict(share), seen, advice)


def _pressures(meanwhile: Meanwhile) -> Iterator[MachineFinding]:
    stretch = meanwhile.stretch
    if isinstance(stretch, Unread):
        yield from (unread(check, stretch) for check in (Check.CPU_PRESSURE, Check.MEMORY_PRESSURE, Check.IO_PRESSURE))
        return
    yield _pressure(Check.CPU_PRESSURE, CPU_PRESSURE, stretch.cpu_some_s, stretch)
    yield _pressure(Check.MEMORY_PRESSURE, STALL, stretch.memory_some_s, stretch)
    yield _pressure(Check.IO_PRESSURE, STALL, stretch.io_some_s, stretch)


def _pressure(check: Check, limit: Limit, some_s: float | None, stretch: Stretch) -> MachineFinding:
    share = stall_share(some_s, stretch)
    if share is None:
        return unread(check, Unread("this kernel tells no pressure (CONFIG_PSI, boot with psi=1)"))
    what, advice = {
        Check.CPU_PRESSURE: ("a CPU", "stop other processes"),
        Check.MEMORY_PRESSURE: ("memory", "free memory"),
        Check.IO_PRESSURE: ("storage", "stop what reads and writes"),
    }[check]
    return judged(check, limit.verdict(share), f"something waited for {what} {percent(share)} of the time", advice)


def _load(readings: Readings) -> MachineFinding:
    if isinstance(readings.load, Unread):
        return unread(Check.LOAD, readings.load)
    cpus = readings.limits.cpus_allowed
    seen = f"{readings.load:.2f} over the last minute, on {cpus} CPUs"
    return judged(Check.LOAD, LOAD_PER_CPU.verdict(readings.load / cpus), seen, "wait until it falls")


def _throttling(readings: Readings) -> MachineFinding:
    stretch, since_start = readings.meanwhile.stretch, readings.heat.throttle_events
    now = None if isinstance(stretch, Unread) else stretch.throttle_events
    advice = "cool the machine, or hold its clocks below what it can keep up"
    if isinstance(since_start, Unread):
        return unread(Check.THROTTLING, since_start)
    if now:
        return MachineFinding(Check.THROTTLING, Rating.BAD, f"{now} times while the machine was watched", advice)
    if since_start:
        seen = f"{since_start} times since the machine started, not while it was watched"
        return MachineFinding(Check.THROTTLING, Rating.DOUBTFUL, seen, advice)
    return MachineFinding(Check.THROTTLING, Rating.FINE, "never since the machine started")


def _temperature(readings: Readings) -> MachineFinding:
    zones = readings.heat.zones
    if isinstance(zones, Unread):
        return unread(Check.TEMPERATURE, zones)
    limited = [(zone.temperature_c - zone.limit_c, zone) for zone in zones if zone.limit_c is not None]
    if not limited:
        warmest = max(zones, key=lambda zone: zone.temperature_c)
        return unread(Check.TEMPERATURE, Unread(f"limits; now {warmest.temperature_c:.0f} C in {warmest.name}"))
    margin_c, nearest = max(limited, key=lambda pair: pair[0])
    seen = f"{nearest.temperature_c:.0f} C in {nearest.name}, which slows down at {nearest.limit_c:.0f} C"
    return judged(Check.TEMPERATURE, MARGIN_C.verdict(margin_c), seen, "let the machine cool, mend its cooling")


def _swap(readings: Readings) -> MachineFinding:
    swap, stretch = readings.swap, readings.meanwhile.stretch
    if isinstance(swap, Unread):
        return unread(Check.SWAP, swap)
    if swap.total_bytes == 0:
        return MachineFinding(Check.SWAP, Rating.FINE, "there is none")
    seen = f"{swap.used_bytes / GIB:.1f} of {swap.total_bytes / GIB:.1f} GiB in use"
    rate = None if isinstance(stretch, Unread) else _swap_rate_bytes_per_s(stretch)
    seen += "; rate: not readable" if rate is None else f", {rate / MIB:.1f} MiB/s in and out"
    verdict = Rating.BAD if rate else Rating.DOUBTFUL if swap.used_bytes else Rating.FINE
    return judged(Check.SWAP, verdict, seen, "free memory, then empty it: swapoff -a && swapon -a")


def _swap_rate_bytes_per_s(stretch: Stretch) -> float | None:
    into, out = stretch.swapped_in_bytes, stretch.swapped_out_bytes
    return None if into is None or out is None or stretch.wall_s <= 0 else (into + out) / stretch.wall_s
