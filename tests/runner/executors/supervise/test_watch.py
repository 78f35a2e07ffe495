"""What a watch says of figures that its system lacks, and the kills that it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.cell.job import write_job
from keras_matrix.runner.executors.supervise import watch
from keras_matrix.runner.executors.supervise.watch import Watch
from tests.conftest import make_settings
from tests.runner.executors.supervise.test_epochs_on_gpus import EndedParent, a_job


@pytest.mark.parametrize("container", [None, "of the cell"])
def test_every_watch_warns_of_what_its_system_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, container: Any
) -> None:
    """Mutation: only the executor of processes warns."""
    monkeypatch.setattr(watch, "PLATFORM", replace(PLATFORM, tree=ProcTree(tmp_path / "empty")))
    job = replace(a_job(tmp_path), settings=make_settings(device="cpu"))
    write_job(job)
    parent = EndedParent()
    parent.container = container
    outcome = Watch(parent, job, {}, 10.0, ("another",)).finish()
    known, warning = outcome.warnings
    assert (known, outcome.oom_kills) == ("another", None)
    assert warning.startswith("unread: ")
    assert ("evidence.oom_kills: " in warning) == (container is None)
    assert "machine.memory_bytes: /proc/meminfo does not exist" in warning


@pytest.mark.parametrize(
    ("readings", "kills"),
    [([3, 4, 4, 4], 1), ([3, 4, 4, None], 1), ([3, None, 4, 5], 1), ([3, 3, 3, None], None), ([3, 3, 3, 3], 0)],
)
def test_a_kill_that_was_counted_remains_one(
    monkeypatch: pytest.MonkeyPatch, readings: list[int | None], kills: int | None
) -> None:
    """Mutation: one reading that fails makes the whole number unknown, or an unknown one 0."""
    left = iter(readings)
    monkeypatch.setattr(watch, "PLATFORM", SimpleNamespace(oom_kills=lambda: next(left)))
    meter = watch.Meter()
    for _ in range(2):
        meter.on()
        meter.off()
    assert meter.oom_kills == kills
