"""The fuzzing finds what fails, minimises and stores it once, and reports it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.reliability.fuzz import documents, engine, report
from tests.reliability.fuzz.engine import Outcome
from tests.reliability.fuzz.target import Check, Target, load, names


def numbers(check: Check) -> Target:
    """Return a target whose inputs are the digits of numbers."""

    @contextmanager
    def checking(_: Path) -> Iterator[Check]:
        yield check

    return Target(st.integers(0, 10_000).map(lambda number: str(number).encode()), checking, 1, ())


@pytest.fixture
def fuzzed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Return a function that fuzzes with a check, and stores what fails in a folder of the test."""
    monkeypatch.setattr(engine, "CORPUS", tmp_path)

    def run(check: Check, inputs: int = 200) -> Outcome:
        monkeypatch.setattr(engine, "load", lambda _: numbers(check))
        return engine.run("numbers", inputs, seed=1)

    return run


def test_failing_input_is_minimised_and_stored_once(fuzzed: object, tmp_path: Path) -> None:
    """Mutation: `_batch` does not remember the place of a failure."""

    def check(data: bytes) -> bool:
        assert int(data) < 100
        return True

    found = fuzzed(check)  # type: ignore[operator]
    assert [path.read_bytes() for path in (tmp_path / "numbers").iterdir()] == [b"100"]
    assert list(found.failures) == ["AssertionError at the check itself"]
    assert found.inputs >= 200
    assert found.tracebacks > 0


def test_accepted_inputs_are_counted(fuzzed: object) -> None:
    """Mutation: a refused input counts as accepted."""
    found = fuzzed(lambda data: int(data) % 2 == 0)  # type: ignore[operator]
    assert (found.tracebacks, found.failures) == (0, {})
    assert 0.2 < found.accepted / found.inputs < 0.8


def test_input_that_is_not_read_in_time_fails(fuzzed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `limited` sets no timer."""
    monkeypatch.setattr(engine, "HANG_S", 0.01)

    def check(_: bytes) -> bool:
        begin = time.monotonic()
        while time.monotonic() < begin + 0.2:
            pass
        return True

    assert list(fuzzed(check, 3).failures) == ["Hang at the check itself"]  # type: ignore[operator]


def test_inputs_are_divided_by_the_shares_of_the_targets() -> None:
    """Mutation: each target gets the same number."""
    found = report.shares(["matrix", "http"], 1450)
    assert found == {"matrix": 1300, "http": 150}


def test_every_target_names_the_files_of_its_parser() -> None:
    """Mutation: a pattern of `modules` names a file that was moved."""
    assert {name: pattern for name in names() for pattern in load(name).modules if not one_exists(pattern)} == {}


def one_exists(pattern: str) -> bool:
    return any(report.ROOT.glob(pattern))


def test_summary_adds_the_targets_and_their_branches() -> None:
    """Mutation: `summary` counts the accepted inputs only."""
    one = Outcome("a", 100, 50, 1, 3.0, 2.0).plain()
    two = Outcome("b", 300, 300, 0, 120.0, 2.0).plain()
    found = report.summary([one, two], {"x.py": (3, 4), "y.py": (1, 4)})
    assert (found["inputs"], found["tracebacks"]) == (400, 1)
    assert found["targets"]["a"]["accepted_share"] == 0.5
    assert found["branch_coverage"] == {"share": 0.5, "modules": {"x.py": 0.75, "y.py": 0.25}}
    assert any("120.0" in line for line in report.table([one, two], found))


def test_run_with_a_traceback_few_accepted_inputs_or_a_slow_matrix_has_problems() -> None:
    """Mutation: `problems` does not compare one of the three figures."""
    fine = Outcome("matrix", 100, 51, 0, 100.0, 1.0).plain()
    slow = Outcome("logs", 100, 51, 0, 900.0, 1.0).plain()  # no time is promised of it
    assert report.problems(report.summary([fine, slow], {})) == []
    wrong = Outcome("matrix", 100, 50, 2, 101.0, 1.0).plain()
    assert report.problems(report.summary([wrong], {})) == [
        "matrix: 2 tracebacks",
        "matrix: 50% of the inputs were accepted: make more of them valid",
        "matrix: an input took 101 ms, more than 100 ms",
    ]


def test_words_that_json_cannot_express_are_written_as_they_are() -> None:
    """Mutation: `written` leaves the word of a number with 6,000 digits."""
    assert documents.written({"a": "@digits", "b": ["@nan"]}) == b'{"a": ' + b"9" * 6000 + b', "b": [NaN]}'
