"""From evidence to status: pure, and the only place where a status is decided.

What a cell prints counts for nothing. A result counts only with the parent's nonce, the right identity, and a process
that ended with 0 of its own accord; once we have signalled a process it can never be ok. Only of what a cell does after
its figures are complete and its result is published, which is to leave a profile and to trace, the end does not count.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.regression.recompiles import compile_warnings
from keras_matrix.analysis.surroundings.disturbance import OTHER_CPU_LIMIT, STALL_LIMIT, STEAL_LIMIT
from keras_matrix.analysis.surroundings.neighbours import busy_text, neighbour_warnings
from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.fc import spec
from keras_matrix.records.host import cpu_list
from keras_matrix.records.host.memory_errors import says_out_of_memory
from keras_matrix.records.schema import SCHEMA_VERSION, CellResult, GpuEpochs, Status, Surroundings
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.lost_gpu import busy_gpu, lost_gpu
from keras_matrix.runner.measure.work_judge import mismatch, misplaced, option_caveats, work_caveats

SECOND_EPOCH_LIMIT = 1.2
SHORT_EPOCH_S = 0.4
# What a busy machine does between an epoch's end and the runner's hearing of it stays below these.
CLOCK_FACTOR = 2.0
CLOCK_SLACK_S = 2.0

DEVICE_OOM_TYPES = ("ResourceExhaustedError", "OutOfMemoryError")
_SHM = (
    "as a rule /dev/shm was too small for its workers; give the container more: --shm-size, or shm_size in compose.yaml"
)
_ADVICE: dict[int, str] = {signal.SIGBUS: f": {_SHM}"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status, its reason in one line, and the rules that fired with their advice."""

    status: Status
    reason: str | None = None
    warnings: tuple[str, ...] = ()


class ResultRefused(ValueError):
    """The cell's result is not one; the message says why."""


def accept(raw: bytes | None, job: Job) -> CellResult:
    """Return the result that `raw` holds, if it is this job's. Raises `ResultRefused`."""
    if raw is None:
        raise ResultRefused("no_result: the process wrote none")
    if len(raw) > RESULT_LIMIT_BYTES:
        raise ResultRefused(f"bad_result: larger than {RESULT_LIMIT_BYTES} bytes")
    try:
        result = decode(CellResult, loads(raw), "result")
    except CodecError as error:
        raise ResultRefused(f"bad_result: {error}") from error
    expected = (SCHEMA_VERSION, job.nonce, job.cell_id, job.repeat, job.attempt)
    received = (result.schema_version, result.nonce, result.cell_id, result.repeat, result.attempt)
    if received != expected:
        raise ResultRefused("bad_result: it is the result of another attempt")
    if problem := _implausible(result, job):
        raise ResultRefused(f"bad_result: {problem}")
    return result


def judge(job: Job, outcome: Outcome, result: CellResult | None, problem: str | None) -> Verdict:
    """Return the verdict on one attempt: `result` as accepted, or the `problem` it was refused for."""
    # Where a process goes on, to leave a profile or to trace, its figures are published, complete, before that.
    complete = job.goes_on and result is not None and result.exception is None
    if ended := not_run(outcome) or gpu_failed(job, outcome, result):
        return ended
    if not complete and (ended := ended_by_force(outcome)):
        return ended
    if result is not None and result.exception is not None:
        return _raised(job, outcome, result)
    if outcome.exit_code != 0 and not complete:
        return Verdict(Status.ERROR, f"exit code {outcome.exit_code}: {problem or 'after a result was written'}")
    if result is None:
        return Verdict(Status.ERROR, problem)
    return _measured(job, outcome, result)


def not_run(outcome: Outcome) -> Verdict | None:
    """Return the verdict on what was not run, None where something was."""
    if outcome.refused:
        return Verdict(Status.UNSUPPORTED, outcome.refused)
    if outcome.missing_device:
        return Verdict(Status.DEVICE_MISMATCH, outcome.missing_device)
    return Verdict(Status.INFRA, outcome.infrastructure) if outcome.infrastructure else None


def gpu_failed(job: Job, outcome: Outcome, result: CellResult | None = None) -> Verdict | None:
    """Return the verdict on an attempt whose GPU was lost or in exclusive use by another process, None if neither."""
    reason = lost_gpu(job, outcome, result) or busy_gpu(job, outcome, result)
    return Verdict(Status.INFRA, reason) if reason else None


def ended_by_force(outcome: Outcome) -> Verdict | None:
    """Return the verdict on what was ended by the clock or a signal, None on what ended of its own accord."""
    if outcome.deadline_exceeded:
        return Verdict(Status.TIMEOUT, "the time limit passed (timeout_s); the process was ended")
    if outcome.signal is None:
        return None
    if outcome.signal == 9 and outcome.oom_kills:
        return Verdict(Status.OOM_HOST, "the kernel ended the process for memory")
    return Verdict(Status.CRASH, f"ended by signal {outcome.signal}{_ADVICE.get(outcome.signal, '')}")


def _raised(job: Job, outcome: Outcome, result: CellResult) -> Verdict:
    kind = (result.exception or "").rpartition(".")[2]
    lines = (result.message or "").strip().splitlines()
    reason = f"{kind}: {lines[0]}" if lines else kind
    if kind in ("Unsupported", "UnsupportedWorkload"):
        return Verdict(Status.UNSUPPORTED, (result.message or kind).strip())
    if kind == "DeviceMismatch":
        return Verdict(Status.DEVICE_MISMATCH, (result.message or kind).strip())
    if kind == "WorkMismatch":
        return Verdict(Status.WORK_MISMATCH, (result.message or kind).strip())
    on_device = job.settings.device != "cpu"
    if on_device and (kind in DEVICE_OOM_TYPES or says_out_of_memory(result.message or "")):
        return Verdict(Status.OOM_DEVICE, reason)
    advice = f"; {_where_to_put_a_module(job, outcome)}" if kind == "WorkloadNotFound" else ""
    return Verdict(Status.ERROR, f"{reason}{advice}")


def _where_to_put_a_module(job: Job, outcome: Outcome) -> str:
    """Return what to do about a user's module that the cell did not find; PYTHONPATH is not among its variables.

    It looked in the folders of its job (where the command runs, and the matrix file's), which a container of its own
    has mounted, and in what is installed for its Python, which in such a container is the image's.
    """
    folders = " or ".join(dict.fromkeys(job.import_roots))
    if outcome.container is not None:
        return f"put it in {folders}, which its container can read; PYTHONPATH and the host's packages do not reach it"
    mounted = "mount it there where the runner itself is in a container"
    return f"put it in {folders}, or install it for the cells' Python; PYTHONPATH does not reach it ({mounted})"


def _measured(job: Job, outcome: Outcome, result: CellResult) -> Verdict:
    if disagreement := _other_clock(outcome, result.times.epoch_times_s):
        return Verdict(Status.ERROR, f"bad_result: {disagreement}")
    if any(loss is None for loss in result.learning.loss):
        epoch = result.learning.loss.index(None) + 1
        return Verdict(Status.DIVERGED, f"the loss was not finite in epoch {epoch}")
    if elsewhere := misplaced(result, job.settings.device):
        return Verdict(Status.DEVICE_MISMATCH, elsewhere)
    if other_work := mismatch(result, job.settings):
        return Verdict(Status.WORK_MISMATCH, other_work)
    unstable = _second_epoch(result)
    warnings = tuple(filter(None, (unstable, *_caveats(job, outcome, result))))
    if unstable:
        return Verdict(Status.UNSTABLE, unstable, warnings)
    return Verdict(Status.OK, None, warnings)


def _other_clock(outcome: Outcome, epoch_times_s: Sequence[float]) -> str | None:
    """Return how a cell's epochs are shorter than what the runner's own clock saw of them, None where they agree.

    The runner sees an epoch from the word to begin it until the cell waits again: a little more than the epoch, and
    after the last one what `fit` does at its end.
    """
    if outcome.watched is None:
        return None
    seen_s = [one.stretch.wall_s for one in outcome.watched]
    if len(seen_s) != len(epoch_times_s):
        return f"it reports {len(epoch_times_s)} kept epochs, of which the runner saw {len(seen_s)}"
    for epoch, (own_s, wall_s) in enumerate(zip(epoch_times_s, seen_s, strict=True), start=1):
        if epoch < len(seen_s) and wall_s > CLOCK_FACTOR * own_s + CLOCK_SLACK_S:
            return f"kept epoch {epoch} took {own_s:.3g} s by its own clock and {wall_s:.3g} s by the runner's"
    return None


def _second_epoch(result: CellResult) -> str | None:
    times = result.times.epoch_times_s
    if len(times) < 2:
        return None
    later = sorted(times[1:])
    median = (later[(len(later) - 1) // 2] + later[len(later) // 2]) / 2
    if times[0] <= SECOND_EPOCH_LIMIT * median:
        return None
    return (
        f"still_warming_up: the first kept epoch took {times[0] / median:.2f} times the median of the later ones; "
        "set discard one higher"
    )


def _caveats(job: Job, outcome: Outcome, result: CellResult) -> list[str]:
    found = [*caveats_around(outcome, result.times.epoch_times_s), *compile_warnings(result.resolved)]
    found += [*work_caveats(result, job.settings), *option_caveats(result.resolved, job.settings)]
    median = result.times.epoch_time_median_s
    if job.settings.steps_per_epoch == "auto" and median is not None and median < SHORT_EPOCH_S:
        found.append(f"short_epoch: an epoch took only {median:.2f} s; set steps_per_epoch to a larger number")
    return found


def caveats_around(outcome: Outcome, epoch_times_s: Sequence[float]) -> list[str]:
    """Return what the machine did meanwhile that makes figures doubtful."""
    found = []
    around = outcome.surroundings
    if outcome.oom_kills and outcome.container is not None:
        found.append(
            "child_oom: the kernel ended a process of the cell's for memory; give the container more (--memory)"
        )
    if (around.steal_share or 0) > STEAL_LIMIT:
        found.append(f"steal: the hypervisor took {around.steal_share:.1%} of the CPU time; measure again later")
    if (around.other_cpu_share or 0) > OTHER_CPU_LIMIT:
        found.append(busy_text(around))
    found += neighbour_warnings(around)
    if (held_back := _gpu_throttled_share(around, epoch_times_s)) > STALL_LIMIT:
        told = f"heat or power held the GPU's clock back {held_back:.1%} of the time"
        found.append(f"gpu_throttled: {told}; cool it, raise its power limit, or set clocks to locked")
    return [*found, *_gpu_caveats(around, outcome.warnings)]


def _gpu_caveats(around: Surroundings, preflight: Sequence[str]) -> Iterator[str]:
    """Yield why figures of the GPUs are missing, or are not the cell's alone, except what the preflight warned of."""
    without_nvml = [one for one in preflight if one.startswith("nvml_unavailable:")]
    each = [one for one in (around.gpu_unread or "").split("; ") if one]
    unread = [one for one in each if not any(f": {one.partition(': ')[2]};" in known for known in without_nvml)]
    if unread:
        yield (
            f"gpu_unread: power, memory or throttling is missing: {'; '.join(unread)}; run as a user who may read "
            "NVML, in a container with NVIDIA_DRIVER_CAPABILITIES=utility,compute"
        )
    if any(gpu.mig for gpu in _gpus(around)) and not any(one.startswith("gpu_mig:") for one in preflight):
        yield (
            "gpu_mig: the cell ran on a MIG device: power, energy, clocks and temperature are the whole card's, so "
            "that other users of the card are included; measure on a card with MIG off to get its own"
        )


def _gpus(around: Surroundings) -> list[GpuEpochs]:
    return [*([around.gpu] if around.gpu else []), *around.further_gpus]


def _gpu_throttled_share(around: Surroundings, epoch_times_s: Sequence[float]) -> float:
    """Return the share of the measured epochs in which a GPU was held back, by its longest cause; 0 if not known."""
    wall_s = sum(epoch_times_s)
    if wall_s <= 0:
        return 0.0
    causes = [
        times_s for gpu in _gpus(around) for times_s in (gpu.thermal_throttled_times_s, gpu.power_throttled_times_s)
    ]
    return max((sum(one or 0.0 for one in times_s) for times_s in causes), default=0.0) / wall_s


def _elsewhere(asked: int | str, affinity: str | None) -> str | None:
    """Return what is wrong with the CPUs a cell says it ran on, given those that it was to be held to."""
    held = len(cpu_list.parse(affinity or "") or ()) if isinstance(asked, int) else affinity
    return None if asked in ("all", held) else f"it ran on CPUs {affinity}, though cpus is {asked}"


def _implausible(result: CellResult, job: Job) -> str | None:
    """Return what cannot be in a completed result: missing parts, or durations that no clock gives."""
    if result.exception is not None:
        return None
    if result.device is None:
        return "it proves no device"
    if result.device.platform != job.settings.device:
        return f"it was measured on {result.device.platform}, not on {job.settings.device}"
    if result.resolved is None:
        return "it does not say what the settings became"
    if problem := _elsewhere(job.settings.cpus, result.resolved.affinity):
        return problem
    if len(result.times.epoch_times_s) != job.settings.epochs - job.settings.discard:
        return (
            f"it holds {len(result.times.epoch_times_s)} kept epochs, not {job.settings.epochs - job.settings.discard}"
        )
    if any(seconds <= 0 for seconds in result.times.epoch_times_s):
        return "an epoch took no time"
    if result.work is None and not spec.is_native(job.settings):
        return "it does not say what work was done"
    return _unproved_layout(result, job)


def _unproved_layout(result: CellResult, job: Job) -> str | None:
    """Return how a cell of the FC modes was not divided among workers as it says; a backend may do that silently."""
    if not spec.is_native(job.settings):
        return None
    if result.parallel is None:
        return "it proves no layout"
    return spec.layout_problem(spec.problem_of(job.settings), result.parallel)
