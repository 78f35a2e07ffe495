"""Readings of synthetic machines, including hostile ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.surroundings.disturbance import OwnUse
from keras_matrix.analysis.surroundings.examination import examine
from keras_matrix.analysis.surroundings.readings import Check, Process, Rating, Swap, Zone
from keras_matrix.records.codec import dumps
from keras_matrix.records.host import system
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.runner.machine.surroundings import processors, snapshot
from keras_matrix.runner.machine.surroundings.snapshot import look
from tests.fakes.machine import CGROUP, CPU, FILES, machine, write

GIB = 1 << 30
CPUS = (0, 1, 2, 3)
V1 = {
    "/proc/self/cgroup": "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n1:name=systemd:/\n0::/\n",
    "/proc/self/mountinfo": (
        f"40 24 0:9 / {CGROUP}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"41 24 0:8 / {CGROUP}/memory rw - cgroup cgroup rw,memory\n"
    ),
    f"{CGROUP}/cpu/a/b/cpu.cfs_quota_us": "150000\n",
    f"{CGROUP}/cpu/a/b/cpu.cfs_period_us": "100000\n",
    f"{CGROUP}/cpu/a/cpu.cfs_quota_us": "-1\n",
    f"{CGROUP}/cpu/a/cpu.cfs_period_us": "100000\n",
    f"{CGROUP}/cpu/cpu.cfs_quota_us": "-1\n",
    f"{CGROUP}/cpu/cpu.cfs_period_us": "100000\n",
    f"{CGROUP}/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
    f"{CGROUP}/memory/a/memory.limit_in_bytes": f"{2 * GIB}\n",
    f"{CGROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
    f"{CGROUP}/memory/a/b/memory.usage_in_bytes": "700\n",
    f"{CGROUP}/memory/a/b/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
}


def test_clocks_of_a_bare_machine_are_read(tmp_path: Path) -> None:
    found = processors.clocks(machine(tmp_path), CPUS)
    assert (found.governors, found.driver, found.turbo) == (("performance",), "intel_pstate", False)
    assert (found.smt, found.clock_source) == ("active", "tsc")


def test_two_cpus_of_different_cores_share_none(tmp_path: Path) -> None:
    found = processors.clocks(machine(tmp_path), (0, 1))
    assert found.smt == "no two of the CPUs share a core (kernel: on)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({f"{CPU}/intel_pstate/no_turbo": "0"}, True),
        ({f"{CPU}/intel_pstate/no_turbo": None, f"{CPU}/cpufreq/boost": "1"}, True),
        ({f"{CPU}/intel_pstate/no_turbo": None, f"{CPU}/cpufreq/boost": "0"}, False),
        (
            {f"{CPU}/intel_pstate/no_turbo": None, f"{CPU}/cpufreq/boost": "7"},
            Unread(f"{CPU}/cpufreq/boost holds 7, neither 0 nor 1"),
        ),
        ({f"{CPU}/intel_pstate/no_turbo": None}, Unread(f"{CPU}/cpufreq/boost does not exist", absent=True)),
    ],
)
def test_turbo_is_read_from_either_switch(
    tmp_path: Path, changes: dict[str, str | None], expected: bool | Unread
) -> None:
    assert processors.clocks(machine(tmp_path, changes), CPUS).turbo == expected


def test_one_cpu_without_a_governor_leaves_the_governor_unread(tmp_path: Path) -> None:
    found = processors.clocks(machine(tmp_path, {f"{CPU}/cpu2/cpufreq/scaling_governor": None}), CPUS)
    assert isinstance(found.governors, Unread)


def test_heat_is_read_with_the_lowest_limit_that_slows_down(tmp_path: Path) -> None:
    found = processors.heat(machine(tmp_path), CPUS)
    assert found.throttle_events == 0 + 1 + 2 + 3 + 4 * 10
    assert found.zones == (Zone("x86_pkg_temp", 45.0, 95.0),)


def test_nodes_are_those_of_the_cpus_the_run_may_use(tmp_path: Path) -> None:
    tree = machine(tmp_path)
    assert processors.numa_nodes(tree, CPUS) == (0, 1)
    assert processors.numa_nodes(tree, (2, 3)) == (1,)
    assert processors.online(tree) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"/proc/cpuinfo": "flags : fpu hypervisor\n"}, "of an unknown kind"),
        ({"/proc/cpuinfo": "flags : hypervisor\n", "/sys/hypervisor/type": "xen\n"}, "xen"),
        ({"/proc/cpuinfo": "flags : hypervisor\n", "/sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
        ({"/proc/cpuinfo": "Features : fp asimd\n"}, Unread("/proc/cpuinfo has no flags on this architecture")),
    ],
)
def test_hypervisor_is_detected_from_the_cpu_flags(
    tmp_path: Path, changes: dict[str, str], expected: str | Unread
) -> None:
    assert processors.hypervisor(machine(tmp_path, changes)) == expected


def test_version_2_without_limits_has_none(tmp_path: Path) -> None:
    tree = machine(tmp_path)
    assert (system.quota_cpus(tree), system.memory_limit_bytes(tree)) == (None, None)
    assert system.memory_used_bytes(tree) == 400


def test_the_tightest_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    changes = {
        f"{CGROUP}/user/job/cpu.max": "400000 100000\n",
        f"{CGROUP}/user/cpu.max": "50000 100000\n",
        f"{CGROUP}/user/memory.max": f"{GIB}\n",
    }
    tree = machine(tmp_path, changes)
    assert (system.quota_cpus(tree), system.memory_limit_bytes(tree)) == (0.5, GIB)


def test_version_1_is_read_like_version_2(tmp_path: Path) -> None:
    tree = machine(tmp_path, V1)
    assert (system.quota_cpus(tree), system.memory_limit_bytes(tree)) == (1.5, 2 * GIB)
    assert system.memory_used_bytes(tree) == 600


def test_group_inside_a_container_is_at_the_mount(tmp_path: Path) -> None:
    for number, (root, path) in enumerate([("/docker/abc", "/docker/abc"), ("/", "/../../other"), ("/abc", "/other")]):
        inside = {
            "/proc/self/mountinfo": f"35 24 0:30 {root} {CGROUP} ro - cgroup2 cgroup rw\n",
            "/proc/self/cgroup": f"0::{path}\n",
            f"{CGROUP}/cpu.max": "100000 100000\n",
        }
        assert system.quota_cpus(machine(tmp_path / str(number), inside)) == 1.0


@pytest.mark.parametrize("text", ["100000", "0 0", "x y", "-5 100", "1 2 3", "\0"])
def test_invalid_quota_is_unread_and_not_unlimited(tmp_path: Path, text: str) -> None:
    tree = machine(tmp_path, {f"{CGROUP}/user/job/cpu.max": text})
    assert isinstance(system.quota_cpus(tree), Unread)


@pytest.mark.parametrize("path", ["/proc/self/cgroup", "/proc/self/mountinfo"])
@pytest.mark.parametrize("text", [None, "", "garbage", "0::", ":::\n - \n"])
def test_groups_that_cannot_be_found_are_unread(tmp_path: Path, path: str, text: str | None) -> None:
    if (path, text) == ("/proc/self/cgroup", "0::"):
        return  # the root of version 2, as the last line of a container's file may be
    tree = machine(tmp_path, {path: text})
    assert isinstance(system.quota_cpus(tree), Unread)
    assert isinstance(system.memory_limit_bytes(tree), Unread)
    assert system.quota_folder(tree) is None


def test_swap_is_read(tmp_path: Path) -> None:
    assert snapshot.swap(machine(tmp_path)) == Swap(100 * 1024, 400 * 1024)


def stat(name: str, parent: int, ticks: int, started: int = 5) -> str:
    return f"9 ({name}) R {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 7 0 20 0 1 0 {started} 0 0\n"


def test_other_processes_are_named_without_the_runs_own_tree(tmp_path: Path) -> None:
    shown = {"/proc/20/stat": stat("run", 1, 0), "/proc/21/stat": stat("cell", 20, 0), "/proc/30/stat": stat("x", 1, 0)}
    before = snapshot.processes(machine(tmp_path, shown))
    for path, text in {
        "/proc/20/stat": stat("run", 1, 500),
        "/proc/21/stat": stat("cell", 20, 900),
        "/proc/30/stat": stat("a b) (c\x1b[31m", 1, 50),
        "/proc/31/stat": stat("new", 1, 25),
        "/proc/32/stat": stat("idle", 1, 0),
    }.items():
        write(tmp_path, path, text)
    found = snapshot.others(before, snapshot.processes(ProcTree(tmp_path)), {20}, 2.0)
    assert found == (Process("a b) (c", 0.25, 30), Process("new", 0.16, 31), Process("idle", 0.035, 32))


def test_reused_pid_is_another_process(tmp_path: Path) -> None:
    before = snapshot.processes(machine(tmp_path, {"/proc/30/stat": stat("old", 1, 500)}))
    write(tmp_path, "/proc/30/stat", stat("new", 1, 100, started=9))
    assert snapshot.others(before, snapshot.processes(ProcTree(tmp_path)), {20}, 1.0) == (Process("new", 1.07, 30),)


def test_ended_children_count_once_for_their_parent(tmp_path: Path) -> None:
    """The compilers that a `make` started before the first look count only with what they used after it."""
    names = {30: ("make", 1, 0), 31: ("sh", 30, 0), 32: ("cc", 31, 200)}
    before = snapshot.processes(machine(tmp_path, {f"/proc/{pid}/stat": stat(*of) for pid, of in names.items()}))
    for pid in (31, 32):
        (tmp_path / f"proc/{pid}/stat").unlink()
    # Of its ended children's 328 ticks, 7 + 7 + 207 were used before: by its own first ones, the shell, the compiler.
    write(tmp_path, "/proc/30/stat", stat("make", 1, 0).replace(" 7 0 20 0 ", " 328 0 20 0 "))
    found = snapshot.others(before, snapshot.processes(ProcTree(tmp_path)), {20}, 1.0)
    assert found == (Process("make", pytest.approx(1.07), 30),)


def test_processes_below_any_of_the_runs_own_are_not_others(tmp_path: Path) -> None:
    """Cells in containers are not below the runner."""
    shown = {f"/proc/{pid}/stat": stat("x", parent, 100) for pid, parent in ((20, 1), (21, 20), (40, 1), (41, 40))}
    found = snapshot.processes(machine(tmp_path, {**shown, "/proc/1/stat": None}))
    assert snapshot.others({}, found, {20, 40}, 1.0) == ()


def test_cycle_of_parents_ends_the_search(tmp_path: Path) -> None:
    shown = {"/proc/30/stat": stat("a", 31, 100), "/proc/31/stat": stat("b", 30, 100), "/proc/1/stat": None}
    found = snapshot.processes(machine(tmp_path, shown))
    assert snapshot.others({}, found, {20}, 1.0) == (Process("a", 1.07, 30), Process("b", 1.07, 31))


def own_process(cpu_ticks: int, pages: int, read_bytes: int) -> dict[str, str]:
    return {
        "/proc/30/stat": stat("a", 1, cpu_ticks),
        "/proc/30/statm": f"99 {pages} 0 0 0 0 0\n",
        "/proc/30/io": f"rchar: 5\nread_bytes: {read_bytes}\nwrite_bytes: 11\ncancelled_write_bytes: 0\n",
    }


def test_own_use_is_the_usage_of_the_runs_processes(tmp_path: Path) -> None:
    usable = 16 * snapshot.PAGE_BYTES
    before = snapshot.own_now(machine(tmp_path, own_process(100, 2, 100)), [30], usable)
    assert before == OwnUse(cpu_s=1.07, memory_share=1 / 8, storage_bytes=111)
    after = snapshot.own_now(machine(tmp_path, own_process(150, 1, 400)), [30], usable)
    moved = snapshot.own_since(before, after)
    assert moved == OwnUse(cpu_s=pytest.approx(0.5), memory_share=1 / 8, storage_bytes=300)


def test_unreadable_process_makes_the_own_use_unknown(tmp_path: Path) -> None:
    tree = machine(tmp_path, own_process(100, 2, 100))
    known = snapshot.own_now(tree, [30], 4096)
    assert snapshot.own_now(tree, [30, 99], 4096) == snapshot.own_now(tree, [], 4096) == OwnUse()
    assert snapshot.own_since(known, OwnUse()) == snapshot.own_since(OwnUse(), known) == OwnUse()
    assert snapshot.own_now(tree, [30], None).memory_share is None


@pytest.mark.parametrize("garbage", ["", "x", "read_bytes: y\nwrite_bytes: 1\n", "\0 \0 \0"])
def test_invalid_stat_of_an_own_process_makes_the_own_use_unknown(tmp_path: Path, garbage: str) -> None:
    tree = machine(tmp_path, {f"/proc/30/{name}": garbage for name in ("stat", "statm", "io")})
    assert snapshot.own_now(tree, [30], 4096) == OwnUse()


def test_missing_rights_are_reported(tmp_path: Path) -> None:
    assert snapshot.missing_rights(machine(tmp_path / "all")) == ()
    covered = "9 8 0:1 / /proc/stat rw - fuse.lxcfs lxcfs rw\n"
    poor = machine(tmp_path / "poor", {"/proc/1/stat": None, "/proc/self/mountinfo": covered})
    assert snapshot.missing_rights(poor) == (
        "processes of other users are not visible",
        "/proc/stat is a container's own, so the CPU use of others is not visible",
    )


def test_synthetic_machine_is_read_completely_and_judged(tmp_path: Path) -> None:
    found = look(machine(tmp_path), CPUS, lambda: [0.01, -0.01] * 5)
    assert found.load == 0.25
    verdicts = {f.check: f.verdict for f in examine(found)}
    assert (verdicts[Check.GOVERNOR], verdicts[Check.RESOLUTION]) == (Rating.FINE, Rating.FINE)
    assert verdicts[Check.OTHER_CPU] is Rating.UNREAD  # the counters of files do not move
    assert Rating.BAD not in verdicts.values()


def test_machine_without_readable_files_is_unread(tmp_path: Path) -> None:
    found = examine(look(ProcTree(tmp_path / "none"), CPUS, list))
    known = {f.check for f in found if f.verdict is not Rating.UNREAD}
    assert known == {Check.RIGHTS, Check.GPU}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.binary(max_size=200), min_size=1))
def test_any_file_content_is_read_and_judged_without_an_exception(tmp_path: Path, contents: dict[str, bytes]) -> None:
    root = tmp_path / os.urandom(4).hex()
    machine(root)
    for path, content in contents.items():
        write(root, path, content)
    found = look(ProcTree(root), CPUS, lambda: [0.0] * 5)
    assert dumps([found, examine(found)])
