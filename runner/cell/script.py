"""Measures one of the calls of a user's program: of `fit`, `evaluate` or `predict`, or its loop.

Calls before the measured one run as written, or are cut short. Once it is measured its result is written and the
process ends, without an exception that the program could catch; an error of the measurement is kept, whatever the
program does with it.

A module of its own: only a cell of a program imports it.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import keras

from keras_matrix.models.workload import Built
from keras_matrix.records import own_loop
from keras_matrix.records.backends import TF_KERAS, TF_KERAS_SWITCH
from keras_matrix.records.epoch_figures import program_work, with_figures
from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.schema import CellResult, DeviceProof, Learning, Resolved, Times
from keras_matrix.records.settings import ALL_STEPS, CUT_BEFORE, FIT, PREDICT, Settings, program_settings
from keras_matrix.records.text import plural
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.called_fit import FitCall, FitLog, prefetched_note, training_rows
from keras_matrix.runner.cell.calls import (
    STEP,
    STEPS,
    TRAINING,
    Call,
    MadeCall,
    ObservedProgram,
    ProgramEnds,
    prepared,
    run_short,
)
from keras_matrix.runner.cell.checks.devices import prove
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, leave, result_of, write_result
from keras_matrix.runner.cell.loop import Stretch, rows_of
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
    found_versions,
    process_options,
    resolved_of,
    resolved_of_model,
)
from keras_matrix.runner.cell.phases import CalledFit, WorkMismatch, learning_of, steps_of_epochs
from keras_matrix.runner.cell.work import (
    COUNTING_REPEAT,
    Ledger,
    LoopWork,
    WeightChecksums,
    evaluated_samples,
    own_methods,
    work_done,
)

KERAS_BATCH = 32  # of arrays, where a call does not say
# The calls of an epoch: the same on every backend, since epochs of other lengths are not compared.
CALLS = {"predict": 1, "evaluate": 1, "predict_on_batch": 100}
LOOP_STEPS = 50  # of an epoch of steps that are no pass, unless the matrix has another number
# The settings that some calls do not take, with their values where the matrix does not set them.
USUAL = {
    "eager": False,
    "gradient_accumulation_steps": 1,
    "jit": "auto",
    "steps_per_epoch": "seed",
    "steps_per_execution": 1,
}
LOOP_LINES = (
    "for a loop of your own add one of these lines to it: `for batch in keras_matrix.steps(dataset):`, or around each "
    "step `with keras_matrix.step():`"
)


class NothingMeasured(Exception):
    """The program ended without the call that was to be measured. The message lists the calls that it made."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a measured call showed besides times: the steps and samples of an epoch, None where not counted."""

    call: Call
    steps: int
    samples: int | None = None
    batch_size: int | None = None
    model: Any = None
    own_options: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cut: FitLog | None = None


class Program(ObservedProgram):
    """One run of a program, whose calls are observed until the chosen one is measured."""

    def __init__(self, job: Job, adapter: BackendAdapter, measurement: Measurement) -> None:
        super().__init__(job)
        self._job, self._adapter, self._settings, self._measurement = job, adapter, job.settings, measurement
        self._choice = str(job.settings.params.get("call", ""))
        self._is_cut_before = job.settings.params.get("before") == CUT_BEFORE
        self._error: Exception | None = None
        self._loop: OwnLoop | None = None

    def measure(self) -> None:
        """Run the program until its call is measured, which ends the process.

        Raises the error of the measurement, else the program's own, else `NothingMeasured`.
        """
        ended_by = ""
        try:
            ended_by = self.run()
        except Exception:
            if self._error is None:
                raise
        raise self._error or NothingMeasured(self._nothing_text(ended_by))

    def _end(self, call: Call) -> NoReturn:
        """Write the result of the measured call, and end the process."""
        assert self._measurement.result is not None
        leave_copies(self._pid)
        result = self._measurement.result
        write_result(self._job, replace(result, program_notes=[*result.program_notes, *self._not_applied(call)]))
        leave(0)

    def _not_applied(self, call: Call) -> list[str]:
        """Return a note about the settings of the matrix that this kind of call does not take."""
        values = {key: getattr(self._settings, key) for key in USUAL if key not in program_settings(call.kind)}
        text = ", ".join(f"{key}={value}" for key, value in values.items() if value != USUAL[key])
        return [f"not_applied: {text}: not taken by {call}, which decides it itself"] if text else []

    @contextmanager
    def _kept_error(self) -> Iterator[None]:
        """Keep an error of the measurement, which the program may catch."""
        if self._error is not None:
            raise ProgramEnds
        try:
            yield
        except Exception as error:
            self._error = error
            raise

    def _nothing_text(self, ended_by: str) -> str:
        call_text = f"the call {self._choice!r}" if self._choice else "a call of fit in its own process"
        text = f"{self.script.name}: the program ended{ended_by} without {call_text}"
        if not self.calls and TF_KERAS in sys.modules and keras.__name__ != TF_KERAS:
            return f"{text} of Keras {keras.__version__}; to measure it on {TF_KERAS}, set {TF_KERAS_SWITCH}=1"
        if self._loop is not None:
            advice = "let it run longer, in a loop over epochs of its own, or set fewer epochs"
            return f"{text}: its loop ended {self._loop.epochs_text}; {advice}"
        if self.calls:
            text += f"; its calls: {', '.join(f'{call.number} {call}' for call in self.calls.values())}"
        if self.started_at is not None:
            where_text = f"it started another process at {self.started_at}, whose calls are not seen"
            return f"{text}; {where_text}: measure the program that runs there"
        return text if self._choice or self.calls else f"{text}; {LOOP_LINES}"

    def called(self, made: MadeCall) -> Any:
        """Measure the chosen call and end; run one before it."""
        if made.call.is_chosen(self._choice) and self._loop is None and not _has_no_epoch(made):
            self._measure(made)
        begun_s = monotonic()
        try:
            return run_short(made, self._adapter).result if self._is_cut_before else made.run()
        finally:
            self._measurement.calls_before_s += monotonic() - begun_s

    def _measure(self, made: MadeCall) -> NoReturn:
        leave_copies(self._pid)
        try:
            with self._kept_error():
                self.restore()
                if made.call.kind == FIT:
                    self._measurement.fit(made.call, made.fit())
                else:
                    self._measurement.predictions(made.call, made.model, made.run)
        finally:
            self.observe()  # so that the next such call ends the program if it catches this error
        self._end(made.call)

    def steps(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of a loop: of one that is chosen those of the measured passes, else what it was given."""
        call = self.reached(STEPS)
        if not self._is_loop(call):
            return batches
        if isinstance(batches, Iterator):
            return self._passes(call, batches)
        return own_loop.Passes(batches, functools.partial(self._passes, call, batches))

    def _is_loop(self, call: Call) -> bool:
        """Return whether a call is that of the measured loop: the first that is chosen."""
        return call.is_chosen(self._choice) if self._loop is None else call is self._loop.call

    def _passes(self, call: Call, batches: Iterable[Any]) -> Iterator[Any]:
        with self._kept_error():
            self._loop = self._loop or OwnLoop(self._measurement, self._settings, call)
            try:
                yield from self._loop.passes(batches)
            finally:  # also if the program breaks its loop
                if self._measurement.result is not None:
                    self._end(call)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return the context of one step of a loop."""
        call = self.reached(STEP)
        if not self._is_loop(call):
            yield
            return
        with self._kept_error():
            self._loop = self._loop or OwnLoop(self._measurement, self._settings, call)
            self._loop.step_begins()
        yield
        with self._kept_error():
            if self._loop.step_ended():
                self._end(call)


def _has_no_epoch(made: MadeCall) -> bool:
    """Return whether it is a call of `fit` of zero epochs, which is left alone."""
    if made.call.kind != FIT:
        return False
    arguments = made.fit().arguments
    return int(arguments.get("epochs", 1)) <= int(arguments.get("initial_epoch") or 0)


class Measurement:
    """Measures the chosen call of a program in its process; `result` is None until it is measured."""

    def __init__(self, job: Job, adapter: BackendAdapter, begin: tuple[float, str, str | None]) -> None:
        self.result: CellResult | None = None
        self._job, self._settings, self._adapter = job, job.settings, adapter
        self._begin, self._begun_s = begin, monotonic()
        self._options = process_options(adapter)
        self._device: DeviceProof | None = None
        self._loop_work: LoopWork | None = None
        self._build_time_s = 0.0
        self.calls_before_s = 0.0
        self._epochs = MeasuredEpochs(Turns(job), Compiling(adapter), Allocated(adapter))

    def start(self, call: Call) -> Stretch:
        """Prove the device and return the epochs, each measured one in its turn. What came before is preparation."""
        phase = FIT if call.kind in TRAINING else PREDICT
        if phase != self._settings.phase:
            raise ValueError(f"phase: must be {phase} for the call {call}, got {self._settings.phase}")
        check_backend(self._settings.backend)
        self._build_time_s = monotonic() - self._begun_s
        self._device = prove(self._adapter, self._settings)
        return self._epochs.stretch(self._settings, 1)

    def start_loop(self, call: Call) -> Stretch:
        """Start as `start` does, and find the models and their weights before the first measured epoch."""
        stretch = self.start(call)

        def before(epoch: int) -> None:
            if epoch == self._settings.discard:
                self._loop_work = LoopWork.begun(self._adapter)
            stretch.before(epoch)

        return replace(stretch, before=before)

    def idle(self) -> None:
        """Return when the device has finished all work."""
        self._adapter.idle()

    def _own_backend(self) -> list[str]:
        """Return the note about a program that sets another backend before it imports Keras."""
        own_backend, backend = os.environ.get("KERAS_BACKEND"), self._settings.backend
        if own_backend == backend:
            return []
        return [f"own_options: the program sets KERAS_BACKEND to {own_backend}; {backend}, the cell's, was used"]

    def fit(self, call: Call, fit: FitCall) -> None:
        """Measure epochs of a call of `fit`, with the matrix's options where it sets them."""
        stretch, model, settings = self.start(call), fit.model, self._settings
        overridden = own_methods(model, FIT)
        applied_settings, own_options = applied(Built(model, _no_samples), settings)
        self._adapter.check(applied_settings)
        ledger = Ledger()
        most_steps = settings.params.get("most_steps", ALL_STEPS)
        most = most_steps if isinstance(most_steps, int) else None
        log, steps = CalledFit(fit, str(call), self._adapter, self._epochs, ledger, most).run(stretch)
        ledger.after = WeightChecksums.of(model)
        work = ledger.work_done(model, overridden, (self._adapter.platforms(model.variables), set()))
        samples = _equal(ledger.stretches[-1].samples) or None
        if overridden and samples == steps:  # one for each step: a metric without the number of samples
            samples = None
        seen = Seen(call, steps, samples, _batch_size(fit, samples, steps), model, own_options, ledger.notes)
        seen = replace(seen, cut=log) if log.is_cut else seen
        self._finish(seen, log.epochs.times_s, work, learning_of(log.epochs))

    def predictions(self, call: Call, model: Any, function: Callable[[], Any]) -> None:
        """Measure epochs of calls of `predict`, `evaluate` or `predict_on_batch`, each with its result on the host."""
        stretch, overridden, count = self.start(call), own_methods(model, PREDICT), CALLS[call.kind]
        rows: int | None = rows_of(function())
        times_s = []
        for epoch in range(self._settings.epochs):
            stretch.before(epoch)
            begun_s = monotonic()
            for _ in range(count):
                function()
            times_s.append(monotonic() - begun_s)
        self._epochs.end()
        if call.kind == "evaluate":
            rows = evaluated_samples(model)
        samples = rows * count if rows else None
        work = _uncounted(count, samples, len(times_s), self._adapter.platforms(model.variables))
        seen = Seen(call, count, samples, rows if call.kind == "predict_on_batch" else None, model)
        self._finish(seen, times_s, replace(work, own_methods=overridden), Learning())

    def loop(self, call: Call, steps: Sequence[int], times_s: Sequence[float], notes: Sequence[str] = ()) -> None:
        """Take the epochs of a program's own loop. What a step of it does is not counted, but it must train."""
        self._epochs.end()
        count = steps_of_epochs(str(call), steps, self._epochs.stretch(self._settings, 1))
        assert self._loop_work is not None
        work = self._loop_work.done(self._adapter, count, len(times_s))
        self._finish(Seen(call, count, notes=list(notes)), times_s, work, Learning())

    def _finish(self, seen: Seen, times_s: Sequence[float], work: WorkDone, learning: Learning) -> None:
        (import_time_s, start, cuda_cache), events = self._begin, self._adapter.compile_events()
        settings, allocated = self._settings, self._epochs.allocated
        resolved = replace(self._resolved(seen, start), cuda_cache=cuda_cache, call=str(seen.call))
        resolved = with_compilations(resolved, events, self._epochs.compiling)
        discarded_s, epochs_s = list(times_s[: settings.discard]), list(times_s[settings.discard :])
        times = Times(discarded_epoch_times_s=discarded_s, epoch_times_s=epochs_s, training_time_s=math.fsum(times_s))
        times = replace(times, calls_before_time_s=self.calls_before_s)
        if seen.cut is not None:
            times = replace(
                times,
                lead_times_s=seen.cut.lead_times_s[settings.discard :],
                training_times_s=seen.cut.training_times_s[settings.discard :],
                lead_steps=seen.cut.lead_steps,
                whole_epoch_steps=seen.cut.whole_steps,
            )
        times = with_figures(times, program_work(resolved, settings))
        self.result = replace(
            result_of(self._job),
            device=self._device,
            times=with_start(times, import_time_s, self._build_time_s, events),
            resolved=resolved,
            learning=learning,
            memory=used_memory(allocated),
            versions=found_versions(self._adapter),
            work=work,
            program_notes=[*self._own_backend(), *seen.notes],
        )

    def _resolved(self, seen: Seen, start: str) -> Resolved:
        """Return the record's part about what ran, with that of the model if the call has one."""
        batch_size = seen.batch_size or 1
        settings = replace(self._settings, samples=seen.samples or seen.steps * batch_size, batch_size=batch_size)
        job, run = replace(self._job, settings=settings), (start, seen.steps)
        options = changed_options(self._options, process_options(self._adapter), settings.seed)
        if seen.model is None:
            resolved = resolved_of(settings, self._adapter, run)
        else:
            workload = Built(seen.model, _no_samples)
            resolved = resolved_of_model(job, workload, self._adapter, run)
            resolved = replace(resolved, **work_done(replace(job, repeat=COUNTING_REPEAT + 1), workload, ()))
        return replace(
            resolved,
            samples=seen.samples,
            batch_size=seen.batch_size,
            own_compile_options=seen.own_options,
            own_process_options=options,
            seed_steps_per_epoch=seen.steps,
        )


class OwnLoop:
    """Times the epochs of a program's own loop: passes over a data set, or groups of equally many steps."""

    def __init__(self, measurement: Measurement, settings: Settings, call: Call) -> None:
        self.times_s: list[float] = []
        self.notes: list[str] = []
        self.call = call
        self._is_grouped = False
        self._measurement, self._epochs = measurement, settings.epochs
        self._stretch = measurement.start_loop(call)
        self._group = settings.steps_per_epoch if isinstance(settings.steps_per_epoch, int) else LOOP_STEPS
        self._steps: list[int] = []
        self._begun_s: float | None = None
        self._count = 0

    def passes(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches until all epochs are measured, or the program leaves its loop, or an iterator has ended.

        A pass is an epoch, also one that the program breaks; it goes on with the next call. An iterator of more steps
        than a group is cut into groups, which go on with the next iterator. Raises `WorkMismatch` without a batch.
        """
        is_empty = True
        while len(self.times_s) < self._epochs:
            is_cut = isinstance(batches, Iterator) or _is_endless(batches)
            if self._begun_s is None:
                self._begin()
            iterator = iter(batches)  # within the epoch: it may start workers, and prepare the first batches
            try:
                for batch in iterator:
                    is_empty = False
                    yield batch
                    self._count += 1
                    if is_cut and self._count == self._group:
                        break
            except GeneratorExit:
                self._pass_ended()
                raise
            if is_empty:
                raise WorkMismatch(f"{self.call}: its batches ended {self.epochs_text}")
            if is_cut and self._count < self._group:
                self._pass_ended()
                return
            if is_cut:
                batches, self._is_grouped = iterator, True
                self.notes = [prefetched_note(str(self.call))]
            self._end()

    def _pass_ended(self) -> None:
        """End an epoch with a pass of one step or more, unless epochs are groups of steps."""
        if self._count and not self._is_grouped:
            self._end()

    def step_begins(self) -> None:
        """Start the first epoch with the first step."""
        if self._begun_s is None:
            self._begin()

    def step_ended(self) -> bool:
        """Count a step and end an epoch with the last of its steps; return whether all epochs are measured.

        The next epoch begins at once, so that what the program does between two steps is in an epoch everywhere.
        """
        self._count += 1
        if self._count < self._group:
            return False
        is_last = self._end()
        if not is_last:
            self._begin()
        return is_last

    @property
    def epochs_text(self) -> str:
        """How many of its epochs have ended."""
        return f"after {len(self.times_s)} of {plural(self._epochs, 'epoch')}"

    def _begin(self) -> None:
        self._measurement.idle()
        self._stretch.before(len(self.times_s))
        self._count, self._begun_s = 0, monotonic()

    def _end(self) -> bool:
        """End an epoch, with the last one the measurement; return whether it was that."""
        assert self._begun_s is not None
        self._measurement.idle()
        self.times_s.append(monotonic() - self._begun_s)
        self._steps.append(self._count)
        self._begun_s = None
        is_last = len(self.times_s) == self._epochs
        if is_last:
            self._measurement.loop(self.call, self._steps, self.times_s, self.notes)
        return is_last


def _is_endless(batches: Any) -> bool:
    """Return whether a data set says that it never ends, as one of tf.data does with a cardinality of -1."""
    cardinality = getattr(batches, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == -1


def _no_samples(count: int, seed: int) -> tuple[Any, Any]:
    raise NotImplementedError("a program has its own data")


def _equal(counts: Sequence[int | None]) -> int | None:
    """Return the count of every epoch if they are equal, else None."""
    return counts[0] if len(set(counts)) == 1 else None


def _batch_size(fit: FitCall, samples: int | None, steps: int) -> int | None:
    """Return the samples of a step: as the call says, else as Keras divides arrays, else by the samples counted."""
    arguments = fit.arguments
    if stated := arguments.get("batch_size"):
        return int(stated)
    if (rows := training_rows(arguments)) is not None:
        per_epoch = arguments.get("steps_per_epoch")
        return math.ceil(rows / per_epoch) if per_epoch else KERAS_BATCH
    return None if samples is None else math.ceil(samples / steps)


def _uncounted(steps: int, samples: int | None, epochs: int, platforms: set[str]) -> WorkDone:
    """Return the work of epochs whose updates are not counted."""
    stretch = WorkStretch("epochs", steps, epochs, [None] * epochs, [samples] * epochs, [0] * epochs)
    samples_per_step = None if samples is None else samples / steps
    return WorkDone([stretch], samples_per_step=samples_per_step, skipped_updates=0, weight_platforms=sorted(platforms))


def measure_script(job: Job, import_time_s: float, start: str) -> None:
    """Run the job's program until its call is measured, write the result, and end the process. Raises its errors.

    The device is initialised by the program, or for the proof right before the measured call.
    """
    adapter, cuda_cache = prepared(job)
    Program(job, adapter, Measurement(job, adapter, (import_time_s, start, cuda_cache))).measure()
