"""One cell, inside its process: configure, prove the device, build, train or predict, and return the result."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from keras_matrix.models.injected_faults import Circumstances, plant
from keras_matrix.models.keras_parts import load_part
from keras_matrix.models.registry import load
from keras_matrix.models.workload import Built
from keras_matrix.records.fc.communication import WATCHED_EPOCH_S, WATCHED_EPOCHS
from keras_matrix.records.host import inherited_environment
from keras_matrix.records.instruments.input_use import BAD_SAMPLES_DIR
from keras_matrix.records.instruments.stall_arms import ArmName, arm_of
from keras_matrix.records.instruments.work_done import WorkDone
from keras_matrix.records.parts import is_part
from keras_matrix.records.schema import CellResult, DeviceProof, Times
from keras_matrix.records.settings import CALLED, EXPORTED, FIT, GENERATE, GRADIENT, KERAS, PIPELINE, PREDICT, Settings
from keras_matrix.runner.cell import backends, memory
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch, inputs_of, make_batches
from keras_matrix.runner.cell.checks.devices import prove, refuse_devices, refuse_several_machines, reserving
from keras_matrix.runner.cell.checks.remat import check_remat, rematerialised
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.generation import Generating, check_generates, generation
from keras_matrix.runner.cell.implementations import NativeGenerating, StepTraining
from keras_matrix.runner.cell.job import Job, in_a_line, keep_tuning, publish_figures, result_of, write_result
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.measured_epochs import (
    Allocated,
    Compiling,
    MeasuredEpochs,
    Turns,
    leave_copies,
    used_memory,
    with_compilations,
    with_start,
)
from keras_matrix.runner.cell.options import (
    applied,
    changed_options,
    check_backend,
    configure_keras,
    found_versions,
    job_as_resolved,
    process_options,
    request_of,
    resolved_of_model,
    seed_all,
)
from keras_matrix.runner.cell.phases import CalledTraining, Training, call_notes, check_call
from keras_matrix.runner.cell.piped.training import PipedTraining, input_use
from keras_matrix.runner.cell.piped.training import check as check_input
from keras_matrix.runner.cell.predicting import Gradients, Predicting
from keras_matrix.runner.cell.replicated.groups import check_resolved, check_workload, group_of
from keras_matrix.runner.cell.replicated.interface import DeviceGroup
from keras_matrix.runner.cell.work import own_methods, platforms_of, work_done

if TYPE_CHECKING:
    from keras_matrix.runner.cell.tracing import TraceSubject

Parts = tuple[Callable[[], str] | None, Callable[[int], None] | None]
SAVING = "the process ended while it saved the model"
TIMING = "the process ended while it timed its collectives"
COMPARING = "the process ended while it compared its outputs with those of model(x)"
SEEING = "the process ended in the step that shows which samples its layers receive"
# A step without compilation takes several times as long.
LONGEST_STEP_S = 10.0
WORDS_CHARACTERS = 500


def measure(job: Job, import_time_s: float, start: str) -> CellResult:
    """Do the job and return its result.

    Raises any error of the workload, `Unsupported`, or `DeviceMismatch` before anything is timed.
    """
    settings = job.settings
    refuse_several_machines(settings)
    refuse_devices(settings)
    cuda_cache = inherited_environment.cuda_cache_state(os.environ)
    adapter = backends.load(settings.backend)
    adapter.configure(settings, job.compile_cache_dir)
    adapter.group = group = group_of(settings)
    try:
        with reserving(settings):
            group.reserve(job)
        return _measured(job, adapter, (import_time_s, start, cuda_cache))
    finally:
        group.close()


def _measured(job: Job, adapter: BackendAdapter, begin: tuple[float, str, str | None]) -> CellResult:
    """Do the job in the configured backend; `begin` are the seconds of its import, the start method, and the cache."""
    settings, group, (import_time_s, start, cuda_cache) = job.settings, adapter.group, begin
    configure_keras(settings)
    seed_all(adapter, settings.seed)
    device = prove(adapter, settings)
    options = process_options(adapter)
    begun_s = monotonic()
    workload, overridden = _built(job, adapter)
    applied_settings, own_options = applied(workload, settings)
    job = job_as_resolved(job, applied_settings)
    _check(job.settings, workload, adapter)
    group.prepare(workload.model)
    first_batches = make_batches(workload, job.settings, job.settings.steps_per_execution)
    build_time_s = monotonic() - begun_s
    if job.settings.call in EXPORTED:
        return exported(job, workload, adapter, (build_time_s, start, device))
    if job.counting:
        return counts_alone(job, workload, adapter, first_batches)
    measured_epochs = MeasuredEpochs(Turns(job), Compiling(adapter), Allocated(adapter))
    work = _work_of(job.settings, workload)(workload, adapter, job, measured_epochs)
    times, learning, steps = work.run(first_batches)
    events = adapter.compile_events()
    times = with_start(times, import_time_s, build_time_s, events)
    keep_tuning(job)
    replicas = group.replicas(workload.model, first_batches[0])
    resolved = replace(
        with_compilations(resolved_of_model(job, workload, adapter, (start, steps)), events, measured_epochs.compiling),
        cuda_cache=cuda_cache,
        available_samples=workload.available_samples,
        own_compile_options=own_options,
        own_process_options=changed_options(options, process_options(adapter), settings.seed),
    )
    result = replace(
        result_of(job),
        device=device,
        times=times,
        resolved=replace(resolved, **work_done(job, workload, first_batches[0])),
        learning=learning,
        memory=used_memory(measured_epochs.allocated),
        versions=found_versions(adapter),
        work=counted(work, adapter, overridden, first_batches[0]),
        input=input_use(workload.pipeline, job, work),
        data_notes=[*(workload.pipeline.notes if workload.pipeline else ()), *call_notes(workload.call, overridden)],
        program_notes=[*work.ledger.notes, *adapter.notes()],
        replicas=replicas,
        generation=generation(job, workload, adapter, first_batches[0]),
    )
    result = with_further_steps(job, group, work, (saved(job, workload, result), first_batches[0]))
    parts = work.model.to_json, partial(_marked_steps, work, job.settings.backend)
    return finished(job, result, parts, partial(_traced_workload, work, job.settings))


def _check(settings: Settings, workload: Built, adapter: BackendAdapter) -> None:
    """Raise `Unsupported` or ValueError for a workload that cannot be measured with its resolved settings."""
    adapter.check(settings)
    check_input(workload, settings)
    check_resolved(settings, workload.model)
    if settings.phase == GENERATE:
        check_generates(workload, settings, adapter)


def exported(job: Job, workload: Built, adapter: BackendAdapter, begin: tuple[float, str, DeviceProof]) -> CellResult:
    """Export the model, and return what is known of the cell until its file was measured, in another process.

    `begin` are the seconds of building the model, the start method and the exporter's device. Raises `Unsupported`.
    """
    from keras_matrix.runner.cell.exporting import export

    build_time_s, start, device = begin
    resolved = resolved_of_model(job, workload, adapter, (start, 1))
    result = replace(
        result_of(job),
        device=device,
        times=Times(build_time_s=build_time_s),
        resolved=replace(resolved, available_samples=workload.available_samples),
        versions=found_versions(adapter),
        data_notes=[*(workload.pipeline.notes if workload.pipeline else ())],
    )
    export(job, workload, adapter, result)
    return result


def counts_alone(job: Job, workload: Built, adapter: BackendAdapter, first_batches: Sequence[Batch]) -> CellResult:
    """Return a result with the counts of a step, and nothing else: the process is watched, which takes time."""
    from keras_matrix.runner.cell.checks.counting import counted_steps

    make_work = partial(_work_of(job.settings, workload), workload, adapter, job)
    return replace(result_of(job), counts=counted_steps(adapter, make_work, first_batches))


def _built(job: Job, adapter: BackendAdapter) -> tuple[Built, list[str]]:
    """Return the workload, built for the devices, and the methods that it overrides. Raises `Unsupported`."""
    pid, group = os.getpid(), adapter.group
    with group.building():
        workload = load_workload(job, memory.free_bytes(job.settings, adapter))
    check_backend(job.settings.backend)
    leave_copies(pid)
    overridden = own_methods(workload.model, job.settings.phase)
    check_trains(workload.model, job.settings.phase, overridden)
    check_remat(workload.model, job.settings)
    check_workload(job.settings, group, overridden)
    return planted(workload, job), overridden


def _work_of(settings: Settings, workload: Built) -> type[Training | Predicting]:
    if settings.phase == GENERATE:
        return Generating if settings.implementation == KERAS else NativeGenerating
    if settings.phase == PREDICT:
        return Predicting
    if settings.phase == GRADIENT:
        return Gradients
    if settings.implementation != KERAS:
        return StepTraining
    if workload.call is not None:
        check_call(settings)
        return CalledTraining
    return PipedTraining if settings.feed == PIPELINE else Training


def counted(work: Training | Predicting, adapter: BackendAdapter, overridden: list[str], batch: Batch) -> WorkDone:
    """Return the work that the process did, with the current weights and the model's platforms."""
    work.finish()
    platforms = platforms_of(adapter, work.model, inputs_of(adapter.resident(batch)))
    return work.ledger.work_done(work.model, overridden, platforms)


def saved(job: Job, workload: Built, result: CellResult) -> CellResult:
    """Publish the figures, then save the trained model if the workload does so; return the result.

    A model that cannot be saved is a warning: it costs no figure, even if saving ends the process. Of the arms of a
    stall analysis only the warm one saves, which is a usual cell: the others would overwrite its model with theirs.
    """
    if workload.finish is None or arm_of(job.settings) is not ArmName.WARM:
        return result
    write_result(job, replace(result, unsaved=SAVING))
    try:
        workload.finish()
    except Exception as error:  # noqa: BLE001 - any error of a workload: the measurement is valid without its model
        traceback.print_exc()
        return replace(result, unsaved=in_a_line(error)[:WORDS_CHARACTERS])
    return result


def with_further_steps(
    job: Job, group: DeviceGroup, work: Training | Predicting, result_and_batch: tuple[CellResult, Batch]
) -> CellResult:
    """Return the result with what needs further steps: they come after everything timed, and may spoil the model."""
    result, batch = result_and_batch
    result = tried_at_high_rate(work, result)
    result = with_received_samples(job, work, result, batch)
    result = with_communication(job, group, work, result)
    result = with_outputs(job, work, result)
    return with_deviation(work, result)


def tried_at_high_rate(work: Training | Predicting, result: CellResult) -> CellResult:
    """Return the result with whether a step at a high learning rate changes a weight, if no epoch did."""
    work.try_high_rate()
    if result.work is None:
        return result
    return replace(result, work=replace(result.work, changed_at_high_rate=work.ledger.changed_at_high_rate))


def with_received_samples(job: Job, work: Training | Predicting, result: CellResult, batch: Batch) -> CellResult:
    """Return the result with the samples that the layers of a model with methods of its own receive in a step.

    The figures are published before: that step is not compiled, and may need more memory and time.
    """
    counted_work = result.work
    if (
        counted_work is None
        or job.settings.phase != FIT
        or (counted_work.samples_per_step and not counted_work.own_methods)
    ):
        return result
    if (result.times.step_time_s or 0.0) > LONGEST_STEP_S:
        return result
    write_result(job, replace(result, samples_unseen=SEEING))
    return replace(result, work=replace(counted_work, received_samples=work.received_samples(batch)))


def with_communication(job: Job, group: DeviceGroup, work: Training | Predicting, result: CellResult) -> CellResult:
    """Return the result with the time of the collectives between devices, in further epochs as short as measured.

    The figures are published before, as a profiler may end the process; why collectives are not timed is a warning.
    """
    if result.replicas is None or result.resolved is None:
        return result
    write_result(job, replace(result, collectives_not_timed=TIMING))
    chunk, long_enough = work.steps_a_call, int(WATCHED_EPOCH_S / (result.times.step_time_s or WATCHED_EPOCH_S))
    steps = max(1, min(long_enough, result.resolved.steps_per_epoch) // chunk) * chunk

    def run(count: int) -> None:
        work.again(Stretch(count, 1))

    try:
        communication = group.communication(run, steps, WATCHED_EPOCHS)
    except Exception as error:  # noqa: BLE001 - of a profiler or a replica: the measurement is valid without it
        traceback.print_exc()
        return replace(result, collectives_not_timed=in_a_line(error)[:WORDS_CHARACTERS])
    return replace(result, replicas=replace(result.replicas, communication=communication))


def with_outputs(job: Job, work: Training | Predicting, result: CellResult) -> CellResult:
    """Return the result of a cell that predicts with how far its outputs are from those of `model(x)`.

    The figures are published before: `model(x)` runs one operation after the other, and may need more memory and time.
    """
    if job.settings.phase not in CALLED or isinstance(work, Training) or result.resolved is None:
        return result
    if (result.times.step_time_s or 0.0) > LONGEST_STEP_S:
        return result
    write_result(job, replace(result, outputs_unseen=COMPARING))
    deviation, problem = work.outputs()
    return replace(result, resolved=replace(result.resolved, outputs_deviation=deviation, outputs_problem=problem))


def with_deviation(work: Training | Predicting, result: CellResult) -> CellResult:
    """Return the result with how far its losses or tokens are from Keras's. Raises `WorkMismatch` if they are too far.

    It comes last, since a model is trained from its first weights again.
    """
    deviation = work.deviation()
    if deviation is None or result.resolved is None:
        return result
    return replace(result, resolved=replace(result.resolved, implementation_deviation=deviation))


def check_trains(model: Any, phase: str, overridden: list[str]) -> None:
    """Raise ValueError for a model that cannot be trained as Keras trains it."""
    if phase == GRADIENT and overridden:
        raise Unsupported(
            "phase: gradient: the model has a train_step of its own, whose gradients are not known; set phase: fit"
        )
    if phase == GRADIENT and model.built and not model.trainable_weights:
        raise ValueError("phase: gradient: the model has no trainable weight, and so no gradient; set phase: predict")
    if phase == GRADIENT and not model.compiled:
        raise ValueError("phase: gradient: the model is not compiled, so that it has no loss; compile it with one")
    if phase == FIT and model.optimizer is None and not overridden:
        raise ValueError(
            "optimizer: the model is compiled without one, so that fit cannot train it; compile it with an optimizer, "
            "or set phase: predict"
        )


def finished(job: Job, result: CellResult, parts: Parts, trace_subject: Callable[[], TraceSubject]) -> CellResult:
    """Publish the figures, then write the files for TensorBoard and trace, if requested; return the result.

    `parts` describe the model and run a number of steps, for `runner.cell.tensorboard`.
    """
    publish_figures(job, result)
    if job.board:
        from keras_matrix.runner.cell.tensorboard import write

        write(job, *parts)
    if job.trace is None:
        return result
    from keras_matrix.runner.cell.tracing import with_trace

    return with_trace(job, job.trace, result, trace_subject())


def _marked_steps(work: Training | Predicting, backend: str, calls: int) -> None:
    """Run calls of the backend with its steps marked, for TensorBoard's profile."""
    from keras_matrix.models.profiling import load as load_profiler
    from keras_matrix.runner.cell.tensorboard import StepMarks

    marks = StepMarks(load_profiler(backend))
    work.again(Stretch(calls * work.steps_a_call, 1, callbacks=(marks,)), marks.source)


def _traced_workload(work: Training | Predicting, settings: Settings) -> TraceSubject:
    from keras_matrix.runner.cell.tracing import TracedWorkload

    return TracedWorkload(work, settings)


def build(job: Job) -> Built:
    """Return the job's workload, built, with its compilation settings."""
    workload = planted(load_workload(job), job)
    applied(workload, job.settings)
    return workload


def load_workload(job: Job, free_bytes: int | None = None) -> Built:
    """Return the job's workload as its own code builds it, with so much free memory of the device."""
    os.environ[BAD_SAMPLES_DIR] = job.folder
    with rematerialised(job.settings):
        builder_of = load_part if is_part(job.settings.workload) else load
        return builder_of(job.settings.workload)(replace(request_of(job), free_bytes=free_bytes))


def planted(workload: Built, job: Job) -> Built:
    """Return the workload with the job's injected fault, if any."""
    if job.fault is None:
        return workload
    return plant(workload, job.fault, Circumstances(job.settings, job.repeat, monotonic))
