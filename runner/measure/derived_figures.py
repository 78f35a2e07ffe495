"""Figures of a cell's result that follow from others: computed again by the runner, and refused if they disagree. Pure.

A workload runs in the process that times it, and may replace `statistics.median` or a reduction of NumPy, by accident
too. So a record has the runner's own figures, and a result that states others belongs to a process that cannot be
trusted: it is refused, as any invalid result is. Samples/s is stated only if each step used all samples of its batch.

Not derived, because the record does not have the times of single calls: `call_time_p50_s`, `call_time_p99_s` and the
figures of the own loop over a language model. They are checked against the bounds that the epochs set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from keras_matrix.records.epoch_figures import EpochWork, timed_epochs_s, tokens_a_sample, with_figures
from keras_matrix.records.fc import spec
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.schema import CellResult, Resolved, Times
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.records.text import plural
from keras_matrix.runner.measure.work_judge import samples_proven

# Sums of the same times in another order differ by less than this.
TOLERANCE = 1e-6


def derived(result: CellResult, settings: Settings) -> tuple[CellResult, str | None]:
    """Return the result with the runner's own figures, and how the cell's own disagree with them; None if they agree.

    The result is complete: it has resolved settings, and each of its epochs a duration.
    """
    assert result.resolved is not None
    work = work_of(result.resolved, settings)
    times = with_figures(result.times, work)
    problem = next(_disagreements(result, settings, (work, times)), None)
    if not samples_proven(result, settings):
        times = replace(times, samples_per_s=None)
    return replace(result, times=times), problem


def work_of(resolved: Resolved, settings: Settings) -> EpochWork:
    """Return the work of an epoch of a cell, by its resolved settings."""
    batch_size = resolved.batch_size or settings.batch_size
    samples = batch_size
    if spec.is_native(settings):
        samples = spec.problem_of(settings).samples_per_step
    return EpochWork(
        steps=resolved.steps_per_epoch,
        samples_a_step=samples,
        steps_of_pass=math.ceil((resolved.samples or settings.samples) / batch_size),
        steps_per_execution=resolved.steps_per_execution or settings.steps_per_execution,
        phase=settings.phase,
        tokens_a_sample=tokens_a_sample(settings),
    )


def _disagreements(result: CellResult, settings: Settings, computed: tuple[EpochWork, Times]) -> Iterator[str]:
    """Yield how the cell's figures disagree with the runner's own."""
    work, times = computed
    for field in fields(Times):
        stated, value = getattr(result.times, field.name), getattr(times, field.name)
        if isinstance(stated, float | int) and not _equal(stated, value):
            shown = "nothing" if value is None else f"{value:.6g}"
            yield f"times.{field.name} is {stated:.6g}, but its epochs give {shown}{WHY}"
    yield from _total(result.times)
    yield from _calls(result.times, work)
    yield from _steps(result, settings)
    if result.work is not None:
        yield from _counts(result.work)
    if result.generation is not None:
        yield from _own_loop(result.generation)
    if result.parallel is not None and spec.is_native(settings):
        yield from _parallel(result.parallel, settings)


WHY = "; the workload may change functions that the runner's code uses in its process, such as statistics.median"


def _equal(stated: float | None, value: float | None) -> bool:
    if stated is None or value is None:
        return stated is value
    return math.isclose(stated, value, rel_tol=TOLERANCE, abs_tol=1e-12)


def _total(times: Times) -> Iterator[str]:
    total_s, parts_s = times.training_time_s, timed_epochs_s(times)
    if total_s is None:
        return
    if total_s < parts_s * (1 - TOLERANCE):
        yield f"times.training_time_s is {total_s:.6g}, less than its parts, {parts_s:.6g}"
    elif not times.short_epoch_times_s and not _equal(total_s, parts_s):
        yield f"times.training_time_s is {total_s:.6g}, but its parts are {parts_s:.6g}"


def _calls(times: Times, work: EpochWork) -> Iterator[str]:
    """Yield why quantiles of the times of calls are impossible: half of the calls take p50 or longer, some p99."""
    p50_s, p99_s = times.call_time_p50_s, times.call_time_p99_s
    if p50_s is None or p99_s is None:
        return
    mean_s = math.fsum(times.epoch_times_s) / len(times.epoch_times_s) / work.steps
    if not 0 <= p50_s <= p99_s * (1 + TOLERANCE):
        yield f"times.call_time_p50_s is {p50_s:.6g}, but call_time_p99_s {p99_s:.6g}"
    if p50_s > 2 * mean_s * (1 + TOLERANCE) or p99_s > max(times.epoch_times_s) * (1 + TOLERANCE):
        yield f"calls of {p50_s:.6g} s (p50) and {p99_s:.6g} s (p99) do not fit into its epochs of {work.steps} calls"


def _steps(result: CellResult, settings: Settings) -> Iterator[str]:
    """Yield how the epochs' counts disagree: each of the measured call's epochs has the steps that it reports."""
    assert result.resolved is not None
    steps, losses = result.resolved.steps_per_epoch, len(result.learning.loss)
    if losses not in (0, settings.epochs):
        yield f"it has the losses of {plural(losses, 'epoch')}, not of {settings.epochs}"
    if settings.discard != (discarded := len(result.times.discarded_epoch_times_s)):
        yield f"it has {plural(discarded, 'discarded epoch')}, not {settings.discard}"
    measured = _measured(result.work)
    if measured is None or result.resolved.feed == PIPELINE:
        return  # steps before the clock starts are counted with those of an epoch of an input pipeline
    if (measured.steps, measured.epochs) != (steps, settings.epochs):
        counted = f"{measured.epochs} epochs of {measured.steps} steps"
        yield f"it counts the work of {counted}, but reports {settings.epochs} of {steps}"


def _measured(work: WorkDone | None) -> WorkStretch | None:
    return next((stretch for stretch in work.stretches if stretch.name == "epochs"), None) if work else None


def _counts(work: WorkDone) -> Iterator[str]:
    """Yield which sums over the measured epochs differ from the counts of each."""
    measured = _measured(work)
    if measured is None:
        return
    pairs = zip(measured.updates, measured.skipped_updates, strict=True)
    updates = _a_step([None if made is None else made + skipped for made, skipped in pairs], measured.steps)
    sums: Sequence[tuple[str, float | None, float | None]] = (
        ("updates_per_step", work.updates_per_step, updates),
        ("samples_per_step", work.samples_per_step, _a_step(measured.samples, measured.steps)),
        ("batches_drawn", work.batches_drawn, measured.batches_drawn),
        ("skipped_updates", work.skipped_updates, sum(measured.skipped_updates)),
    )
    for name, stated, value in sums:
        if not _equal(stated, value):
            yield f"work.{name} is {stated}, but the counts of its epochs give {value}"
    if (work.changed_variables or 0) > (work.trainable_variables or 0):
        yield f"{work.changed_variables} of {work.trainable_variables} trainable weights changed"


def _a_step(counts: Sequence[int | None], steps: int) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / (len(known) * steps) if known and len(known) == len(counts) else None


def _own_loop(generation: Generation) -> Iterator[str]:
    """Yield which parts of a language model's figures are larger than their wholes."""
    for part, whole in (
        ("own_prefill_time_s", "own_time_to_first_token_s"),
        ("own_token_time_p50_s", "own_token_time_p99_s"),
        ("read_weight_bytes", "weight_bytes"),
        ("prompt_length", "max_length"),
    ):
        smaller, larger = getattr(generation, part), getattr(generation, whole)
        if smaller is not None and larger is not None and smaller > larger * (1 + TOLERANCE):
            yield f"generation.{part} is {smaller:.6g}, more than {whole}, {larger:.6g}"
    mean_s, p50_s = generation.own_token_time_mean_s, generation.own_token_time_p50_s
    if mean_s is not None and p50_s is not None and p50_s > 2 * mean_s * (1 + TOLERANCE):
        yield f"generation.own_token_time_p50_s is {p50_s:.6g}, but the mean is {mean_s:.6g}"


def _parallel(parallel: spec.Parallel, settings: Settings) -> Iterator[str]:
    """Yield which figures of an FC cell differ from their formulas."""
    problem = spec.problem_of(settings)
    formula_bytes = spec.traffic_per_step(problem).sent_bytes(problem.workers)
    expected = (
        ("workers", parallel.workers, problem.workers),
        ("flops_per_step", parallel.flops_per_step, spec.flops_per_step(problem)),
        ("formula_bytes_per_step", parallel.formula_bytes_per_step, formula_bytes),
        ("counted_bytes_per_step", parallel.counted_bytes_per_step, parallel.traffic.sent_bytes(problem.workers)),
    )
    for name, stated, value in expected:
        if stated != value:
            yield f"parallel.{name} is {stated}, but its problem gives {value}"
