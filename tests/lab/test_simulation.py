"""The simulations follow the rules they simulate, and a quick one confirms docs/lab/statistics.md."""

from __future__ import annotations

import math

import numpy as np
import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.regression.gate import EARLY_LEVEL, GateOutcome, Rule, judge
from keras_matrix.analysis.stats.sequential import LOOKS, Looks, Why, decide
from lab.statistics import calibration, noise, simulation
from lab.statistics.noise import SCENARIOS, Scenario
from lab.statistics.simulation import (
    COMPARISONS,
    NO_TOLERANCE,
    coverage,
    early_calls,
    false_alarms,
    false_names,
    stopped,
    until_decided,
)
from tests.conftest import make_record, make_settings

RUNS = 2000
EQUAL = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.mark.parametrize("most", [40, 12, 10])
@EQUAL
def test_simulated_run_stops_where_the_rule_stops(scenario: Scenario, most: int) -> None:
    logs = scenario.draw(np.random.default_rng(3), (30, most), 0.02)
    found = stopped(logs)
    for row in range(len(logs)):
        for count in range(1, most + 1):
            decision = decide(logs[row, :count].tolist(), 0.03, budget_spent=count == most)
            if decision.stop:
                break
        assert decision.estimate is not None
        assert found.count[row] == count
        assert found.centre[row] == pytest.approx(math.log(decision.estimate.centre))
        assert found.half[row] == pytest.approx(decision.estimate.half_width)


@pytest.mark.parametrize("level", [0.01, 0.03, 0.1])
@EQUAL
def test_interval_at_the_stopping_time_covers_95_per_cent(scenario: Scenario, level: float) -> None:
    """93 to 97 %: the required 94 to 96, and two standard errors of 2,000 runs."""
    assert 0.93 <= coverage(scenario, level, RUNS, seed=1).share <= 0.97


def test_calibrated_looks_cover_normal_noise_of_any_size_and_plain_ones_do_not() -> None:
    ours = calibration.normal_coverage(LOOKS, calibration.SCATTERS, RUNS, seed=4)
    plain = calibration.normal_coverage(calibration.plain(LOOKS.blocks), calibration.SCATTERS, RUNS, seed=4)
    assert 0.94 <= ours.min() <= ours.max() <= 0.96
    assert plain.min() < 0.93


def test_slow_mode_missing_from_all_blocks_is_in_no_interval() -> None:
    """The stated limit: with processes of one arm alone slow, 17 % of first looks see none of them."""
    assert coverage(noise.LIMIT, 0.01, RUNS, seed=1).share < 0.85


def test_calibration_finds_confidences_that_cover() -> None:
    looks, distance = calibration.calibrate((5, 10), runs=400)
    assert looks.blocks == (5, 10)
    assert distance < 0.05
    assert all(0.9 < confidence < 1 for confidence in looks.confidences)


@EQUAL
def test_gate_over_equal_comparisons_does_not_alarm(scenario: Scenario) -> None:
    assert false_alarms(scenario, 0.03, 40, seed=2).share <= 0.05


def test_students_p_values_would_call_slow_processes_regressions() -> None:
    found = false_alarms(SCENARIOS[3], 0.01, 100, seed=2)
    assert found.share < 0.02 < found.by_student


@EQUAL
def test_gate_that_continues_until_decided_rarely_passes_a_slowdown_at_its_threshold(scenario: Scenario) -> None:
    """Asked: 2.5 % and no alarms; with the confidences of a run stopped by its width it would be about 6 %."""
    found = until_decided(scenario, 0.03, 40, seed=2)
    assert found.passed <= 0.03
    assert found.alarmed <= 0.05


def test_looks_for_widths_would_pass_too_many() -> None:
    assert until_decided(SCENARIOS[0], 0.03, 40, seed=2, rule=NO_TOLERANCE).passed > 0.05


@pytest.mark.parametrize("level", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("scenario", [*SCENARIOS, noise.LIMIT], ids=lambda scenario: scenario.name)
def test_early_calls_stay_within_their_level_on_every_noise(scenario: Scenario, level: float) -> None:
    """At the threshold, the hardest case: by comparison times 300, which is at least the share of the runs."""
    found = early_calls(scenario, level, 100, seed=2)
    assert found.of_runs <= EARLY_LEVEL
    assert found.of_single <= EARLY_LEVEL / 20


def test_early_calls_without_room_for_a_slow_process_would_exceed_their_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "SLOW_PROCESS", 1.0)
    assert early_calls(SCENARIOS[3], 0.01, 100, seed=2).of_runs > 10 * EARLY_LEVEL


@EQUAL
def test_slowdown_of_four_times_is_called_at_the_first_look(scenario: Scenario) -> None:
    assert early_calls(scenario, 0.03, 2, seed=2, slowdown=4.0).at_first > 0.25


@pytest.mark.parametrize("slowdown", [1.0, 1.9, 2.1, 2.6])
def test_simulated_early_calls_agree_with_the_gate(slowdown: float) -> None:
    """300 runs of one comparison, each judged at the looks until it is decided."""
    made: list[noise.Array] = []

    def draw(generator: np.random.Generator, shape: tuple[int, int], level: float) -> noise.Array:
        made.append(noise.normal(generator, shape, level))
        return made[-1]

    rule = Rule(threshold=0.1, looks=Looks((5,), (0.988,)))
    found = early_calls(Scenario("recorded", "", draw), 0.05, 1, seed=3, slowdown=slowdown, rule=rule)
    logs = np.vstack(made) + math.log(1.1 * slowdown)
    called = sum(judge({"": row.tolist()}, rule)[""].early for row in logs)
    assert found.of_single * COMPARISONS == called
    assert (0 < called < COMPARISONS) == (slowdown in (2.1, 2.6))


@pytest.mark.parametrize(("shift", "alarm"), [(0.0, False), (0.05, False), (0.3, True)])
def test_simulated_gate_agrees_with_the_gate(shift: float, alarm: bool) -> None:
    """One run of 300 comparisons, all equal or all slower: an alarm in both, or in none."""
    rule = Rule(threshold=0.0, looks=Looks((8, 18), (0.97, 0.95)))
    made: list[noise.Array] = []

    def draw(generator: np.random.Generator, shape: tuple[int, int], level: float) -> noise.Array:
        made.append(generator.standard_normal(shape) * level + shift)
        return made[-1]

    alarmed = false_alarms(Scenario("shifted", "", draw), 0.2, 1, seed=9, rule=rule).share
    logs = {str(row): found.tolist() for row, found in enumerate(np.hstack(made))}
    assert {len(found) for found in logs.values()} == {18}
    assert len(logs) == COMPARISONS
    assert all(decide(found[:8], 0.03, rule.looks).why is Why.WIDE for found in logs.values())
    regressed = any(one.outcome is GateOutcome.REGRESSED for one in judge(logs, rule).values())
    assert (regressed, alarmed == 1.0) == (alarm, alarm)


def test_same_seed_gives_the_same_figures() -> None:
    first, second = (simulation.coverage(SCENARIOS[1], 0.03, 100, seed=7) for _ in range(2))
    assert first == second


def named(scenario: Scenario, tables: int, seed: int) -> int:
    """Count the tables in which `analysis.comparison.table` names a fastest, over the same draws as the simulation."""
    logs = scenario.draw(np.random.default_rng(seed), (tables * simulation.NAMED_ROWS, LOOKS.blocks[-1]), 0.03)
    counts = stopped(logs).count.reshape(tables, -1)
    found = 0
    for number, rows in enumerate(logs.reshape(tables, simulation.NAMED_ROWS, -1)):
        made = [
            make_record(step_time_s, repeat, settings=make_settings(backend=backend, batch_size=place + 1))
            for place, row in enumerate(rows)
            for repeat, log in enumerate(row[: counts[number, place]])
            for backend, step_time_s in (("jax", 0.01), ("torch", 0.01 * math.exp(log)))
        ]
        found += any(row.fastest for row in table(made, looks=LOOKS))
    return found


@pytest.mark.parametrize(("seed", "names"), [(1, 0), (3, 1)])
def test_simulated_table_agrees_with_the_table(seed: int, names: int) -> None:
    near_modes = SCENARIOS[-1]
    assert round(false_names(near_modes, 0.03, 3, seed).share * 3) == named(near_modes, 3, seed) == names


@EQUAL
def test_table_of_equal_backends_names_a_fastest_no_more_often_than_is_stated(scenario: Scenario) -> None:
    """About 5 % at most are stated; two standard errors of 400 tables are 2 more."""
    shares = [false_names(scenario, level, 400, seed=1).share for level in (0.01, 0.03, 0.1)]
    assert max(shares) <= 0.08
