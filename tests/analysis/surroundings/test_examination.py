"""From the readings of a machine to findings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from keras_matrix.analysis.surroundings.disturbance import CounterChanges, OwnUse
from keras_matrix.analysis.surroundings.examination import examine
from keras_matrix.analysis.surroundings.readings import (
    Check,
    Clocks,
    Gpu,
    GpuProcess,
    Heat,
    MachineFinding,
    Meanwhile,
    Process,
    ProcessPlacement,
    Rating,
    Readings,
    ResourceLimits,
    Swap,
    Zone,
    worst,
)
from keras_matrix.records.host.procfs import Unread

GIB = 1 << 30
STRETCH = CounterChanges(
    wall_s=10.0,
    cpu_total_s=40.0,
    cpu_busy_s=20.0,
    cpu_irq_s=0.0,
    cpu_steal_s=0.0,
    cpu_some_s=0.0,
    memory_some_s=0.0,
    memory_full_s=0.0,
    io_some_s=0.0,
    io_full_s=0.0,
    throttle_events=0,
    swapped_in_bytes=0,
    swapped_out_bytes=0,
)
GPU = Gpu(0, "a GPU", 1_410_000_000, 1_980_000_000, 40, 0, True, (), mig=False, ecc=True, ecc_errors=0)
QUIET = Readings(
    clocks=Clocks(("performance",), "acpi-cpufreq", False, "no two of the CPUs share a core", "tsc"),
    heat=Heat(0, (Zone("package", 45.0, 95.0), Zone("board", 60.0, None))),
    limits=ResourceLimits(4, 4, None, None, GIB),
    place=ProcessPlacement(None, None, (0,), 2),
    swap=Swap(0, 0),
    load=0.1,
    meanwhile=Meanwhile(STRETCH, OwnUse(cpu_s=20.0), ()),
    gpus=None,
    pair_log_ratios=(0.01, -0.01, 0.005, -0.005, 0.0, 0.01),
)
GONE = Unread("it is not there")


def changed(part: str, **changes: Any) -> Readings:
    """Return QUIET with fields of one of its parts changed."""
    return replace(QUIET, **{part: replace(getattr(QUIET, part), **changes)})


def during(**changes: Any) -> Readings:
    return changed("meanwhile", stretch=replace(STRETCH, **changes))


def finding(readings: Readings, check: Check) -> MachineFinding:
    (found,) = [finding for finding in examine(readings) if finding.check is check]
    return found


def test_every_check_of_a_quiet_machine_is_fine_without_advice() -> None:
    found = examine(QUIET)
    assert [f for f in found if f.verdict is not Rating.FINE or f.advice] == []
    assert worst(found) is Rating.FINE


def test_every_check_is_made_once_in_the_order_of_the_enum() -> None:
    found = examine(replace(QUIET, gpus=(GPU,)))
    assert [f.check for f in found] == [check for check in Check if check is not Check.GPU_BUILD]


@pytest.mark.parametrize(
    ("cores", "readings", "check", "advice"),
    [
        (8, changed("clocks", smt="active"), Check.SMT, "bind each cell to one CPU of each core: --set cpus=8"),
        (8, changed("place", numa_nodes=(0, 1)), Check.NUMA, "bind each cell to one node: --set cpus=8"),
        (None, changed("place", numa_nodes=(0, 1)), Check.NUMA, "bind each cell to one node: --set cpus=N"),
    ],
)
def test_pinning_advice_names_the_number_of_cpus(
    cores: int | None, readings: Readings, check: Check, advice: str
) -> None:
    known = replace(readings, place=replace(readings.place, cores_of_a_node=cores))
    assert finding(known, check).advice == advice


CASES: list[tuple[Readings, Check, Rating]] = [
    (replace(QUIET, pair_log_ratios=(0.05, -0.05) * 5), Check.RESOLUTION, Rating.DOUBTFUL),
    (replace(QUIET, pair_log_ratios=(0.2, -0.2) * 5), Check.RESOLUTION, Rating.BAD),
    (replace(QUIET, pair_log_ratios=(0.2, -0.2)), Check.RESOLUTION, Rating.UNREAD),
    (during(cpu_busy_s=21.0), Check.OTHER_CPU, Rating.DOUBTFUL),
    (during(cpu_busy_s=24.0), Check.OTHER_CPU, Rating.BAD),
    (during(cpu_total_s=0.0, cpu_busy_s=0.0), Check.OTHER_CPU, Rating.UNREAD),
    (during(cpu_steal_s=0.5), Check.STEAL, Rating.DOUBTFUL),
    (during(cpu_steal_s=2.0), Check.STEAL, Rating.BAD),
    (during(cpu_steal_s=None), Check.STEAL, Rating.UNREAD),
    (replace(QUIET, load=2.0), Check.LOAD, Rating.DOUBTFUL),
    (replace(QUIET, load=5.0), Check.LOAD, Rating.BAD),
    (during(cpu_some_s=0.5), Check.CPU_PRESSURE, Rating.DOUBTFUL),
    (during(cpu_some_s=2.0), Check.CPU_PRESSURE, Rating.BAD),
    (during(memory_some_s=0.1), Check.MEMORY_PRESSURE, Rating.DOUBTFUL),
    (during(memory_some_s=1.0), Check.MEMORY_PRESSURE, Rating.BAD),
    (during(io_some_s=1.0), Check.IO_PRESSURE, Rating.BAD),
    (during(io_some_s=None), Check.IO_PRESSURE, Rating.UNREAD),
    (during(throttle_events=1), Check.THROTTLING, Rating.BAD),
    (changed("heat", throttle_events=7), Check.THROTTLING, Rating.DOUBTFUL),
    (changed("heat", zones=(Zone("package", 90.0, 95.0),)), Check.TEMPERATURE, Rating.DOUBTFUL),
    (changed("heat", zones=(Zone("package", 96.0, 95.0),)), Check.TEMPERATURE, Rating.BAD),
    (changed("heat", zones=(Zone("board", 96.0, None),)), Check.TEMPERATURE, Rating.UNREAD),
    (replace(QUIET, swap=Swap(0, GIB)), Check.SWAP, Rating.FINE),
    (replace(QUIET, swap=Swap(GIB, 2 * GIB)), Check.SWAP, Rating.DOUBTFUL),
    (replace(during(swapped_in_bytes=4096), swap=Swap(GIB, 2 * GIB)), Check.SWAP, Rating.BAD),
    (changed("clocks", governors=("schedutil",)), Check.GOVERNOR, Rating.DOUBTFUL),
    (changed("clocks", governors=("performance", "powersave")), Check.GOVERNOR, Rating.BAD),
    (changed("clocks", governors=("powersave",), driver="intel_pstate"), Check.GOVERNOR, Rating.DOUBTFUL),
    (changed("clocks", turbo=True), Check.TURBO, Rating.DOUBTFUL),
    (changed("clocks", smt="active"), Check.SMT, Rating.DOUBTFUL),
    (changed("limits", quota_cpus=2.5), Check.CPU_LIMIT, Rating.BAD),
    (changed("limits", quota_cpus=4.0), Check.CPU_LIMIT, Rating.FINE),
    (changed("limits", memory_limit_bytes=10 * GIB, memory_used_bytes=9 * GIB), Check.MEMORY_LIMIT, Rating.DOUBTFUL),
    (changed("limits", memory_limit_bytes=100, memory_used_bytes=99), Check.MEMORY_LIMIT, Rating.BAD),
    (changed("limits", memory_limit_bytes=100, memory_used_bytes=GONE), Check.MEMORY_LIMIT, Rating.UNREAD),
    (changed("place", missing_rights=("something",), container="docker"), Check.RIGHTS, Rating.DOUBTFUL),
    (changed("place", numa_nodes=(0, 1)), Check.NUMA, Rating.DOUBTFUL),
    (changed("place", hypervisor="KVM"), Check.VIRTUALISATION, Rating.DOUBTFUL),
    (changed("place", aslr=0), Check.ASLR, Rating.DOUBTFUL),
    (changed("clocks", clock_source="hpet"), Check.CLOCK_SOURCE, Rating.DOUBTFUL),
    (replace(QUIET, gpus=GONE), Check.GPU, Rating.UNREAD),
    (replace(QUIET, gpus=(replace(GPU, temperature_c=80),)), Check.GPU_TEMPERATURE, Rating.DOUBTFUL),
    (replace(QUIET, gpus=(replace(GPU, throttle_mask=0x4),)), Check.GPU_THROTTLING, Rating.DOUBTFUL),
    (replace(QUIET, gpus=(replace(GPU, throttle_mask=0x24),)), Check.GPU_THROTTLING, Rating.BAD),
    (replace(QUIET, gpus=(replace(GPU, throttle_mask=0x3),)), Check.GPU_THROTTLING, Rating.FINE),
    (replace(QUIET, gpus=(replace(GPU, persistence=False),)), Check.GPU_PERSISTENCE, Rating.DOUBTFUL),
    (replace(QUIET, gpus=(replace(GPU, users=(GpuProcess(12),)),)), Check.GPU_USERS, Rating.BAD),
    (replace(QUIET, gpus=(replace(GPU, mig=True),)), Check.GPU_MIG, Rating.DOUBTFUL),
    (replace(QUIET, gpus=(replace(GPU, ecc_errors=1),)), Check.GPU_ECC, Rating.BAD),
    (replace(QUIET, gpus=(replace(GPU, ecc=Unread("no", absent=True), ecc_errors=GONE),)), Check.GPU_ECC, Rating.FINE),
    (replace(QUIET, gpus=(replace(GPU, ecc=False, ecc_errors=GONE),)), Check.GPU_ECC, Rating.FINE),
    (replace(QUIET, gpus=(GPU,)), Check.GPU_CLOCKS, Rating.UNREAD),
]


@pytest.mark.parametrize(("readings", "check", "verdict"), CASES)
def test_each_check_is_rated(readings: Readings, check: Check, verdict: Rating) -> None:
    found = finding(readings, check)
    assert found.verdict is verdict, found
    assert verdict not in (Rating.DOUBTFUL, Rating.BAD) or found.advice


def test_unreadable_values_are_reported_with_their_reason_and_not_rated() -> None:
    blind = Readings(
        clocks=Clocks(GONE, GONE, GONE, GONE, GONE),
        heat=Heat(GONE, GONE),
        limits=ResourceLimits(4, GONE, GONE, GONE, GONE),
        place=ProcessPlacement(GONE, None, GONE, GONE),
        swap=GONE,
        load=GONE,
        meanwhile=Meanwhile(GONE, OwnUse(), GONE),
        gpus=(Gpu(0, "a GPU", *([GONE] * 6), "", *([GONE] * 5)),),  # type: ignore[arg-type]
    )
    found = [f for f in examine(blind) if f.check not in (Check.RIGHTS, Check.GPU)]
    assert {f.verdict for f in found} == {Rating.UNREAD}
    assert [f for f in found if "it is not there" not in f.observed and f.check is not Check.RESOLUTION] == []
    assert worst(found) is Rating.FINE


@pytest.mark.parametrize(
    ("user", "text"),
    [
        (GpuProcess(12), "process 12"),
        (GpuProcess(12, "trainer"), "trainer (process 12)"),
        (GpuProcess(12, "trainer", 512 << 20), "trainer (process 12, 512 MiB)"),
        (GpuProcess(12, None, 512 << 20), "process 12 (512 MiB)"),
    ],
)
def test_gpu_process_is_named_with_its_known_details(user: GpuProcess, text: str) -> None:
    busy = replace(QUIET, gpus=(replace(GPU, users=(user,)),))
    assert finding(busy, Check.GPU_USERS).observed == f"other processes compute on it: {text}"


def test_stretch_without_counters_is_not_rated() -> None:
    nothing = changed("meanwhile", stretch=CounterChanges(wall_s=10.0), own=OwnUse())
    watched = {Check.OTHER_CPU, Check.STEAL, Check.CPU_PRESSURE, Check.MEMORY_PRESSURE, Check.IO_PRESSURE}
    assert {f.verdict for f in examine(nothing) if f.check in watched} == {Rating.UNREAD}


def test_busiest_other_processes_are_named() -> None:
    busy = changed("meanwhile", stretch=replace(STRETCH, cpu_busy_s=30.0), others=(Process("make", 0.9, 123),))
    expected = "other processes used 25.0 % of the CPUs; busiest: make (process 123, 0.90 CPUs)"
    assert expected == finding(busy, Check.OTHER_CPU).observed


def test_worst_returns_the_worst_of_several_ratings() -> None:
    assert worst(examine(changed("clocks", turbo=True))) is Rating.DOUBTFUL
    assert worst(examine(during(throttle_events=1))) is Rating.BAD


def test_every_counter_of_a_stretch_defaults_to_none() -> None:
    assert {f.default for f in fields(CounterChanges) if f.name != "wall_s"} == {None}
