"""The CPUs' energy counters, as trees of files with recorded values: no machine of these tests has counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.runner.machine.cpu_energy import FOLLOW_S, NO_COUNTERS, SHARED, CpuEnergy, moved, zones

RANGE_UJ = 262_143_328_850  # of a package of a Xeon
DRAM_RANGE_UJ = 65_712_999_613
POWERCAP = "sys/class/powercap"


def write_zone(root: Path, zone: str, name: str, energy: int | str, range_uj: int | None = RANGE_UJ) -> None:
    folder = root / POWERCAP / zone
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy}\n")
    if range_uj is not None:
        (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")


def one_socket(root: Path, package: int | str, dram: int | str | None = None) -> None:
    """Write the zones of a desktop: cores are a part of the package, psys and the second interface contain it."""
    write_zone(root, "intel-rapl:0", "package-0", package)
    write_zone(root, "intel-rapl:0:0", "core", 77)
    write_zone(root, "intel-rapl:1", "psys", 999)
    write_zone(root, "intel-rapl-mmio:0", "package-0", 888)
    if dram is not None:
        write_zone(root, "intel-rapl:0:1", "dram", dram, DRAM_RANGE_UJ)


def clock(*times_s: float) -> Callable[[], float]:
    return iter(times_s).__next__


def over_one_stretch(root: Path, change: Callable[[], None], seconds: float = 2.0) -> CpuEnergy:
    energy = CpuEnergy(ProcTree(root), clock(10.0, 10.0 + seconds))
    energy.begin()
    change()
    energy.end()
    return energy


def test_packages_and_memory_are_counted_and_parts_of_them_are_not(tmp_path: Path) -> None:
    one_socket(tmp_path, 1_000_000, dram=500_000)
    found = over_one_stretch(tmp_path, lambda: one_socket(tmp_path, 41_000_000, dram=4_500_000))
    assert (found.package_j, found.dram_j, found.package_w, found.unread) == (40.0, 4.0, 20.0, None)


def test_two_packages_are_summed(tmp_path: Path) -> None:
    def write(energies: Mapping[str, int]) -> None:
        for zone, energy in energies.items():
            name = "dram" if zone.count(":") > 1 else f"package-{zone[-1]}"
            write_zone(tmp_path, zone, name, energy)

    write({"intel-rapl:0": 0, "intel-rapl:1": 10**6, "intel-rapl:0:0": 0, "intel-rapl:1:0": 0})
    found = over_one_stretch(
        tmp_path,
        lambda: write(
            {"intel-rapl:0": 10**8, "intel-rapl:1": 51 * 10**6, "intel-rapl:0:0": 10**6, "intel-rapl:1:0": 2 * 10**6}
        ),
    )
    assert (found.package_j, found.dram_j, found.package_w) == (150.0, 3.0, 75.0)


def test_memory_that_only_one_package_counts_is_not_measured(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:1", "package-1", 0)
    write_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    write_zone(tmp_path, "intel-rapl:0:0", "dram", 0)
    found = over_one_stretch(tmp_path, lambda: write_zone(tmp_path, "intel-rapl:0:0", "dram", 10**6))
    assert (found.package_j, found.dram_j, found.unread) == (0.0, None, None)


def test_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    one_socket(tmp_path, RANGE_UJ - 5_000_000, dram=DRAM_RANGE_UJ - 1_000_000)
    found = over_one_stretch(tmp_path, lambda: one_socket(tmp_path, 35_000_000, dram=2_000_000))
    assert (found.package_j, found.dram_j) == (40.0, 3.0)


@given(st.integers(0, RANGE_UJ), st.integers(0, RANGE_UJ - 1))
def test_energy_does_not_depend_on_where_the_counter_stands(begin_uj: int, used_uj: int) -> None:
    end_uj = begin_uj + used_uj
    assert moved(begin_uj, end_uj if end_uj <= RANGE_UJ else end_uj - RANGE_UJ, RANGE_UJ) == used_uj


def test_long_epoch_is_read_between_its_ends_so_that_every_wrap_is_seen(tmp_path: Path) -> None:
    now_s = [0.0]
    write_zone(tmp_path, "intel-rapl:0", "package-0", 0, DRAM_RANGE_UJ)
    energy = CpuEnergy(ProcTree(tmp_path), lambda: now_s[0])
    energy.begin()
    for number in range(1, 7):  # at 4 kW the counter wraps after 16 seconds
        now_s[0] = number * FOLLOW_S
        write_zone(tmp_path, "intel-rapl:0", "package-0", number * 40_000_000_000 % DRAM_RANGE_UJ, DRAM_RANGE_UJ)
        energy.follow()
    energy.end()
    assert (energy.package_j, energy.package_w) == (240_000.0, 4000.0)


def test_reading_that_is_not_old_is_not_repeated(tmp_path: Path) -> None:
    one_socket(tmp_path, 0)
    energy = CpuEnergy(ProcTree(tmp_path), clock(0.0, FOLLOW_S / 2, FOLLOW_S))
    energy.begin()
    one_socket(tmp_path, "unreadable meanwhile")
    energy.follow()
    one_socket(tmp_path, 10_000_000)
    energy.end()
    assert (energy.package_j, energy.unread) == (10.0, None)


def test_several_stretches_add_up_and_what_is_between_them_does_not_count(tmp_path: Path) -> None:
    one_socket(tmp_path, 0)
    energy = CpuEnergy(ProcTree(tmp_path), clock(0.0, 1.0, 50.0, 52.0))
    for before, after in ((0, 10_000_000), (90_000_000, 130_000_000)):
        one_socket(tmp_path, before)
        energy.begin()
        one_socket(tmp_path, after)
        energy.end()
    assert (energy.package_j, energy.package_w) == (50.0, pytest.approx(50 / 3))


def test_machine_without_counters_has_no_energy_and_says_why(tmp_path: Path) -> None:
    found = over_one_stretch(tmp_path, lambda: None)
    assert (found.package_j, found.dram_j, found.package_w, found.unread) == (None, None, None, NO_COUNTERS)


def test_only_other_zones_are_no_counters(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:1", "psys", 0)
    assert zones(ProcTree(tmp_path)) == Unread(NO_COUNTERS, absent=True)


class Locked(ProcTree):
    """A tree in which this user may not read the counters, as on Linux since 5.10."""

    def text(self, path: str) -> str | Unread:
        return (
            Unread(f"{path} is not readable for this user") if path.endswith("energy_uj") else ProcTree.text(self, path)
        )


def test_user_without_permission_gets_the_reason(tmp_path: Path) -> None:
    one_socket(tmp_path, 0, dram=0)
    assert zones(Locked(tmp_path)) == Unread("/sys/class/powercap/intel-rapl:0/energy_uj is not readable for this user")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_without_permission_is_not_read(tmp_path: Path) -> None:
    one_socket(tmp_path, 0)
    (tmp_path / POWERCAP / "intel-rapl:0" / "energy_uj").chmod(0)
    found = over_one_stretch(tmp_path, lambda: None)
    assert found.unread == "/sys/class/powercap/intel-rapl:0/energy_uj is not readable for this user"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("-5", "contains -5, which no counter has"),
        ("12 uJ", "contains '12 uJ', not a number"),
        ("", "contains '', not a number"),
    ],
)
def test_value_that_is_no_counter_is_refused_at_either_end(tmp_path: Path, value: str, reason: str) -> None:
    one_socket(tmp_path, value)
    assert zones(ProcTree(tmp_path)) == Unread(f"/sys/class/powercap/intel-rapl:0/energy_uj {reason}")
    one_socket(tmp_path, 0)
    found = over_one_stretch(tmp_path, lambda: one_socket(tmp_path, value))
    assert (found.package_j, found.unread) == (None, f"/sys/class/powercap/intel-rapl:0/energy_uj {reason}")


@pytest.mark.parametrize("range_uj", [None, RANGE_UJ])
def test_counter_that_was_reset_gives_no_energy(tmp_path: Path, range_uj: int | None) -> None:
    """With a known range the reset looks like 130 kW."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", 900_000_000, range_uj)
    found = over_one_stretch(tmp_path, lambda: write_zone(tmp_path, "intel-rapl:0", "package-0", 0, range_uj))
    assert (found.package_j, found.unread) == (
        None,
        "/sys/class/powercap/intel-rapl:0/energy_uj was reset while it was read",
    )


def test_update_of_a_counter_in_a_very_short_epoch_is_no_reset(tmp_path: Path) -> None:
    one_socket(tmp_path, 0)
    found = over_one_stretch(tmp_path, lambda: one_socket(tmp_path, 60_000), seconds=1e-5)
    assert (found.package_j, found.unread) == (pytest.approx(0.06), None)


def test_cells_at_work_at_the_same_time_have_no_energy_of_their_own(tmp_path: Path) -> None:
    one_socket(tmp_path, 0)
    energy = CpuEnergy(ProcTree(tmp_path), clock(0.0, 1.0))
    energy.begin(shared=True)
    one_socket(tmp_path, 10_000_000)
    energy.end()
    assert (energy.package_j, energy.unread) == (None, SHARED)
