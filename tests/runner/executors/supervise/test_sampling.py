"""Sampling preserves peaks, bounds memory and counts only measured epochs. No process is started."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_matrix.records.codec import canonical, decode, loads
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.instruments.usage import MOST_POINTS, PowerUse, ShareUse, UsageSeries
from keras_matrix.records.schema import Times
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.supervise.sampling import MOST_READINGS, EpochMemory, Pace, Sampling, Thinned
from keras_matrix.runner.machine.cpu_energy import SHARED, CpuEnergy
from keras_matrix.runner.machine.gpus.readings import GpuUse, Unreadable
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.record_builder import build_record
from keras_matrix.runner.measure.scheduler import utc_now
from tests.conftest import MACHINE, make_settings
from tests.fakes.executor import PRETENDED, FakeExecutor

GONE = 1 << 30  # no process has this number


class Gpu:
    """A GPU whose readings were written down before."""

    power_source = "instant"

    def __init__(self, uses: list[GpuUse], energies_j: list[float | None]) -> None:
        self.uses, self.energies_j = iter(uses), iter(energies_j)
        self.queried: list[Collection[int]] = []

    def use(self, pids: Collection[int]) -> GpuUse:
        self.queried.append(set(pids))
        return next(self.uses)

    def energy_j(self) -> float | None:
        return next(self.energies_j)


def used(memory: int, share: float, power: float) -> GpuUse:
    return GpuUse(memory, memory // 2, share, power)


def test_a_sample_is_due_once_an_interval() -> None:
    pace = Pace(0.1)
    assert [pace.due(now_s) for now_s in (5.0, 5.05, 5.1, 5.11, 5.4, 5.45)] == [True, False, True, False, True, False]
    assert pace.wait_s(5.45) == pytest.approx(0.05)
    assert pace.wait_s(6.0) == 0.0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5 * MOST_POINTS))
def test_thinned_series_is_bounded_and_preserves_the_peak(values: list[int]) -> None:
    thinned = Thinned()
    for number, value in enumerate(values):
        thinned.add(number / 10, (value, None, None, None, None, None))
    series = thinned.series([])
    assert series is not None
    assert len(series.times_s) == len(series.host_anonymous_bytes) <= MOST_POINTS
    assert max(series.host_anonymous_bytes) == max(values)
    assert series.times_s == sorted(set(series.times_s))
    assert series.times_s[0] == 0.0
    assert series.host_resident_bytes == []


def test_long_series_preserves_the_time_of_its_peak() -> None:
    thinned = Thinned()
    for number in range(10 * MOST_POINTS):
        thinned.add(number / 10, (7 if number == 2345 else 1, None, None, None, None, None))
    series = thinned.series([])
    assert series is not None
    at_s = series.times_s[series.host_anonymous_bytes.index(7)]
    assert 0 <= 234.5 - at_s < 16 / 10


def test_mean_and_deviation_cover_the_measured_epochs_and_the_peak_all_samples_before_their_end() -> None:
    uses = [used(100, 1.0, 50.0), used(10, 0.5, 20.0), used(30, 0.7, 40.0), used(70, 0.0, 5.0), used(900, 1.0, 90.0)]
    gpu = Gpu(uses, [100.0, 130.0])
    sampling = Sampling(GONE, [gpu])  # type: ignore[list-item]
    sampling.sample(0.1)
    sampling.begin(0.15)
    sampling.sample(0.2)
    sampling.sample(0.3)
    sampling.end(0.35)
    sampling.sample(0.4)
    sampling.over()
    sampling.sample(0.5)
    found = sampling.usage()
    assert found is not None
    memory = found.device_memory
    assert memory is not None
    assert (memory.mean_bytes, memory.std_bytes, memory.max_bytes, memory.samples) == (20.0, 10.0, 30, 2)
    assert memory.peak_bytes == 100
    assert found.device_process_memory is not None
    assert found.device_process_memory.max_bytes == 15
    assert found.device_utilisation is None
    assert found.device_power == PowerUse(30.0, 10.0, 40.0, 2)
    assert found.device_energy_j == 30.0
    assert (found.host_anonymous, found.host_resident) == (None, None)
    series = sampling.series()
    assert series is not None
    assert (series.device_power_w, series.epochs_s) == ([50.0, 20.0, 40.0, 5.0, 90.0], [[0.15, 0.35]])
    sampling.close()


def test_utilisation_counts_only_if_the_drivers_period_is_within_the_epoch() -> None:
    gpu = Gpu([used(1, 0.2, 1.0), used(1, 0.8, 1.0), used(1, 1.0, 1.0)], [0.0, 1.0])
    sampling = Sampling(GONE, [gpu])  # type: ignore[list-item]
    sampling.begin(5.0)
    for at_s in (5.9, 6.0, 6.5):
        sampling.sample(at_s)
    sampling.end(6.6)
    found = sampling.usage()
    assert found is not None
    assert found.device_utilisation == ShareUse(0.9, pytest.approx(0.1), 1.0, 2)
    sampling.close()


def rapl(root: Path, energy_uj: int) -> CpuEnergy:
    """Write the counter of one package, and return its reader."""
    folder = root / "sys/class/powercap/intel-rapl:0"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("name", "package-0"), ("energy_uj", energy_uj), ("max_energy_range_uj", 10**12)):
        (folder / name).write_text(f"{text}\n")
    return CpuEnergy(ProcTree(root), iter([10.0, 12.0, 50.0, 52.0]).__next__)


@pytest.mark.parametrize(("shared", "expected"), [(False, (40.0, 20.0, None)), (True, (None, None, SHARED))])
def test_energy_of_the_cpus_covers_the_epochs_unless_other_cells_work_meanwhile(
    tmp_path: Path, shared: bool, expected: tuple[object, ...]
) -> None:
    sampling = Sampling(os.getpid(), cpu_energy=rapl(tmp_path, 0))
    sampling.begin(0.0, shared=shared)
    rapl(tmp_path, 40_000_000)
    sampling.end(2.0)
    rapl(tmp_path, 90_000_000)  # between the epochs
    found = sampling.usage()
    assert found is not None
    assert (found.cpu_energy_j, found.cpu_average_power_w, found.cpu_energy_unread) == expected
    assert found.dram_energy_j is None
    sampling.close()


def test_process_without_a_measured_epoch_says_nothing_of_the_cpus(tmp_path: Path) -> None:
    sampling = Sampling(os.getpid(), cpu_energy=rapl(tmp_path, 0))
    sampling.sample(0.0)
    found = sampling.usage()
    assert found is not None
    assert (found.cpu_energy_j, found.cpu_energy_unread) == (None, None)
    sampling.close()


def test_power_of_several_gpus_is_their_energy_over_the_time_between_the_readings() -> None:
    gpus = [Gpu([used(10, 1.0, 1.0)], [100.0, 150.0]), Gpu([used(30, 1.0, 1.0)], [500.0, 600.0])]
    clock = iter([7.0, 7.5])
    sampling = Sampling(GONE, gpus, clock=lambda: next(clock))  # type: ignore[arg-type]
    sampling.begin(0.0)
    sampling.end(0.4)
    found = sampling.usage()
    assert found is not None
    assert (found.device_energy_j, found.device_average_power_w) == (150.0, 300.0)
    assert (found.device_power_source, found.devices) == ("instant", 2)
    assert found.devices_memory is not None
    assert (found.devices_memory.max_bytes, found.devices_memory.samples) == (40, 1)
    sampling.close()


def test_no_sum_over_several_gpus_leaves_out_one_that_cannot_be_read() -> None:
    sampling = Sampling(GONE, [Gpu([used(10, 1.0, 1.0)], [100.0, 150.0]), Unreadable()])  # type: ignore[list-item]
    sampling.begin(0.0)
    sampling.end(0.4)
    found = sampling.usage()
    assert found is not None
    assert (found.device_energy_j, found.device_average_power_w, found.devices_memory) == (None, None, None)
    sampling.close()


def test_measured_epoch_shorter_than_the_interval_has_a_sample() -> None:
    gpu = Gpu([used(10, 1.0, 50.0)], [1.0, 2.0])
    sampling = Sampling(GONE, [gpu])  # type: ignore[list-item]
    sampling.begin(0.0)
    sampling.end(0.03)
    found = sampling.usage()
    assert found is not None
    assert found.device_memory is not None
    assert found.device_memory.samples == 1
    sampling.close()


@pytest.mark.parametrize("energies_j", [[None, 2.0], [3.0, None], [3.0, 2.0]])
def test_energy_that_the_counter_does_not_report_is_not_measured(energies_j: list[float | None]) -> None:
    sampling = Sampling(GONE, [Gpu([used(1, 0.0, 1.0)], energies_j)])  # type: ignore[list-item]
    sampling.begin(0.0)
    sampling.end(0.03)
    found = sampling.usage()
    assert found is not None
    assert found.device_energy_j is None
    sampling.close()


def test_each_of_several_gpus_is_a_sample_and_the_series_has_the_largest() -> None:
    several = [Gpu([used(10, 0.1, 5.0)], []), Gpu([used(30, 0.3, 3.0)], [])]
    sampling = Sampling(GONE, several)  # type: ignore[arg-type]
    sampling.sample(0.0)
    found, series = sampling.usage(), sampling.series()
    assert found is not None
    assert found.device_memory is not None
    assert (found.device_memory.mean_bytes, found.device_memory.samples) == (20.0, 2)
    assert series is not None
    assert (series.device_memory_bytes, series.device_power_w) == ([30], [5.0])
    sampling.close()


def test_driver_is_queried_for_the_processes_of_the_tree() -> None:
    gpu = Gpu([used(1, 0.0, 1.0)], [])
    sampling = Sampling(os.getpid(), [gpu])  # type: ignore[list-item]
    sampling.sample(0.0)
    assert os.getpid() in gpu.queried[0]
    sampling.close()


def test_cell_with_its_own_control_group_has_the_groups_anonymous_memory() -> None:
    group = SimpleNamespace(anonymous_bytes=lambda: 12345, close=lambda: None)
    sampling = Sampling(os.getpid(), group=group)  # type: ignore[arg-type]
    sampling.sample(0.0)
    found = sampling.usage()
    assert found is not None
    assert found.host_anonymous is not None
    assert (found.host_source, found.host_anonymous.peak_bytes) == ("cgroup", 12345)
    assert found.host_resident is not None
    assert found.host_resident.max_bytes > 12345
    sampling.close()


def test_usage_without_samples_is_not_measured() -> None:
    sampling = Sampling(GONE)
    sampling.sample(0.0)
    assert (sampling.usage(), sampling.series(), sampling.peak_resident_bytes) == (None, None, None)
    sampling.close()


def test_pages_are_walked_only_within_the_cost_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.0, 1.5])
    monkeypatch.setattr(
        "keras_matrix.runner.executors.supervise.sampling.time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    sampling = Sampling(os.getpid())
    for ended_s in (10.0, 20.0, 120.0):  # the first walk took half a second
        sampling.begin(ended_s - 1)
        sampling.end(ended_s, resting=True)
    found = sampling.usage()
    assert found is not None
    assert [size is not None for size in found.host_proportional_bytes] == [True, False, True]
    sampling.close()


def test_usage_series_round_trips_through_json() -> None:
    series = UsageSeries([0.0, 0.1], [1, None], device_power_w=[2.5, None], epochs_s=[[0.0, 0.1]])
    assert decode(UsageSeries, loads(canonical(series))) == series


def test_samples_per_joule_cover_the_measured_epochs(tmp_path: Any) -> None:
    settings = make_settings(steps_per_epoch=4)
    job = Job("n", "0" * 16, 0, 0, settings, 4, str(tmp_path), [], None, None)
    assert PRETENDED.usage is not None
    outcome = Outcome(
        exit_code=0, usage=replace(PRETENDED.usage, device_energy_j=8.0), usage_series=PRETENDED.usage_series
    )
    result = replace(FakeExecutor().result(job), times=Times(epoch_times_s=[1.0, 1.0, 2.0], samples_per_s=100.0))
    verdict = judge(job, outcome, result, None)
    record = build_record(job, outcome, (result, None, verdict), ("20260101T000000Z-abcdef", MACHINE, utc_now()))
    assert record.usage is not None
    assert record.usage.samples_per_j == 50.0
    assert record.usage.course == "usage/0000000000000000.0.0.json"
    without = build_record(job, outcome, (None, None, verdict), ("20260101T000000Z-abcdef", MACHINE, utc_now()))
    assert without.usage is not None
    assert without.usage.samples_per_j is None


def test_memory_in_and_around_the_epochs_is_placed_by_the_epochs_done() -> None:
    memory = EpochMemory()
    memory.rest(100)
    for begun_s in (5.0, 20.0):
        memory.within(begun_s + 1.0, 110)
        memory.within(begun_s + 3.0, None)  # not read
        memory.end(begun_s, begun_s + 4.0)
        memory.rest(105)
    assert memory.readings() == ((0.0, 100), (0.25, 110), (1.0, 105), (1.25, 110), (2.0, 105))


def test_readings_of_memory_are_bounded_and_span_every_epoch() -> None:
    memory = EpochMemory()
    for epoch in range(50):
        for sample in range(400):
            memory.within(epoch + sample / 400, sample)
        memory.end(epoch, epoch + 1.0)
        memory.rest(epoch)
    found = memory.readings()
    assert len(found) <= MOST_READINGS + 400
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert (found[0][0] < 1.0, found[-1]) == (True, (50.0, 49))
