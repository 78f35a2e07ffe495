"""Signals: the first stops the runner cleanly, and can be deferred."""

from __future__ import annotations

import contextlib
import signal

import pytest

from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.interrupts import deferring_interrupts, interruptible


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
