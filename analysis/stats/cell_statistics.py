"""The statistics of a cell: one list, the source for findings, warehouse, terminal, report and dashboards.

A new statistic is one entry of `STATISTICS`. `runner show`, the JSON of a run, the report's table and terms,
`findings.json`, the warehouse's `findings` and the dashboards' table of figures follow from it. The figure that cells
are compared by, with its interval, is not an entry: it is `CellSummary.step_time`.

Guarantee: pure; None if a statistic was not measured. An external command has only memory and usage: its own metrics
are in `analysis.comparison.primary_metric`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, epoch_quantiles
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.cost import energy_per_sample
from keras_matrix.analysis.generation import arithmetic_share, dequantisation_share, median_of
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.memory_growth import device_growth, host_growth
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.schema import Record
from keras_matrix.records.text import MEBIBYTE, MIB, MILLIJOULE, MILLISECOND, PERCENT, Unit

STEP_TIME_NAME = "times.step_time_s"
MEDIAN, LARGEST, P95 = "median over processes", "largest of the processes", "95th percentile over processes"
GEOMETRIC = "geometric mean over processes"
MEAN = "mean over processes"
SEPARATE = "one process, if separate from 0"


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value that noise hides: its interval ends at `upper`, in the base unit; None without an interval."""

    upper: float | None


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic of a cell.

    `metric` names it in findings and warehouse, `label` and `meaning` explain it to readers. `of` returns it in `unit`,
    the base unit; tables show it in `shown_in`, a unit with its size in base units (None: the base unit).
    `hidden` returns whether noise hides a value that was measured, and the upper end of its interval if there is one.
    `interval` is its estimate over the processes, of a statistic that has an interval.
    `version` belongs to the method and grows when equal records would give another figure. `in_tables` is False for
    statistics that tables show in their own form, `always` is True for those shown even if no cell has a value.
    """

    metric: str
    label: str
    unit: str
    meaning: str
    of: Callable[[CellSummary], float | None]
    shown_in: tuple[str, float] | None = None
    method: str = MEDIAN
    version: int = 1
    in_tables: bool = True
    always: bool = False
    hidden: Callable[[CellSummary], Hidden | None] = lambda cell: None
    interval: Callable[[CellSummary], Estimate | None] = lambda cell: None

    @property
    def scale(self) -> tuple[str, float]:
        """Return the unit of tables, and its size in base units."""
        return self.shown_in or (self.unit, 1.0)


def values(cell: CellSummary) -> dict[str, float]:
    """Return a cell's measured statistics by metric."""
    metric_values = ((statistic.metric, statistic.of(cell)) for statistic in STATISTICS)
    return {metric: float(value) for metric, value in metric_values if value is not None}


def intervals(cell: CellSummary) -> dict[str, Estimate]:
    """Return the estimates of a cell's statistics that have an interval, by metric."""
    estimates = ((statistic.metric, statistic.interval(cell)) for statistic in STATISTICS)
    return {metric: estimate for metric, estimate in estimates if estimate is not None and estimate.bounds}


def hidden(cell: CellSummary) -> dict[str, Hidden]:
    """Return the statistics of a cell that were measured, but that noise hides, by metric."""
    metric_hidden = ((statistic.metric, statistic.hidden(cell)) for statistic in STATISTICS)
    return {metric: value for metric, value in metric_hidden if value is not None}


def over_processes(
    value: Callable[[Record], float | None], combine: Callable[[list[float]], float] = statistics.median
) -> Callable[[CellSummary], float | None]:
    """Return a function from a cell to the median, or another combination, of `value` over its measured processes."""

    def of(cell: CellSummary) -> float | None:
        process_values = [process_value for record in cell.measured if (process_value := value(record)) is not None]
        return combine(process_values) if process_values else None

    return of


def centre_of(estimate: Estimate | None) -> float | None:
    """Return the centre of an estimate, if there is one."""
    return None if estimate is None else estimate.centre


def _generation(value: Callable[[Generation], float | None]) -> Callable[[CellSummary], float | None]:
    return lambda cell: median_of(cell.measured, value)


def _anonymous_bytes(record: Record) -> float | None:
    usage = record.usage
    return usage.host_anonymous.peak_bytes if usage and usage.host_anonymous else None


def _variation(record: Record) -> float | None:
    """Return the coefficient of variation of a process's measured epochs; None below two of them."""
    epochs_s = record.times.epoch_times_s
    return statistics.stdev(epochs_s) / statistics.fmean(epochs_s) if len(epochs_s) > 1 and any(epochs_s) else None


def _of_calls(value: Callable[[Record], float | None]) -> Callable[[CellSummary], float | None]:
    """Return the median over the processes of a percentile of their calls; None for a single call."""

    def of_several(record: Record) -> float | None:
        call_count = (record.resolved.steps_per_epoch or 0) * len(record.times.epoch_times_s) if record.resolved else 0
        return None if call_count == 1 else value(record)

    return over_processes(of_several)


def _hidden_fixed_time(cell: CellSummary) -> Hidden | None:
    fixed_estimate = cell.fixed_time
    if fixed_estimate is None or cell.fixed_time_per_epoch_s is not None:
        return None
    return Hidden(fixed_estimate.high if fixed_estimate.high is not None and fixed_estimate.high > 0 else None)


# fmt: off
STATISTICS = (
    Statistic(f"{STEP_TIME_NAME}.median", "median of processes", "s",
              "Median over the processes of their figures, each a mean time per step.",
              lambda cell: cell.step_time_median if cell.figure is STEP_TIME else None, MILLISECOND),
    Statistic(f"{STEP_TIME_NAME}.p95", "p95 of processes", "s",
              "95th percentile over the processes of their figures, interpolated.",
              lambda cell: cell.step_time_p95 if cell.figure is STEP_TIME else None, MILLISECOND, method=P95),
    Statistic(f"{STEP_TIME_NAME}.epochs.median", "median of epochs", "s",
              "Median measured epoch of a process, per step, if there are several; the median over the processes.",
              over_processes(lambda record: epoch_quantiles(record)[0]), MILLISECOND),
    Statistic(f"{STEP_TIME_NAME}.epochs.p95", "p95 of epochs", "s",
              "95th percentile of the measured epochs of a process, per step; the median over the processes.",
              over_processes(lambda record: epoch_quantiles(record)[1]), MILLISECOND),
    Statistic("times.epoch_times_s.variation", "variation of epochs", "1",
              "Standard deviation over mean of the measured epochs of a process; the median over the processes.",
              over_processes(_variation), PERCENT),
    Statistic("times.samples_per_s", "throughput", "samples/s",
              "Samples trained, predicted or continued per second of the measured epochs; the geometric mean over the "
              "processes, as of the time per step.",
              lambda cell: cell.samples_per_s, method=GEOMETRIC, version=2, always=True),
    Statistic("times.tokens_per_s", "tokens/s", "tokens/s",
              "Tokens generated per second in calls of KerasHub’s generate(), of all prompts of a batch.",
              over_processes(lambda record: record.times.tokens_per_s)),
    Statistic("generation.own_time_to_first_token_s", "own loop: first token", "s",
              "Time to the first token in this project’s own loop: prefill and one step. Not a part of generate(), in "
              "which nothing can be timed.", _generation(lambda timing: timing.own_time_to_first_token_s), MILLISECOND),
    Statistic("generation.own_token_time_p50_s", "own loop: token, p50", "s",
              "Median time of a token in this project’s own loop, one step for all prompts of a batch.",
              _generation(lambda timing: timing.own_token_time_p50_s), MILLISECOND),
    Statistic("generation.own_token_time_p99_s", "own loop: token, p99", "s",
              "99th percentile of the time of a token in this project’s own loop.",
              _generation(lambda timing: timing.own_token_time_p99_s), MILLISECOND),
    Statistic("generation.own_arithmetic_share", "own loop: arithmetic", "1",
              "Share of a step of this project’s own loop that is not the cost of its operations: one minus the step "
              "of the same layers at their smallest widths over the step.",
              lambda cell: arithmetic_share(cell.measured), PERCENT),
    Statistic("generation.own_dequantisation_share", "own loop: dequantisation", "1",
              "Share of a step of this project’s own loop that quantisation adds: one minus the step of the same model "
              "without quantisation over the step. Below 0: quantisation makes the step faster.",
              lambda cell: dequantisation_share(cell.measured), PERCENT),
    Statistic("generation.weight_bytes", "weights in memory", "B",
              "Size of a language model’s weights as they are stored, quantised or not.",
              _generation(lambda timing: timing.weight_bytes), MEBIBYTE),
    Statistic("times.first_epoch_time_s", "first epoch", "s",
              "The first of the discarded epochs: tracing, compiling and the first run included.",
              lambda cell: cell.first_epoch_time_s, always=True),
    Statistic("times.first_step_time_s", "first step", "s",
              "The first training step: trace and compile are parts of it.",
              over_processes(lambda record: record.times.first_step_time_s), in_tables=False),
    Statistic("times.epoch_time_median_s", "steady epoch", "s",
              "Median of a process’s measured epochs.", lambda cell: cell.epoch_time_s, always=True),
    Statistic("times.training_step_time_s", "training step", "s",
              "Mean time of a training step where a program’s epochs were cut, without the beginning of an epoch, "
              "which opens its source, and without its end.",
              over_processes(lambda record: record.times.training_step_time_s), MILLISECOND),
    Statistic("times.epoch_end_time_s", "epoch end", "s",
              "Mean time from the last step to the end of an epoch where a program’s epochs were cut: validation, "
              "callbacks, checkpoints.",
              over_processes(lambda record: record.times.epoch_end_time_s)),
    Statistic("times.calls_before_time_s", "calls before", "s",
              "Time of a program’s calls of fit, evaluate and predict before the measured one, as written or cut.",
              over_processes(lambda record: record.times.calls_before_time_s)),
    Statistic("times.call_time_p50_s", "call, p50", "s",
              "Median of the time of single calls of predict or generate.",
              _of_calls(lambda record: record.times.call_time_p50_s), MILLISECOND),
    Statistic("times.call_time_p99_s", "call, p99", "s",
              "99th percentile of the time of single calls of predict or generate.",
              _of_calls(lambda record: record.times.call_time_p99_s), MILLISECOND),
    Statistic("times.fixed_time_per_epoch_s", "fixed per epoch", "s",
              "What an epoch costs before its first step, from epochs of two lengths: a small difference of two large "
              "times, shown only if its 95 % interval, over the epochs of one process, is above zero.",
              lambda cell: cell.fixed_time_per_epoch_s, MILLISECOND, SEPARATE, hidden=_hidden_fixed_time),
    Statistic("times.suite_total_time_s", "2017-suite total", "s",
              "Total seconds of the measured epochs when each is one pass over the samples: the figure of the first "
              "Keras benchmarks. Short epochs make it mostly fixed cost.",
              over_processes(lambda record: record.times.suite_total_time_s)),
    Statistic("memory.peak_host_memory_bytes", "peak host memory", "B", "Peak memory of a process tree on the host.",
              lambda cell: cell.peak_host_memory_bytes, MEBIBYTE, LARGEST, in_tables=False),
    Statistic("memory.peak_device_memory_bytes", "peak device memory", "B",
              "The most that the framework’s allocator held on the device.",
              lambda cell: cell.peak_device_memory_bytes, MEBIBYTE, LARGEST, in_tables=False),
    Statistic("usage.host_anonymous.peak_bytes", "peak anonymous memory", "B",
              "Peak of the host memory that no file backs.",
              over_processes(_anonymous_bytes, max), MEBIBYTE, LARGEST, in_tables=False),
    Statistic("usage.host_growth_bytes_per_step", "host memory growth", "B/step",
              "Anonymous host memory that a process keeps with each step of its measured epochs: the median slope of "
              "the lower edge of its memory. 0 if it settles; not stated below eight readings.",
              lambda cell: centre_of(host_growth(cell.measured)), Unit("MiB/step", MIB), MEAN,
              interval=lambda cell: host_growth(cell.measured)),
    Statistic("usage.device_growth_bytes_per_step", "device memory growth", "B/step",
              "Likewise memory in use by the framework’s allocator on the device, read between epochs: seven measured "
              "epochs or more.", lambda cell: centre_of(device_growth(cell.measured)), Unit("MiB/step", MIB), MEAN,
              interval=lambda cell: device_growth(cell.measured)),
    Statistic("usage.device_average_power_w", "device power", "W",
              "Energy of the GPU over the time of the measured epochs. Of the GPU alone: CPU, memory and fans are not "
              "in it.", over_processes(lambda record: record.usage.device_average_power_w if record.usage else None)),
    Statistic("usage.cpu_average_power_w", "CPU power", "W",
              "Energy of all CPU packages over the time of the measured epochs, by their own counters: the machine’s, "
              "other programs and idle power included.",
              over_processes(lambda record: record.usage.cpu_average_power_w if record.usage else None)),
    Statistic("usage.joules_per_sample", "energy per sample", "J/sample",
              "Energy of the measured epochs divided by their samples: of the GPUs of the cell, the CPU packages and "
              "the memory, as far as the machine counts them. The geometric mean over the processes.",
              lambda cell: centre_of(energy_per_sample(cell)), MILLIJOULE, GEOMETRIC,
              interval=energy_per_sample),
)
# fmt: on
