"""`ci/netns`: networks whose links limit the rate, and their complete removal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "ci" / "netns")
RATE_BYTE_PER_S = 200e6 / 8
BURST_S = 1 / 1000  # what a link's token bucket lets through at once, in time at its rate


@cache
def why_not() -> str | None:
    """Return why this machine makes no network namespaces, None where it does."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here (iproute2)"
    done = netns("1", "--rate", "1gbit", "--", "true")
    return None if done.returncode == 0 else f"this machine makes no network namespaces: {done.stderr.strip()}"


def netns(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def networks() -> None:
    if reason := why_not():
        pytest.skip(reason)


def left_of(owner: int | str) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"kbm-net-{owner}-")]


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "N: got ''"),
        (["many", "--rate", "1gbit"], "N: got 'many'"),
        (["201", "--rate", "1gbit"], "N: got '201'"),
        (["2"], "--rate: must follow N, got ''"),
        (["2", "--rate", "fast"], "--rate: must be such as 200mbit, got 'fast'"),
        (["2", "--rate", "1gbit", "true"], "COMMAND: must follow --, got 'true'"),
    ],
)
def test_bad_input_prints_the_usage(arguments: list[str], expected: str) -> None:
    done = netns(*arguments)
    assert (done.returncode, expected in done.stderr, "usage: ci/netns N --rate RATE" in done.stderr) == (2, True, True)


@pytest.mark.alone
@pytest.mark.process
@pytest.mark.usefixtures("networks")
def test_command_gets_the_namespaces_by_name_and_its_exit_code_is_passed_on() -> None:
    done = netns("2", "--rate", "200mbit", "--", "sh", "-c", "echo $KERAS_BENCHMARK_NETWORK; echo $PPID; exit 7")
    words, owner = done.stdout.split("\n")[:2]
    assert (done.returncode, words) == (7, f"200mbit kbm-net-{owner}-0 kbm-net-{owner}-1")
    assert left_of(owner) == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ({"bash": None, "id": "echo 1000"}, "making network namespaces needs root, this is 1000: sudo ci/netns 1 ..."),
        ({"bash": None, "id": "echo 0"}, "there is no ip here: apt-get install iproute2 (Debian, Ubuntu)"),
    ],
    ids=["root", "ip"],
)
def test_missing_tools_are_reported_with_exit_code_3(
    tools: dict[str, str | None], expected: str, tmp_path: Path
) -> None:
    for name, answer in tools.items():
        if answer is None:
            (tmp_path / name).symlink_to(str(shutil.which(name)))
        else:
            (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
            (tmp_path / name).chmod(0o755)
    done = netns("1", "--rate", "1gbit", "--", "true", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (3, f"ci/netns: {expected}\n")


@pytest.mark.alone
@pytest.mark.process
@pytest.mark.usefixtures("networks")
def test_both_directions_of_each_link_are_limited_to_the_rate() -> None:
    """At either end of a link, what goes out there: a burst of 1 ms at the rate is 25000 bytes."""
    show = "for n in 0 1 hub; do tc -n kbm-net-$PPID-$n qdisc show; done"
    done = netns("2", "--rate", "200mbit", "--", "sh", "-c", show)
    held = [line for line in done.stdout.splitlines() if " tbf " in line]
    assert [line.split(" dev ")[1].split()[0] for line in held] == ["link", "link", "port0", "port1"]
    assert ["rate 200Mbit burst 25000b" in line for line in held] == [True] * 4


@pytest.mark.alone
@pytest.mark.process
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_after_a_signal(number: signal.Signals) -> None:
    process = running()
    assert len(left_of(process.pid)) == 3  # two namespaces and that of the bridge
    os.killpg(process.pid, number)
    assert process.wait(timeout=20) != 0
    assert left_of(process.pid) == []


@pytest.mark.alone
@pytest.mark.process
@pytest.mark.usefixtures("networks")
def test_leftovers_of_a_killed_run_are_removed_and_running_ones_are_not() -> None:
    killed, runs = running(), running()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(timeout=20)
    assert len(left_of(killed.pid)) == 3
    assert netns("1", "--rate", "1gbit", "--", "true").returncode == 0
    assert (left_of(killed.pid), len(left_of(runs.pid))) == ([], 3)
    os.killpg(runs.pid, signal.SIGTERM)
    runs.wait(timeout=20)


def running() -> subprocess.Popen[str]:
    """Start one in a process group of its own, and return when its command runs."""
    # A script cannot trap what it was started to ignore, as nohup and a shell's background start theirs.
    heeding = ["env", "--default-signal=HUP,INT"]
    command = [*heeding, SCRIPT, "2", "--rate", "200mbit", "--", "sh", "-c", "echo here; exec sleep 60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "here\n"
    return process


def step_of(*command: str) -> dict[str, Any]:
    step = [sys.executable, str(Path(__file__).with_name("network_step.py"))]
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *step], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.process
@pytest.mark.usefixtures("networks")
def test_step_over_links_takes_at_least_as_long_as_its_bytes() -> None:
    """Two workers each send what is gathered of one copy of the gradients; over loopback that is far quicker."""
    linked, local = step_of(SCRIPT, "2", "--rate", "200mbit", "--"), step_of()
    assert len(set(linked["networks"])) == 2
    assert local["networks"] == [None, None]
    least_s = linked["sent_bytes"] / RATE_BYTE_PER_S - BURST_S
    assert linked["sent_bytes"] == 4 * (4 * 256**2 + 256)
    assert linked["step_s"] >= least_s > local["step_s"]
    assert linked["inside_s"] >= least_s  # so the measured time of collectives includes it
