"""`ci/nightly` runs every part once on the same sources, whatever fails before it, and prints budgets and figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import script

ROOT = Path(__file__).parents[2]
nightly = script("nightly")
Outcome = Mapping[str, Any]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The parts that were run, of three pretended ones, of which `second` fails."""
    names: list[str] = []

    def code(part: Any) -> int:
        names.append(part.name)
        if part.name == "fuzz":
            part.summary.write_text(json.dumps({"inputs": 200_000, "tracebacks": 0}), encoding="utf-8")
        return int(part.name == "second")

    parts = tuple(nightly.Part(name, f"ci/{name}", 30) for name in ("fuzz", "second", "third"))
    monkeypatch.setattr(nightly, "PARTS", parts)
    monkeypatch.setattr(nightly, "FOLDER", tmp_path)
    monkeypatch.setattr(nightly, "sources_of", lambda root: "a commit")
    monkeypatch.setattr(nightly, "_code", code)
    return names


def test_every_part_runs_also_after_one_that_failed_and_prints_its_budget(
    ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert nightly.main([]) == 1
    assert ran == ["fuzz", "second", "third"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 parts, at most 1.5 hours; a later call continues"
    assert "--- second: ci/second (at most 30 minutes expected)" in lines
    assert lines[-5:] == [
        "fuzz                  0.0       30  passed",
        "second                0.0       30  failed, exit code 1",
        "third                 0.0       30  passed",
        "",
        "200,000 fuzzed inputs: 0 tracebacks",
    ]


def test_a_later_call_repeats_only_what_has_not_passed_on_these_sources(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly.main([])
    ran.clear()
    assert nightly.main([]) == 1
    assert ran == ["second"]
    assert capsys.readouterr().out.splitlines()[-1] == "200,000 fuzzed inputs: 0 tracebacks"
    assert nightly.main(["third"]) == 0
    assert ran == ["second"]
    assert nightly.main(["third", "--new"]) == 0
    assert ran == ["second", "third"]
    monkeypatch.setattr(nightly, "sources_of", lambda root: "another commit")
    nightly.main(["fuzz"])
    assert ran == ["second", "third", "fuzz"]


def test_parts_outside_of_a_repository_are_always_run(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "sources_of", lambda root: "")
    nightly.main(["third"])
    nightly.main(["third"])
    assert ran == ["third", "third"]


def test_a_part_without_its_figures_is_said_to_have_none(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nightly, "_code", lambda part: 0)
    assert nightly.main(["fuzz"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "fuzz: no figures"


def test_unknown_part_is_rejected_with_the_known_ones(ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        nightly.main(["other"])
    assert "PART: must be one of fuzz, second, third, got 'other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("printed", "code", "found"),
    [("GPU 0: NVIDIA L4 (UUID: GPU-5)", 0, True), ("No devices found.", 0, False), ("", 9, False)],
)
def test_parts_for_a_gpu_are_offered_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, printed: str, code: int, found: bool
) -> None:
    monkeypatch.setattr(nightly.shutil, "which", lambda name: f"/usr/bin/{name}")
    answer = subprocess.CompletedProcess(["nvidia-smi"], code, stdout=printed)
    monkeypatch.setattr(nightly.subprocess, "run", lambda *arguments, **options: answer)
    offered = [part.name for part in nightly._chosen([])[0]]
    assert ("first-hour-gpu" in offered) is found
    assert "first-hour" in offered


def test_every_command_exists_and_the_gpu_images_are_built_before_the_tests_of_images() -> None:
    names = [part.name for part in nightly.PARTS]
    assert len(set(names)) == len(names)
    assert names.index("gpu-images") < names.index("docker")
    scripts = {part.arguments[0] for part in nightly.PARTS} - {"make", ".venv/bin/runner"}
    assert {name for name in scripts if not os.access(ROOT / name, os.X_OK)} == set()
    assert set(nightly.FIGURES) == {part.name for part in nightly.PARTS[:3]}


def made(folder: Path, seconds: float) -> Any:
    """A part whose process has a child; both ignore SIGTERM, and `started` exists once the child runs."""
    program = folder / "program.py"
    program.write_text(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen(['sleep', '{seconds}'])\n"
        f"open({str(folder / 'started')!r}, 'w').close()\n"
        f"time.sleep({seconds})\n"
    )
    return nightly.Part("slow", f"{sys.executable} {program}", 0.02)


def running(seconds: float) -> bool:
    return subprocess.run(["pgrep", "-f", f"sleep {seconds}"], capture_output=True, check=False).returncode == 0


@pytest.mark.process
def test_a_part_that_takes_twice_its_budget_is_ended_with_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nightly, "FOLDER", tmp_path)
    monkeypatch.setattr(nightly, "GRACE_S", 0.3)
    outcome = nightly.run(made(tmp_path, 600.25), "a commit")
    assert (outcome["code"], running(600.25)) == (-signal.SIGTERM, False)


@pytest.mark.process
def test_an_interrupt_ends_the_part_with_its_processes_and_the_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nightly, "FOLDER", tmp_path)
    monkeypatch.setattr(nightly, "GRACE_S", 0.3)
    slow = nightly.Part("slow", made(tmp_path, 600.75).command, 30)
    monkeypatch.setattr(nightly, "PARTS", (slow, nightly.Part("next", "false", 30)))

    def interrupt() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        assert nightly.main([]) == 130
    finally:
        signal.signal(signal.SIGINT, previous)
    assert not running(600.75)
    assert not (tmp_path / "next.json").exists()


@pytest.mark.process
def test_sources_differ_after_every_change_and_are_empty_outside_of_a_repository(tmp_path: Path) -> None:
    assert nightly.sources_of(tmp_path) == ""
    seen = []
    for command in (
        "git init -q .",
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one",
        "touch new",
    ):
        subprocess.run(command.split(), cwd=tmp_path, check=True)
        seen.append(nightly.sources_of(tmp_path))
    (tmp_path / "new").write_text("text")
    seen.append(nightly.sources_of(tmp_path))
    subprocess.run(["git", "add", "new"], cwd=tmp_path, check=True)
    seen.append(nightly.sources_of(tmp_path))
    assert seen[0] == ""
    assert len(set(seen)) == 5
