"""The figures of a process that follow from the times of its epochs. Pure; the standard library alone.

A cell's process computes them for its own files, and the runner computes them again from the epoch times: those are in
the record, and a result that states others is refused (`runner.measure.judge`). The functions of `statistics`
are bound here before a workload's own code is loaded, so that a workload that replaces them changes no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from keras_matrix.records.schema import Resolved, Times
from keras_matrix.records.settings import FIT, GENERATE, Settings

SHORT_EPOCH_SHARE = 8
CALLS_BEYOND = 10  # of a percentile that is stated: 20 calls for p50, 1,000 for p99


@dataclass(frozen=True, slots=True)
class EpochWork:
    """The work of an epoch: its steps (or calls), the samples of a step, and the steps of one pass over the samples.

    `samples_a_step` is None if the samples of a step are not proven: then there is no figure of samples.
    `tokens_a_sample` is None unless the phase is generate.
    """

    steps: int
    samples_a_step: float | None
    steps_of_pass: int
    steps_per_execution: int
    phase: str
    tokens_a_sample: int | None = None

    @property
    def short_steps(self) -> int | None:
        """The steps of the second epoch length; None if an epoch is too short to have one.

        One pass over the samples if that is at most half an epoch, so that it also gives the 2017-suite total; else an
        eighth of an epoch.
        """
        chunk = self.steps_per_execution
        if self.steps_of_pass <= self.steps // 2 and self.steps_of_pass % chunk == 0:
            return self.steps_of_pass
        return self.steps // SHORT_EPOCH_SHARE // chunk * chunk or None


def tokens_a_sample(settings: Settings) -> int | None:
    """Return the tokens that a call of `generate` adds to each prompt; None in other phases."""
    if settings.phase != GENERATE:
        return None
    return int(settings.params["max_length"]) - int(settings.params["prompt_length"])


def program_work(resolved: Resolved, settings: Settings) -> EpochWork:
    """Return the work of an epoch of a program's own call: one pass, whose samples were counted or are unknown."""
    steps, samples = resolved.steps_per_epoch, resolved.samples
    samples_a_step = None if samples is None else samples / steps
    return EpochWork(steps, samples_a_step, steps, resolved.steps_per_execution or 1, settings.phase)


def with_figures(times: Times, work: EpochWork) -> Times:
    """Return the times with every figure that follows from its epochs, the discarded and short ones included.

    There must be at least one measured epoch, and none without a duration.
    """
    times = _with_parts(times, work.steps)
    if times.training_times_s and times.whole_epoch_steps is None:
        return _of_steps_alone(times, work)
    measured_s, short_s = whole_epochs_s(times, work.steps), times.short_epoch_times_s
    mean_s, samples, steps = fmean(measured_s), work.samples_a_step, times.whole_epoch_steps or work.steps
    samples_per_s = None if samples is None else steps * samples / mean_s
    tokens = work.tokens_a_sample
    return replace(
        times,
        first_epoch_time_s=times.discarded_epoch_times_s[0] if times.discarded_epoch_times_s else None,
        epoch_time_median_s=median(measured_s),
        epoch_time_mean_s=mean_s,
        epoch_time_p95_s=quantile(measured_s, 95),
        step_time_s=mean_s / steps,
        samples_per_s=samples_per_s,
        steps_per_s=steps / mean_s,
        tokens_per_s=None if samples_per_s is None or tokens is None else samples_per_s * tokens,
        short_epoch_steps=work.short_steps if short_s else None,
        fixed_time_per_epoch_s=_fixed_time(measured_s, short_s, work),
        suite_total_time_s=None if times.training_times_s else _suite_total(measured_s, short_s, work),
    )


def parts_problem(times: Times, steps: int) -> str | None:
    """Return why the parts of epochs that were cut after so many steps are impossible, or None."""
    if not (times.training_times_s or times.lead_times_s):
        return "no epoch was cut, but it states the steps of whole ones" if times.whole_epoch_steps else None
    parts = times.lead_times_s, times.training_times_s, times.epoch_times_s
    if len(set(map(len, parts))) > 1:
        return "it has the parts of other epochs than those that were measured"
    if any(not 0 < lead_s <= training_s <= epoch_s for lead_s, training_s, epoch_s in zip(*parts, strict=True)):
        return "the parts of an epoch are longer than the epoch"
    if (times.whole_epoch_steps or steps) < steps or (times.lead_steps or 0) < 1:
        return f"an epoch of {times.whole_epoch_steps} steps was cut after {steps}, the first {times.lead_steps} apart"
    return None


def whole_epochs_s(times: Times, steps: int) -> list[float]:
    """Return the seconds of each measured epoch, which has so many steps; of one that was cut those of a whole one.

    The steps that were left out are taken to last as long as the mean of those after its lead-in.
    """
    if times.whole_epoch_steps is None:
        return times.epoch_times_s
    left_out = times.whole_epoch_steps - steps
    pairs = zip(times.epoch_times_s, _step_times_s(times, steps), strict=True)
    return [epoch_s + left_out * step_s for epoch_s, step_s in pairs]


def _step_times_s(times: Times, steps: int) -> list[float]:
    """Return the mean time of a training step in each epoch that was cut."""
    lead_steps = times.lead_steps or 0
    if lead_steps >= steps:
        return [training_s / steps for training_s in times.training_times_s]
    pairs = zip(times.training_times_s, times.lead_times_s, strict=True)
    return [(training_s - lead_s) / (steps - lead_steps) for training_s, lead_s in pairs]


def _with_parts(times: Times, steps: int) -> Times:
    """Return the times with the mean parts of the epochs that were cut; unchanged if none was."""
    if not times.training_times_s:
        return times
    ends_s = [
        epoch_s - training_s for epoch_s, training_s in zip(times.epoch_times_s, times.training_times_s, strict=True)
    ]
    return replace(times, training_step_time_s=fmean(_step_times_s(times, steps)), epoch_end_time_s=fmean(ends_s))


def _of_steps_alone(times: Times, work: EpochWork) -> Times:
    """Return the times with the figures of a training step: of a whole epoch, whose length is not known, none are."""
    step_s = times.training_step_time_s
    assert step_s is not None
    return replace(
        times,
        first_epoch_time_s=times.discarded_epoch_times_s[0] if times.discarded_epoch_times_s else None,
        step_time_s=step_s,
        samples_per_s=None if work.samples_a_step is None else work.samples_a_step / step_s,
        steps_per_s=1 / step_s,
    )


def timed_epochs_s(times: Times) -> float:
    """Return the sum of what a process reports to have timed: `training_time_s` has the first short epoch in addition.

    The first discarded epoch includes the first step.
    """
    first_s = 0.0 if times.discarded_epoch_times_s else times.first_step_time_s or 0.0
    time_lists_s = (times.discarded_epoch_times_s, times.epoch_times_s, times.short_epoch_times_s)
    return first_s + (times.calibration_time_s or 0.0) + math.fsum(map(math.fsum, time_lists_s))


def quantile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated linearly between the two nearest of the sorted values (NumPy's default)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    lower_index = math.floor(place)
    upper_index = min(lower_index + 1, len(ordered) - 1)
    return ordered[lower_index] + (ordered[upper_index] - ordered[lower_index]) * (place - lower_index)


def call_quantile(call_times_s: Sequence[float], percent: float) -> float | None:
    """Return a percentile of the times of single calls; None unless at least ten calls are beyond it."""
    return quantile(call_times_s, percent) if len(call_times_s) * (100 - percent) >= 100 * CALLS_BEYOND else None


def call_interval(call_times_s: Sequence[float], percent: float) -> list[float]:
    """Return the 95 % interval of a percentile of independent calls: two of them, by rank; empty for too few calls."""
    count, share = len(call_times_s), percent / 100
    if call_quantile(call_times_s, percent) is None:
        return []
    ordered, half = sorted(call_times_s), 1.96 * math.sqrt(count * share * (1 - share))
    low, high = math.floor(count * share - half), math.ceil(count * share + half)
    return [ordered[max(0, low - 1)], ordered[min(count, high + 1) - 1]]


def with_percentiles(times: Times, call_times_s: Sequence[float]) -> Times:
    """Return the times with the percentiles of these single calls, and their intervals within the process."""
    return replace(
        times,
        call_time_p50_s=call_quantile(call_times_s, 50),
        call_time_p99_s=call_quantile(call_times_s, 99),
        call_time_p50_interval_s=call_interval(call_times_s, 50),
        call_time_p99_interval_s=call_interval(call_times_s, 99),
    )


def call_problems(times: Times, steps: int, tolerance: float) -> Iterator[str]:
    """Yield why percentiles of calls are impossible, `steps` of them an epoch: half take p50 or longer, some p99."""
    p50_s, p99_s = times.call_time_p50_s, times.call_time_p99_s
    for ends_s, value_s in ((times.call_time_p50_interval_s, p50_s), (times.call_time_p99_interval_s, p99_s)):
        if ends_s and (value_s is None or len(ends_s) != 2 or not ends_s[0] <= value_s <= ends_s[1]):
            yield f"the interval {ends_s} of a percentile of its calls does not contain it, {value_s}"
    if p50_s is None:
        return
    p99_s = p50_s if p99_s is None else p99_s  # few calls have no p99
    mean_s = math.fsum(times.epoch_times_s) / len(times.epoch_times_s) / steps
    if not 0 <= p50_s <= p99_s * (1 + tolerance):
        yield f"times.call_time_p50_s is {p50_s:.6g}, but call_time_p99_s {p99_s:.6g}"
    if p50_s > 2 * mean_s * (1 + tolerance) or p99_s > max(times.epoch_times_s) * (1 + tolerance):
        yield f"calls of {p50_s:.6g} s (p50) and {p99_s:.6g} s (p99) do not fit into its epochs of {steps} calls"


def _fixed_time(measured_s: Sequence[float], short_s: Sequence[float], work: EpochWork) -> float | None:
    short_steps = work.short_steps
    if not short_s or short_steps is None:
        return None
    slope_s = (median(measured_s) - median(short_s)) / (work.steps - short_steps)
    return median(short_s) - short_steps * slope_s


def _suite_total(measured_s: Sequence[float], short_s: Sequence[float], work: EpochWork) -> float | None:
    if work.phase != FIT:
        return None
    if work.steps_of_pass == work.steps:
        return sum(measured_s)
    return sum(short_s) if short_s and work.short_steps == work.steps_of_pass else None
