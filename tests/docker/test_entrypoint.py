"""docker/entrypoint as a shell runs it, with fakes of the commands that need root. Needs no engine."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.docker.containers import ROOT

KEEP_ROOT = {"KERAS_BENCHMARK_KEEP_ROOT": "1"}
STAND_INS = {
    "id": "echo 0",
    "stat": "echo 1000:1000",
    "chown": 'echo "chown $*" >>"$LOG"',
    "setpriv": 'echo "setpriv $*" >>"$LOG"',
}


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    """A copy that works in a test's folder, as an executable."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "results").mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    copy = tmp_path / "entrypoint"
    text = (ROOT / "docker" / "entrypoint").read_text(encoding="utf-8")
    copy.write_text(text.replace("/work/results", str(tmp_path / "results")))
    copy.chmod(0o755)
    return copy


def environment(entrypoint: Path, **variables: str) -> dict[str, str]:
    folder = entrypoint.parent
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "LOG": str(folder / "log"), "KERAS_BENCHMARK_HOST": "a-host", **variables}


def ran(entrypoint: Path, command: str, **variables: str) -> tuple[int, str, list[str]]:
    """Run a shell command through the entry point; return its code, its output and the stand-ins' calls."""
    done = subprocess.run(
        [entrypoint, "sh", "-c", command],
        env=environment(entrypoint, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    log = entrypoint.parent / "log"
    return done.returncode, done.stdout.strip(), log.read_text().splitlines() if log.exists() else []


@pytest.mark.process
def test_entrypoint_changes_from_root_to_the_owner_of_the_results(entrypoint: Path) -> None:
    code, output, calls = ran(entrypoint, "echo ran")
    assert (code, output) == (0, "")  # the fake setpriv starts nothing
    options = "--reuid=1000 --regid=1000 --clear-groups --bounding-set=-all --inh-caps=-all"
    assert calls == [f"setpriv {options} {entrypoint} sh -c echo ran"]


@pytest.mark.process
def test_root_remains_on_request_and_results_are_given_to_their_owner(entrypoint: Path) -> None:
    code, output, calls = ran(entrypoint, "echo ran; exit 3", **KEEP_ROOT)
    assert (code, output) == (3, "ran")
    assert calls == [f"chown -R --no-dereference --from=0:0 1000:1000 {entrypoint.parent / 'results'}"]


@pytest.mark.process
@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_root_remains_for_the_value_1_alone(entrypoint: Path, value: str) -> None:
    _, _, calls = ran(entrypoint, "echo ran", KERAS_BENCHMARK_KEEP_ROOT=value)
    assert [call.split()[0] for call in calls] == ["setpriv"]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_reaches_the_program_once_and_its_exit_code_is_returned(
    entrypoint: Path, number: signal.Signals
) -> None:
    name = number.name.removeprefix("SIG")
    wait = f"trap 'echo {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [entrypoint, "sh", "-c", wait],
        env=environment(entrypoint, **KEEP_ROOT),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - in the background SIGINT is ignored
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            running.send_signal(number)
            assert running.stdout.read() == f"{name}\n"
        finally:
            running.kill()  # an interrupted test leaves no shell behind
    assert running.returncode == 7
    assert (entrypoint.parent / "log").read_text().startswith("chown -R ")
