"""Judges evidence of a cell's process: the work that it did, where its time ran out, and whether it lost its GPU.

Decides from its counts whether a process did the requested work. Pure.

    mismatch    less or different work was done than requested, so the figures do not apply (`work_mismatch`)
    caveat      weights changed and batches were drawn, but some of the work could not be counted

Code that rewrites the counters on purpose is not detected (docs/work.md).

A report by NVML always counts. The output of a cell counts only after the cell has failed, and only to distinguish a
broken GPU (a further attempt may succeed) from an error of the cell: it never turns a failure into a success.
The texts are those of CUDA (cudaErrorECCUncorrectable, cudaErrorDevicesUnavailable; driver_types.h, cuda.h) and of
NVIDIA's kernel module, whose errors are called Xid. "Unspecified launch failure" (cudaErrorLaunchFailure) is not among
them: "common causes include dereferencing an invalid device pointer and accessing out of bounds shared memory", which
are errors in a kernel. cudaErrorDevicesUnavailable is what CUDA returns "due to use of cudaComputeModeProhibited,
cudaComputeModeExclusiveProcess, or when long running CUDA kernels have filled up the GPU".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from keras_matrix.records.epoch_figures import parts_problem
from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.parts import is_part
from keras_matrix.records.schema import CellResult, Record, Resolved, Status
from keras_matrix.records.settings import FIT, KERAS_CALLS, Settings, call_kind
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome

NAMES = {
    "first_step": "the first step",
    "calibration": "the calibration of steps per epoch",
    "lead_in": "the steps before each epoch",
    "epochs": "the epochs",
    "short_epochs": "the epochs of the second length",
}
# What makes the epochs of a program's call shorter, by its kind.
FEWER_STEPS = {
    FIT: ", or end its epochs after fewer steps (--most-steps, most_steps in a matrix)",
    "steps": ", or fewer steps_per_epoch if its source has no end",
    "step": ", or fewer steps_per_epoch",
}
GPU_LOST = "GPU lost"
# A GPU that was lost twice in a row stays lost until somebody resets it: each further cell would only fail, too.
MOST_LOST = 2
ADVICE = "look for Xid in the kernel's log (dmesg), reset the GPU (nvidia-smi --gpu-reset) or restart the machine"
MESSAGES = re.compile(
    r"CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC error|\bdevice lost\b|\bGPU is lost\b|fallen off the bus|\bXid\b",
    re.IGNORECASE,
)
BUSY = re.compile(
    r"CUDA_ERROR_DEVICE_UNAVAILABLE|CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
    re.IGNORECASE,
)


def impossible(work: WorkDone, result: CellResult) -> str | None:
    """Return why the work of a result, or the parts of its epochs, cannot be those of the runner's own counters."""
    steps = result.resolved.steps_per_epoch if result.resolved else 1
    return malformed(work) or parts_problem(result.times, steps)


def malformed(work: WorkDone) -> str | None:
    """Return why counts cannot be those of the runner's own counters, which a workload can replace, or None."""
    for stretch in work.stretches:
        if stretch.name not in NAMES:
            return f"it counts the work of an unknown call, {stretch.name[:40]!r}"
        if stretch.steps < 1 or stretch.epochs < 0 or any((count or 0) < 0 for count in _counts(stretch)):
            return f"it counts less than nothing in {NAMES[stretch.name]}"
        if len({len(stretch.updates), len(stretch.samples), len(stretch.skipped_updates)}) > 1:
            return f"it counts different numbers of epochs in {NAMES[stretch.name]}"
    return None


def _counts(stretch: WorkStretch) -> Iterable[int | None]:
    return chain(stretch.updates, stretch.samples, stretch.skipped_updates)


def misplaced(result: CellResult, device: str) -> str | None:
    """Return which part of the model is on a platform other than the requested device, or None."""
    work = result.work
    for part, platforms in (("weights", work.weight_platforms), ("output", work.output_platforms)) if work else ():
        if other_platforms := [name for name in platforms if name != device]:
            elsewhere_text = ", ".join(other_platforms)
            return f"device: {device} was requested, but the workload placed the model's {part} on {elsewhere_text}"
    return None


def mismatch(result: CellResult, settings: Settings) -> str | None:
    """Return how the counted work differs from the requested work, or None."""
    work = result.work
    if work is None:
        return None
    if settings.script:  # the program decides what a step does, and how many samples it has
        return _unchanged(work)
    settings = _with_own_batches(result, settings)
    if settings.phase != FIT:
        return _first(_called(stretch, settings) for stretch in work.stretches)
    if work.optimizer_replaced:
        return "the model has a different optimizer after fit than before: it is not known which one was used"
    problems = (_updates(stretch) or _samples(stretch, settings, work) or _drawn(stretch) for stretch in work.stretches)
    return _first(problems) or _not_received(work, settings) or _unchanged(work)


def samples_proven(result: CellResult, settings: Settings) -> bool:
    """Return whether each step used all samples of its batch: by the counts of the epochs, or by what layers received.

    Predictions are counted by the rows of their outputs; the FC modes count their own work.
    """
    work, settings = result.work, _with_own_batches(result, settings)
    if settings.script:
        return result.resolved is not None and result.resolved.samples is not None
    if work is None or settings.phase != FIT or (not work.own_methods and not _uncounted_samples(work, settings)):
        return True
    if work.received_samples is not None:
        return work.received_samples >= settings.batch_size
    return not _uncounted_samples(work, settings)


def work_caveats(result: CellResult, settings: Settings) -> list[str]:
    """Return caveats about work that could not be counted, or that was counted and is unusual."""
    if result.work is None:
        return []
    work = result.work
    if settings.script:
        return _of_own_program(result, work, settings)
    settings = _with_own_batches(result, settings)
    if settings.phase != FIT:
        methods_text = ", ".join(work.own_methods)
        return (
            [f"work_not_counted: the model overrides {methods_text}: the computation of a call is not known"]
            if methods_text
            else []
        )
    return [*_uncounted(work, settings), *_of_updates(work)]


def _of_updates(work: WorkDone) -> list[str]:
    """Return the caveats about updates and weights of training."""
    caveats = []
    if (work.updates_per_step or 1) != 1 and not work.optimizer_replaced:
        caveats.append(f"updates_per_step: the optimizer made {work.updates_per_step:g} updates per step")
    if work.skipped_updates:
        steps = sum(stretch.steps * stretch.epochs for stretch in work.stretches if stretch.name == "epochs")
        caveats.append(
            f"loss_scaling: {work.skipped_updates} of {steps} steps had non-finite gradients and made no update, as "
            "loss scaling does; check the loss, or use mixed_bfloat16"
        )
    if work.changed_variables and work.changed_variables < (work.trainable_variables or 0):
        caveats.append(
            f"weights_unchanged: only {work.changed_variables} of {work.trainable_variables} trainable weights changed "
            "in the epochs; check whether the others should be frozen"
        )
    elif work.changed_variables == 0 and not work.skipped_updates:
        caveats.append(
            "weights_unchanged: no weight changed, because the updates are below the weights' precision (a higher "
            "learning rate does change them); raise the learning rate or the precision"
        )
    return caveats


def _of_own_program(result: CellResult, work: WorkDone, settings: Settings) -> list[str]:
    """Return the caveats about the work of a program's own call."""
    if result.resolved is None:
        return []
    call_text = result.resolved.call or ""
    kind = call_text.partition(" ")[0]
    caveats = _of_updates(work) if settings.phase == FIT else []
    if work.optimizer_replaced:
        caveats.append(
            "work_not_counted: the model has a different optimizer after fit than before, which is not counted"
        )
    if work.own_methods and settings.phase != FIT and kind != "evaluate":
        methods_text = ", ".join(work.own_methods)
        caveats.append(f"work_not_counted: the model overrides {methods_text}: the computation of a call is not known")
    if result.resolved.samples is not None:
        return caveats
    if settings.phase == FIT and not work.changed_variables:
        return [
            *caveats,
            f"work_not_counted: {call_text}: it is not known whether it trains, since no weight of a Keras "
            "model is seen to change: samples/s is not stated, and nothing is compared; on JAX, assign the trained "
            "values to the model's variables at the end of each pass",
        ]
    is_loop = kind in ("steps", "step")
    reason = "a loop of the program's own" if is_loop else "its step does not count them in Keras's loss metric"
    return [*caveats, f"samples_not_counted: samples/s is not stated: {call_text}: {reason}"]


def option_caveats(resolved: Resolved | None, settings: Settings) -> list[str]:
    """Return the options that a user's workload set instead of the matrix."""
    if resolved is None:
        return []
    caveats = []
    if resolved.own_compile_options and settings.call in KERAS_CALLS:
        keys = {"run_eagerly": "eager", "jit_compile": "jit"}
        names = [option.partition("=")[0] for option in resolved.own_compile_options]
        keys_text = ", ".join(keys.get(name, name) for name in names)
        caveats.append(
            f"own_options: the workload compiled its model with {', '.join(resolved.own_compile_options)}, which was "
            f"used; set {keys_text} in the matrix to override it"
        )
    caveats += [*_changed_in_training(resolved, settings), *_of_the_process(resolved), *_own_types(resolved, settings)]
    if resolved.batch_size not in (None, settings.batch_size) and not settings.script:
        caveats.append(
            f"own_options: the workload's source has batches of {resolved.batch_size}, which were used, instead of "
            f"batch_size {settings.batch_size}; set batch_size: {resolved.batch_size} in the matrix"
        )
    available = resolved.available_samples
    if available is not None and not settings.leaves("samples") and available < settings.samples:
        caveats.append(
            f"samples_repeated: samples is {settings.samples}, but the workload has {available}, which were repeated"
        )
    return caveats


def _with_own_batches(result: CellResult, settings: Settings) -> Settings:
    """Return the settings with the batch size of the workload's own source or call of `fit`, if it has one."""
    is_own = result.input is not None or ":" in settings.workload
    batch_size = result.resolved.batch_size if result.resolved and is_own else None
    return settings if batch_size is None else replace(settings, batch_size=batch_size)


def _changed_in_training(resolved: Resolved, settings: Settings) -> list[str]:
    """Return the options that the workload changed during training after the matrix or `compile` had set them."""
    if settings.call not in KERAS_CALLS:
        return []
    caveats = []
    for key, option in (("eager", "run_eagerly"), ("steps_per_execution", "steps_per_execution")):
        requested, ran = getattr(settings, key), getattr(resolved, key)
        if ran in (None, requested) or any(
            own_option.startswith(f"{option}=") for own_option in resolved.own_compile_options
        ):
            continue
        caveats.append(
            f"own_options: {key} was {requested} before training and {ran} after it: the workload sets {option} during "
            "training; remove that code"
        )
    return caveats


# The keys of a matrix that set an option of the process.
KEYS = {"dtype_policy": "precision", "floatx": "precision", "keras.utils.set_random_seed": "seed"}
KEYS |= {"jax_enable_x64": "precision", "torch.num_threads": "threads", "tf.config.threading intra_op": "threads"}


def _of_the_process(resolved: Resolved) -> list[str]:
    """Return the options of the entire process that the workload changed."""
    if not resolved.own_process_options:
        return []
    names = [option.partition("=")[0] for option in resolved.own_process_options]
    keys_text = ", ".join(dict.fromkeys(KEYS[name] for name in names if name in KEYS))
    return [
        f"own_options: the workload changed {', '.join(resolved.own_process_options)} for its entire process, which "
        f"was used; remove that code{f', and set {keys_text} in the matrix' if keys_text else ''}"
    ]


def _own_types(resolved: Resolved, settings: Settings) -> list[str]:
    """Return the types that a user's layers chose for themselves, and those in which their weights are stored."""
    other_policies = [policy for policy in resolved.layer_policies if policy != settings.precision]
    if not other_policies or ":" not in settings.workload:
        return []
    return [
        f"own_options: layers of the workload have the dtype policy {', '.join(other_policies)}, though precision is "
        f"{settings.precision}: it was used, with weights stored as {', '.join(resolved.weight_dtypes)}; set precision "
        "in the matrix, and leave dtype out of the layers"
    ]


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _called(stretch: WorkStretch, settings: Settings) -> str | None:
    if is_part(settings.workload):  # an operation returns any shape: its outputs are compared with those of model(x)
        return None
    expected = stretch.steps * settings.batch_size
    for epoch, row_count in enumerate(stretch.samples, start=1):
        if not row_count or row_count % expected:  # several rows per sample: one for each box or time step
            return (
                f"{NAMES[stretch.name]}: {stretch.steps} {settings.phase} calls on {settings.batch_size} samples each "
                f"returned {row_count} rows in epoch {epoch}, not {expected}"
            )
    return None


def _updates(stretch: WorkStretch) -> str | None:
    if not any(stretch.updates) and not stretch.updates_outside:
        return None
    for epoch, (updates, skipped_count) in enumerate(
        zip(stretch.updates, stretch.skipped_updates, strict=True), start=1
    ):
        update_count = (updates or 0) + skipped_count
        if update_count < stretch.steps or update_count % stretch.steps:
            counts_text = f"the optimizer counted {updates} of {stretch.steps} updates in epoch {epoch}"
            outside_text = (
                f", and {stretch.updates_outside} outside the timed epochs" if stretch.updates_outside else ""
            )
            return f"{NAMES[stretch.name]}: {counts_text}{outside_text}"
    return None


def _samples(stretch: WorkStretch, settings: Settings, work: WorkDone) -> str | None:
    unweighted = stretch.steps if work.own_methods else None  # a loss metric updated once per step, without a weight
    expected = stretch.steps * settings.batch_size
    for epoch, sample_count in enumerate(stretch.samples, start=1):
        if sample_count in (None, 0, unweighted):
            continue
        if sample_count < expected or sample_count % expected:
            return (
                f"{NAMES[stretch.name]}: the loss was taken over {sample_count} samples in epoch {epoch}, not over "
                f"{expected} ({stretch.steps} steps of {settings.batch_size})"
            )
    return None


def _drawn(stretch: WorkStretch) -> str | None:
    batches_drawn, expected = stretch.batches_drawn, stretch.steps * stretch.epochs
    if batches_drawn is None:
        return None
    if batches_drawn < expected:
        return f"{NAMES[stretch.name]}: {batches_drawn} of {expected} batches were drawn from the feed"
    if stretch.lookahead is not None and batches_drawn > expected + stretch.lookahead:
        return f"{NAMES[stretch.name]}: {batches_drawn} batches were drawn from the feed, not {expected}"
    return None


def _not_received(work: WorkDone, settings: Settings) -> str | None:
    if work.received_samples is None or work.received_samples >= settings.batch_size:
        return None
    methods_text = ", ".join(work.own_methods)
    return (
        f"the layers of the model received {work.received_samples} of the {settings.batch_size} samples of a step (the "
        f"model overrides {methods_text}): pass it every sample of the batch"
    )


def _unchanged(work: WorkDone) -> str | None:
    if work.trainable_variables == 0:
        return "the model has no trainable weight; set phase: predict"
    if work.changed_variables or work.changed_variables is None:
        return None
    updated = work.updates_per_step and (work.optimizer_state_changed or work.changed_at_high_rate)
    if updated or work.skipped_updates:
        return None
    return f"0 of {work.trainable_variables} trainable weights changed in the epochs: the model was not trained"


def _uncounted(work: WorkDone, settings: Settings) -> list[str]:
    methods_text = f" (the model overrides {', '.join(work.own_methods)})" if work.own_methods else ""
    reasons = []
    if not work.updates_per_step and not work.skipped_updates:
        reasons.append(f"weights changed, but the optimizer counted no update{methods_text}")
    if work.received_samples is None and _uncounted_samples(work, settings):
        reasons.append(
            f"the samples of a step are not in Keras's loss metric{methods_text}, and it is not known which its layers "
            "receive: samples/s is not stated, and nothing is compared; call self._loss_tracker.update_state(loss, "
            "sample_weight=batch_size) in that step"
        )
    return [f"work_not_counted: {reason}" for reason in reasons]


def _uncounted_samples(work: WorkDone, settings: Settings) -> bool:
    """Return whether Keras's loss metric has not the samples of the epochs: none, or one for each step."""
    measured_stretches = [stretch for stretch in work.stretches if stretch.name == "epochs"]
    counts = [sample_count for stretch in measured_stretches for sample_count in stretch.samples]
    return not any(counts) or (bool(work.own_methods) and work.samples_per_step == 1 < settings.batch_size)


def too_late(outcome: Outcome, job: Job | None) -> str:
    """Return the reason of a process that its time limit ended; of a program with where it was, and the ways out."""
    limit_text = "" if outcome.limit_s is None else f" of {outcome.limit_s:g} s"
    text = f"the time limit{limit_text} passed (timeout_s)"
    if job is None or not job.settings.script:
        return f"{text}; the process was ended"
    settings, begun = job.settings, len(outcome.watched or ())
    in_epoch = f"in measured epoch {begun} of {settings.epochs - settings.discard}"
    place_text = in_epoch if begun else "before the first measured epoch"
    fewer_text = FEWER_STEPS.get(call_kind(settings.params.get("call", FIT)), "")
    return f"{text} {place_text}; the process was ended; set a larger timeout_s{fewer_text}"


def lost_gpu(job: Job, outcome: Outcome, result: CellResult | None = None) -> str | None:
    """Return how a GPU of this attempt was lost and what to do, or None."""
    if job.settings.device != "gpu":
        return None
    if reported := reported_lost(outcome):
        return reported
    printed = _printed(MESSAGES, outcome, result)
    return f'{GPU_LOST}: the cell failed and its output says "{printed}"; {ADVICE}' if printed else None


def busy_gpu(job: Job, outcome: Outcome, result: CellResult | None = None) -> str | None:
    """Return that another process used the GPU exclusively and what to do, or None."""
    printed = _printed(BUSY, outcome, result) if job.settings.device == "gpu" else None
    if printed is None:
        return None
    return (
        f'GPU busy: another process uses it exclusively (the output says "{printed}"); stop it, or end the exclusive '
        "mode: nvidia-smi -c DEFAULT"
    )


def _printed(pattern: re.Pattern[str], outcome: Outcome, result: CellResult | None) -> str | None:
    """Return the match in the message or output of a failed cell, or None."""
    has_raised = result is not None and result.exception is not None
    if outcome.exit_code == 0 and not has_raised:
        return None
    message = (result.message or "") if result is not None else ""
    match = pattern.search(message) or pattern.search(outcome.output_tail)
    return match.group() if match else None


def reported_lost(outcome: Outcome) -> str | None:
    """Return NVML's report of a lost GPU and what to do, or None."""
    return f"{GPU_LOST}: NVML says {outcome.gpu_lost}; {ADVICE}" if outcome.gpu_lost is not None else None


class LostGpus:
    """Counts the attempts in a row that lost their GPU: after `MOST_LOST` no cell is started on a GPU any more."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def ended(self, record: Record) -> None:
        """Count an attempt that has ended; one that was not started changes nothing."""
        if record.settings.device == "gpu" and not self._is_over:
            is_lost = record.status is Status.INFRA and (record.reason or "").startswith(GPU_LOST)
            self._in_a_row = self._in_a_row + 1 if is_lost else 0

    def why_not(self, settings: Settings) -> str | None:
        """Return why no cell with these settings is started, or None."""
        if settings.device != "gpu" or not self._is_over:
            return None
        return (
            f"gpu_lost: not started, as {MOST_LOST} attempts in a row lost their GPU; {ADVICE}, and repeat the command"
        )

    @property
    def _is_over(self) -> bool:
        return self._in_a_row >= MOST_LOST
