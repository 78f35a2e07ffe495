"""Signals: the first stops the runner cleanly, and can be deferred."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.interrupts import Stopped, deferring_interrupts, interruptible, process_interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # those of docs/reference/faults.md


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.fault("F19", mutation="a signal is deferred until the end")
def test_a_signal_raises_at_once_and_is_named_in_the_message() -> None:
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM; "), interruptible():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.fault("F19", mutation="a deferred signal is raised at the end of the innermost context")
def test_a_deferred_signal_is_raised_at_the_end_of_the_outermost_context() -> None:
    done: list[str] = []
    with pytest.raises(Interrupted), interruptible():
        stopped_in_nested_contexts(done)
    assert done == ["inner", "outer"]


def stopped_in_nested_contexts(done: list[str]) -> None:
    with deferring_interrupts():
        with deferring_interrupts():
            signal.raise_signal(signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    done.append("after")


def test_deferring_while_stopping_does_not_raise_again() -> None:
    with interruptible():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        with deferring_interrupts():
            pass


def test_deferring_without_handlers_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with deferring_interrupts():
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_deferred_signal_replaces_an_error_of_the_context() -> None:
    with pytest.raises(Interrupted), interruptible(), contextlib.suppress(ValueError):
        failing_while_deferred()


def failing_while_deferred() -> None:
    with deferring_interrupts():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("of the context")


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], Any]]]:
    """What the process would call at its end; the handlers before the test are restored."""
    before, calls = {number: signal.getsignal(number) for number in SIGNALS}, list[Callable[[], Any]]()
    monkeypatch.setattr(atexit, "register", lambda call, *rest: calls.append(lambda: call(*rest)))
    monkeypatch.setattr(os, "_exit", exit_at_once)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, as `process_interruptible` would leave it
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


class AtOnce(BaseException):
    """The process has ended with this exit code."""


def exit_at_once(code: int) -> None:
    raise AtOnce(code)


@pytest.mark.fault("F19", mutation="the signals of a process are handled only while it measures")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.usefixtures("at_exit")
def test_signal_before_or_after_measuring_stops_a_process_as_a_keyboard_interrupt(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt, match=f"^stopped by {number.name}$") as stopped:
        stopped_after_measuring(number)
    assert stopped.type is Stopped  # after another one Python may end with SIGINT instead of the exit code


def stopped_after_measuring(number: signal.Signals) -> None:
    with process_interruptible():
        with interruptible():
            pass
        signal.raise_signal(number)


@pytest.mark.fault("F19", mutation="the handler ignores a second signal")
@pytest.mark.usefixtures("at_exit")
def test_second_signal_ends_a_process_at_once_with_130_until_its_end() -> None:
    with pytest.raises(Interrupted, match="the same command continues the run"):
        stopped_while_measuring()
    with pytest.raises(AtOnce, match="130"):
        signal.raise_signal(signal.SIGINT)


def stopped_while_measuring() -> None:
    with process_interruptible(), interruptible():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.fault("F19", mutation="the handlers are not replaced at the end of the process")
def test_signal_after_the_work_of_a_process_does_not_change_its_exit_code(at_exit: list[Callable[[], Any]]) -> None:
    with process_interruptible():
        pass
    signal.raise_signal(signal.SIGTERM)
    for call in at_exit:
        call()
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN] * len(SIGNALS)
