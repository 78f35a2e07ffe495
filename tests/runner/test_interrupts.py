"""Signals: one stops cleanly, and waits where it has to."""

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


def test_a_signal_stops_at_once_and_says_which() -> None:
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM; "), interruptible():
        signal.raise_signal(signal.SIGTERM)


def test_a_held_signal_waits_until_the_outermost_end() -> None:
    done: list[str] = []
    with pytest.raises(Interrupted), interruptible():
        stopped_twice_held(done)
    assert done == ["inner", "outer"]


def stopped_twice_held(done: list[str]) -> None:
    with deferring_interrupts():
        with deferring_interrupts():
            signal.raise_signal(signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    done.append("after")


def test_what_is_held_while_stopping_does_not_stop_again() -> None:
    with interruptible():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        with deferring_interrupts():
            pass


def test_nothing_is_held_where_nothing_is_heard() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with deferring_interrupts():
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_held_signal_is_told_rather_than_an_error_that_someone_may_catch() -> None:
    with pytest.raises(Interrupted), interruptible(), contextlib.suppress(ValueError):
        failing_while_held()


def failing_while_held() -> None:
    with deferring_interrupts():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("of the step")
