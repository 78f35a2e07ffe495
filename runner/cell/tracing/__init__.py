"""A cell's traced epochs: after everything measured, by the backend's profiler, with marks in what Keras runs.

Imported only if a cell is traced. Its figures are published before (`publish_figures`), so that they do not depend on
the trace. Errors are reported in the result and do not end the process.

Functions that Keras calls are wrapped during the traced epochs. On PyTorch the wrappers set marks of the profiler, on
TensorFlow scopes, with which the step is traced again; JAX already has them in the compiled program.
"""

from __future__ import annotations

import resource
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import keras

from keras_matrix.models.profiling import Profiler, load, path_of, recorded
from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import CellResult
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.records.traces import conversion
from keras_matrix.records.traces.neutral import Phase
from keras_matrix.records.traces.programs import GRAPH_NAME, GraphFacts, write
from keras_matrix.records.traces.request import (
    LAYER,
    NAMES_NAME,
    NATIVE_NAME,
    PHASE,
    TRACE_NAME,
    Names,
    Trace,
    Traced,
    TraceError,
    TraceOrder,
)
from keras_matrix.runner.cell.job import Job, in_a_line
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.piped.stream import StreamAdapter

WORDS_CHARACTERS = 500
Call = Callable[..., Any]
Draw = Callable[[], Any]


class TraceSubject(Protocol):
    """What can be traced: a workload that Keras runs, or the workers of the FC modes."""

    def names(self) -> Names:
        """Return the names of the operations."""

    def traced(self, order: TraceOrder) -> None:
        """Run the requested epochs and write the profiler's files. Raises any error of the profiler."""


def with_trace(job: Job, trace: Trace, result: CellResult, trace_subject: TraceSubject) -> CellResult:
    """Trace; return the result with the trace's outcome."""
    traced = Traced(trace.all_steps)
    try:
        size_bytes = _trace(job, trace, trace_subject)
        return replace(result, trace=replace(traced, folder=job.traced_path.name, native_bytes=size_bytes))
    except Exception as error:  # noqa: BLE001 - a profiler may raise anything, and the figures remain valid
        traceback.print_exc()
        shutil.rmtree(job.traced_path, ignore_errors=True)
        return replace(result, trace=replace(traced, problem=in_a_line(error)[:WORDS_CHARACTERS]))


def _trace(job: Job, trace: Trace, trace_subject: TraceSubject) -> int:
    """Write the trace into the job's folder; return the size of the backend's own files."""
    native_folder = job.traced_path / NATIVE_NAME
    native_folder.mkdir(parents=True)
    trace_subject.traced(TraceOrder(str(native_folder), trace.epochs, trace.steps))
    names = trace_subject.names()
    (native_folder / NAMES_NAME).write_text(dumps(names), encoding="utf-8")
    files = conversion.files_in(native_folder)
    head = conversion.make(files, job.traced_path / TRACE_NAME, job.settings.backend, names)
    if head.steps != trace.all_steps:
        raise TraceError(f"steps: the profiler recorded {head.steps or 0} of {trace.all_steps}")
    if job.settings.device == "gpu" and head.device != "gpu":
        warnings_text = f" ({'; '.join(head.warnings)})" if head.warnings else ""
        raise TraceError(
            f"the profiler recorded no kernel on the GPU{warnings_text}; allow CUPTI to read it: run the container "
            "with --cap-add SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    return sum(path.stat().st_size for path in files)


class Repeated(Protocol):
    """Measured work that can be repeated."""

    model: Any
    steps_a_call: int  # of the backend

    def again(self, stretch: Stretch, change: Call) -> None:
        """Run further epochs from its source, which `change` may wrap; nothing is recorded."""


class TracedWorkload:
    """A measured workload, for the profiler."""

    def __init__(self, work: Repeated, settings: Settings) -> None:
        self._work, self._settings = work, settings

    @cached_property
    def _profiler(self) -> Profiler:
        profiler = load(self._settings.backend)
        profiler.steps_are_equal = self._settings.feed != PIPELINE  # a source may have batches of different lengths
        return profiler

    def names(self) -> Names:
        """Return the names of the model's layers, including nested ones, and of its optimiser."""
        model = self._work.model
        if self._profiler.marks_name_layers:
            return Names()
        layers = [layer.name for layer in model._flatten_layers(include_self=False)]
        optimizer = model.optimizer if self._settings.phase == "fit" else None
        return Names(layers, model.name, optimizer.name if optimizer else None)

    def traced(self, order: TraceOrder) -> None:
        """Run the epochs up to the last requested one, and record the requested ones."""
        profiler = self._profiler
        recording = EpochProfiling(profiler, order)
        with ExitStack() as stack:
            stack.callback(recording.end)
            if self._named(profiler):
                self._name(stack, profiler)
            if profiler.marks_name_layers:
                self._trace_again(profiler)
            step_method = "predict_on_batch" if self._settings.phase == "predict" else "train_function"
            stack.enter_context(_wrapped(self._work.model, step_method, recording.numbered))
            stretch = Stretch(order.steps * self._work.steps_a_call, max(order.epochs), before=recording.before)
            self._work.again(stretch, partial(_marked_input, profiler))
        facts = GraphFacts(profiler.graph(), recording.page_faults_per_step)
        write(Path(order.folder) / GRAPH_NAME, facts)

    def _named(self, profiler: Profiler) -> bool:
        """Return whether layers are named as they are called: not within compiled steps of an eager backend."""
        return profiler.scope(PHASE) is not None and not (profiler.steps_are_python and self._work.model.jit_compile)

    def _name(self, stack: ExitStack, profiler: Profiler) -> None:
        model = self._work.model
        stack.enter_context(_wrapped(keras.layers.Layer, "__call__", partial(_layers, profiler, model)))
        stack.enter_context(_wrapped(model, "compute_loss", partial(_loss, profiler)))
        if model.optimizer is not None:
            stack.enter_context(_wrapped(model.optimizer, "apply", partial(_scoped, profiler, Phase.UPDATE)))

    def _trace_again(self, profiler: Profiler) -> None:
        """Let Keras trace the step again, with its scopes; two steps are enough."""
        model = self._work.model
        if self._settings.phase == "predict":
            model.make_predict_function(force=True)
        else:
            model.make_train_function(force=True)
        self._work.again(Stretch(self._work.steps_a_call, 2), partial(_marked_input, profiler))


class EpochProfiling:
    """Runs the profiler for the requested epochs, whose steps are numbered consecutively."""

    def __init__(self, profiler: Profiler, order: TraceOrder) -> None:
        self._profiler, self._order = profiler, order
        self._on = ExitStack()
        self._records = False
        self._taken = 0
        self._faults = self._faults_before = 0

    @property
    def page_faults_per_step(self) -> float | None:
        """The page faults of a recorded step that needed no disk, with the profiler on."""
        return self._faults / self._taken if self._taken else None

    def before(self, epoch: int) -> None:
        """Start recording before an epoch, counted from 0, if it is requested, the device idle."""
        self.end()
        if epoch + 1 in self._order.epochs:
            self._on.enter_context(recorded(self._profiler, path_of(self._profiler, self._order, epoch + 1)))
            self._records = True
            self._faults_before = _page_faults()

    def end(self) -> None:
        """Stop recording after the epoch, the device idle."""
        if self._records:
            self._faults += _page_faults() - self._faults_before
        self._records = False
        self._on.close()

    def numbered(self, call: Call) -> Call:
        """Mark each recorded call as the next step."""

        def marked(*args: Any, **kwargs: Any) -> Any:
            if not self._records:
                return call(*args, **kwargs)
            self._taken += 1
            with self._profiler.step(self._taken):
                return call(*args, **kwargs)

        return marked


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextmanager
def _wrapped(owner: Any, name: str, wrap: Callable[[Call], Call]) -> Iterator[None]:
    """Put a wrapper round a method of a class or of one object, and take it away again."""
    is_own = name in vars(owner)
    plain_attribute = vars(owner)[name] if is_own else getattr(owner, name)
    setattr(owner, name, wrap(plain_attribute))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, plain_attribute)
        else:
            delattr(owner, name)


def _scoped(profiler: Profiler, phase: Phase, call: Call) -> Call:
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with profiler.scope(f"{PHASE}{phase}") or nullcontext():
            return call(*args, **kwargs)

    return scoped


def _loss(profiler: Profiler, call: Call) -> Call:
    """Name the operations of the loss after the forward pass, and let the profiler note what it returns."""
    scoped = _scoped(profiler, Phase.FORWARD, call)

    def noted(*args: Any, **kwargs: Any) -> Any:
        loss = scoped(*args, **kwargs)
        profiler.note_loss(loss)
        return loss

    return noted


def _layers(profiler: Profiler, model: Any, call: Call) -> Call:
    """Name the operations of a layer's call after the layer, and those of the model's call the forward pass."""

    def scoped(layer: Any, *args: Any, **kwargs: Any) -> Any:
        name = f"{PHASE}{Phase.FORWARD}" if layer is model else f"{LAYER}{layer.name}"
        with profiler.scope(name) or nullcontext():
            return call(layer, *args, **kwargs)

    return scoped


def _marked_input(profiler: Profiler, source: Any) -> Any:
    """Return a source whose batches are marked as they are fetched; a TensorFlow data set unchanged."""
    return with_draws(source, lambda draw: _marked_draw(profiler, draw))


def _marked_draw(profiler: Profiler, draw: Callable[[], Any]) -> Any:
    with profiler.mark(f"{PHASE}{Phase.INPUT}"):
        return draw()


def with_draws(source: Any, around_draw: Callable[[Draw], Any]) -> Any:
    """Return a source whose batches `around_draw` draws; a TensorFlow data set, drawn in compiled steps, unchanged.

    `around_draw` is called with the function that draws the next batch, and returns the batch.
    """
    if isinstance(source, StreamAdapter):
        return source.with_batches(lambda batches: _drawn(iter(batches), around_draw))
    return _drawn(source, around_draw) if isinstance(source, Iterator) else source


def _drawn(batches: Iterator[Any], around_draw: Callable[[Draw], Any]) -> Iterator[Any]:
    while True:
        yield around_draw(batches.__next__)
