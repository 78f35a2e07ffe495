"""The bytes that a cell records as sent, against the kernel's counters of an interface without other users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# Makes a network namespace, with rights of its own where this is not root, brings up its loopback interface, runs "$@".
ALONE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
SCRIPT = 'ip link set lo up && exec "$@"'


def run_alone(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a network namespace of its own."""
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*ALONE, SCRIPT, "sh", *command], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.xdist_group("wire")]


@pytest.fixture(scope="module")
def problems() -> list[dict[str, Any]]:
    try:
        tried = run_alone("true")
    except FileNotFoundError:
        pytest.skip("there is no unshare here (util-linux)")
    if tried.returncode != 0:
        pytest.skip(f"this machine makes no network namespace: {tried.stderr.strip()}")
    done = run_alone(sys.executable, str(Path(__file__).with_name("wire.py")))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["problems"]
    return found


def test_processes_send_the_recorded_bytes_and_headers(problems: list[dict[str, Any]]) -> None:
    beyond = {problem["name"]: problem["measured"] / problem["wire"] for problem in problems}
    assert {name: ratio for name, ratio in beyond.items() if not 1 <= ratio < 1.03} == {}


def test_only_dtensor_sends_more_than_the_payload(problems: list[dict[str, Any]]) -> None:
    more = [problem["name"] for problem in problems if problem["measured"] > 1.03 * problem["payload"]]
    assert more == ["fc_model 2 dtensor"]
