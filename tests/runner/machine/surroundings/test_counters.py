"""The counters, and their differences."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from keras_matrix.analysis.surroundings.disturbance import CounterChanges
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.machine.surroundings.counters import PAGE_BYTES, THROTTLE_FILES, TICKS_PER_S, Sampler, since
from keras_matrix.runner.machine.surroundings.snapshot import own_now
from tests.fakes.machine import CGROUP, CPU, PRESSURE, STAT, machine, write

COUNTED = [field.name for field in fields(CounterChanges) if field.name != "wall_s"]


def clock(times_s: list[float]) -> Callable[[], float]:
    return iter(times_s).__next__


def totals(root: Path, cpus: tuple[int, ...] = (0, 1, 2, 3)) -> CounterChanges:
    with Sampler(cpus, root) as sampler:
        return sampler.read().totals


def test_every_counter_is_read_in_its_unit(tmp_path: Path) -> None:
    machine(tmp_path)
    found = totals(tmp_path)
    assert found.cpu_total_s == (976 + 1012 + 1048 + 1084) / TICKS_PER_S
    assert found.cpu_busy_s == (160 + 280 + 400 + 520) / TICKS_PER_S
    assert found.cpu_irq_s == (3 + 7 + 11 + 15) / TICKS_PER_S
    assert found.cpu_steal_s == (3 + 5 + 7 + 9) / TICKS_PER_S
    assert (found.cpu_some_s, found.memory_some_s, found.io_some_s) == (1.5, 1.5, 1.5)
    assert (found.memory_full_s, found.io_full_s) == (0.25, 0.25)
    assert found.quota_throttled_s == 2.0
    assert found.throttle_events == (0 + 1 + 2 + 3) + 2 * 10
    assert (found.swapped_in_bytes, found.swapped_out_bytes) == (3 * PAGE_BYTES, 4 * PAGE_BYTES)
    assert found.context_switches == 777


def test_only_the_cpus_the_run_may_use_are_counted(tmp_path: Path) -> None:
    machine(tmp_path)
    found = totals(tmp_path, (1, 3))
    assert found.cpu_busy_s == (280 + 520) / TICKS_PER_S
    assert found.throttle_events == (1 + 3) + 2 * 10


def test_difference_of_two_readings(tmp_path: Path) -> None:
    machine(tmp_path)
    with Sampler([0, 1], tmp_path, clock([5.0, 5.25])) as sampler:
        before = sampler.read()
        moved_on = STAT.replace("cpu0 100 10 50 800", "cpu0 115 10 50 810").replace("60 700", "60 725")
        write(tmp_path, "/proc/stat", moved_on.replace("ctxt 777", "ctxt 800"))
        write(tmp_path, "/proc/pressure/io", PRESSURE.replace("total=250000", "total=750000"))
        write(tmp_path, "/proc/vmstat", "pswpin 5\npswpout 4\n")
        write(tmp_path, f"{CPU}/cpu1/thermal_throttle/core_throttle_count", "3\n")
        moved = since(before, sampler.read())
    assert (moved.wall_s, moved.cpu_total_s) == (0.25, 0.5)
    assert moved.cpu_busy_s == pytest.approx(15 / TICKS_PER_S)
    assert (moved.cpu_irq_s, moved.cpu_steal_s, moved.cpu_some_s) == (0, 0, 0)
    assert moved.io_full_s == pytest.approx(0.5)
    assert (moved.swapped_in_bytes, moved.swapped_out_bytes) == (2 * PAGE_BYTES, 0)
    assert (moved.throttle_events, moved.context_switches) == (2, 23)


def test_busy_time_is_clock_time_minus_idle_time(tmp_path: Path) -> None:
    """The kernel samples busy ticks and measures idle ones: here it found 55 of the 75 busy ticks."""
    machine(tmp_path)
    with Sampler([0], tmp_path, clock([0.0, 1.0])) as sampler:
        before = sampler.read()
        write(tmp_path, "/proc/stat", STAT.replace("cpu0 100 10 50 800 10 1 2 3", "cpu0 155 10 50 815 15 1 4 6"))
        moved = since(before, sampler.read())
    assert (moved.cpu_irq_s, moved.cpu_steal_s) == (pytest.approx(0.02), pytest.approx(0.03))
    assert moved.cpu_busy_s == pytest.approx(0.75)


def test_ticks_that_do_not_add_up_to_the_clocks_time_are_unknown(tmp_path: Path) -> None:
    machine(tmp_path)
    with Sampler([0, 1], tmp_path, clock([0.0, 1.0])) as sampler:
        moved = since(sampler.read(), sampler.read())
    assert (moved.cpu_total_s, moved.cpu_busy_s, moved.cpu_steal_s) == (None, None, None)
    assert moved.cpu_some_s == 0


def test_a_counter_that_ran_backwards_was_not_measured(tmp_path: Path) -> None:
    machine(tmp_path)
    with Sampler([0], tmp_path, clock([0.0, 0.01])) as sampler:
        before = sampler.read()
        write(tmp_path, "/proc/stat", STAT.replace("cpu0 100 10 50 800 10 1 2 3", "cpu0 101 10 50 800 10 1 2 2"))
        write(tmp_path, "/proc/vmstat", "pswpin 2\npswpout 9\n")
        moved = since(before, sampler.read())
    assert (moved.cpu_steal_s, moved.cpu_busy_s) == (None, None)
    assert (moved.swapped_in_bytes, moved.swapped_out_bytes) == (None, 5 * PAGE_BYTES)


def test_machine_without_counters_has_only_none(tmp_path: Path) -> None:
    found = totals(tmp_path)
    assert [name for name in COUNTED if getattr(found, name) is not None] == []


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0\xff\xfe", b"cpu0 x y z\n", b"cpu0 1 2 3\ncpu1\n", b"some total=\nfull total=-4\n", b"9" * 9999],
)
def test_garbage_in_every_file_makes_every_counter_none(tmp_path: Path, garbage: bytes) -> None:
    machine(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and "self" not in path.parts:
            path.write_bytes(garbage)
    found = totals(tmp_path)
    assert [name for name in COUNTED if getattr(found, name) is not None] == []


def test_folders_and_pipes_in_place_of_files_do_not_block(tmp_path: Path) -> None:
    machine(tmp_path, {"/proc/stat": None, "/proc/vmstat": None, "/proc/pressure/cpu": None})
    (tmp_path / "proc/stat").mkdir()
    os.mkfifo(tmp_path / "proc/vmstat")
    os.mkfifo(tmp_path / "proc/pressure/cpu")
    found = totals(tmp_path)
    assert (found.cpu_total_s, found.swapped_in_bytes, found.cpu_some_s) == (None, None, None)
    assert found.io_some_s == 1.5


def test_a_cpu_that_is_gone_leaves_the_cpu_times_unknown(tmp_path: Path) -> None:
    machine(tmp_path)
    assert totals(tmp_path, (0, 9)).cpu_total_s is None
    assert totals(tmp_path, ()).cpu_total_s is None


def test_a_containers_own_stat_is_not_used_for_other_processes(tmp_path: Path) -> None:
    machine(tmp_path, {"/proc/self/mountinfo": "9 8 0:1 /proc/stat /proc/stat rw - fuse.lxcfs lxcfs rw\n"})
    found = totals(tmp_path)
    assert (found.cpu_total_s, found.context_switches) == (None, None)
    assert found.memory_some_s == 1.5


def test_control_groups_version_1_report_throttling_in_nanoseconds(tmp_path: Path) -> None:
    machine(
        tmp_path,
        {
            "/proc/self/cgroup": "2:cpu,cpuacct:/job\n0::/\n",
            "/proc/self/mountinfo": f"40 24 0:9 / {CGROUP}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            f"{CGROUP}/cpu/job/cpu.stat": "nr_throttled 2\nthrottled_time 1500000000\n",
        },
    )
    assert totals(tmp_path).quota_throttled_s == 1.5


def test_a_large_machine_s_throttle_files_are_capped(tmp_path: Path) -> None:
    cpus = range(2 * THROTTLE_FILES)
    folder = f"{CPU}/cpu%d/thermal_throttle/core_throttle_count"
    machine(tmp_path, {folder % cpu: "1\n" for cpu in cpus})
    with Sampler(cpus, tmp_path) as sampler:
        assert len(sampler._throttles) <= THROTTLE_FILES


def test_a_stat_longer_than_one_read_is_read_to_its_end(tmp_path: Path) -> None:
    machine(tmp_path, {"/proc/stat": STAT.replace("intr 12345", "intr 12345" + " 0" * 100_000)})
    assert totals(tmp_path).context_switches == 777


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_close_closes_every_file(tmp_path: Path) -> None:
    machine(tmp_path)
    before = open_files()
    sampler = Sampler([0, 1], tmp_path)
    assert open_files() > before
    sampler.close()
    assert open_files() == before
    assert sampler.read().totals.cpu_total_s is None


@pytest.mark.process
def test_kernel_counters_include_the_cpu_time_of_a_process() -> None:
    script = "import time\nwhile time.process_time() < 1.0: pass\nprint(flush=True)\ninput()"
    cpus = os.sched_getaffinity(0)
    with (
        Sampler(cpus) as sampler,
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        before = sampler.read()
        assert process.stdout is not None
        process.stdout.readline()
        stretch, used_s = since(before, sampler.read()), own_now(ProcTree(), [process.pid], None).cpu_s
        process.communicate(b"\n", timeout=10)
    assert used_s == pytest.approx(1.0, abs=0.1)
    assert stretch.cpu_busy_s is not None
    assert stretch.cpu_total_s == pytest.approx(stretch.wall_s * len(cpus))
    assert 0.9 <= stretch.cpu_busy_s <= stretch.cpu_total_s
