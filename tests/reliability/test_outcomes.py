"""The outcomes of sessions become one summary, which names every fault with a failed or skipped test."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.reliability import outcomes
from tests.reliability.faults import FAULTS
from tests.reliability.outcomes import FAILED, PASSED, SKIPPED, Outcome, summarised

ROOT = Path(__file__).parents[2]
ALL = [fault.name for fault in FAULTS]
TESTS = """\
import pytest


@pytest.mark.fault("F1", mutation="m")
@pytest.mark.fault("F2", mutation="m")
@pytest.mark.parametrize("number", [1, 2])
def test_two(number):
    assert number == 1


@pytest.mark.fault("F3", mutation="m", recorded=True)
def test_recorded():
    pass


@pytest.mark.fault("F4", mutation="m")
def test_skipped():
    pytest.skip("no engine")


@pytest.fixture
def broken():
    raise OSError("no disk")


@pytest.mark.fault("F5", mutation="m")
def test_with_a_broken_fixture(broken):
    pass


def test_of_no_fault():
    pass
"""


def test_all_faults_survive_if_a_test_of_each_passed() -> None:
    found = summarised([Outcome("test_all", ALL, False, PASSED), Outcome("test_recorded", ["F14"], True, PASSED)])
    assert found.lines() == ["faults: 40 of 40 survived (2 tests, 1 from recorded messages)"]


def test_failed_skipped_and_missing_tests_are_named_with_their_faults() -> None:
    found = summarised(
        [
            Outcome("test_most", [name for name in ALL if name not in ("F7", "F27")], False, PASSED),
            Outcome("test_hanging", ["F7", "F8"], False, FAILED),
            Outcome("test_engine", ["F27", "F28"], False, SKIPPED, "no engine"),
        ]
    )
    assert found.lines() == [
        "faults: 37 of 40 survived (2 tests, 0 from recorded messages)",
        "F7: failed: test_hanging",
        "F8: failed: test_hanging",
        "F27: no test of it passed",
        "F27: skipped: test_engine (no engine)",
        "F28: skipped: test_engine (no engine)",
    ]


def test_test_counts_once_with_its_worst_outcome() -> None:
    reports = [Outcome("test_a", ALL, False, PASSED), Outcome("test_a", ALL, False, FAILED)]
    found = summarised(reports + reports[::-1])
    assert (found.survived, found.tests, set(found.failed)) == (0, 1, set(ALL))


def test_marked_test_without_an_outcome_is_named_and_no_run_is_complete_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        outcomes, "marked_tests", lambda: {("tests/test_a.py", "test_one"), ("tests/test_b.py", "test_two")}
    )
    noted = [Outcome("tests/test_a.py::test_one[1]@group", ALL, False, PASSED)]
    (tmp_path / "unit.jsonl").write_text("".join(json.dumps(asdict(one)) + "\n" for one in noted))
    assert outcomes.main([str(tmp_path)]) == 0
    capsys.readouterr()
    assert outcomes.main([str(tmp_path), "--complete"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["not run: tests/test_b.py::test_two"]


def test_marked_tests_are_those_of_the_tiers_that_every_machine_should_run() -> None:
    marked = outcomes.marked_tests()
    assert ("tests/docker/test_executor.py", "test_a_gigabyte_of_output_is_capped") in marked
    assert not [path for path, _ in marked if path.startswith(("tests/gpu/", "tests/dashboards/test_hostile_browser"))]


@pytest.mark.process
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_session_notes_how_the_test_of_each_fault_ended(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_example.py").write_text(TESTS)
    noted = tmp_path / "unit.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "tests.reliability.outcomes", "-p", "no:randomly", *workers]
    environment = {"PATH": "/usr/bin:/bin", "FAULT_OUTCOMES": str(noted), "HOME": str(tmp_path)}
    rules = ["-W", "ignore::pytest.PytestUnknownMarkWarning", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, *rules, "-c", "/dev/null", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = [Outcome(**json.loads(line)) for line in noted.read_text().splitlines()]
    assert sorted((one.test.partition("::")[2], *list(asdict(one).values())[1:]) for one in found) == [
        ("test_recorded", ["F3"], True, PASSED, ""),
        ("test_skipped", ["F4"], False, SKIPPED, "no engine"),
        ("test_two[1]", ["F1", "F2"], False, PASSED, ""),
        ("test_two[2]", ["F1", "F2"], False, FAILED, ""),
        ("test_with_a_broken_fixture", ["F5"], False, FAILED, ""),
    ]


def test_command_prints_and_writes_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Outcome("test_all", ALL, False, PASSED), Outcome("test_b", ["F4"], False, SKIPPED, "no engine")]
    (tmp_path / "unit.jsonl").write_text("".join(json.dumps(asdict(one)) + "\n" for one in lines))
    assert outcomes.main([str(tmp_path), "--summary", str(tmp_path / "summary.json")]) == 0
    assert capsys.readouterr().out.startswith("faults: 40 of 40 survived (1 tests, 0 from recorded messages)\n")
    document = json.loads((tmp_path / "summary.json").read_text())
    figures = [document[name] for name in ("faults", "survived", "tests", "recorded", "skipped")]
    assert figures == [40, 40, 1, 0, ["F4: test_b (no engine)"]]
    (tmp_path / "unit.jsonl").write_text("")
    assert outcomes.main([str(tmp_path)]) == 1
