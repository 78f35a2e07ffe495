"""The checks of a first hour on a device, in order, for one backend: what each runs and how it is judged.

A check that does not apply to a CPU reports the reason there. Each check measures with the command `runner`, in a
separate results folder. A check of times is disturbed by whatever else the machine does: before it fails it is measured
again, both of its sides next to each other each time, and it fails only if every measurement does.

The functions that judge figures are pure. Their limits are wide enough for noisy machines: they distinguish a broken
measurement from a correct one, not a fast GPU from a slow one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from keras_matrix.analysis.roofline import TERA, Datasheet, datasheet
from keras_matrix.analysis.traces import read_table
from keras_matrix.records.codec import decode
from keras_matrix.records.instruments.first_hour import ProbeAnswer, ProbeOrder
from keras_matrix.records.instruments.peaks import Gemm, PeakAnswer, Stream
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.store import Results, Run, latest_attempts
from keras_matrix.records.text import bytes_text, percentage, seconds
from keras_matrix.records.traces import neutral
from keras_matrix.runner.checks.first_hour_steps import CheckStep, StepOutcome, StepResult
from keras_matrix.runner.checks.peaks import Effort, order_for
from keras_matrix.runner.executors.probe import Probe, ProbeFailed, probe_settings
from keras_matrix.runner.measure.traces import stored_traces

PROBE = "keras_matrix.runner.cell.checks.probes"
PROBE_LIMIT_S = 300.0
# Sizes of square matrices that keep a device busy for some tenths of a second.
ROWS = {"cpu": 512, "gpu": 4096}
BATCH = {"cpu": 256, "gpu": 2048}
PRODUCTS = {"cpu": 60, "gpu": 40}
STEPS = {"cpu": 15, "gpu": 30}
BALLAST_MIB = {"cpu": 512, "gpu": 1024}
LEAST_IN_STEPS = 0.5  # share of the operations in a trace; those before and after the traced steps have no step
MOST_MEASUREMENTS = 4  # of a check of times, before it fails
TOO_LARGE_MIB = 1 << 20  # 1 TiB: more than any device has
# |found - wanted| / |wanted| of a product of random values: 3e-4 with TF32's 10 bits of mantissa, 1e-6 with float32's.
TF32_ERROR = 3e-5
TWICE = (1.8, 2.2)
# The device's time for a step with the profiler, relative to the step's time without. On a CPU it costs more.
TRACED = {"gpu": (0.8, 1.15), "cpu": (0.3, 2.0)}
# After a barrier that waited, reading a number takes a negligible share of the time of the work.
READ_SHARE = 0.2
ASYNCHRONOUS = 0.5  # maximum share of the time of the work after which asynchronous calls have returned
ALLOCATED = (0.95, 1.5)
# Share of the data sheet: matrix products and STREAM.
GEMM, STREAM = (0.60, 1.02), (0.70, 1.02)
ENERGY = (0.85, 1.15)
CLOCK_SCATTER = 0.01
PRECISIONS = ("matmul", "convolution", "rnn")
LIMIT_S = 900.0
EXIT_CODES = (0, 1)  # all cells ok, or some failed: both write records
WORKLOADS = "keras_matrix.runner.cell.checks.workloads"


@dataclass(slots=True)
class Hour:
    """The shared state of a backend's checks; `products` is a cell of matrix products that several of them read.

    `epoch_times_s` has the shortest epoch of each of its processes, by the number of steps.
    """

    target: HourTarget
    probe: Probe
    products: MeasuredRun | None = None
    answer: ProbeAnswer | None = None
    epoch_times_s: dict[int, list[float]] = field(default_factory=dict)
    workers: Sequence[int] = field(default=(1, 2))

    @property
    def device(self) -> str:
        """The device that is checked."""
        return self.target.device

    def forget(self) -> None:
        """Forget what several checks read, so that it is measured again."""
        self.products = self.answer = None

    def of(self, size_by_device: dict[str, int]) -> int:
        """Return the size for this device; a TPU uses the size of a GPU."""
        return size_by_device.get(self.device, size_by_device["gpu"])


def steps(hour: Hour) -> Iterator[CheckStep]:
    """Yield every check; the first one is essential for the others."""
    for check, (name, expected) in CHECKS.items():
        text = expected.format(device=hour.device)
        yield CheckStep(f"{hour.target.backend}: {name}", text, partial(_found, check, hour), check is small_cell)


def _found(check: Callable[[Hour], StepResult], hour: Hour) -> StepResult:
    if hour.device == "cpu" and check in NOT_ON_A_CPU:
        return StepResult(StepOutcome.NOT_RUN, NOT_ON_A_CPU[check])
    try:
        return _repeated(check, hour) if check in OF_TIMES else check(hour)
    except (NotMeasured, ProbeFailed) as error:
        return StepResult(StepOutcome.FAILED, str(error))


def _repeated(check: Callable[[Hour], StepResult], hour: Hour) -> StepResult:
    """Return the first result that is as expected; without one the last, after `MOST_MEASUREMENTS`."""
    step_result = check(hour)
    count = 1
    while step_result.outcome is StepOutcome.FAILED and count < MOST_MEASUREMENTS:
        hour.forget()
        step_result, count = check(hour), count + 1
    return (
        step_result if count == 1 else replace(step_result, summary=f"{step_result.summary} (measured {count} times)")
    )


def small_cell(hour: Hour) -> StepResult:
    """Measure a workload of the catalog."""
    record = hour.target.measure({"workload": "mnist_mlp", "steps_per_epoch": 20}).only()
    proof = record.device
    if proof is None or proof.platform != hour.device:
        return StepResult(StepOutcome.FAILED, f"its tensors are on {proof.name if proof else 'no device'}")
    model_text = f" ({proof.model})" if proof.model else ""
    step_time_s = record.times.step_time_s or 0.0
    warnings = tuple(record.warnings)
    return StepResult(
        StepOutcome.OK, f"{record.status} on {proof.name}{model_text}, {seconds(step_time_s)} per step", warnings
    )


def twice_the_steps(hour: Hour) -> StepResult:
    """Measure a cell with two numbers of steps in one block; compare the shortest epochs of all blocks."""
    count = hour.of(STEPS)
    for record in _measured_products(hour).records:
        steps = int(record.settings.steps_per_epoch)  # a number in both cells
        hour.epoch_times_s.setdefault(steps, []).append(_epoch_time_s(record))
    return doubled(min(hour.epoch_times_s[count]), min(hour.epoch_times_s[2 * count]))


def barrier(hour: Hour) -> StepResult:
    """Run a chain of products in a separate process, and wait for them."""
    return synchronised(_answered(hour), hour.device)


def trace(hour: Hour) -> StepResult:
    """Compare a trace of the matrix products with the figures of the cell."""
    record, path = _traced(hour)
    table = read_table(path)
    if table.busy_share is None or not table.steps:
        return StepResult(StepOutcome.FAILED, "the trace has no operations or no steps")
    if record.times.step_time_s is None:
        return StepResult(StepOutcome.FAILED, f"the traced cell has no step time: {record.status}: {record.reason}")
    busy_s = table.busy_share * table.window_s / table.steps
    return traced(busy_s, record.times.step_time_s, hour.device)


def resident_feed(hour: Hour) -> StepResult:
    """Look for copies to the device in the same trace."""
    _, path = _traced(hour)
    if (share := share_in_steps(neutral.spans(path))) < LEAST_IN_STEPS:
        return StepResult(StepOutcome.FAILED, f"only {percentage(share)} of the operations in the trace have a step")
    return resident(list(copies_to_device(neutral.spans(path))), hour.of(BATCH) * hour.of(ROWS) * 4)


def share_in_steps(spans: Iterable[neutral.Span]) -> float:
    """Return the share of a device's operations that are assigned to a step; 0 without operations."""
    steps = [span.step is not None for span in spans if span.track.kind is neutral.TrackKind.COMPUTE]
    return sum(steps) / len(steps) if steps else 0.0


def copies_to_device(spans: Iterable[neutral.Span]) -> Iterator[tuple[str, int | None]]:
    """Yield name and bytes of each copy from the host to a device within a step."""
    return ((span.name, span.size_bytes) for span in spans if span.op == neutral.TO_DEVICE and span.step is not None)


def precision(hour: Hour) -> StepResult:
    """Compare errors of single operations with the precision in a record."""
    record = hour.target.measure({"workload": "lstm", "steps_per_epoch": 5, "epochs": 2}).only()
    resolved = record.resolved
    recorded = {name: getattr(resolved, f"tf32_{name}", None) for name in PRECISIONS}
    return precise(_answered(hour).errors, recorded, hour.device)


def known_allocation(hour: Hour) -> StepResult:
    """Measure a small model with and without ballast."""
    ballast_mib = hour.of(BALLAST_MIB)
    entry = {"workload": f"{WORKLOADS}:ballast", "params": {"megabytes": [1, 1 + ballast_mib]}, "steps_per_epoch": 20}
    measured_run = hour.target.measure(entry)
    small, large = sorted(measured_run.records, key=lambda record: int(record.settings.params["megabytes"]))
    small_bytes, large_bytes = _peak_bytes(small, hour.device), _peak_bytes(large, hour.device)
    grown = None if small_bytes is None or large_bytes is None else large_bytes - small_bytes
    return allocated(ballast_mib << 20, grown, _driver_bytes(large))


def peaks(hour: Hour) -> StepResult:
    """Measure the peaks of this backend on this device, and look up the device's data sheet."""
    settings = probe_settings(hour.target.backend, hour.device)
    answer = hour.probe.ask("keras_matrix.runner.cell.peaks", order_for(settings, Effort()), settings, PROBE_LIMIT_S)
    peak_answer = decode(PeakAnswer, answer, "answer")
    model = peak_answer.device.model if peak_answer.device else None
    return against_datasheet(peak_answer.gemms, peak_answer.streams, datasheet(model))


def locked_clocks(hour: Hour) -> StepResult:
    """Measure a cell with `clocks: locked`."""
    (record,) = hour.target.measure(_products(hour) | {"clocks": "locked", "steps_per_epoch": 30}).records
    if record.status is Status.UNSUPPORTED or record.surroundings.gpu is None:
        return StepResult(StepOutcome.NOT_RUN, record.reason or "NVML cannot be read here")
    return clocks_constant(record.surroundings.gpu.sm_clocks_hz)


def energy(hour: Hour) -> StepResult:
    """Compare the energy counter of a longer cell with its sampled power."""
    record = hour.target.measure(_products(hour) | {"steps_per_epoch": 20 * hour.of(STEPS), "epochs": 4}).only()
    gpu, usage = record.surroundings.gpu, record.usage
    if gpu is None or usage is None:
        return StepResult(StepOutcome.NOT_RUN, "NVML cannot be read here")
    power_w = usage.device_power.mean_w if usage.device_power else None
    return energy_agrees(gpu.epoch_energies_j, record.times.epoch_times_s, power_w)


def pinned_autotuning(hour: Hour) -> StepResult:
    """Measure a convolution in two processes; the second one uses the choices of the first."""
    entry = {"workload": "cifar10_cnn", "autotune": "pinned", "jit": True, "repeats": 2, "steps_per_epoch": 20}
    records = hour.target.measure(entry).records
    if any(record.times.first_step_time_s is None for record in records):
        return StepResult(StepOutcome.FAILED, "; ".join(f"{record.status}: {record.reason}" for record in records))
    first_s, second_s = (records[number].times.first_step_time_s or 0.0 for number in (0, 1))
    text = f"first steps took {first_s:.1f} s and {second_s:.1f} s"
    return StepResult(
        StepOutcome.OK if second_s < first_s else StepOutcome.FAILED,
        text,
        figures={"first_s": first_s, "second_s": second_s},
    )


def fc_modes(hour: Hour) -> StepResult:
    """Prove the fully connected modes, on as many workers as there are devices."""
    workers = [str(count) for count in hour.workers]
    flags = ["--prove", "--backend", hour.target.backend, "--dtype", "float32", "--num-workers", *workers]
    device = [] if hour.device == "cpu" else ["--device", hour.device]
    ended_command = hour.target.command("fc", *flags, *device)
    claims = [line for line in ended_command.lines if line.startswith(("*", "bytes and layout"))]
    summary = "; ".join(claims) or ended_command.last_line
    return StepResult(
        StepOutcome.FAILED if ended_command.code else StepOutcome.OK, summary, figures={"code": ended_command.code}
    )


def too_large(hour: Hour) -> StepResult:
    """Measure a model that is too large for the memory of any device."""
    (record,) = hour.target.measure(
        {"workload": f"{WORKLOADS}:ballast", "params": {"megabytes": TOO_LARGE_MIB}, "steps_per_epoch": 2}
    ).records
    return ended_with(str(record.status), "oom_device", record.reason)


def missing_device(hour: Hour) -> StepResult:
    """Measure a cell on a device that is hidden, or that this build of the backend cannot use."""
    entry = {"workload": "mnist_mlp", "device": "gpu", "steps_per_epoch": 2}
    # A service for CPUs would leave the cell out.
    (record,) = hour.target.measure(entry, CUDA_VISIBLE_DEVICES="", KERAS_BENCHMARK_DEVICE="").records
    return ended_with(str(record.status), "device_mismatch", record.reason)


def _products(hour: Hour) -> dict[str, Any]:
    params = {"rows": hour.of(ROWS), "batch": hour.of(BATCH)}
    return {"workload": f"{WORKLOADS}:products", "params": params, "batch_size": hour.of(BATCH)}


def _measured_products(hour: Hour) -> MeasuredRun:
    """Return the cell of matrix products with two numbers of steps, which is measured once."""
    if hour.products is None:
        count = hour.of(STEPS)
        hour.products = hour.target.measure(_products(hour) | {"steps_per_epoch": [count, 2 * count], "trace": {}})
    return hour.products


def _answered(hour: Hour) -> ProbeAnswer:
    """Return the answer of the backend's own process, which is started once."""
    if hour.answer is None:
        settings = probe_settings(hour.target.backend, hour.device)
        order = ProbeOrder(settings, hour.of(ROWS), hour.of(PRODUCTS))
        hour.answer = decode(ProbeAnswer, hour.probe.ask(PROBE, order, settings, PROBE_LIMIT_S), "answer")
    return hour.answer


def _traced(hour: Hour) -> tuple[Record, Any]:
    products = _measured_products(hour)
    traces = list(stored_traces(products.run, products.records))
    if not traces:
        problems = [record.trace.problem for record in products.records if record.trace and record.trace.problem]
        raise NotMeasured("; ".join(problems) or "no trace was recorded")
    return traces[0]


def _epoch_time_s(record: Record) -> float:
    """Return the shortest measured epoch, since every disturbance makes an epoch longer."""
    if not record.times.epoch_times_s:
        raise NotMeasured(f"{record.settings.workload}: {record.status}: {record.reason}")
    return min(record.times.epoch_times_s)


def _peak_bytes(record: Record, device: str) -> int | None:
    """Return the peak of the backend's allocator on the device; for a CPU the peak of the process."""
    memory = record.memory
    return memory.peak_host_memory_bytes if device == "cpu" else memory.peak_device_memory_bytes


def _driver_bytes(record: Record) -> dict[str, int | None]:
    """Return the peaks of the device and of the process that the driver reports; empty for a CPU."""
    if record.settings.device == "cpu" or record.usage is None:
        return {}
    use_by_name = {"on the device": record.usage.device_memory, "of the process": record.usage.device_process_memory}
    return {name: use.max_bytes if use else None for name, use in use_by_name.items()}


CHECKS = {
    small_cell: ("a small cell", "it is measured, and its tensors are on a {device}"),
    twice_the_steps: ("twice the steps", "an epoch of twice the steps takes 1.8 to 2.2 times as long"),
    barrier: ("the barrier", "it waits for the device, and without it the calls return early"),
    trace: ("a trace", "the device is busy for as long as the step takes without a profiler"),
    resident_feed: ("resident feed", "no batch is copied to the device in traced steps"),
    precision: ("precision", "errors of products, convolutions and RNNs match the record's use of TF32"),
    known_allocation: ("a known allocation", "it appears in every peak of memory"),
    peaks: ("peaks", "products reach 60 to 102 % of the data sheet, memory 70 to 102 %"),
    locked_clocks: ("locked clocks", "the clock is the same at the end of every epoch"),
    energy: ("energy", "the counted energy is within 15 % of sampled power times time"),
    pinned_autotuning: ("pinned autotuning", "the second process loads what the first one chose"),
    fc_modes: ("FC modes", "every mode computes the same as plain NumPy"),
    too_large: ("too large a model", "its status is out of device memory"),
    missing_device: ("a missing device", "its status is device_mismatch"),
}
# Checks that compare two times, which a disturbance of the machine can make unequal.
OF_TIMES = frozenset({twice_the_steps, barrier, trace, energy, pinned_autotuning})
NOT_ON_A_CPU = {
    resident_feed: "a CPU's batches are in its own memory",
    peaks: "data sheets do not state the peaks of a CPU; `runner roofline` measures them",
    locked_clocks: "clocks: locked is for GPUs",
    energy: "`runner check` and docs/lab/power.md say what a CPU reports",
    pinned_autotuning: "autotuning is of GPU kernels",
    too_large: "it would use up this machine's memory; --executor docker --memory limits a cell's",
}


def within(value: float, limits: tuple[float, float]) -> StepOutcome:
    """Return OK if a value is within its limits, else FAILED."""
    return StepOutcome.OK if limits[0] <= value <= limits[1] else StepOutcome.FAILED


def doubled(short_s: float, long_s: float) -> StepResult:
    """Judge the times of an epoch and of one with twice the steps."""
    ratio = long_s / short_s
    text = f"{short_s:.3f} s and {long_s:.3f} s: {ratio:.2f} times as long"
    return StepResult(within(ratio, TWICE), text, figures={"short_s": short_s, "long_s": long_s})


def synchronised(probe_answer: ProbeAnswer, device: str) -> StepResult:
    """Judge whether a barrier waits: calls return before the work is done, and reading afterwards takes no time."""
    figures = {"called_s": probe_answer.called_s, "waited_s": probe_answer.waited_s, "read_s": probe_answer.read_s}
    text = (
        f"the calls returned after {probe_answer.called_s:.4f} s, the barrier after {probe_answer.waited_s:.4f} s; "
        f"reading the result took {probe_answer.read_s:.4f} s more"
    )
    if probe_answer.read_s > READ_SHARE * probe_answer.waited_s:
        return StepResult(StepOutcome.FAILED, f"{text}: the barrier did not wait for the device", figures=figures)
    if probe_answer.called_s <= ASYNCHRONOUS * probe_answer.waited_s:
        return StepResult(StepOutcome.OK, text, figures=figures)
    if device == "cpu":
        return StepResult(StepOutcome.NOT_RUN, f"{text}: on this CPU the calls do the work themselves", figures=figures)
    return StepResult(
        StepOutcome.FAILED, f"{text}: the calls waited themselves, so the barrier is not tested", figures=figures
    )


def traced(busy_s: float, step_s: float, device: str) -> StepResult:
    """Compare the device's time for a step in a trace with the step's time without a profiler."""
    share = busy_s / step_s
    text = f"busy for {seconds(busy_s)} of a step in the trace, {seconds(step_s)} a step without: {percentage(share)}"
    limits = TRACED.get(device, TRACED["gpu"])
    return StepResult(within(share, limits), text, figures={"busy_s": busy_s, "step_s": step_s})


def resident(copies: Sequence[tuple[str, int | None]], batch_bytes: int) -> StepResult:
    """Judge the copies from host to device in traced steps: name and bytes of each, None if not reported."""
    total = sum(copy_bytes or 0 for _, copy_bytes in copies)
    unknown_count = sum(copy_bytes is None for _, copy_bytes in copies)
    figures = {"copies": len(copies), "bytes": total, "of_unknown_size": unknown_count, "batch_bytes": batch_bytes}
    text = f"{len(copies)} copies from host to device, {total:,} bytes ({unknown_count} of unknown size); a batch is "
    text += f"{batch_bytes:,} bytes"
    return StepResult(
        StepOutcome.OK if total < batch_bytes / 2 and not unknown_count else StepOutcome.FAILED, text, figures=figures
    )


def precise(errors: Mapping[str, float], recorded: Mapping[str, bool | None], device: str) -> StepResult:
    """Compare a record's use of TF32 with the errors of a product, a convolution and a recurrent layer."""
    words = {None: "not probed", True: "yes", False: "no"}
    lines = [
        f"{name}: error {errors[name]:.1e}, TF32 in the record: {words[recorded.get(name)]}" for name in PRECISIONS
    ]
    wrong_precisions = [name for name in PRECISIONS if bool(recorded.get(name)) != (errors[name] > TF32_ERROR)]
    unknown_precisions = [name for name in PRECISIONS if recorded.get(name) is None and device == "gpu"]
    outcome = StepOutcome.FAILED if wrong_precisions or unknown_precisions else StepOutcome.OK
    return StepResult(outcome, "; ".join(lines), figures={"errors": dict(errors), "recorded": dict(recorded)})


def allocated(wanted_bytes: int, grown_bytes: int | None, pools_bytes: Mapping[str, int | None]) -> StepResult:
    """Judge the growth of the allocator's peak by a known allocation, and whether the driver's peaks include it.

    A backend may reserve memory in advance; then the driver's peaks do not grow. None means not reported.
    """
    known_pools = {name: pool_bytes for name, pool_bytes in pools_bytes.items() if pool_bytes is not None}
    share = None if grown_bytes is None else grown_bytes / wanted_bytes
    fits = share is not None and within(share, ALLOCATED) is StepOutcome.OK
    lines = [f"the peak grew by {'an unknown part' if share is None else f'{share:.2f}'} of it"]
    lines += [f"{name} {bytes_text(pool_bytes)}" for name, pool_bytes in known_pools.items()]
    lines += [f"{name} not reported" for name in pools_bytes.keys() - known_pools.keys()]
    text = f"{bytes_text(wanted_bytes)} more were allocated: {', '.join(lines)}"
    outcome = (
        StepOutcome.OK
        if fits and all(pool_bytes >= wanted_bytes for pool_bytes in known_pools.values())
        else StepOutcome.FAILED
    )
    return StepResult(outcome, text, figures={"wanted_bytes": wanted_bytes, "grown_bytes": grown_bytes, **known_pools})


def against_datasheet(gemms: Iterable[Gemm], streams: Iterable[Stream], sheet: Datasheet | None) -> StepResult:
    """Compare the peaks that a backend reached on its device with those that the device's maker states."""
    rates = {gemm.precision: gemm.flop_per_s.best for gemm in gemms}
    memory = max((stream.byte_per_s.best for stream in streams), default=None)
    figures = {"flop_per_s": rates, "byte_per_s": memory}
    if sheet is None:
        rate_texts = [f"{name} {rate / TERA:.3g} TFLOP/s" for name, rate in rates.items()]
        text = ", ".join([*rate_texts, *([f"memory {memory / TERA:.3g} TB/s"] if memory else [])])
        return StepResult(
            StepOutcome.NOT_RUN, f"the data sheet of this device is not known; measured {text}", figures=figures
        )
    shares = {name: (rates[name] / stated, GEMM) for name, stated in sheet.flop_per_s.items() if name in rates}
    if memory:
        shares["memory"] = (memory / sheet.memory_byte_per_s, STREAM)
    names_outside = [name for name, (share, limits) in shares.items() if within(share, limits) is StepOutcome.FAILED]
    text = ", ".join(f"{name} {percentage(share)}" for name, (share, _) in shares.items())
    outcome = StepOutcome.FAILED if names_outside or not shares else StepOutcome.OK
    return StepResult(outcome, f"of the data sheet of {sheet.product}: {text}", figures=figures)


def clocks_constant(clocks_hz: Sequence[int | None]) -> StepResult:
    """Judge the clocks at the ends of the epochs of a cell with locked clocks."""
    known_clocks_hz = [clock for clock in clocks_hz if clock is not None]
    if not known_clocks_hz:
        return StepResult(StepOutcome.FAILED, "the driver reports no clock")
    scatter = (max(known_clocks_hz) - min(known_clocks_hz)) / max(known_clocks_hz)
    text = (
        f"{min(known_clocks_hz) / 1e6:,.0f} to {max(known_clocks_hz) / 1e6:,.0f} MHz at {len(known_clocks_hz)} ends "
        "of epochs"
    )
    outcome = StepOutcome.OK if scatter <= CLOCK_SCATTER else StepOutcome.FAILED
    return StepResult(outcome, text, figures={"clocks_hz": list(clocks_hz)})


def energy_agrees(energies_j: Sequence[float | None], times_s: Sequence[float], power_w: float | None) -> StepResult:
    """Compare the counted energy of epochs with the mean of the power sampled in them."""
    known_pairs = [(energy, time) for energy, time in zip(energies_j, times_s, strict=False) if energy is not None]
    if not known_pairs or power_w is None:
        return StepResult(StepOutcome.FAILED, "the driver reports no energy, or no power")
    counted_w = fmean(energy / time for energy, time in known_pairs)
    ratio = counted_w / power_w
    text = f"{counted_w:.0f} W by the energy counter, {power_w:.0f} W by sampled power: {ratio:.2f}"
    return StepResult(within(ratio, ENERGY), text, figures={"counted_w": counted_w, "sampled_w": power_w})


def ended_with(status: str, expected: str, reason: str | None) -> StepResult:
    """Compare a status with the one that a check provokes."""
    outcome = StepOutcome.OK if status == expected else StepOutcome.FAILED
    return StepResult(outcome, f"{status}: {reason or 'no reason'}", figures={"status": status})


class NotMeasured(Exception):
    """A cell has no figures. The message says how it ended."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code of a command and its output."""

    code: int
    lines: Sequence[str]

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        return self.lines[-1] if self.lines else "no output"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and the latest record of each repeat."""

    run: Run
    records: Sequence[Record]

    def only(self) -> Record:
        """Return the record of a run with one process. Raises `NotMeasured` unless it has figures."""
        (record,) = self.records
        if record.status not in MEASURED:
            raise NotMeasured(f"{record.settings.workload}: {record.status}: {record.reason}")
        return record


@dataclass(frozen=True, slots=True)
class HourTarget:
    """The backend, the device and the results folder for the measurements."""

    backend: str
    device: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def measure(self, cell: Mapping[str, Any], *options: str, **changes: str) -> MeasuredRun:
        """Measure cells, one process each; `changes` are of the environment. Raises `NotMeasured` without a record."""
        results = self.folder / "results"
        path = self.folder / "matrix.yaml"
        path.write_text(json.dumps(self._matrix(cell)), encoding="utf-8")
        command = ("run", "--matrix", str(path), "--results", str(results), "--new", *options)
        ended_command = self.command(*command, **changes)
        newest = Results(results).latest()
        if ended_command.code not in EXIT_CODES or newest is None:
            raise NotMeasured(f"the command exited with {ended_command.code}: {ended_command.last_line}")
        return MeasuredRun(newest, latest_attempts(newest.load()[0]))

    def command(self, *arguments: str, **changes: str) -> CommandResult:
        """Run a command of `runner` and return how it ended."""
        command = [sys.executable, "-P", "-m", "keras_matrix.runner.cli.main", *arguments]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **changes},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            try:
                printed, _ = child.communicate(timeout=LIMIT_S)
            except BaseException:
                child.terminate()  # it ends its own processes
                child.wait()
                raise
        return CommandResult(child.returncode, [line for line in printed.splitlines() if line.strip()])

    def _matrix(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"device": self.device, "repeats": 1, "epochs": 4}
        return {"version": 1, "defaults": defaults, "backends": [self.backend], "cells": [dict(cell)]}
