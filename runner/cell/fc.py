"""One cell of the FC modes, inside its process: assembles its workers, proves their layout, times their steps.

As in `runner.cell.measure`, timing begins and ends with every worker's device idle. If workers are processes, this one
only sends them commands, and never uses the backend itself.

A module of its own: it is a seam, the job of a cell without a workload, as `measure` is that of the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from keras_matrix.models.fc.interface import layer_name
from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.ranks import WorkerDied, serve
from keras_matrix.models.fc.worker import MEETING_LIMIT_S, WorkerStart
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec
from keras_matrix.models.process import start_method
from keras_matrix.records.backends import TABLE
from keras_matrix.records.fc import network, rules, spec
from keras_matrix.records.fc.communication import WATCHED_EPOCH_S, WATCHED_EPOCHS, Communication
from keras_matrix.records.host import inherited_environment, system
from keras_matrix.records.schema import CellResult, DeviceProof, Learning, Memory, Resolved, Times
from keras_matrix.records.settings import Settings
from keras_matrix.records.traces.request import Names
from keras_matrix.runner.cell import backends, memory
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.checks.devices import DeviceMismatch, prove, reserving
from keras_matrix.runner.cell.checks.tf32 import may_use_tf32
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, in_a_line, keep_tuning, result_of
from keras_matrix.runner.cell.loop import EpochLog, finite, timed
from keras_matrix.runner.cell.measure import finished
from keras_matrix.runner.cell.measured_epochs import (
    PROCESS,
    Allocated,
    Compiling,
    MeasuredEpochs,
    Timeline,
    Turns,
    agreed,
    with_start,
)
from keras_matrix.runner.cell.options import found_versions, resolved_of


def measure_fc(job: Job, import_time_s: float, start: str) -> CellResult:
    """Do the job and return its result. Raises `Unsupported`, `DeviceMismatch`, or what a worker raised."""
    settings, problem = job.settings, spec.problem_of(job.settings)
    refuse_impossible(settings, system.free_memory_bytes())
    order = _workers_of(job)
    cuda_cache = inherited_environment.cuda_cache_state(os.environ)
    adapter = backends.load(settings.backend)
    adapter.configure(settings, job.compile_cache_dir)
    if not order.apart or settings.device != "cpu":  # otherwise this process leaves the backend to its workers
        with reserving(settings):
            reserve(settings.backend, order.workers_here, settings.device)
    if order.rendezvous is not None and not order.rendezvous.measures:
        return _provided(job, order)
    begun_s = monotonic()
    worker_group = assemble(settings.backend, order)
    build_time_s = monotonic() - begun_s
    try:
        device = _proved(adapter, worker_group, settings)
        measured_epochs = MeasuredEpochs(Turns(job), Compiling(adapter), Allocated(adapter))
        times, learning, steps = _trained(job, worker_group, measured_epochs)
        parallel = spec.parallel_of(problem, worker_group.places(), worker_group.traffic(), worker_group.peaks_bytes())
        # Before collectives are timed: that may build another program, whose costs are not the cell's.
        device_peaks = worker_group.device_peaks_bytes() or None
        used_memory = _memory(adapter, measured_epochs, device_peaks, parallel.places)
        events = adapter.compile_events()
        communication, not_timed = _communication(worker_group, times, steps)
        parallel = replace(parallel, communication=communication, peak_worker_device_memory_bytes=device_peaks)
        keep_tuning(job)
        resolved = replace(
            _resolved(settings, adapter, (start, steps), parallel.places),
            compile_cache_hits=events.cache_hits,
            cuda_cache=cuda_cache,
            recompiles_timed=measured_epochs.compiling.count,
            graph_breaks_timed=measured_epochs.compiling.graph_breaks,
        )
        result = replace(
            result_of(job),
            device=device,
            times=with_start(times, import_time_s, build_time_s, events),
            resolved=resolved,
            learning=learning,
            memory=used_memory,
            versions=found_versions(adapter),
            parallel=parallel,
            collectives_not_timed=not_timed,
        )
        # A profile only of workers in this process; Keras has no layers of theirs to describe.
        run = worker_group.run if _here(parallel.places) else None
        return finished(job, result, (None, run), partial(TracedWorkers, worker_group, problem))
    finally:
        worker_group.close()


def _workers_of(job: Job) -> WorkerSpec:
    """Return the workers of a job. Raises `Unsupported` if their network or their machines are not there."""
    settings, problem = job.settings, spec.problem_of(job.settings)
    if settings.nodes > 1 and job.rendezvous is None:
        raise Unsupported(f"nodes: {settings.nodes} machines are only available with --executor ray")
    return WorkerSpec(
        problem,
        settings.seed,
        settings.device,
        namespaces=namespaces_for(problem, os.environ.get(network.VARIABLE, "")),
        configure=partial(configure_worker, settings, job.compile_cache_dir),
        rendezvous=job.rendezvous,
    )


def _provided(job: Job, order: WorkerSpec) -> CellResult:
    """Provide this machine's workers for the process of another machine, which measures; return an empty result."""
    assert order.rendezvous is not None
    first_rank, is_copied = order.rendezvous.index * order.workers_here, start_method(order.device) == "fork"
    serve(WorkerStart(order, first_rank, None, MEETING_LIMIT_S, is_copied, job.settings.backend))
    return result_of(job)


def configure_worker(settings: Settings, compile_cache_dir: str | None) -> None:
    """Apply the settings to the backend in a worker's own process, which does not inherit them."""
    backends.load(settings.backend).configure(settings, compile_cache_dir)


def _memory(
    adapter: BackendAdapter,
    measured_epochs: MeasuredEpochs,
    device_peaks: list[int] | None,
    places: Sequence[spec.WorkerPlacement],
) -> Memory:
    """Return the peaks so far: on the device the largest of all workers; of other processes only the peak is known."""
    host_peak, allocated = memory.peak_resident_bytes(), measured_epochs.allocated
    device_peak = max(device_peaks) if device_peaks else adapter.peak_device_memory_bytes()
    if _here(places):
        return Memory(host_peak, device_peak, allocated.sizes_bytes, allocated.peak_span)
    return Memory(host_peak, device_peak, [], PROCESS if device_peaks else None)


def _here(places: Sequence[spec.WorkerPlacement]) -> bool:
    """Return whether all workers are in this process."""
    return all(place.process in (None, os.getpid()) for place in places)


class TracedWorkers:
    """All workers of a problem, for the profiler: their programs open a scope for each phase and layer, or mark it."""

    def __init__(self, worker_group: WorkerGroup, problem: spec.FcProblem) -> None:
        self._problem, self.traced = problem, worker_group.traced

    def names(self) -> Names:
        """Return the names of the layers; phases have their own scopes."""
        return Names([layer_name(number) for number in range(len(self._problem.shapes))], phases=True)


def refuse_impossible(settings: Settings, free_bytes: int | None) -> None:
    """Raise `Unsupported` for a problem that is impossible or does not fit in memory, before anything is allocated.

    `free_bytes` are those of the host, not of a GPU.
    """
    problem = spec.problem_of(settings)
    problems = rules.settings_problems(settings)
    if (
        not problems
        and settings.device == "cpu"
        and (fault := rules.memory_problem(problem, free_bytes, settings.nodes))
    ):
        problems = [fault]
    if problems:
        raise Unsupported("; ".join(problems))


def namespaces_for(problem: spec.FcProblem, network_text: str) -> tuple[str, ...]:
    """Return the network namespaces of a problem's workers, from those in `network_text`. Raises `Unsupported`."""
    if problem.network == spec.LOCAL or problem.workers == 1:
        return ()
    parsed_network = network.parse(network_text)
    if fault := network.network_problem(parsed_network, problem.network, problem.workers):
        raise Unsupported(fault)
    assert parsed_network is not None
    return parsed_network.namespaces[: problem.workers]


def _communication(worker_group: WorkerGroup, times: Times, steps: int) -> tuple[Communication | None, str | None]:
    """Return the workers' measurements of their collectives, in epochs no longer than the measured ones.

    If a worker died while they were timed, return the reason instead: TensorFlow's profiler corrupts memory in about
    one of a hundred stops, if an operation began in one thread and ended in another, as sums over a network do
    (`SplitEventTracker::FindStartAndMerge`, TensorFlow 2.21).
    """
    step_time_s = times.step_time_s or WATCHED_EPOCH_S
    try:
        return worker_group.communication(max(1, min(steps, int(WATCHED_EPOCH_S / step_time_s))), WATCHED_EPOCHS), None
    except WorkerDied as error:
        return None, in_a_line(error)


def _proved(adapter: BackendAdapter, worker_group: WorkerGroup, settings: Settings) -> DeviceProof:
    """Return the device of the workers' arrays. Raises `DeviceMismatch` if it is not the requested one."""
    places = worker_group.places()
    if _here(places):
        return replace(prove(adapter, settings), count=len(places))
    platform = "gpu" if all(place.device.startswith("cuda") for place in places) else "cpu"
    if platform != settings.device:
        raise DeviceMismatch(f"device: {settings.device} was requested, but workers are on {places[0].device}")
    return DeviceProof(platform, places[0].device, len(places))


def _trained(job: Job, worker_group: WorkerGroup, measured_epochs: MeasuredEpochs) -> tuple[Times, Learning, int]:
    """Take the first step, agree on the steps per epoch, run the epochs; return times, learning and steps."""
    settings, problem = job.settings, spec.problem_of(job.settings)

    def epoch_s(count: int) -> float:
        return timed(lambda: worker_group.run(count))

    first_step_s = epoch_s(1)
    steps, calibration_s = agreed(job, measured_epochs.turns, lambda count: min(epoch_s(count) for _ in range(2)))
    log, stretch = EpochLog(), measured_epochs.stretch(settings, steps)
    for epoch in range(stretch.epochs):
        stretch.before(epoch)
        log.times_s.append(epoch_s(steps))
        log.logs.append({"loss": finite(worker_group.loss())})
    measured_epochs.end()
    times = Timeline(first_step_s, calibration_s, steps, log).times(settings)
    assert times.steps_per_s is not None
    times = replace(times, samples_per_s=times.steps_per_s * problem.samples_per_step)
    return times, Learning(loss=[entry["loss"] for entry in log.logs]), steps


def _resolved(
    settings: Settings, adapter: BackendAdapter, run: tuple[str, int], places: Sequence[spec.WorkerPlacement]
) -> Resolved:
    problem = spec.problem_of(settings)
    trains, weight_count = spec.MODES[problem.mode].trains, sum(rows * columns for rows, columns in problem.shapes)
    return replace(
        resolved_of(settings, adapter, run),
        # PyTorch initialises CUDA to query the GPU, which a process that leaves the GPU to its workers must not do.
        tf32=may_use_tf32(adapter) if _here(places) else adapter.tf32(),
        jit_compile=TABLE[settings.backend].fc_in_xla,
        parameters=weight_count,
        trainable_parameters=weight_count if trains else 0,
        optimizer="SGD" if trains else None,
        learning_rate=spec.LEARNING_RATE if trains else None,
        optimizer_slots=0 if trains else None,
        optimizer_slot_bytes=0 if trains else None,
    )
