"""docs/lab/power.md matches the recordings in the repository."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lab.power import command
from lab.power.draws import SAME, Recording, affordable, recordings


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Recording]]:
    """The recordings by condition."""
    return {condition: recordings(command.stored(condition)) for condition in command.BUDGETS_S}


def stated(head: str) -> list[str]:
    """The table of the document's measured part that begins with this line."""
    measured = command.DOCUMENT.read_text(encoding="utf-8").partition(command.BEGIN)[2].partition(command.END)[0]
    return [head, *measured.partition(f"\n{head}\n")[2].partition("\n\n")[0].splitlines()]


def lines(table: Iterable[str]) -> list[str]:
    """The lines of a table, without the empty one before it."""
    return [line for line in table if line]


def test_document_matches_the_recordings(recorded: dict[str, list[Recording]]) -> None:
    table = lines(command.recorded_table(recorded))
    assert (stated(table[0]), len(table) > 2) == (table, True)


def test_document_states_what_one_process_or_one_mean_per_arm_needs(recorded: dict[str, list[Recording]]) -> None:
    table = lines(command.rival_table(recorded))
    assert (stated(table[0]), len(table) > 2) == (table, True)


def test_document_states_the_false_alarms_of_equal_arms() -> None:
    table = lines(command.alarm_table())
    assert (stated(table[0]), len(table) > 2) == (table, True)


def test_power_curves_match_the_recordings_and_budgets(
    recorded: dict[str, list[Recording]],
) -> None:
    """The curves themselves take minutes of drawing: `lab/run power tables` makes them."""
    begun = [
        f"| {condition}, {one.backend}, interval | {budget_s:.0f} s | {affordable(one, SAME, budget_s)} |"
        for condition, budget_s in command.BUDGETS_S.items()
        for one in recorded[condition]
    ]
    head = next(
        line for line in command.DOCUMENT.read_text(encoding="utf-8").splitlines() if "found slower, of 100" in line
    )
    rows = [row for row in stated(head) if ", interval | " in row]
    assert [row[: len(start)] for row, start in zip(rows, begun, strict=True)] == begun != []
