"""docs/power.md says what the recordings in the repository say."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import pytest

from analysis.power import SAME, Recording, affordable, recordings
from tests.scripts import script


@pytest.fixture(scope="module")
def power() -> ModuleType:
    """The script, as a module."""
    return script("power")


@pytest.fixture(scope="module")
def kept(power: ModuleType) -> dict[str, list[Recording]]:
    """The recordings by condition."""
    return {condition: recordings(power.stored(condition)) for condition in power.BUDGETS_S}


def stated(power: ModuleType, head: str) -> list[str]:
    """The table of the document's measured part that begins with this line."""
    measured = power.DOCUMENT.read_text(encoding="utf-8").partition(power.BEGIN)[2].partition(power.END)[0]
    return [head, *measured.partition(f"\n{head}\n")[2].partition("\n\n")[0].splitlines()]


def lines(table: Iterable[str]) -> list[str]:
    """The lines of a table, without the empty one before it."""
    return [line for line in table if line]


def test_the_document_says_what_was_recorded(power: ModuleType, kept: dict[str, list[Recording]]) -> None:
    told = lines(power.recorded_table(kept))
    assert (stated(power, told[0]), len(told) > 2) == (told, True)


def test_the_document_says_what_one_process_and_one_mean_an_arm_would_need(
    power: ModuleType, kept: dict[str, list[Recording]]
) -> None:
    told = lines(power.rival_table(kept))
    assert (stated(power, told[0]), len(told) > 2) == (told, True)


def test_the_document_says_how_often_equal_arms_were_found_to_differ(power: ModuleType) -> None:
    told = lines(power.alarm_table())
    assert (stated(power, told[0]), len(told) > 2) == (told, True)


def test_the_power_curves_are_of_these_recordings_at_what_their_budgets_pay_for(
    power: ModuleType, kept: dict[str, list[Recording]]
) -> None:
    """The curves themselves take minutes of drawing: `ci/power tables` makes them."""
    begun = [
        f"| {condition}, {one.backend}, interval | {budget_s:.0f} s | {affordable(one, SAME, budget_s)} |"
        for condition, budget_s in power.BUDGETS_S.items()
        for one in kept[condition]
    ]
    head = next(
        line for line in power.DOCUMENT.read_text(encoding="utf-8").splitlines() if "found slower, of 100" in line
    )
    rows = [row for row in stated(power, head) if ", interval | " in row]
    assert [row[: len(start)] for row, start in zip(rows, begun, strict=True)] == begun != []
