"""A worker that is a process of its own, without the process."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest

from models.fc import ranks
from models.fc.crew import Order
from records.fc import Task


def test_a_worker_that_has_met_the_others_keeps_pythons_collector_from_what_it_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen_before, made = gc.get_freeze_count(), [[number] for number in range(2000)]
    met: list[int] = []

    def join(order: Order, rank: int, meeting: str, timeout_s: float) -> str:
        met.append(gc.get_freeze_count())
        return "worker"

    monkeypatch.setitem(sys.modules, "models.fc.native.torch", SimpleNamespace(join=join))
    assert ranks._arrive(Order(Task(), seed=1), 0, "meeting", 1.0) == "worker"
    assert met == [frozen_before]
    assert gc.get_freeze_count() - frozen_before > len(made)
