"""Signals: one stops cleanly, and waits where it has to."""

from __future__ import annotations

import contextlib
import signal

import pytest

from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.interrupts import held, interruptible


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_stops_at_once_with_its_name() -> None:
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM; "), interruptible():
        signal.raise_signal(signal.SIGTERM)


def test_deferred_signal_waits_for_the_outermost_block() -> None:
    done: list[str] = []
    with pytest.raises(Interrupted), interruptible():
        stopped_twice_held(done)
    assert done == ["inner", "outer"]


def stopped_twice_held(done: list[str]) -> None:
    with held():
        with held():
            signal.raise_signal(signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    done.append("after")


def test_second_signal_while_stopping_does_not_stop_again() -> None:
    with interruptible():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        with held():
            pass


def test_signals_are_not_deferred_without_a_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with held():
        assert signal.getsignal(signal.SIGTERM) is before


def test_deferred_signal_takes_precedence_over_an_exception() -> None:
    with pytest.raises(Interrupted), interruptible(), contextlib.suppress(ValueError):
        failing_while_held()


def failing_while_held() -> None:
    with held():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("of the step")
