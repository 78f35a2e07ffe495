"""What the child processes that probe and convert report, and how their failures become one message."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.instruments.input_use import InputProbe
from keras_matrix.runner.machine.mounts import DataFolders
from keras_matrix.runner.measure import input_tools
from keras_matrix.runner.measure.input_tools import ChildProcesses
from tests.conftest import make_settings


def ended(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", problem: str = "") -> list[dict[str, Any]]:
    """Make children end so; return what they are asked for."""
    asked: list[dict[str, Any]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(json.loads(command[-1]))
        return subprocess.CompletedProcess(command, code, out, problem)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def probe() -> InputProbe:
    return ChildProcesses().probe(make_settings(batch_size=4), DataFolders("/data", ("/own",)))


def test_probe_is_asked_for_the_data_of_the_cell_and_its_result_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ended(monkeypatch, 0, '{"samples": 64, "lock_held_share": 0.25}')
    assert probe() == InputProbe(64, lock_held_share=0.25)
    assert (asked[0]["batch_size"], asked[0]["dataset_dir"], asked[0]["folders"]) == (4, "/data", ["/own"])


def test_failed_probe_has_the_last_line_of_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    ended(monkeypatch, 2, problem="a warning\nimages: no such folder\n")
    assert probe() == InputProbe(0, problem="images: no such folder")
    ended(monkeypatch, -9)
    assert probe().problem == "it ended without a message"
    ended(monkeypatch, 0, "{}")
    assert (probe().problem or "").startswith("the probe's result cannot be read: ")


def test_probe_that_takes_too_long_is_no_failure_of_the_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert probe().problem == f"the probe took longer than {input_tools.PROBE_TIMEOUT_S:.0f} s"


def test_conversion_returns_its_error_without_the_name_of_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    convert = ChildProcesses().convert
    asked = ended(monkeypatch, 3, problem="runner: note\nrunner: disk: No space left on device\n")
    assert convert(tmp_path / "images", tmp_path / "out", "tfrecord") == "disk: No space left on device"
    assert (asked[0]["to"], asked[0]["output_path"]) == ("tfrecord", str(tmp_path / "out"))
    ended(monkeypatch, 0)
    assert convert(tmp_path / "images", tmp_path / "out", "tfrecord") is None
