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
    met: list[int] = []

    def join(order: Order, rank: int, meeting: str, timeout_s: float) -> str:
        met.append(gc.get_freeze_count())
        return "worker"

    monkeypatch.setitem(sys.modules, "models.fc.native.torch", SimpleNamespace(join=join))
    try:
        assert ranks._arrive(Order(Task(), seed=1), 0, "meeting", 1.0) == "worker"
        assert met == [0]
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
