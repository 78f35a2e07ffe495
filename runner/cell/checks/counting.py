"""What a step does, counted: calls of functions, programs, graph breaks, Python's memory, and instructions of the CPU.

A process that counts is never timed: it runs the same work as a timed one, slowed down by being watched. Counted are
the first step, which traces and compiles, with the placing of its batches; and later steps, as the difference between
a long and a short stretch, so that what a call of `fit` costs once is left out.

Guarantee: functions of the harness itself are not counted, nor those by which one thread waits for another; the
garbage collector does not run meanwhile, since its callbacks would make calls at moments that are not the program's.
Limits: what the harness calls of Keras and NumPy between two steps counts, some tens of calls that are the same on both
sides. One thread is watched, the one that runs the steps. Of C code only its calls from Python are seen, not what it
does; of memory only what Python's allocators and NumPy give out, which excludes tensors. Under `sys.setprofile` the
constructor of a type implemented in C is not a call, under `sys.monitoring` it is: counts of two methods cannot be
compared.

Sources: https://docs.python.org/3/library/sys.monitoring.html, man 2 perf_event_open.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import platform
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, Protocol

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.instruments.work_done import Counts, StepCounts
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.measured_epochs import Allocated, Compiling, MeasuredEpochs

NOT_COUNTED = (f"{Path(__file__).parents[2]}/", threading.__file__)
"""Code of the harness, and of a wait for another thread: Keras's `fit` waits for that of its callbacks, or need not."""
MONITORING, PROFILE = "sys.monitoring", "sys.setprofile"
TOOL = "keras_matrix"
WARM_CALLS, SHORT_CALLS, LONG_CALLS = 2, 1, 5  # of the backend
TRIES = 3  # of which the median counts: what happens once, such as a cache that fills, is in one of them


class Calls(Protocol):
    """Counts calls of Python and of C functions between `begin` and `end`, but those of the harness."""

    method: str
    python: int
    c: int

    def begin(self) -> None:
        """Count from now on, from 0."""

    def end(self) -> None:
        """Stop counting, if it has not stopped."""


class ProfiledCalls:
    """Calls counted by `sys.setprofile`."""

    method = PROFILE

    def __init__(self) -> None:
        self.python = self.c = 0

    def begin(self) -> None:
        """Count from now on, from 0."""
        self.python = self.c = 0
        sys.setprofile(self._event)

    def end(self) -> None:
        """Stop counting."""
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(NOT_COUNTED):
            return
        if event == "call":
            self.python += 1
        elif event == "c_call":
            self.c += 1


class MonitoredCalls:
    """Calls counted by `sys.monitoring`, of Python 3.12 and later."""

    method = MONITORING

    def __init__(self) -> None:
        self.python = self.c = 0
        self._monitoring: Any = vars(sys)["monitoring"]
        self._thread = threading.get_ident()
        self._tool = next(number for number in (2, 3, 4) if self._monitoring.get_tool(number) is None)

    def begin(self) -> None:
        """Count from now on, from 0."""
        self.python = self.c = 0
        monitoring, events = self._monitoring, self._monitoring.events
        monitoring.use_tool_id(self._tool, TOOL)
        for event in (events.PY_START, events.PY_RESUME):
            monitoring.register_callback(self._tool, event, self._python_call)
        for event in (events.C_RETURN, events.C_RAISE):
            monitoring.register_callback(self._tool, event, self._c_call)
        monitoring.register_callback(self._tool, events.CALL, self._call)
        monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME | events.CALL)

    def end(self) -> None:
        """Stop counting."""
        if self._monitoring.get_tool(self._tool) == TOOL:
            self._monitoring.set_events(self._tool, 0)
            self._monitoring.free_tool_id(self._tool)

    def _python_call(self, code: CodeType, offset: int) -> Any:
        if threading.get_ident() == self._thread and not code.co_filename.startswith(NOT_COUNTED):
            self.python += 1

    def _call(self, code: CodeType, offset: int, function: Any, argument: Any) -> Any:
        """Let the returns of C functions be reported, which depend on this event."""

    def _c_call(self, code: CodeType, offset: int, function: Any, argument: Any) -> Any:
        if threading.get_ident() == self._thread and not code.co_filename.startswith(NOT_COUNTED):
            self.c += 1


def calls_of_python() -> Calls:
    """Return what counts calls under this Python."""
    return MonitoredCalls() if hasattr(sys, "monitoring") else ProfiledCalls()


@dataclass(frozen=True, slots=True)
class InstructionCounter:
    """Reads how many instructions this thread has executed in user mode; `problem` says why it cannot."""

    read: Callable[[], int] | None
    problem: str | None = None
    close: Callable[[], None] = lambda: None


_NUMBER_OF_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS, _USER_MODE_ALONE, _CLOSE_ON_EXEC = 0, 1, 1 << 5 | 1 << 6, 8


def event_attributes() -> bytes:
    """Return the `struct perf_event_attr` of its first version: instructions in user mode."""
    return struct.pack("=IIQQQQQIIQ", _HARDWARE, 64, _INSTRUCTIONS, 0, 0, 0, _USER_MODE_ALONE, 0, 0, 0)


def instruction_counter(open_event: Callable[[bytes], int] | None = None) -> InstructionCounter:
    """Return the counter of this thread's instructions; `open_event` replaces the system call in a test."""
    try:
        descriptor = (open_event or _open_event)(event_attributes())
    except OSError as error:
        text = error.strerror
        if isinstance(error, PermissionError):
            text = f"{text}; allow it by sysctl kernel.perf_event_paranoid=2, in a container also by --cap-add PERFMON"
        elif error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
            text = "this machine has no counter of instructions, as many virtual ones"
        return InstructionCounter(None, f"perf_event_open: {text}")
    return InstructionCounter(
        lambda: int.from_bytes(os.read(descriptor, 8), sys.byteorder), close=lambda: os.close(descriptor)
    )


def _open_event(attributes: bytes) -> int:
    number = _NUMBER_OF_PERF_EVENT_OPEN.get(PLATFORM.machine) if PLATFORM.system == "Linux" else None
    if number is None:
        raise OSError(errno.ENOSYS, f"not known on {PLATFORM}")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    this_thread, any_cpu, no_group = 0, -1, -1
    descriptor = int(syscall(number, attributes, this_thread, any_cpu, no_group, _CLOSE_ON_EXEC))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


class Counting:
    """Counts between `begin` and `end`, which returns the counts; the first stretch is that of the first step."""

    def __init__(self, adapter: BackendAdapter, calls: Calls) -> None:
        self._adapter, self._calls = adapter, calls
        self._before = self._programs()
        self._after_first: tuple[int | None, int | None] | None = None
        self._bytes = 0

    def begin(self) -> None:
        """Begin."""
        self._before = self._programs()
        tracemalloc.reset_peak()
        self._bytes = tracemalloc.get_traced_memory()[0]
        self._calls.begin()

    def end(self) -> StepCounts:
        """Return the counts since the beginning."""
        self._calls.end()
        peak_bytes = tracemalloc.get_traced_memory()[1] - self._bytes
        programs, graph_breaks = self._since(self._before)
        self._after_first = self._after_first or self._programs()
        return StepCounts(self._calls.python, self._calls.c, max(0, peak_bytes), programs, graph_breaks)

    def since_first_step(self) -> tuple[int | None, int | None]:
        """Return the programs and graph breaks since the first stretch ended."""
        return self._since(self._after_first or self._before)

    def _programs(self) -> tuple[int | None, int | None]:
        return self._adapter.compilations(), self._adapter.graph_breaks()

    def _since(self, before: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
        """Return how much programs and graph breaks have grown; a count that began meanwhile grew from 0."""
        programs, graph_breaks = (
            None if now is None else now - (then or 0) for now, then in zip(self._programs(), before, strict=True)
        )
        return programs, graph_breaks


class FirstStep:
    """In place of a timed process's turns: it never rests, and ends the counting of the first step."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self.counts: StepCounts | None = None

    def first_step_ended(self) -> None:
        """End the counting."""
        self.counts = self._counting.end()

    def rest(self) -> None:
        """Do nothing: no other process waits for this one."""


class CountedWork(Protocol):
    """Work whose steps can be repeated."""

    steps_a_call: int

    def run(self, first_batches: Sequence[Batch]) -> Any:
        """Run the first step, and some epochs."""

    def again(self, stretch: Stretch) -> None:
        """Run further epochs."""


def counted_steps(
    adapter: BackendAdapter,
    make_work: Callable[[Any], CountedWork],
    first_batches: Sequence[Batch],
    instructions: InstructionCounter | None = None,
) -> Counts:
    """Return the counts of work, which `make_work` makes from the context of its epochs.

    Raises `Unsupported` for work without a first step of its own, such as a workload's own call of `fit`.
    """
    calls, instructions = calls_of_python(), instructions or instruction_counter()
    counting = Counting(adapter, calls)
    first_step: Any = FirstStep(counting)
    work = make_work(MeasuredEpochs(first_step, Compiling(adapter), Allocated(adapter)))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        counting.begin()
        work.run(first_batches)
        if first_step.counts is None:
            counting.end()
            raise Unsupported("counts: a workload's own call of fit has no first step to count; leave out --counts")
        later = _later_step(work, counting)
        tracemalloc.stop()
        later = replace(later, instructions=_instructions(work, instructions))
    finally:
        calls.end()
        instructions.close()
        tracemalloc.stop()
        gc.enable()
    steps = (LONG_CALLS - SHORT_CALLS) * work.steps_a_call
    python = platform.python_version()
    return Counts(calls.method, python, steps, first_step.counts, later, instructions.problem)


def _later_step(work: CountedWork, counting: Counting) -> StepCounts:
    """Return the counts of a step: means over those that a long stretch has more than a short one.

    What was compiled, or broke a graph, counts from the first step on.
    """
    chunk = work.steps_a_call
    steps = (LONG_CALLS - SHORT_CALLS) * chunk
    work.again(Stretch(WARM_CALLS * chunk, 1))
    tries = []
    for _ in range(TRIES):
        short, long = (_stretch(work, counting, backend_calls * chunk) for backend_calls in (SHORT_CALLS, LONG_CALLS))
        calls = [(after - before) / steps for before, after in zip(short[:2], long[:2], strict=True)]
        tries.append((*calls, short[2]))
    python_calls, c_calls, peak_bytes = (median(values) for values in zip(*tries, strict=True))
    return StepCounts(python_calls, c_calls, peak_bytes, *counting.since_first_step())


def _stretch(work: CountedWork, counting: Counting, steps: int) -> tuple[float, float, float]:
    """Return the calls of Python and C functions, and the peak of memory, of so many steps."""
    counting.begin()
    work.again(Stretch(steps, 1))
    counts = counting.end()
    return counts.python_calls or 0.0, counts.c_calls or 0.0, counts.python_peak_bytes or 0.0


def _instructions(work: CountedWork, counter: InstructionCounter) -> float | None:
    """Return the instructions of a step, in further steps that nothing else watches."""
    if counter.read is None:
        return None
    totals = []
    for backend_calls in (SHORT_CALLS, LONG_CALLS):
        before = counter.read()
        work.again(Stretch(backend_calls * work.steps_a_call, 1))
        totals.append(counter.read() - before)
    return (totals[1] - totals[0]) / ((LONG_CALLS - SHORT_CALLS) * work.steps_a_call)
