"""What a counting process counts, with work and a backend whose counts are known."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.checks.counting import (
    Calls,
    InstructionCounter,
    MonitoredCalls,
    ProfiledCalls,
    calls_of_python,
    counted_steps,
    event_attributes,
    instruction_counter,
)
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.measured_epochs import MeasuredEpochs, agreed

WAYS: list[Callable[[], Calls]] = [ProfiledCalls, *([MonitoredCalls] if hasattr(sys, "monitoring") else [])]
NO_INSTRUCTIONS = InstructionCounter(None, "a reason")
FIRST_PROGRAMS, EVERY = 3, 4


class Adapter:
    """A backend that compiles three programs at first, and another one every fourth step."""

    def __init__(self) -> None:
        self.programs = 0

    def compilations(self) -> int | None:
        return self.programs or None

    def graph_breaks(self) -> int | None:
        return None


def inner() -> int:
    return len("abc")


def numbers() -> Iterator[int]:
    yield 1
    yield 2


class Work:
    """Each step calls `inner` twice, and so `len`; a stretch calls it ten times more. `kept` grows with the steps."""

    steps_a_call = 2

    def __init__(self, adapter: Adapter, measured: Any, *, has_first_step: bool = True) -> None:
        self._adapter, self._measured, self._has_first_step = adapter, measured, has_first_step
        self._steps = 0

    def run(self, first_batches: Any) -> None:
        self._step()
        self._adapter.programs += FIRST_PROGRAMS
        if self._has_first_step:
            self._measured.turns.first_step_ended()
        self._measured.turns.rest()
        for _ in range(100):
            inner()

    def again(self, stretch: Stretch) -> None:
        for _ in range(10):
            inner()
        for _ in range(stretch.steps):
            self._step()

    def _step(self) -> None:
        inner()
        inner()
        self._steps += 1
        self._adapter.programs += self._steps % EVERY == 0


def made(adapter: Adapter, **changes: bool) -> Callable[[MeasuredEpochs], Any]:
    return lambda measured: Work(adapter, measured, **changes)


@pytest.mark.parametrize("way", WAYS)
def test_calls_of_python_and_c_are_counted_apart_and_generators_at_each_resumption(way: Callable[[], Calls]) -> None:
    calls = way()
    calls.begin()
    inner()
    listed = list(numbers())
    calls.end()
    counted = (calls.python, calls.c)
    inner()
    assert (calls.python, calls.c) == counted, "nothing is counted after the end"
    assert (calls.python, listed) == (4, [1, 2])  # `inner`; the generator starts, and is resumed twice
    assert calls.c >= 1
    calls.begin()
    calls.end()
    assert calls.python == 0


def test_step_is_the_difference_of_two_stretches_and_the_first_step_stands_alone() -> None:
    """Mutation: what a stretch does once is counted as part of its steps; what follows the first step as part of it."""
    adapter = Adapter()
    counts = counted_steps(adapter, made(adapter), [], NO_INSTRUCTIONS)  # type: ignore[arg-type]
    # run, its _step, and two of `inner`; the calls of the harness are not counted.
    assert (counts.first.python_calls, counts.first.c_calls) == (4, 2)
    assert (counts.later.python_calls, counts.later.c_calls, counts.steps) == (3.0, 2.0, 8)
    assert counts.first.programs == FIRST_PROGRAMS
    later_steps = 2 * (2 + 3 * (1 + 5))
    assert counts.later.programs == (1 + later_steps) // EVERY
    assert counts.later.graph_breaks is None
    assert (counts.later.instructions, counts.no_instructions) == (None, "a reason")


def test_nothing_remains_switched_on_or_off() -> None:
    """Mutation: garbage collection stays off after an error."""
    adapter = Adapter()
    with pytest.raises(Unsupported, match=r"a workload's own call of fit has no first step"):
        counted_steps(adapter, made(adapter, has_first_step=False), [], NO_INSTRUCTIONS)  # type: ignore[arg-type]
    assert (gc.isenabled(), tracemalloc.is_tracing(), sys.getprofile()) == (True, False, None)


def test_nothing_remains_on_after_an_error_of_the_work() -> None:
    """Mutations: calls go on being counted while the error is recorded; the counter of instructions stays open."""
    adapter, closed = Adapter(), []
    calls = calls_of_python()

    def failing(context: Any) -> Any:
        work = made(adapter)(context)
        work.again = lambda stretch: 1 / 0
        return work

    counter = InstructionCounter(None, close=lambda: closed.append(True))
    with pytest.raises(ZeroDivisionError):
        counted_steps(adapter, failing, [], counter)  # type: ignore[arg-type]
    assert (gc.isenabled(), tracemalloc.is_tracing(), sys.getprofile(), closed) == (True, False, None, [True])
    calls.begin()
    calls.end()
    calls.end()


def test_instructions_of_a_recorded_counter_are_those_of_a_step() -> None:
    """The recorded values are those before and after the short stretch, then the long one."""
    recorded = iter([1_000, 31_000, 40_000, 150_000])
    adapter = Adapter()
    counts = counted_steps(adapter, made(adapter), [], InstructionCounter(lambda: next(recorded)))  # type: ignore[arg-type]
    assert counts.later.instructions == (110_000 - 30_000) / 8
    assert (counts.first.instructions, counts.no_instructions) == (None, None)


def test_counter_of_instructions_is_read_from_what_the_kernel_opens() -> None:
    readable, writable = os.pipe()
    try:
        os.write(writable, (123_456_789).to_bytes(8, sys.byteorder))
        asked = []
        counter = instruction_counter(lambda attributes: asked.append(attributes) or readable)  # type: ignore[func-returns-value]
        assert counter.read is not None
        assert counter.read() == 123_456_789
        assert (
            [len(attributes) for attributes in asked]
            == [64]
            == [int.from_bytes(event_attributes()[4:8], sys.byteorder)]
        )
    finally:
        os.close(readable)
        os.close(writable)


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (
            errno.EACCES,
            "perf_event_open: Permission denied; allow it by sysctl kernel.perf_event_paranoid=2, in a container also "
            "by --cap-add PERFMON",
        ),
        (errno.ENOENT, "perf_event_open: this machine has no counter of instructions, as many virtual ones"),
        (errno.ENOSYS, "perf_event_open: Function not implemented"),
    ],
)
def test_why_instructions_are_not_counted(number: int, problem: str) -> None:
    def refuse(attributes: bytes) -> int:
        raise OSError(number, os.strerror(number))

    assert instruction_counter(refuse) == InstructionCounter(None, problem)


def test_first_step_of_a_timed_process_ends_without_an_effect() -> None:
    class Turns:
        ended = 0

        def first_step_ended(self) -> None:
            self.ended += 1

    class Job:
        steps = 7

    turns: Any = Turns()
    job: Any = Job()
    assert agreed(job, turns, lambda count: 0.0) == (7, None)
    assert turns.ended == 1


class WorkWithCache(Work):
    """Work of which one stretch, the second long one, makes a hundred calls more."""

    def again(self, stretch: Stretch) -> None:
        super().again(stretch)
        self.stretches = getattr(self, "stretches", 0) + 1
        for _ in range(100 * (self.stretches == 5)):
            inner()


def test_what_happens_once_is_not_counted_as_part_of_a_step() -> None:
    """Mutation: one pair of stretches is counted."""
    adapter = Adapter()
    counts = counted_steps(adapter, lambda measured: WorkWithCache(adapter, measured), [], NO_INSTRUCTIONS)  # type: ignore[arg-type]
    assert (counts.later.python_calls, counts.later.c_calls) == (3.0, 2.0)


@pytest.mark.parametrize("way", WAYS)
def test_waiting_for_another_thread_makes_no_calls(way: Callable[[], Calls]) -> None:
    """How often a thread waits depends on the machine. Mutation: calls of the module `threading` are counted."""
    counted = set()
    for has_ended in (True, False):
        event, calls = threading.Event(), way()
        if has_ended:
            event.set()
        calls.begin()
        event.wait(0)
        calls.end()
        counted.add((calls.python, calls.c))
    assert counted == {(0, 0)}
