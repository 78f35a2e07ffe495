"""A cell that uses CPU while it waits is named; a process outside the run only if it is the cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.surroundings.disturbance import (
    NEIGHBOUR_LIMIT,
    Cause,
    CounterChanges,
    Disturbed,
    MeasuredStretch,
    Neighbour,
    OwnUse,
    WaitingUse,
    busy_neighbours,
    cause_of,
    disturbed,
    neighbour_warnings,
    neighbours,
    share_while_waiting,
)
from keras_matrix.records.schema import Surroundings

# Two CPUs for two seconds, both of them used by the run.
FULL = MeasuredStretch(
    CounterChanges(wall_s=2.0, cpu_total_s=4.0, cpu_busy_s=4.0, cpu_irq_s=0.0, cpu_steal_s=0.0), OwnUse(4.0, 0.1, 0)
)
OTHERS = Disturbed(Cause.OTHER_CPU, 0.3, 0.03)


def waited(*used: tuple[str, float | None]) -> MeasuredStretch:
    return replace(FULL, waiting=tuple(WaitingUse(*one) for one in used))


def test_use_of_waiting_cells_adds_up_over_the_stretches_in_which_they_waited() -> None:
    watched = [waited(("jax:a", 2.0), ("torch:a", 0.1)), waited(("jax:a", 1.0)), FULL]
    assert neighbours(watched) == (Neighbour("jax:a", 3 / 8), Neighbour("torch:a", 0.025))
    assert busy_neighbours(watched) == (Neighbour("jax:a", 3 / 8),)
    assert [share_while_waiting(name, watched) for name in ("jax:a", "torch:a", "tensorflow:a")] == [3 / 8, 0.025, None]


def test_block_with_a_busy_neighbour_is_not_disturbed_from_outside() -> None:
    assert disturbed([waited(("jax:a", 2.0))]) is None


def test_unknown_use_is_not_reported_as_zero() -> None:
    assert neighbours([waited(("jax:a", None))]) == ()
    unknown = replace(FULL, stretch=CounterChanges(wall_s=2.0), waiting=(WaitingUse("jax:a", 1.0),))
    assert neighbours([unknown]) == ()


def test_stretches_too_short_for_the_ticks_name_nobody() -> None:
    short = CounterChanges(wall_s=0.4, cpu_total_s=0.8, cpu_busy_s=0.8)
    assert neighbours([replace(FULL, stretch=short, waiting=(WaitingUse("jax:a", 0.4),))]) == ()


def test_neighbour_is_busy_beyond_the_limit_only() -> None:
    total_s = 4.0
    assert busy_neighbours([waited(("jax:a", NEIGHBOUR_LIMIT * total_s))]) == ()
    assert len(busy_neighbours([waited(("jax:a", NEIGHBOUR_LIMIT * total_s + 1e-9))])) == 1


def test_cause_names_the_busiest_process_of_the_most_disturbed_attempt() -> None:
    around = [
        Surroundings(other_cpu_share=0.1, busiest_process="cc1 (process 7, 0.20 CPUs)"),
        Surroundings(other_cpu_share=0.5, busiest_process="stress (process 8, 1.00 CPUs)"),
        Surroundings(),
    ]
    assert cause_of(OTHERS, around) == f"{OTHERS}; busiest: stress (process 8, 1.00 CPUs)"


@pytest.mark.parametrize("around", [[], [Surroundings(other_cpu_share=0.3)]])
def test_cause_without_a_known_process_names_none(around: list[Surroundings]) -> None:
    assert cause_of(OTHERS, around) == str(OTHERS)


def test_no_process_is_named_for_another_cause() -> None:
    stolen = Disturbed(Cause.STEAL, 0.3, 0.03)
    around = [Surroundings(other_cpu_share=0.1, busiest_process="x (process 1, 0.10 CPUs)")]
    assert cause_of(stolen, around) == str(stolen)


def test_warnings_read_rule_then_problem_then_advice() -> None:
    around = Surroundings(busy_neighbours=["jax:a (37.5 % of the CPUs)"], waiting_cpu_share=0.25)
    rules = [(w.partition(": ")[0], w.rpartition("; ")[2].split()[0]) for w in neighbour_warnings(around)]
    assert rules == [("busy_neighbour", "end"), ("busy_while_waiting", "end")]
