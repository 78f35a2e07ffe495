"""Runs a program of a user's unchanged, and observes its calls of `fit`, `evaluate` and `predict`, and its loops.

The program runs as `python train.py ARGUMENTS` would: as `__main__`, with its own folder first among
those of the user's modules. The folder is a copy of its project in the cell's scratch folder, so that what it writes
and plots disturbs neither the project nor other cells: see `runner.cell.project`.

Keras's methods are replaced while calls are observed. What happens at a call is decided by a subclass of
`ObservedProgram`: `Scout` lists the calls, in a process of its own in which each is cut short; `runner.cell.script`
measures one of them.
"""

from __future__ import annotations

import functools
import io
import math
import multiprocessing
import multiprocessing.process
import os
import runpy
import shlex
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import keras

from keras_matrix.records import files, own_loop
from keras_matrix.records.codec import dumps
from keras_matrix.records.host import inherited_environment
from keras_matrix.records.settings import FIT
from keras_matrix.runner.cell import backends, options
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.called_fit import Enough, FitCall, Pass, cutting, surrounded
from keras_matrix.runner.cell.checks.devices import refuse_devices, refuse_several_machines
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, Scouted, ScoutedCall, in_a_line, leave
from keras_matrix.runner.cell.measured_epochs import leave_copies
from keras_matrix.runner.cell.project import Originals

METHODS = ("fit", "evaluate", "predict", "predict_on_batch")
STEPS, STEP = "steps", "step"  # of a loop of one's own
LOOPS = (STEPS, STEP)
TRAINING = (FIT, *LOOPS)
TERMINAL = "xterm-256color"
STANDARD = (f"{Path(subprocess.__file__).parent}/subprocess", f"{Path(multiprocessing.__file__).parent}/")
# A call that is cut short takes a step at least, and goes on until it has so many steps and seconds, or the most.
ENOUGH_STEPS, ENOUGH_S, MOST_S = 10, 0.5, 5.0
# Of a scouting process.
CALLS_IN_FULL = 2  # of a call site: later ones take a step only
LOOP_PASSES = 3
FAILED_CALLS = 3  # of a program that catches the errors of its calls
MOST_FILES = 2000  # of those that are no programs
WRITTEN_EVERY_S = 0.5


class ProgramEnds(BaseException):
    """Ends the program at a call that would be measured again after an error that the program caught."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call site of the program: its kind and `FILE:LINE`.

    `number` is its place in the order of first calls, from 1, and `nth` that among those of its kind.
    """

    kind: str
    place: str
    number: int
    nth: int

    def is_chosen(self, choice: str) -> bool:
        """Return whether a choice names it: `fit:2`, a number, a kind, or a kind and place; "": the first that trains.

        A kind alone names its first call.
        """
        return choice in (f"{self.kind}:{self.nth}", str(self.number), str(self)) or (
            choice == self.kind if choice else self.kind in TRAINING
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of one of Keras's methods as the program makes it; `function` is that method of the model."""

    call: Call
    model: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named_arguments: dict[str, Any]

    def run(self) -> Any:
        """Run it as written."""
        return self.function(*self.arguments, **self.named_arguments)

    def fit(self) -> FitCall:
        """Return a call of `fit` with its arguments by name."""
        return replace(FitCall.of(self.model, *self.arguments, **self.named_arguments), function=self.function)


class ObservedProgram(ABC):
    """One run of a program, whose calls are observed."""

    def __init__(self, job: Job) -> None:
        self.calls: dict[tuple[str, str], Call] = {}
        self.started_at: str | None = None  # where the program started another process, as FILE:LINE
        self.root = Path(job.import_roots[0])
        self.script = self.root / job.settings.script
        self._home = Path(job.folder) / "home"
        self._words = shlex.split(str(job.settings.params.get("args", "")))
        self._pid = os.getpid()
        self._entered = threading.local()
        self._replaced: list[tuple[Any, str, Any]] = []

    def run(self) -> str:
        """Run the program to its end; return how it ended, "" if not by `sys.exit`. Raises the program's own error."""
        os.environ["MPLBACKEND"] = "Agg"
        os.environ.setdefault("TERM", TERMINAL)
        sys.argv[:] = [self.script.name, *self._words]
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty() and isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # it was made before it was a terminal
        Originals(self.root, self._home).keep()
        self.observe()
        try:
            runpy.run_path(str(self.script), run_name="__main__")
        except ProgramEnds:
            pass
        except SystemExit as stop:
            return f" by sys.exit({stop.code!r})"
        finally:
            leave_copies(self._pid)
            self.restore()
        return ""

    @abstractmethod
    def called(self, made: MadeCall) -> Any:
        """Return what a call of one of Keras's methods returns to the program."""

    @abstractmethod
    def steps(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of a loop of the program's own."""

    @abstractmethod
    def step(self) -> AbstractContextManager[None]:
        """Return the context of one step of a loop."""

    def observe(self) -> None:
        """Replace Keras's methods and what starts processes."""
        self.restore()
        own_loop.observer = self
        for name in METHODS:
            owner = next(kind for kind in keras.Model.__mro__ if name in vars(kind))
            self._replace(owner, name, self._observed(name, vars(owner)[name]))
        for owner, name in ((subprocess.Popen, "__init__"), (multiprocessing.process.BaseProcess, "start")):
            self._replace(owner, name, self._noted_start(vars(owner)[name]))
        if hasattr(keras.config, "set_backend"):
            self._replace(keras.config, "set_backend", refuse_backend)

    def restore(self) -> None:
        """Let Keras's methods be its own again."""
        own_loop.observer = None
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self._replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, function)

    def _observed(self, kind: str, original: Any) -> Any:
        """Return Keras's method, observed; calls that it makes itself, such as those of validation, are not."""

        @functools.wraps(original)
        def observed(model: Any, *arguments: Any, **named_arguments: Any) -> Any:
            if getattr(self._entered, "inside", False) or not self._replaced:
                return original(model, *arguments, **named_arguments)
            function = functools.partial(original, model)
            made = MadeCall(self.reached(kind), model, function, arguments, named_arguments)
            self._entered.inside = True
            try:
                return self.called(made)
            finally:
                self._entered.inside = False

        return observed

    def _noted_start(self, original: Any) -> Any:
        """Return what starts a process, with a note of where the program itself did so, not a library of its."""

        @functools.wraps(original)
        def started(*arguments: Any, **named_arguments: Any) -> Any:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith(STANDARD):
                frame = frame.f_back
            if frame is not None and self._is_own(frame):
                self.started_at = self.started_at or self._place(frame)
            return original(*arguments, **named_arguments)

        return started

    def reached(self, kind: str) -> Call:
        """Return the call site of the call that is being made, by the innermost frame in the project."""
        place = self._place(sys._getframe(2)) or "elsewhere:0"
        nth = 1 + sum(call.kind == kind for call in self.calls.values())
        return self.calls.setdefault((kind, place), Call(kind, place, len(self.calls) + 1, nth))

    def _place(self, frame: FrameType | None) -> str | None:
        """Return `FILE:LINE` of the innermost frame in the project, from this one outwards; None if there is none."""
        while frame is not None and not self._is_own(frame):
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).relative_to(self.root)}:{frame.f_lineno}" if frame else None

    def _is_own(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(f"{self.root}/")


def refuse_backend(backend: str) -> None:
    """Raise `Unsupported` in place of loading Keras anew for another backend than that of this process."""
    if backend != keras.backend.backend():
        raise Unsupported(
            f"backend: the program asks for {backend} where Keras has been imported for {keras.backend.backend()}, the "
            "cell's backend; leave that out, and choose backends with --backend or in the matrix"
        )


def prepared(job: Job) -> tuple[BackendAdapter, str | None]:
    """Return the backend, configured for a program's process, and the state of the driver's cache.

    The device is initialised by the program. Raises `Unsupported` for settings that no program's process has.
    """
    settings = job.settings
    refuse_several_machines(settings)
    if settings.devices > 1:
        raise Unsupported("devices: a program decides itself on which devices it trains; set devices: 1")
    refuse_devices(settings)
    cuda_cache = inherited_environment.cuda_cache_state(os.environ)
    adapter = backends.load(settings.backend)
    adapter.configure(settings, job.compile_cache_dir)
    options.configure_keras(settings)
    options.seed_all(adapter, settings.seed)
    return adapter, cuda_cache


@dataclass(frozen=True, slots=True)
class ShortRun:
    """What a call returned, the epochs that the program asked for, and what the short one showed.

    `training` is the pass over its source, None if it had none; `validation` that of the epoch's validation.
    """

    result: Any
    epochs: int
    training: Pass | None = None
    validation: Pass | None = None


class ShortPasses:
    """The passes of a call that is cut short: each ends once it is long enough, a `brief` one with its first step."""

    def __init__(self, adapter: BackendAdapter, is_brief: bool) -> None:
        self.passes: list[Pass] = []
        self._adapter, self._is_brief = adapter, is_brief

    def run_from(self, start: int) -> Iterator[Pass]:
        """Return an iterator of the passes from this one on that ran a step; Keras also begins one to build a model."""
        return (one_pass for one_pass in self.passes[start:] if one_pass.steps)

    def left_whole(self, one_pass: Pass) -> None:
        """Leave this pass whole."""
        self.passes.append(one_pass)

    def begun(self, one_pass: Pass) -> Enough:
        """Return when this pass is cut."""
        begun_s = monotonic()
        self.passes.append(one_pass)

        def is_enough(steps: int) -> bool:
            now_s = monotonic()
            first_s = one_pass.first[1] if one_pass.first else now_s
            has_enough = one_pass.first is not None and is_long(steps, now_s - first_s, now_s - begun_s)
            is_over = self._is_brief or has_enough
            if is_over or steps == one_pass.whole_steps:
                self._adapter.idle()  # so that the time of a step is not that of its dispatch
            return is_over

        return is_enough


def is_long(steps: int, stepping_s: float, taken_s: float) -> bool:
    """Return whether a call or loop has gone on for long enough; `stepping_s` excludes what comes before its steps."""
    return (steps >= ENOUGH_STEPS and stepping_s >= ENOUGH_S) or taken_s >= MOST_S


def run_short(made: MadeCall, adapter: BackendAdapter, *, is_brief: bool = False) -> ShortRun:
    """Run some steps of one epoch of a call of `fit`, some steps of one of `evaluate`, and others as written.

    The history of `fit` has an entry for each epoch that the program asked for: the first one's, repeated.
    """
    short = ShortPasses(adapter, is_brief)
    if made.call.kind == FIT:
        fit = made.fit()
        epochs = range(int(fit.arguments.get("initial_epoch") or 0), int(fit.arguments.get("epochs", 1)))
        return _short_fit(fit, short, epochs) if epochs else ShortRun(made.run(), 0)
    with cutting(short.begun if made.call.kind == "evaluate" else short.left_whole):
        result = made.run()
    return ShortRun(result, 1, next(short.run_from(0), None))


def _short_fit(fit: FitCall, short: ShortPasses, epochs: range) -> ShortRun:
    """Run one short epoch of a call of `fit`, with a short validation."""
    passes_before: list[int] = []  # those of callbacks that evaluate before the first step

    def epoch_begins(epoch: int, logs: Any = None) -> None:
        passes_before.append(len(short.passes))

    last = keras.callbacks.LambdaCallback(on_epoch_begin=epoch_begins)
    with surrounded(fit, (), (last,)) as arguments, cutting(short.begun):
        history = fit.function(**{**arguments, "epochs": epochs.start + 1, "validation_freq": 1})
    _lengthen(history, epochs)
    passes = short.run_from(passes_before[0] if passes_before else 0)
    return ShortRun(history, len(epochs), next(passes, None), next(passes, None))


def _lengthen(history: Any, epochs: range) -> None:
    """Give the history of a short call an entry for each epoch; one that the model's own `fit` returns is left."""
    if not isinstance(history, keras.callbacks.History):
        return
    history.epoch[:] = list(epochs)
    for values in history.history.values():
        values.extend(values[-1:] * (len(epochs) - len(values)))


class Scout(ObservedProgram):
    """One run of a program, in which each call is cut short and noted.

    A call of `fit` runs some steps of one epoch and of its validation, and returns a history of as many epochs as the
    program asked for; one of `evaluate` runs some steps. So the program goes on to its next call. Calls of `predict`
    run as written, since programs use their output. What was seen is written before and after each call, so that it is
    there when the time limit ends the process.

    A loop of the program's own is left in each pass after some steps; with its third pass, or once a
    `keras_matrix.step()` has been taken for long enough, the process ends: such a loop may have no end.
    """

    def __init__(self, job: Job, adapter: BackendAdapter) -> None:
        super().__init__(job)
        self._job, self._adapter = job, adapter
        self._seen: dict[Call, ScoutedCall] = {}
        self._files: dict[str, None] = {}
        self._written_s = -math.inf
        self._failed = 0

    def list_calls(self) -> NoReturn:
        """Run the program, write what it does, and end the process. Raises the error of a program without a call."""
        sys.addaudithook(self._note_file)
        problem = None
        try:
            self.run()
        except Exception as error:
            problem = in_a_line(error)
            if not self._seen:
                self._write(problem=problem)
                raise
        self._leave(problem)

    def called(self, made: MadeCall) -> Any:
        """Run a call cut short, and note what it showed."""
        call = made.call
        before = self._begin(call)
        try:
            short = run_short(made, self._adapter, is_brief=before.calls >= CALLS_IN_FULL)
        except Exception as error:
            self._failed += 1
            if self._failed >= FAILED_CALLS:
                self._leave(in_a_line(error))
            raise
        self._seen[call] = _noted(before, short)
        self._write()
        return short.result

    def steps(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return some batches of a pass of a loop."""
        begin = functools.partial(self._pass, self.reached(STEPS), batches)
        return begin() if isinstance(batches, Iterator) else own_loop.Passes(batches, begin)

    def _pass(self, call: Call, batches: Iterable[Any]) -> Iterator[Any]:
        before = self._begin(call)
        whole_steps, begun_s, steps = len(batches) if isinstance(batches, Sized) else None, monotonic(), 0
        try:
            for batch in batches:
                yield batch
                steps += 1
                taken_s = monotonic() - begun_s
                if steps > 1 and is_long(steps, taken_s, taken_s):
                    break
        finally:  # also if the program breaks its loop
            self._seen[call] = replace(
                _with_epochs(before, 1, whole_steps, steps), step_time_s=(monotonic() - begun_s) / max(1, steps)
            )
            if self._seen[call].calls >= LOOP_PASSES:
                self._leave()
            self._write()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return the context of one step of a loop; end the process once there were enough of them."""
        call = self.reached(STEP)
        before = self._begin(call)
        begun_s = monotonic()
        yield
        steps, step_time_s = before.steps + 1, monotonic() - begun_s
        time_s = (before.step_time_s or 0.0) * before.steps + step_time_s
        self._seen[call] = replace(
            before, calls=before.calls + 1, steps=steps, is_exact=False, step_time_s=time_s / steps
        )
        if is_long(steps, time_s, time_s):
            self._leave()
        self._write()

    def _begin(self, call: Call) -> ScoutedCall:
        """Return what is known of a call site, and note that the process is in it."""
        is_new = call not in self._seen
        before = self._seen.get(call) or ScoutedCall(call.kind, call.place, call.number, call.nth)
        self._seen[call] = replace(before, is_running=True)
        self._write(at_once=is_new)
        return before

    def _leave(self, problem: str | None = None) -> NoReturn:
        self._write(at_once=True, has_ended=True, problem=problem)
        leave(0)

    def _write(self, *, at_once: bool = False, has_ended: bool = False, problem: str | None = None) -> None:
        """Write what was seen, unless that was done right before."""
        if os.getpid() != self._pid or (not (at_once or has_ended or problem) and not self._is_due()):
            return
        self._written_s = monotonic()
        seen = Scouted(self._job.nonce, list(self._seen.values()), list(self._files), has_ended, problem)
        files.replace(self._job.scouted_path, dumps(seen))

    def _is_due(self) -> bool:
        return monotonic() - self._written_s >= WRITTEN_EVERY_S

    def _note_file(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a file of the project that is opened; a program always, of others the first ones."""
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 - links stay
        if path.startswith(f"{self.root}/") and (path.endswith(".py") or len(self._files) < MOST_FILES):
            self._files[str(Path(path).relative_to(self.root))] = None


def _with_epochs(before: ScoutedCall, epochs: int, epoch_steps: int | None, steps_seen: int) -> ScoutedCall:
    """Return a call site with one more call, of so many epochs."""
    return replace(
        before,
        calls=before.calls + 1,
        epochs=before.epochs + epochs,
        steps=before.steps + epochs * (steps_seen if epoch_steps is None else epoch_steps),
        is_exact=before.is_exact and epoch_steps is not None,
        epoch_steps=epoch_steps,
    )


def _noted(before: ScoutedCall, short: ShortRun) -> ScoutedCall:
    """Return a call site with what one more call of it has shown."""
    training, validation = short.training, short.validation
    if training is None:  # one step, such as `predict_on_batch`
        return _with_epochs(before, short.epochs, 1, 1)
    epoch_steps = training.whole_steps if training.is_cut or training.whole_steps else training.steps
    end_time_s = None
    if validation is not None and validation.step_time_s is not None:
        end_time_s = (validation.whole_steps or validation.steps) * validation.step_time_s
    return replace(
        _with_epochs(before, short.epochs, epoch_steps, training.steps),
        step_time_s=training.step_time_s or before.step_time_s,
        end_time_s=end_time_s or before.end_time_s,
    )


def scout_script(job: Job) -> NoReturn:
    """Run the job's program short, write its calls, and end the process. Raises the program's error if it has none."""
    adapter, _ = prepared(job)
    Scout(job, adapter).list_calls()
