"""The measurement of peaks: sizes, calls, rounds, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.surroundings.disturbance import CounterChanges
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments.peaks import Gemm, PeakAnswer, PeakOrder, Stream, Timed
from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.peaks import (
    LEAST_STRETCH_S,
    MOST_CALLS_PER_STRETCH,
    ArrayPlan,
    DeviceMemory,
    TimedOperation,
    calls_per_stretch,
    plan_arrays,
    timing,
)
from keras_matrix.runner.cell.peaks import __main__ as probe
from keras_matrix.runner.checks import peaks
from keras_matrix.runner.checks.peaks import Effort, PeaksSubject, measure
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.probe import ProbeFailed, probe_settings
from keras_matrix.runner.machine.gpus.nvml import GpuIdentity
from keras_matrix.runner.machine.surroundings.counters import Counters
from tests.conftest import MACHINE

SUBJECT = PeaksSubject(MACHINE, {"jax": "1"}, (1, 2), datetime(2026, 1, 1, tzinfo=UTC))
ORDER = PeakOrder(probe_settings("jax"), ["float32"], ["copy", "triad"], [], None, 5, 0.3, 0)


class Bench:
    """A machine of 100 GFLOP/s and 12 GB/s, on a clock that moves only while it works."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = Counter[int]()

    def memory(self) -> DeviceMemory:
        return DeviceMemory()

    def gemm(self, size: int, precision: str) -> Any:
        return TimedOperation(lambda: self._spend(2 * size**3 / 100e9, size))

    def copy(self, elements: int) -> Any:
        return TimedOperation(lambda: self._spend(16 * elements / 12e9, elements))

    def triad(self, elements: int) -> Any:
        return TimedOperation(lambda: self._spend(24 * elements / 12e9, elements))

    def clock(self) -> float:
        return self.now_s

    def _spend(self, duration_s: float, what: int) -> None:
        self.now_s += duration_s
        self.calls[what] += 1


def test_sizes_double_until_a_product_takes_long_enough() -> None:
    bench = Bench()
    found = list(timing.gemms(bench, ORDER, "float32", bench.clock))
    assert [gemm.size for gemm in found] == [512, 1024, 2048]
    assert found[-1].flop_per_s.median == pytest.approx(100e9)


def test_given_sizes_are_taken_as_they_are() -> None:
    bench = Bench()
    found = list(timing.gemms(bench, replace(ORDER, sizes=[4096, 256]), "float32", bench.clock))
    assert [gemm.size for gemm in found] == [4096, 256]


@pytest.mark.parametrize(
    ("size", "calls"),
    [(64, timing.MOST_CALLS), (1024, 14), (4096, 3), (16_384, 1)],
    ids=["no more than enough", "a window full", "a few within patience", "one at least"],
)
def test_calls_fill_the_window_and_the_first_is_ignored(size: int, calls: int) -> None:
    bench = Bench()
    (gemm,) = timing.gemms(bench, replace(ORDER, sizes=[size]), "float32", bench.clock)
    assert len(gemm.flop_per_s.rates) == calls
    assert bench.calls[size] == calls + 1


@pytest.mark.parametrize("kernel", ["copy", "triad"])
def test_bytes_are_counted_like_stream(kernel: str) -> None:
    bench = Bench()
    found = timing.stream(bench, replace(ORDER, array_bytes=1 << 20), kernel, bench.clock)
    assert found.byte_per_s.median == pytest.approx(12e9)
    assert list(bench.calls) == [(1 << 20) // 8]


def test_each_last_level_cache_is_counted_once(tmp_path: Path) -> None:
    for cpu, shared in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        for index, (level, kind, size) in enumerate(
            [(1, "Data", "32K"), (1, "Instruction", "32K"), (3, "Unified", "8K")]
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", str(level)), ("type", kind), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(text + "\n")
    assert timing.cache_bytes(tmp_path) == 2 * 8 * 1024
    assert timing.cache_bytes(tmp_path / "nowhere") is None


GPU_ORDER = replace(ORDER, settings=probe_settings("torch", "gpu"))
GIB = 1 << 30
H100_BYTE_PER_S, H100_L2_BYTES = 3.35e12, 50 << 20


class Gpu(Bench):
    """An H100: calls are queued, and a synchronisation of 50 us waits for them."""

    def __init__(self, free_bytes: int | None = 79 * GIB) -> None:
        super().__init__()
        self.finished = 0
        self._free_bytes = free_bytes

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self._free_bytes, H100_L2_BYTES)

    def triad(self, elements: int) -> TimedOperation:
        return TimedOperation(lambda: self._spend(24 * elements / H100_BYTE_PER_S, elements), self._synchronise)

    def gemm(self, size: int, precision: str) -> TimedOperation:
        return TimedOperation(lambda: self._spend(2 * size**3 / 989.4e12, size), self._synchronise)

    def _synchronise(self) -> None:
        self.now_s += 50e-6
        self.finished += 1


def test_arrays_on_an_h100_are_1_gib_each() -> None:
    assert timing.array_plan(Gpu(), GPU_ORDER) == ArrayPlan(GIB)


def test_gpus_triad_is_timed_over_arrays_of_the_planned_size(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, empty = Gpu(), PeakAnswer([], [], {}, {}, None, None)
    monkeypatch.setattr(probe, "_bench", lambda order: (gpu, empty))
    monkeypatch.setattr(probe, "stream", lambda *timed: timing.stream(*timed, gpu.clock))
    found = probe.answer(replace(GPU_ORDER, precisions=[], kernels=["triad"]))
    assert found.refused == {}
    assert [stream.array_bytes for stream in found.streams] == [GIB]


def test_figure_of_a_gpu_with_little_free_memory_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, empty = Gpu(GIB), PeakAnswer([], [], {}, {}, None, None)
    monkeypatch.setattr(probe, "_bench", lambda order: (gpu, empty))
    monkeypatch.setattr(probe, "stream", lambda *timed: timing.stream(*timed, gpu.clock))
    found = probe.answer(replace(GPU_ORDER, precisions=[], kernels=["triad"]))
    assert "1.00 GiB of the device's memory were free" in found.notes["triad"]


def test_triad_on_an_h100_is_timed_in_stretches_of_ten_calls_at_least() -> None:
    gpu = Gpu()
    found = timing.stream(gpu, replace(GPU_ORDER, array_bytes=GIB), "triad", gpu.clock)
    stretches = len(found.byte_per_s.rates)
    (calls,) = gpu.calls.values()
    assert calls / gpu.finished > 10 * stretches / gpu.finished
    assert found.byte_per_s.median == pytest.approx(H100_BYTE_PER_S, rel=0.005)


def test_short_product_on_a_gpu_is_timed_in_stretches_without_its_synchronisation() -> None:
    gpu = Gpu()
    (gemm,) = timing.gemms(gpu, replace(GPU_ORDER, sizes=[1024]), "float16", gpu.clock)
    assert gemm.flop_per_s.median == pytest.approx(989.4e12, rel=0.01)


@pytest.mark.parametrize("call_s", [1e-6, 50e-6, 1e-3, 9e-3, 0.2])
def test_stretch_lasts_ten_milliseconds_at_least(call_s: float) -> None:
    calls = calls_per_stretch(lambda calls: calls * call_s + 50e-6)
    assert calls * call_s + 50e-6 >= LEAST_STRETCH_S
    assert calls == 1 or calls * call_s <= 3 * LEAST_STRETCH_S


def test_clock_that_does_not_move_ends_the_search_for_a_stretch() -> None:
    assert calls_per_stretch(lambda calls: 0.0) == MOST_CALLS_PER_STRETCH


@pytest.mark.parametrize(
    ("memory", "array_bytes"),
    [
        (DeviceMemory(79 * GIB, H100_L2_BYTES), GIB),
        (DeviceMemory(None, None), GIB),
        (DeviceMemory(100 * GIB, 512 << 20), 2 * GIB),
        (DeviceMemory(9 * GIB, None), GIB),
    ],
    ids=["H100", "nothing known", "four L2 caches are more", "exactly a third of the free memory"],
)
def test_arrays_are_1_gib_and_four_l2_caches_at_least(memory: DeviceMemory, array_bytes: int) -> None:
    assert plan_arrays(memory) == ArrayPlan(array_bytes)


def test_arrays_are_limited_to_a_third_of_the_free_memory_with_a_note() -> None:
    plan = plan_arrays(DeviceMemory(4608 << 20, None))
    assert plan.array_bytes == 512 << 20
    assert plan.note is not None
    assert plan.note.startswith(
        "arrays of 512 MiB instead of 1.00 GiB, since 4.50 GiB of the device's memory were free:"
    )


def test_smaller_of_two_figures_of_free_memory_counts() -> None:
    plan = timing.array_plan(Gpu(), replace(GPU_ORDER, device_free_bytes=4608 << 20))
    assert plan is not None
    assert plan.array_bytes == 512 << 20


def test_arrays_on_a_cpu_and_arrays_of_a_given_size_are_not_planned_by_the_device() -> None:
    assert timing.array_plan(Bench(), ORDER) is None
    assert timing.array_plan(Gpu(), replace(GPU_ORDER, array_bytes=GIB)) is None


class FakeProbe:
    """Answers immediately: a product per precision, and a triad for memory; torch is not installed."""

    def __init__(self, broken: str = "") -> None:
        self.orders: list[PeakOrder] = []
        self._broken = broken

    def missing(self, backend: str) -> str | None:
        return "backend_not_installed" if backend == "torch" else None

    def ask(self, module: str, order: Any, settings: Settings, timeout_s: float) -> Any:
        assert (module, order.settings) == ("keras_matrix.runner.cell.peaks", settings)
        self.orders.append(order)
        if self._broken in (settings.backend, "all"):
            raise ProbeFailed(f"{settings.backend} ended with exit code 1")
        threads = 2 if settings.threads == "all" else int(settings.threads)
        rate = Timed([float(len(self.orders))], 1)
        gemms = [Gemm(settings.backend, "cpu", name, threads, 1024, rate) for name in order.precisions]
        streams = [Stream(settings.backend, "cpu", name, threads, 1 << 20, rate) for name in order.kernels]
        return to_json(PeakAnswer(gemms, streams, {}, {settings.backend: "1"}, None, 1 << 20))


def turns(orders: list[PeakOrder], rounds: int) -> Iterator[list[tuple[str, int | str]]]:
    """Yield each round's backends and threads, in their order."""
    length = len(orders) // rounds
    for start in range(0, len(orders), length):
        yield [(order.settings.backend, order.settings.threads) for order in orders[start : start + length]]


def test_every_round_runs_each_backend_and_number_of_cpus_in_a_new_order() -> None:
    probe = FakeProbe()
    found = measure(probe, SUBJECT, Effort(rounds=4))
    rounds = list(turns(probe.orders, 4))
    expected = sorted((name, threads) for name in ("tensorflow", "jax", "numpy") for threads in ("1", "all"))
    assert [sorted((name, str(threads)) for name, threads in one) for one in rounds] == [expected] * 4
    assert len({tuple(one) for one in rounds}) > 1
    assert {len(gemm.flop_per_s.rates) for gemm in found.gemms} == {4}
    assert {gemm.flop_per_s.processes for gemm in found.gemms} == {4}
    assert found.refused == {"torch cpu": "backend_not_installed"}
    assert found.versions == {"jax": "1", "tensorflow": "1", "numpy": "1"}


def test_memory_is_timed_without_tensorflow_and_products_without_numpy() -> None:
    probe = FakeProbe()
    measure(probe, SUBJECT, Effort(rounds=1))
    orders = {order.settings.backend: (order.precisions, order.kernels) for order in probe.orders}
    assert orders["tensorflow"] == (["float32", "bfloat16", "float64"], [])
    assert orders["numpy"] == ([], ["copy", "triad"])


def test_process_is_pinned_to_the_requested_number_of_cpus() -> None:
    probe = FakeProbe()
    measure(probe, SUBJECT, Effort(rounds=1))
    held = {order.settings.threads: order.cpus and len(order.cpus) for order in probe.orders}
    assert held == {1: 1, "all": None}


def test_gpu_is_measured_with_its_own_precisions() -> None:
    probe = FakeProbe()
    machine = replace(MACHINE, gpus=["NVIDIA L4"])
    measure(probe, replace(SUBJECT, machine=machine), Effort(rounds=1))
    orders = {order.settings.backend: order.precisions for order in probe.orders if order.settings.device == "gpu"}
    precisions = ["float32", "tf32", "bfloat16", "float16", "float64"]
    assert orders == {"tensorflow": precisions, "jax": precisions}


def test_failing_backend_is_refused_and_others_are_measured() -> None:
    found = measure(FakeProbe(broken="jax"), SUBJECT, Effort(rounds=1))
    assert found.refused["jax cpu"] == "jax ended with exit code 1"
    assert {gemm.backend for gemm in found.gemms} == {"tensorflow"}


def test_measurement_without_figures_is_an_error_with_the_reasons() -> None:
    with pytest.raises(InfrastructureError, match=r"could be measured: .*jax cpu: jax ended with exit code 1"):
        measure(FakeProbe(broken="all"), SUBJECT, Effort(rounds=1))


def test_every_backend_of_the_project_has_a_file_that_times_it_and_one_that_counts_it() -> None:
    root = Path(__file__).parents[3]
    for folder in (root / "runner" / "cell" / "peaks", root / "models" / "flops"):
        assert [name for name in TRAINING_BACKENDS if not (folder / f"{name}.py").is_file()] == []


def test_cpu_time_of_the_measurement_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 CPUs for 10 s, 8 s were used: 5 s by the measurement's own processes."""
    used_s = iter((1.0, 6.0))
    readings = iter((_counters(0.0, 0.0), _counters(10.0, 8.0)))
    monkeypatch.setattr(peaks, "ended_cpu_s", lambda: next(used_s))
    monkeypatch.setattr(peaks.Sampler, "read", lambda self: next(readings))
    assert peaks._watched(lambda: None) == pytest.approx((8 - 5) / 20)


def _counters(wall_s: float, busy_s: float) -> Counters:
    idle_s = 2 * wall_s - busy_s
    return Counters(CounterChanges(wall_s, 2 * wall_s, busy_s, cpu_irq_s=0.0, cpu_steal_s=0.0), 2, idle_s)


def test_notes_on_gpu_figures_are_stored() -> None:
    class Small(FakeProbe):
        def ask(self, module: str, order: Any, settings: Settings, timeout_s: float) -> Any:
            notes = {"triad": "arrays of 512 MiB"} if settings.device == "gpu" else {}
            return super().ask(module, order, settings, timeout_s) | {"notes": notes}

    machine = replace(MACHINE, gpus=["NVIDIA L4"])
    found = measure(Small(), replace(SUBJECT, machine=machine), Effort(rounds=1))
    assert found.notes == {"tensorflow gpu triad": "arrays of 512 MiB", "jax gpu triad": "arrays of 512 MiB"}


def test_peaks_name_the_gpu_and_the_children_learn_its_free_memory() -> None:
    class OnGpu(FakeProbe):
        def ask(self, module: str, order: Any, settings: Settings, timeout_s: float) -> Any:
            found = super().ask(module, order, settings, timeout_s)
            device = DeviceProof("gpu", "GPU:0", 1, "NVIDIA A100-SXM4-40GB") if settings.device == "gpu" else None
            return found | {"device": to_json(device)}

    probe, gpu = OnGpu(), GpuIdentity("MIG-1", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4 << 30)
    subject = replace(SUBJECT, machine=replace(MACHINE, gpus=["NVIDIA A100-SXM4-40GB"]), gpu=gpu)
    found = measure(probe, subject, Effort(rounds=1))
    assert (found.gpu_uuid, found.devices) == ("MIG-1", {"gpu": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"})
    assert {o.device_free_bytes for o in probe.orders if o.settings.device == "gpu"} == {4 << 30}
    assert {o.device_free_bytes for o in probe.orders if o.settings.device == "cpu"} == {None}
