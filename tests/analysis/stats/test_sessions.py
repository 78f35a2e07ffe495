"""Cells of separate sessions: their ratio has an interval only by the spread between sessions, and it covers 95 %."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from scipy.special import stdtrit

from keras_matrix.analysis.comparison.table import Row, rows_of, summarise
from keras_matrix.analysis.history.sessions import SessionSpread
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.sequential import FIXED
from keras_matrix.analysis.stats.sessions import (
    BY_SPREAD,
    NO_INTERVAL,
    SeparateSessions,
    SessionValue,
    geometric_mean,
    separate_ratio,
)
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.schema import Record, Resolved, Status
from tests.conftest import make_record, make_settings

SPREAD = SessionSpread(0.01, 0.012, 8)
STEP_TIME_S = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040}


def records(
    backend: str, workload: str = "mnist_mlp", count: int = 5, step_time_s: float | None = None
) -> list[Record]:
    settings = make_settings(backend=backend, workload=workload)
    base_s = step_time_s or STEP_TIME_S[backend]
    return [make_record(base_s * (1 + 0.002 * (repeat - 2)), repeat, settings=settings) for repeat in range(count)]


def merged(
    sessions: Mapping[str, str], spread: SessionSpread | None = SPREAD, cells: Sequence[Sequence[Record]] = ()
) -> list[Row]:
    """The table of cells whose backends were measured in these sessions."""
    cells = cells or [records(backend) for backend in sessions]
    separate = SeparateSessions(sessions, dict.fromkeys(sessions, FIXED), lambda some: spread)
    return rows_of([summarise(cell) for cell in cells], separate=separate)


THREE = {"tensorflow": "a", "jax": "b", "torch": "c"}


def test_cells_of_separate_sessions_have_no_interval_and_no_fastest_without_a_known_spread() -> None:
    (row,) = merged(THREE, None)
    assert (row.fastest, row.verdict, row.adjusted_p) == (None, NO_INTERVAL, None)
    assert NO_INTERVAL == "separate sessions, not alternating: no interval"
    assert {(one.backend, one.estimate.low, one.p_value, one.separate) for one in row.ratios} == {
        ("jax", None, None, True),
        ("torch", None, None, True),
    }


def test_known_spread_gives_intervals_and_a_fastest_where_they_exclude_1() -> None:
    (row,) = merged(THREE)
    assert row.fastest == "tensorflow"
    assert row.verdict == (
        f"tensorflow is fastest: jax takes 2.00x [1.93 2.07] as long, torch 4.00x [3.86 4.15] ({BY_SPREAD})"
    )
    wide = SessionSpread(0.5, 0.5, 8)
    (row,) = merged(THREE, wide)
    assert row.fastest is None
    assert row.verdict.startswith("not separable: jax takes 2.00x [0.")
    assert row.verdict.endswith(f"({BY_SPREAD})")


def test_variance_is_the_sum_of_both_cells_variances_within_and_between_sessions() -> None:
    one = SessionValue("a", 0.1, 5, 0.014, SessionSpread(0.02, 0.021, 9))
    other = SessionValue("b", 0.0, 3, 0.016, SessionSpread(0.01, 0.011, 6))
    parts = [(0.014**2, 4), (0.016**2, 2), (0.02**2, 8), (0.01**2, 5)]
    variance = sum(part for part, _ in parts)
    degrees = variance**2 / sum(part**2 / free for part, free in parts)
    found = separate_ratio(one, other)
    assert found.estimate.centre == pytest.approx(math.exp(0.1))
    assert found.estimate.half_width == pytest.approx(float(stdtrit(degrees, 0.975)) * math.sqrt(variance))
    assert found.p_value() == pytest.approx(2 * (1 - _cumulated(0.1 / math.sqrt(variance), degrees)), rel=1e-6)


def test_interval_is_never_narrower_than_that_of_the_histories_values() -> None:
    spreads = SessionSpread(0.0, 0.02, 9), SessionSpread(0.0, 0.01, 6)
    found = separate_ratio(*(SessionValue(name, 0.0, 5, 0.0, one) for name, one in zip("ab", spreads, strict=True)))
    variance = 0.02**2 + 0.01**2
    degrees = variance**2 / (0.02**4 / 8 + 0.01**4 / 5)
    assert found.estimate.half_width == pytest.approx(float(stdtrit(degrees, 0.975)) * math.sqrt(variance))


def _cumulated(distance: float, degrees: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(degrees, distance))


@pytest.mark.parametrize(
    "lacking",
    [
        SessionValue("b", 0.0, 2, 0.006, SPREAD),
        SessionValue("b", 0.0, 1, None, SPREAD),
        SessionValue("b", 0.0, 5, 0.006, None),
    ],
    ids=["two processes", "one process", "no spread"],
)
def test_missing_variance_of_one_cell_gives_no_interval(lacking: SessionValue) -> None:
    known = SessionValue("a", 0.1, 5, 0.004, SPREAD)
    for found in (separate_ratio(known, lacking), separate_ratio(lacking, known)):
        assert (found.estimate.low, found.p_value()) == (None, None)


SIMULATED = [((0.0, 0.0), (8, 8)), ((0.02, 0.02), (5, 20)), ((0.02, 0.08), (6, 6))]


@pytest.mark.parametrize(("between", "sessions"), SIMULATED)
def test_interval_covers_95_percent_by_simulation(between: tuple[float, float], sessions: tuple[int, int]) -> None:
    noise = random.Random(7)
    trials = 1000
    covered = 0
    for _ in range(trials):
        values = [simulated(noise, *each) for each in zip("ab", between, sessions, strict=True)]
        found = separate_ratio(values[0], values[1]).estimate
        covered += not found.excludes(1)
    assert 0.935 <= covered / trials <= 0.995
    if max(between):
        assert covered / trials <= 0.975, "about 95 %, no more than safe"


def simulated(noise: random.Random, name: str, between: float, sessions: int, count: int = 3) -> SessionValue:
    """Return one session's value of a cell whose true log figure is 0, and the spread of its other sessions."""

    def session() -> list[float]:
        centre = noise.gauss(0, between)
        return [centre + noise.gauss(0, 0.02) for _ in range(count)]

    others = [session() for _ in range(sessions)]
    total = statistics.variance(map(statistics.fmean, others))
    within = statistics.fmean(statistics.variance(one) / count for one in others)
    spread = SessionSpread(math.sqrt(max(0.0, total - within)), math.sqrt(total), sessions)
    own = session()
    return SessionValue(name, statistics.fmean(own), count, statistics.stdev(own) / math.sqrt(count), spread)


def test_geometric_mean_of_works_that_share_a_sessions_shift_covers_95_percent() -> None:
    noise = random.Random(5)
    covered, trials, shift = 0, 1000, 0.05
    half = float(stdtrit(1e6, 0.975)) * math.hypot(shift, shift)
    for _ in range(trials):
        shared = noise.gauss(0, shift) - noise.gauss(0, shift)
        ratios = [Estimate(math.exp(shared), math.exp(shared - half), math.exp(shared + half), 5)] * 4
        found = geometric_mean(ratios)
        assert found is not None
        covered += not found.excludes(1)
    assert covered / trials == pytest.approx(0.95, abs=0.015)


def test_geometric_mean_with_a_ratio_that_has_no_interval_has_none() -> None:
    found = geometric_mean([Estimate(2.0, 1.9, 2.1, 5), Estimate(0.5, None, None, 5)])
    assert found is not None
    assert (found.centre, found.low) == (pytest.approx(1.0), None)
    assert geometric_mean([]) is None


TWO_WORKS = [records(backend, workload) for backend in THREE for workload in ("mnist_mlp", "gru")]


@pytest.mark.parametrize(("spread", "has_interval"), [(SPREAD, True), (None, False)])
def test_suite_mean_of_separate_sessions_follows_the_rule_of_the_rows(
    spread: SessionSpread | None, has_interval: bool
) -> None:
    rows = merged(THREE, spread, TWO_WORKS)
    (found,) = suite(rows)
    assert found.against == "tensorflow"
    for backend, centre in (("jax", 2.0), ("torch", 4.0)):
        one = found.ratios[backend]
        assert (one.estimate.centre, one.separate, one.p_value) == (pytest.approx(centre), True, None)
        assert (one.estimate.low is not None) == has_interval
    (line,) = result_table(rows).summary
    assert ("jax takes 2.00x as long as tensorflow (separate sessions: no interval)" in line) != has_interval


def test_rows_of_one_session_are_paired_as_in_the_table_of_their_own_run() -> None:
    one_session = dict.fromkeys(THREE, "a")
    cells = [records(backend) for backend in THREE]
    (row,) = merged(one_session, None, cells)
    (own,) = rows_of([summarise(cell) for cell in cells])
    assert row == own
    assert row.fastest == "tensorflow"


def test_only_the_backend_of_another_session_is_apart() -> None:
    (row,) = merged({"tensorflow": "a", "jax": "a", "torch": "b"}, None)
    assert {one.backend: one.separate for one in row.ratios} == {"jax": False, "torch": True}
    (jax,) = [one for one in row.ratios if one.backend == "jax"]
    (paired,) = merged({"tensorflow": "a", "jax": "a"}, None)[0].ratios
    assert jax == paired
    assert (row.fastest, row.verdict) == (None, NO_INTERVAL)


def test_cell_without_a_process_that_ended_ok_has_no_interval_in_a_merge() -> None:
    unstable = [replace(record, status=Status.UNSTABLE) for record in records("jax")]
    (row,) = merged({"tensorflow": "a", "jax": "b"}, SPREAD, [records("tensorflow"), unstable])
    assert row.verdict == NO_INTERVAL
    assert row.ratios[0].estimate.centre == pytest.approx(2.0)


def test_steps_that_each_session_finds_for_itself_may_differ_between_sessions() -> None:
    others = [
        make_record(0.02, repeat, settings=one.settings, resolved=Resolved(60, 32, "fork", "float32", parameters=1000))
        for repeat, one in enumerate(records("jax"))
    ]
    cells = [records("tensorflow"), others]
    assert merged({"tensorflow": "a", "jax": "b"}, None, cells)[0].verdict == NO_INTERVAL
    one_session = merged({"tensorflow": "a", "jax": "a"}, None, cells)[0]
    assert one_session.verdict.startswith("not comparable: steps per epoch differ")


def test_detectable_differences_are_reported_for_paired_rows_only() -> None:
    assert not any("would have shown" in line for line in result_table(merged(THREE, None)).summary)
    assert any("would have shown" in line for line in result_table(merged(dict.fromkeys(THREE, "a"), None)).summary)


def test_suites_mean_pairs_backends_of_one_session_and_names_works_that_one_of_them_lacks() -> None:
    failed = [make_record(None, 0, Status.CRASH, settings=make_settings(backend="jax", workload="gru"))]
    two = [cell for cell in TWO_WORKS if cell[0].settings.workload == "mnist_mlp"]
    two += [records("tensorflow", "gru"), failed, records("torch", "gru")]
    (found,) = suite(merged(THREE, SPREAD, two))
    assert (found.ratios["jax"].workloads, found.ratios["jax"].left_out) == (("mnist_mlp",), ("gru",))
    assert found.ratios["torch"].workloads == ("gru", "mnist_mlp")
    (mixed,) = suite(merged({"tensorflow": "a", "jax": "a", "torch": "b"}, SPREAD, TWO_WORKS))
    assert {name: one.separate for name, one in mixed.ratios.items()} == {"jax": False, "torch": True}


def test_suite_line_names_separate_sessions() -> None:
    (line,) = result_table(merged(THREE, SPREAD, TWO_WORKS)).summary
    assert line.count(" (separate sessions)") == 2


def test_half_width_of_a_geometric_mean_is_the_mean_of_its_works_half_widths() -> None:
    found = geometric_mean([Estimate(1.0, math.exp(-half), math.exp(half), 5) for half in (0.1, 0.3)])
    assert found is not None
    assert found.half_width == pytest.approx(0.2)


def test_each_row_has_the_looks_of_the_session_of_its_leading_backend() -> None:
    looks = {"tensorflow": FIXED, "jax": replace(FIXED, p_factor=2.0)}
    separate = SeparateSessions({"tensorflow": "a", "jax": "b"}, looks, lambda some: None)
    for backend, other in (("tensorflow", "jax"), ("jax", "tensorflow")):
        cells = [summarise(records(backend, step_time_s=0.01)), summarise(records(other, step_time_s=0.02))]
        assert rows_of(cells, separate=separate)[0].looks == looks[backend]


def test_equal_values_have_a_p_value_of_1() -> None:
    value = SessionValue("a", 0.1, 5, 0.01, SPREAD)
    assert separate_ratio(value, replace(value, session="b")).p_value() == 1.0
