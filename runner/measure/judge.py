"""Decides the status of an attempt from its evidence. Pure, and the only place where a status is decided.

The output of a cell is ignored. A result counts only with the parent's nonce, the right identity, and a process that
exited with 0 by itself; a process that got a signal from the runner is never ok. The end of the process does not count
for what a cell does after its result is published: saving its model, writing a profile and tracing.

Caveats about what a process read are bad samples, workers without rest, and files perhaps cached although cold.

Warnings of a record about programs traced or compiled during its measured epochs. Pure.

Figures of a cell's result that follow from others: computed again by the runner, and refused if they disagree. Pure.

A workload runs in the process that times it, and may replace `statistics.median` or a reduction of NumPy, by accident
too. So a record has the runner's own figures, and a result that states others belongs to a process that cannot be
trusted: it is refused, as any invalid result is. Samples/s is stated only if each step used all samples of its batch.

Not derived, because the record does not have the times of single calls: `call_time_p50_s`, `call_time_p99_s` and the
figures of the own loop over a language model. They are checked against the bounds that the epochs set.
"""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from keras_matrix.analysis.surroundings.disturbance import (
    OTHER_CPU_LIMIT,
    STALL_LIMIT,
    STEAL_LIMIT,
    busy_text,
    neighbour_warnings,
)
from keras_matrix.records import replicas as replica_facts
from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.epoch_figures import (
    EpochWork,
    call_problems,
    program_work,
    timed_epochs_s,
    tokens_a_sample,
    with_figures,
)
from keras_matrix.records.fc import spec
from keras_matrix.records.host import device_lists
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.instruments.input_use import InputUse
from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.schema import SCHEMA_VERSION, CellResult, GpuEpochs, Resolved, Status, Surroundings, Times
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.records.text import percentage, plural, printable_values
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.evidence import (
    busy_gpu,
    impossible,
    lost_gpu,
    mismatch,
    misplaced,
    option_caveats,
    samples_proven,
    too_late,
    work_caveats,
)
from keras_matrix.runner.plan.plan import TARGET_EPOCH_S

SECOND_EPOCH_LIMIT = 1.2
# A fifth of the length that the runner aims at: one time slice of the scheduler (4 ms) is 4 % of it. Epochs between the
# two come from a busy moment in which a step was calibrated; their scatter is in the intervals, and asks for nothing.
SHORT_EPOCH_S = TARGET_EPOCH_S / 5
LEAST_EPOCH_S = 1e-3  # for advice: a cell may report any time
# Limits for the delay between the end of an epoch and its report to the runner on a busy machine.
CLOCK_FACTOR = 2.0
CLOCK_SLACK_S = 2.0
LOST_REPLICA = "ReplicaFailed"  # of runner.cell.replicated.torch
STATUS_OF_EXCEPTION = {
    "Unsupported": Status.UNSUPPORTED,
    "UnsupportedWorkload": Status.UNSUPPORTED,
    "DeviceMismatch": Status.DEVICE_MISMATCH,
    "WorkMismatch": Status.WORK_MISMATCH,
    "NotFetched": Status.INFRA,
}
# Share of the files in the page cache from which a cold epoch is not cold: what a read-ahead of others brings back.
RESIDENT_LIMIT = 0.05
NAMES_SHOWN = 3
DEVICE_OOM_TYPES = ("ResourceExhaustedError", "OutOfMemoryError")
_SHM = "usually /dev/shm is too small for its workers; enlarge it with --shm-size, or shm_size in compose.yaml"
_ADVICE: dict[int, str] = {signal.SIGBUS: f": {_SHM}"}
# Of the resolved settings: figures are divided by some of them.
COUNTS = ("steps_per_epoch", "seed_steps_per_epoch", "steps_per_execution", "samples", "batch_size")
# Sums of the same times in another order differ by less than this.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class StatusVerdict:
    """A status, its reason in one line, and the warnings with their advice."""

    status: Status
    reason: str | None = None
    warnings: tuple[str, ...] = ()


class ResultRefused(ValueError):
    """The result of a cell is not valid; the message says why."""


def accept(raw: bytes | None, job: Job) -> CellResult:
    """Return the result in `raw` if it belongs to this job, with the runner's own derived figures.

    Raises `ResultRefused`.
    """
    if raw is None:
        raise ResultRefused("no_result: the process did not write one")
    if len(raw) > RESULT_LIMIT_BYTES:
        raise ResultRefused(f"bad_result: larger than {RESULT_LIMIT_BYTES} bytes")
    try:
        result = decode(CellResult, printable_values(loads(raw)), "result")
    except CodecError as error:
        raise ResultRefused(f"bad_result: {error}") from error
    expected = (SCHEMA_VERSION, job.nonce, job.cell_id, job.repeat, job.attempt)
    received = (result.schema_version, result.nonce, result.cell_id, result.repeat, result.attempt)
    if received != expected:
        raise ResultRefused("bad_result: the result belongs to another attempt")
    if job.counting:
        return result  # it has counts, and nothing that a timed process must prove
    if problem := _implausible(result, job):
        raise ResultRefused(f"bad_result: {problem}")
    if result.exception is not None or result.unfinished is not None:
        return result
    result, problem = derived(result, job.settings)
    if problem:
        raise ResultRefused(f"bad_result: {problem}")
    return result


def judge(job: Job, outcome: Outcome, result: CellResult | None, problem: str | None) -> StatusVerdict:
    """Return the verdict on an attempt: `result` as accepted, or the `problem` for which it was refused."""
    unfinished = result.unfinished if result else None
    is_complete = result is not None and result.exception is None and not unfinished and _goes_on(job, result)
    if verdict := not_run(outcome):
        return verdict
    if reason := lost_gpu(job, outcome, result) or busy_gpu(job, outcome, result):
        return StatusVerdict(Status.INFRA, reason)
    if not is_complete and (verdict := ended_by_force(outcome, job)):
        return replace(verdict, reason=f"{verdict.reason}, while {unfinished}") if unfinished else verdict
    if result is not None and result.exception is not None:
        return _raised(job, outcome, result)
    if unfinished:
        return StatusVerdict(Status.ERROR, f"exit code {outcome.exit_code}, while {unfinished}")
    if outcome.exit_code != 0 and not is_complete:
        return StatusVerdict(Status.ERROR, f"exit code {outcome.exit_code}: {problem or 'after a result was written'}")
    if result is None:
        return StatusVerdict(Status.ERROR, problem)
    return _measured(job, outcome, result)


def _goes_on(job: Job, result: CellResult) -> bool:
    """Return whether the process had published its figures, and went on to save its model, watch layers or trace."""
    late_reasons = (result.unsaved, result.collectives_not_timed, result.samples_unseen, result.outputs_unseen)
    return job.goes_on or any(reason is not None for reason in late_reasons)


def not_run(outcome: Outcome) -> StatusVerdict | None:
    """Return the verdict on a process that was not started, or None."""
    if outcome.refused:
        return StatusVerdict(Status.UNSUPPORTED, outcome.refused)
    if outcome.missing_device:
        return StatusVerdict(Status.DEVICE_MISMATCH, outcome.missing_device)
    return StatusVerdict(Status.INFRA, outcome.infrastructure) if outcome.infrastructure else None


def ended_by_force(outcome: Outcome, job: Job | None = None) -> StatusVerdict | None:
    """Return the verdict on a process that was ended by its time limit or a signal, or None; a command has no `job`."""
    if outcome.deadline_exceeded:
        return StatusVerdict(Status.TIMEOUT, too_late(outcome, job))
    if outcome.signal is None:
        return None
    if outcome.signal == 9 and outcome.oom_kills:
        return StatusVerdict(Status.OOM_HOST, "the kernel killed the process because memory was exhausted")
    return StatusVerdict(Status.CRASH, f"ended by signal {outcome.signal}{_ADVICE.get(outcome.signal, '')}")


def _raised(job: Job, outcome: Outcome, result: CellResult) -> StatusVerdict:
    kind = (result.exception or "").rpartition(".")[2]
    lines = (result.message or "").strip().splitlines()
    reason = f"{kind}: {lines[0]}" if lines else kind
    if kind in STATUS_OF_EXCEPTION:
        return StatusVerdict(STATUS_OF_EXCEPTION[kind], (result.message or kind).strip())
    on_device = job.settings.device != "cpu"
    if on_device and (kind in DEVICE_OOM_TYPES or says_out_of_memory(result.message or "")):
        return StatusVerdict(Status.OOM_DEVICE, reason)
    if kind == LOST_REPLICA and outcome.oom_kills:
        return StatusVerdict(Status.OOM_HOST, f"the kernel killed a process because memory was exhausted: {reason}")
    advice = f"; {_where_to_put_a_module(job, outcome)}" if kind == "WorkloadNotFound" else ""
    return StatusVerdict(Status.ERROR, f"{reason}{advice}")


def _where_to_put_a_module(job: Job, outcome: Outcome) -> str:
    """Return the advice about a user's module that the cell did not find; the cell does not get PYTHONPATH.

    The cell searches the folders of its job (the working folder, that of the matrix file, and `src` in both), which are
    mounted in its container, and the packages of its Python, which in a container is the image's.
    """
    folders_text = " or ".join(dict.fromkeys(job.import_roots))
    if outcome.container is not None:
        limit_text = "which its container can read; PYTHONPATH and the host's packages do not reach it"
        return f"put it in {folders_text}, {limit_text}"
    advice = "mount it there where the runner itself is in a container"
    return f"put it in {folders_text}, or install it for the cells' Python; PYTHONPATH does not reach it ({advice})"


def _measured(job: Job, outcome: Outcome, result: CellResult) -> StatusVerdict:
    if disagreement := _other_clock(outcome, result):
        return StatusVerdict(Status.ERROR, f"bad_result: {disagreement}")
    if any(loss is None for loss in result.learning.loss):
        epoch = result.learning.loss.index(None) + 1
        return StatusVerdict(Status.DIVERGED, f"the loss was not finite in epoch {epoch}")
    if misplacement := misplaced(result, job.settings.device):
        return StatusVerdict(Status.DEVICE_MISMATCH, misplacement)
    if other_work := mismatch(result, job.settings):
        return StatusVerdict(Status.WORK_MISMATCH, other_work)
    unstable = _second_epoch(result)
    warnings = tuple(filter(None, (unstable, *_caveats(job, outcome, result))))
    if unstable:
        return StatusVerdict(Status.UNSTABLE, unstable, warnings)
    return StatusVerdict(Status.OK, None, warnings)


def _other_clock(outcome: Outcome, result: CellResult) -> str | None:
    """Return how a cell's epochs are shorter than by the runner's own clock, or None if they agree.

    The runner times an epoch from its start message until the cell waits again: slightly longer than the epoch, and
    after the last one with the end of `fit`. Before an epoch from an input pipeline the cell evicts files and drops
    batches, and after it waits for its workers, which takes as long as it reports.
    """
    if outcome.watched is None:
        return None
    epoch_times_s = result.times.epoch_times_s
    around_s = [result.input.lead_in_times_s, result.input.settling_times_s] if result.input else []
    watched_s = [measured_stretch.stretch.wall_s for measured_stretch in outcome.watched]
    for other_s in around_s:
        if len(other_s) == len(watched_s):
            watched_s = [wall_s - one_s for wall_s, one_s in zip(watched_s, other_s, strict=True)]
    if len(watched_s) != len(epoch_times_s):
        return f"it reports {len(epoch_times_s)} measured epochs, but the runner observed {len(watched_s)}"
    for epoch, (own_s, wall_s) in enumerate(zip(epoch_times_s, watched_s, strict=True), start=1):
        if epoch < len(watched_s) and wall_s > CLOCK_FACTOR * own_s + CLOCK_SLACK_S:
            return f"measured epoch {epoch} took {own_s:.3g} s by the cell's clock and {wall_s:.3g} s by the runner's"
    return None


def _second_epoch(result: CellResult) -> str | None:
    times = result.times.epoch_times_s
    if len(times) < 2 or times[0] <= SECOND_EPOCH_LIMIT * (median := statistics.median(times[1:])):
        return None
    return (
        f"still_warming_up: the first measured epoch took {times[0] / median:.2f} times the median of the later ones; "
        "increase discard by one"
    )


def _caveats(job: Job, outcome: Outcome, result: CellResult) -> list[str]:
    caveats = [*caveats_around(outcome, result.times.epoch_times_s), *compile_warnings(result.resolved)]
    caveats += [*work_caveats(result, job.settings), *option_caveats(result.resolved, job.settings)]
    caveats += [*input_caveats(result.input), *map("data_set: {}".format, result.data_notes), *result.program_notes]
    if result.collectives_not_timed is not None:
        caveats.append(f"collectives_not_timed: {result.collectives_not_timed}; the other figures are complete")
    if result.unsaved is not None:
        caveats.append(f"not_saved: the trained model was not saved: {result.unsaved}; the figures are complete")
    median = result.times.epoch_time_median_s
    if job.settings.steps_per_epoch == "auto" and median is not None and median < SHORT_EPOCH_S:
        caveats.append(_short_epoch(median, result))
    return caveats


def _short_epoch(epoch_s: float, result: CellResult) -> str:
    """Return the warning about epochs that are shorter than planned, with the number of steps that is enough."""
    steps = result.resolved.steps_per_epoch if result.resolved else 1
    enough = math.ceil(steps * TARGET_EPOCH_S / max(epoch_s, LEAST_EPOCH_S))
    return f"short_epoch: an epoch took {epoch_s:.2f} s, not {TARGET_EPOCH_S:g} s; set steps_per_epoch to {enough}"


def caveats_around(outcome: Outcome, epoch_times_s: Sequence[float]) -> list[str]:
    """Return warnings about activity of the machine that may have affected the figures."""
    caveats = []
    surroundings = outcome.surroundings
    if outcome.oom_kills and outcome.container is not None:
        caveats.append(
            "child_oom: the kernel killed a process of the cell because memory was exhausted; set a higher --memory"
        )
    if (surroundings.steal_share or 0) > STEAL_LIMIT:
        caveats.append(
            f"steal: the hypervisor took {percentage(surroundings.steal_share)} of the CPU time; measure again later"
        )
    if (surroundings.other_cpu_share or 0) > OTHER_CPU_LIMIT:
        caveats.append(busy_text(surroundings))
    caveats += neighbour_warnings(surroundings)
    if (throttled := _gpu_throttled_share(surroundings, epoch_times_s)) > STALL_LIMIT:
        text = f"temperature or power limits throttled the GPU for {percentage(throttled)} of the time"
        caveats.append(f"gpu_throttled: {text}; cool it, raise its power limit, or set clocks to locked")
    return [*caveats, *_gpu_caveats(surroundings, outcome.warnings)]


def _gpu_caveats(surroundings: Surroundings, preflight: Sequence[str]) -> Iterator[str]:
    """Yield why figures of the GPUs are missing or include other users, except what the preflight warned of."""
    without_nvml = [line for line in preflight if line.startswith("nvml_unavailable:")]
    unread_texts = [unread_text for unread_text in (surroundings.gpu_unread or "").split("; ") if unread_text]
    unread = [
        unread_text
        for unread_text in unread_texts
        if not any(f": {unread_text.partition(': ')[2]};" in known_line for known_line in without_nvml)
    ]
    if unread:
        yield (
            f"gpu_unread: power, memory or throttling is missing: {'; '.join(unread)}; run as a user who may read "
            "NVML, in a container with NVIDIA_DRIVER_CAPABILITIES=utility,compute"
        )
    if any(gpu.mig for gpu in _gpus(surroundings)) and not any(line.startswith("gpu_mig:") for line in preflight):
        yield (
            "gpu_mig: the cell ran on a MIG device: power, energy, clocks and temperature are those of the full "
            "card and include its other users; measure on a card with MIG off to get the cell's own"
        )


def _gpus(surroundings: Surroundings) -> list[GpuEpochs]:
    return [*([surroundings.gpu] if surroundings.gpu else []), *surroundings.further_gpus]


def _gpu_throttled_share(surroundings: Surroundings, epoch_times_s: Sequence[float]) -> float:
    """Return the share of the measured epochs in which a GPU was throttled, by its longest cause; 0 if not known."""
    wall_s = sum(epoch_times_s)
    if wall_s <= 0:
        return 0.0
    causes = (
        times_s for g in _gpus(surroundings) for times_s in (g.thermal_throttled_times_s, g.power_throttled_times_s)
    )
    return max((sum(time_s or 0.0 for time_s in times_s) for times_s in causes), default=0.0) / wall_s


def _work_problem(result: CellResult, job: Job) -> str | None:
    if result.work is None:
        return None if spec.is_native(job.settings) else "it does not report the work that was done"
    return impossible(result.work, result)


def _resolved_problem(resolved: Resolved, settings: Settings) -> str | None:
    for name in COUNTS:
        if (count := getattr(resolved, name)) is not None and count < 1:
            return f"resolved.{name} is {count}"
    cpus, affinity = settings.cpus, resolved.affinity
    if cpus not in ("all", len(device_lists.parse_cpus(affinity or "") or ()) if isinstance(cpus, int) else affinity):
        return f"it ran on CPUs {affinity}, though cpus is {cpus}"
    return None


def _implausible(result: CellResult, job: Job) -> str | None:
    """Return what is wrong with a completed result: missing parts, or impossible durations."""
    if result.exception is not None or result.unfinished is not None:
        return None
    if result.device is None:
        return "it does not prove its device"
    if result.device.platform != job.settings.device:
        return f"it was measured on {result.device.platform}, not on {job.settings.device}"
    if result.resolved is None:
        return "it does not contain the resolved settings"
    if problem := _resolved_problem(result.resolved, job.settings):
        return problem
    if len(result.times.epoch_times_s) != (count := job.settings.epochs - job.settings.discard):
        return f"it has {plural(len(result.times.epoch_times_s), 'measured epoch')}, not {count}"
    if any(seconds <= 0 for seconds in result.times.epoch_times_s):
        return "an epoch has no duration"
    if problem := _work_problem(result, job):
        return problem
    if job.settings.devices > 1:
        if result.replicas is None:
            return "it does not prove its devices"
        batch_size = result.resolved.batch_size or job.settings.batch_size
        return replica_facts.problem_of(result.replicas, job.settings.devices, batch_size, job.settings.distribution)
    if not spec.is_native(job.settings):
        return None
    if result.parallel is None:
        return "it does not prove its layout"
    # A backend may silently change the layout of an FC cell to another than its mode's.
    return spec.layout_problem(spec.problem_of(job.settings), result.parallel)


def input_caveats(use: InputUse | None) -> Iterator[str]:
    """Yield warnings about the input of a measurement."""
    if use is None:
        return
    if use.bad_samples:
        total_text = f" of {use.facts.samples:,}" if use.facts and use.facts.samples else ""
        names_text = ", ".join(use.bad_names[:NAMES_SHOWN]) + (", ..." if use.bad_samples > NAMES_SHOWN else "")
        yield (
            f"bad_samples: {use.bad_samples:,}{total_text} samples could not be decoded and were replaced by others "
            f"({names_text}); repair or remove them"
        )
    if use.restless_epochs:
        yield (
            f"restless: after {use.restless_epochs} epochs, discarded ones included, workers still prepared batches "
            "when the process gave its turn to others, whose epochs this may have slowed down; set a smaller prefetch"
        )
    if use.cold_files is not None:
        yield from _cold_caveats(use, use.cold_files)


def _cold_caveats(use: InputUse, evicted: int) -> Iterator[str]:
    """Yield why the epochs of a cold cell may have been warm."""
    files = use.facts.files if use.facts else None
    if files is not None and evicted < files:
        yield (
            f"not_cold: {files - evicted:,} of {files:,} files could not be evicted from the page cache, and may have "
            "been read from it; let this user read them, or measure on another file system"
        )
    if use.resident_share is None:
        yield (
            "maybe_not_cold: the system does not say whether the files' pages left the page cache; measure as the user "
            "who owns the files, or may write them"
        )
    elif use.resident_share > RESIDENT_LIMIT:
        yield (
            f"not_cold: {percentage(use.resident_share)} of the files' bytes stayed in the page cache after they were "
            "evicted; they are in memory (tmpfs), or another process has them open or mapped: measure on another copy"
        )


def compile_warnings(resolved: Resolved | None) -> list[str]:
    """Return the warnings of an attempt whose measured epochs include time in which programs were compiled."""
    if resolved is None:
        return []
    warnings = []
    if count := resolved.recompiles_timed:
        programs_text = "program was" if count == 1 else "programs were"
        warnings.append(
            f"recompiled: {count} {programs_text} traced or compiled during the measured epochs, whose times include "
            "that; keep the shapes, dtypes and Python arguments of every step the same: pad batches to one shape, pass "
            "numbers that change as tensors, create no new function in a step"
        )
    if breaks := resolved.graph_breaks_timed:
        places_noun = "place" if breaks == 1 else "places"
        warnings.append(
            f"graph_breaks: torch.compile cut programs in {breaks} {places_noun} during the measured epochs; "
            "remove what it cannot compile from the step: TORCH_LOGS=graph_breaks names it"
        )
    return warnings


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
    if settings.script:
        return program_work(resolved, settings)
    batch_size = resolved.batch_size or settings.batch_size
    sample_count = batch_size
    if spec.is_native(settings):
        sample_count = spec.problem_of(settings).samples_per_step
    return EpochWork(
        steps=resolved.steps_per_epoch,
        samples_a_step=sample_count,
        steps_of_pass=math.ceil((resolved.samples or settings.samples) / batch_size),
        steps_per_execution=resolved.steps_per_execution or settings.steps_per_execution,
        phase=settings.phase,
        tokens_a_sample=tokens_a_sample(settings),
    )


def _disagreements(result: CellResult, settings: Settings, computed: tuple[EpochWork, Times]) -> Iterator[str]:
    """Yield how the cell's figures disagree with the runner's own."""
    work, times = computed
    for field in fields(Times):
        stated_value, value = getattr(result.times, field.name), getattr(times, field.name)
        if isinstance(stated_value, float | int) and not _equal(stated_value, value):
            value_text = "nothing" if value is None else f"{value:.6g}"
            yield f"times.{field.name} is {stated_value:.6g}, but its epochs give {value_text}{WHY}"
    yield from _total(result.times)
    yield from call_problems(result.times, work.steps, TOLERANCE)
    yield from _steps(result, settings)
    if result.work is not None:
        yield from _counts(result.work)
    if result.generation is not None:
        yield from _own_loop(result.generation)
    if result.parallel is not None and spec.is_native(settings):
        yield from _parallel(result.parallel, settings)


WHY = "; the workload may change functions that the runner's code uses in its process, such as statistics.median"


def _equal(stated_value: float | None, value: float | None) -> bool:
    if stated_value is None or value is None:
        return stated_value is value
    return math.isclose(stated_value, value, rel_tol=TOLERANCE, abs_tol=1e-12)


def _total(times: Times) -> Iterator[str]:
    total_s, parts_s = times.training_time_s, timed_epochs_s(times)
    if total_s is None:
        return
    if total_s < parts_s * (1 - TOLERANCE):
        yield f"times.training_time_s is {total_s:.6g}, less than its parts, {parts_s:.6g}"
    elif not times.short_epoch_times_s and not _equal(total_s, parts_s):
        yield f"times.training_time_s is {total_s:.6g}, but its parts are {parts_s:.6g}"


def _steps(result: CellResult, settings: Settings) -> Iterator[str]:
    """Yield how the epochs' counts disagree: each of the measured call's epochs has the steps that it reports."""
    assert result.resolved is not None
    steps, loss_count = result.resolved.steps_per_epoch, len(result.learning.loss)
    if loss_count not in (0, settings.epochs):
        yield f"it has the losses of {plural(loss_count, 'epoch')}, not of {settings.epochs}"
    if settings.discard != (discarded_count := len(result.times.discarded_epoch_times_s)):
        yield f"it has {plural(discarded_count, 'discarded epoch')}, not {settings.discard}"
    measured_work = _measured_work(result.work)
    if measured_work is None or result.resolved.feed == PIPELINE:
        return  # steps before the clock starts are counted with those of an epoch of an input pipeline
    if (measured_work.steps, measured_work.epochs) != (steps, settings.epochs):
        counted_text = f"{measured_work.epochs} epochs of {measured_work.steps} steps"
        yield f"it counts the work of {counted_text}, but reports {settings.epochs} of {steps}"


def _measured_work(work: WorkDone | None) -> WorkStretch | None:
    return next((stretch for stretch in work.stretches if stretch.name == "epochs"), None) if work else None


def _counts(work: WorkDone) -> Iterator[str]:
    """Yield which sums over the measured epochs differ from the counts of each."""
    measured_work = _measured_work(work)
    if measured_work is None:
        return
    pairs = zip(measured_work.updates, measured_work.skipped_updates, strict=True)
    updates = _a_step(
        [None if updates is None else updates + skipped_count for updates, skipped_count in pairs], measured_work.steps
    )
    sums: Sequence[tuple[str, float | None, float | None]] = (
        ("updates_per_step", work.updates_per_step, updates),
        ("samples_per_step", work.samples_per_step, _a_step(measured_work.samples, measured_work.steps)),
        ("batches_drawn", work.batches_drawn, measured_work.batches_drawn),
        ("skipped_updates", work.skipped_updates, sum(measured_work.skipped_updates)),
    )
    for name, stated_value, value in sums:
        if not _equal(stated_value, value):
            yield f"work.{name} is {stated_value}, but the counts of its epochs give {value}"
    if (work.changed_variables or 0) > (work.trainable_variables or 0):
        yield f"{work.changed_variables} of {work.trainable_variables} trainable weights changed"


def _a_step(counts: Sequence[int | None], steps: int) -> float | None:
    known_counts = [count for count in counts if count is not None]
    return (
        sum(known_counts) / (len(known_counts) * steps) if known_counts and len(known_counts) == len(counts) else None
    )


def _own_loop(generation: Generation) -> Iterator[str]:
    """Yield which parts of a language model's figures are larger than their wholes."""
    for part_name, whole_name in (
        ("own_prefill_time_s", "own_time_to_first_token_s"),
        ("own_token_time_p50_s", "own_token_time_p99_s"),
        ("read_weight_bytes", "weight_bytes"),
        ("prompt_length", "max_length"),
    ):
        smaller, larger = getattr(generation, part_name), getattr(generation, whole_name)
        if smaller is not None and larger is not None and smaller > larger * (1 + TOLERANCE):
            yield f"generation.{part_name} is {smaller:.6g}, more than {whole_name}, {larger:.6g}"
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
    for name, stated_value, value in expected:
        if stated_value != value:
            yield f"parallel.{name} is {stated_value}, but its problem gives {value}"
