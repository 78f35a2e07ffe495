"""Counts of base against new: what is certain, and what is not said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.counts import (
    KINDS,
    CountChange,
    CountOutcome,
    blindness,
    count_changes,
    uncomparable,
)
from keras_matrix.records.instruments.work_done import CellCounts, Counts, StepCounts

CALLS, _, MEMORY, PROGRAMS, *_ = KINDS
STEP = StepCounts(python_calls=100.0, c_calls=50.0)
PROCESS = Counts("sys.setprofile", "3.11.2", 4, STEP, STEP)


def change(base: tuple[float, ...], new: tuple[float, ...]) -> CountChange:
    return CountChange("step", CALLS, base, new)


def memory(base: tuple[float, ...], new: tuple[float, ...]) -> CountChange:
    return CountChange("step", MEMORY, base, new)


@pytest.mark.parametrize(
    ("base", "new", "outcome"),
    [
        ((7, 7), (7, 7), CountOutcome.EQUAL),
        ((7, 7), (8, 8), CountOutcome.MORE),
        ((8, 8), (7, 7), CountOutcome.FEWER),
        ((0, 0), (7, 7), CountOutcome.MORE),
        ((7, 8), (70, 70), CountOutcome.VARYING),
        ((7, 7), (70, 71), CountOutcome.VARYING),
        ((7,), (70, 70), CountOutcome.VARYING),  # one process does not show that it is deterministic
    ],
)
def test_difference_is_certain_only_if_all_processes_of_each_side_agree(
    base: tuple[float, ...], new: tuple[float, ...], outcome: CountOutcome
) -> None:
    found = change(base, new)
    assert found.outcome is outcome
    assert (found.said is not None) == (outcome in (CountOutcome.MORE, CountOutcome.FEWER))


@pytest.mark.parametrize(
    ("found", "text", "said"),
    [
        (
            change((2104.0,) * 2, (6312.0,) * 2),
            "2,104 to 6,312, 3.00x",
            "3.00 times the Python calls of a step (2,104 to 6,312): certain",
        ),
        (
            change((2104.0,) * 2, (2107.0,) * 2),
            "2,104 to 2,107, +0.14 %",
            "+0.14 % Python calls of a step (2,104 to 2,107): certain",
        ),
        (change((0.0,) * 2, (3.5,) * 2), "0 to 3.50", "Python calls of a step: 0 to 3.50: certain"),
        (change((4.0,) * 2, (0.0,) * 2), "4 to 0", "Python calls of a step: 4 to 0: certain"),
        (change((4.0,) * 2, (4.0,) * 2), "4", None),
        (change((4.0, 6.0), (4.0, 4.0)), "4..6 to 4, not deterministic", None),
        (memory((1024.0, 1030.0), (2048.0, 2060.0)), "about 1.00 KiB to 2.01 KiB, 2.00x", None),
        (memory((1024.0, 1030.0), (1027.0, 1040.0)), "about 1.01 KiB", None),
        (memory((1024.0, 1130.0), (2048.0, 2048.0)), "1.00 KiB..1.10 KiB to 2.00 KiB, not deterministic", None),
    ],
)
def test_how_a_count_is_written(found: CountChange, text: str, said: str | None) -> None:
    assert (found.text, found.said) == (text, said)


def test_counts_that_a_side_lacks_are_left_out() -> None:
    """Mutation: a count that was not made is read as 0."""
    with_programs = replace(PROCESS, later=replace(STEP, programs=2.0))
    changes = count_changes(CellCounts([PROCESS] * 2), CellCounts([with_programs] * 2))
    assert {(one.step, one.kind.field) for one in changes} == {
        (step, field) for step in ("first step", "step") for field in ("python_calls", "c_calls")
    }
    assert count_changes(CellCounts([PROCESS] * 2), CellCounts(problem="crash")) == ()


@pytest.mark.parametrize("other", [{"python": "3.12.1"}, {"method": "sys.monitoring"}])
def test_counts_of_two_versions_of_python_or_two_methods_are_not_compared(other: dict[str, str]) -> None:
    base, new = CellCounts([PROCESS] * 2), CellCounts([replace(PROCESS, **other)] * 2)  # type: ignore[arg-type]
    assert count_changes(base, new) == ()
    problem = uncomparable(base, new)
    assert problem is not None
    assert "Python 3.11, sys.setprofile in base" in problem
    assert uncomparable(base, CellCounts([replace(PROCESS, python="3.11.9")] * 2)) is None


def test_what_no_count_shows_is_said_of_the_counts_that_were_made() -> None:
    text = blindness([change((1.0,), (1.0,)), CountChange("step", PROGRAMS, (1.0,), (1.0,))])
    assert text == (
        "counts prove counts; faster or slower is said by time alone. Not seen: in Python calls work in C; in programs "
        "compiled their size"
    )
