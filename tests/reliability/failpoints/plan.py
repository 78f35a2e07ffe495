"""Which failures of a scenario are tried: a kill at every operation, and each other kind at every point.

A kill is raised from operation to operation until a run ends untouched. Of the other kinds each point (operation and
call site) gets one of its operations, chosen by the seed; with `every` all.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.reliability.failpoints.kinds import Failure, Kind, applies
from tests.reliability.failpoints.scenario import Scenario
from tests.reliability.failpoints.seam import Journal, Operation

LIMITS = 40  # file sizes that are tried of each limit


@dataclass(frozen=True, slots=True)
class Choice:
    """Which failures are tried: with `every` each kind at each operation; `short` is a number of them, 0 for all."""

    seed: int
    kinds: Collection[Kind] = tuple(Kind)
    every: bool = False
    short: int = 0


def planned(scenario: Scenario, journal: Journal, choice: Choice) -> list[Failure]:
    """Return the failures in random order, so that the first ones are a sample of all."""
    chance = random.Random(f"{choice.seed}:{scenario.name}")
    kinds = [kind for kind in scenario.kinds if kind in choice.kinds]
    found = [failure for kind in kinds for failure in _of_kind(kind, scenario, journal, (chance, choice.every))]
    chance.shuffle(found)
    return found[: choice.short] if choice.short else found


def _of_kind(kind: Kind, scenario: Scenario, journal: Journal, how: tuple[random.Random, bool]) -> Iterator[Failure]:
    chance, every = how
    if kind.limits:
        sizes = range(scenario.limits_bytes)
        yield from (Failure(kind, size) for size in sorted(chance.sample(sizes, min(LIMITS, len(sizes)))))
        return
    possible = [one for one in journal.operations if applies(kind, one.name)]
    if every or kind is Kind.KILL:
        yield from (Failure(kind, one.number) for one in possible)
    else:
        yield from (Failure(kind, number) for number in sorted(_one_per_point(possible, chance)))
    if kind is Kind.KILL:
        yield Failure(kind, journal.operations[-1].number + 1)  # the run that ends untouched


def _one_per_point(operations: list[Operation], chance: random.Random) -> set[int]:
    points: dict[tuple[str, str], list[int]] = {}
    for one in operations:
        points.setdefault(one.point, []).append(one.number)
    return {chance.choice(numbers) for numbers in points.values()}
