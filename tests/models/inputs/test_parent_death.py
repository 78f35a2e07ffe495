"""A child that was started for another process does not outlive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from keras_matrix.models import process
from keras_matrix.models.inputs import probe as probing
from keras_matrix.models.inputs.stored import command
from keras_matrix.records.host import platform

CHILD = "import os, signal, time; from keras_matrix.models.process import end_with; "
CHILD += "end_with(os.getppid(), signal.SIGTERM); print('ready', flush=True); time.sleep(60)"
PARENT = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); child.wait()"


@pytest.mark.process
def test_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        # The child has the other end of the pipe: it closes when the child ends.
        assert parent.stdout.read() == ""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, int]]:
    """The calls that the commands make."""
    found: list[tuple[int | None, int]] = []
    for module in (probing, command):
        monkeypatch.setattr(module, "end_with", lambda parent, number: found.append((parent, number)))
    return found


def test_probe_ends_with_the_process_that_asks_for_it(ended: list[tuple[int | None, int]]) -> None:
    asked: dict[str, Any] = {"params": {"dataset_path": "nowhere", "image_size": 32}, "batch_size": 4, "parent": 7}
    probing.main(json.dumps(asked))
    assert ended == [(7, signal.SIGKILL)]


@pytest.mark.parametrize(("asked", "parent"), [({"parent": 7}, 7), ({}, None)])
def test_conversion_ends_with_the_process_that_asks_for_it(
    ended: list[tuple[int | None, int]], monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], parent: int | None
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["convert", json.dumps(asked)])
    assert command.main(lambda request: "done") == 0
    assert ended == [(parent, signal.SIGTERM)]


def test_child_whose_parent_has_ended_before_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(platform, "_prctl", lambda option, value: None)
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    process.end_with(os.getppid() + 1, signal.SIGTERM)
    assert killed == [(os.getpid(), signal.SIGTERM)]
