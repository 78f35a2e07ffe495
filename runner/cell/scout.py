"""Lists the calls of a user's program, in a process of its own in which each is cut short.

A call of `fit` runs some steps of one epoch and of its validation, and returns a history of as many epochs as the
program asked for; one of `evaluate` runs some steps. So the program goes on to its next call. Calls of `predict` run as
written, since programs use their output. What it has seen is written before and after each call, so that it is there
when the time limit ends the process.

A loop of the program's own is left in each pass after some steps; with its third pass, or once a `keras_matrix.step()`
has been taken for long enough, the process ends: such a loop may have no end.

A module of its own: only a scouting process imports it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from keras_matrix.records import files, own_loop
from keras_matrix.records.codec import dumps
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.calls import (
    ENOUGH_S,
    ENOUGH_STEPS,
    MOST_S,
    STEP,
    STEPS,
    Call,
    MadeCall,
    ObservedProgram,
    ShortRun,
    prepared,
    run_short,
)
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, Scouted, ScoutedCall, in_a_line, leave

CALLS_IN_FULL = 2  # of a call site: later ones take a step only
LOOP_PASSES = 3
FAILED_CALLS = 3  # of a program that catches the errors of its calls
MOST_FILES = 2000  # of those that are no programs
WRITTEN_EVERY_S = 0.5


class Scout(ObservedProgram):
    """One run of a program, in which each call is cut short and noted."""

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
        begin = partial(self._pass, self.reached(STEPS), batches)
        return begin() if isinstance(batches, Iterator) else own_loop.Passes(batches, begin)

    def _pass(self, call: Call, batches: Iterable[Any]) -> Iterator[Any]:
        before = self._begin(call)
        whole_steps, begun_s, steps = len(batches) if isinstance(batches, Sized) else None, monotonic(), 0
        try:
            for batch in batches:
                yield batch
                steps += 1
                if steps > 1 and _is_long(steps, begun_s):
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
        if (steps >= ENOUGH_STEPS and time_s >= ENOUGH_S) or time_s >= MOST_S:
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


def _is_long(steps: int, begun_s: float) -> bool:
    taken_s = monotonic() - begun_s
    return (steps >= ENOUGH_STEPS and taken_s >= ENOUGH_S) or taken_s >= MOST_S


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
