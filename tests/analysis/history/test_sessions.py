"""From stored attempts to sessions, their spread, and ratios across sessions."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.special import stdtrit

from keras_matrix.analysis.history.sessions import (
    LEAST_SESSIONS,
    History,
    SessionSpread,
    across_sessions,
    histories,
    session_spread,
)
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.history_reader import read
from keras_matrix.records.schema import DeviceProof, Record, Status
from tests.conftest import MACHINE, make_record
from tests.sessions import nights, processes, run_name, store_session

STATUSES = [status for status in Status if status is not Status.OK]


def ratio_across(base: list[float], new: list[float], spread: SessionSpread | None) -> Estimate:
    found = across_sessions(base, new, spread)
    assert found is not None
    return found.estimate


def only(root: Path) -> History:
    (found,) = histories(read([root]))
    return found


def stored(root: Path, *records: Record) -> History:
    store_session(root, run_name(0), records)
    return only(root)


def test_session_is_the_geometric_mean_of_its_processes(tmp_path: Path) -> None:
    session = stored(tmp_path, make_record(0.01, 0), make_record(0.02, 1), make_record(0.04, 2)).sessions[0]
    assert session.step_time is not None
    assert session.step_time.centre == pytest.approx(0.02)
    assert session.step_time.count == 3
    assert session.se_log == pytest.approx(math.log(2) / math.sqrt(3))


@pytest.mark.parametrize("status", STATUSES)
def test_processes_that_are_not_ok_are_excluded_and_counted(tmp_path: Path, status: Status) -> None:
    spoilt = make_record(9.0, 1, status)
    session = stored(tmp_path, make_record(0.01, 0), spoilt).sessions[0]
    assert session.step_time is not None
    assert session.step_time.centre == pytest.approx(0.01)
    assert session.left_out == {str(status): 1}


def test_latest_attempt_of_a_repeat_counts(tmp_path: Path) -> None:
    history = stored(tmp_path, make_record(None, 0, Status.INFRA), make_record(0.01, 0, attempt=1))
    assert history.sessions[0].left_out == {}
    assert history.logs == [pytest.approx(math.log(0.01))]


def test_session_in_which_nothing_ended_ok_has_no_value(tmp_path: Path) -> None:
    history = stored(tmp_path, make_record(None, 0, Status.TIMEOUT, device=None))
    assert (history.sessions[0].step_time, history.device, history.valued) == (None, None, ())


def test_one_process_has_no_standard_error(tmp_path: Path) -> None:
    assert stored(tmp_path, make_record(0.01)).sessions[0].se_log is None


def test_each_host_has_its_own_history(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.01])
    nights(tmp_path, [0.5], first=2, machine=replace(MACHINE, host_id="1" * 16))
    found = histories(read([tmp_path]))
    assert [(one.host_id, len(one.sessions)) for one in found] == [("0" * 16, 2), ("1" * 16, 1)]


def test_each_device_has_its_own_history_and_a_failure_counts_in_each(tmp_path: Path) -> None:
    records = [
        make_record(0.01, 0, device=DeviceProof("gpu", "cuda:0", 1, "A")),
        make_record(0.02, 1, device=DeviceProof("gpu", "cuda:0", 1, "B")),
        make_record(None, 2, Status.CRASH, device=None),
    ]
    store_session(tmp_path, run_name(0), records)
    found = histories(read([tmp_path]))
    assert [one.device for one in found] == [("gpu", "A"), ("gpu", "B")]
    assert [one.sessions[0].left_out for one in found] == [{"crash": 1}, {"crash": 1}]


def test_spread_is_unknown_below_five_sessions(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.011, 0.01, 0.011])
    assert session_spread(only(tmp_path).sessions) is None
    assert LEAST_SESSIONS == 5


def test_sessions_without_a_value_do_not_count_for_the_spread(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.011, 0.01, 0.011])
    store_session(tmp_path, run_name(4), [make_record(None, 0, Status.CRASH)])
    assert session_spread(only(tmp_path).sessions) is None


def test_spread_is_the_variance_of_the_values_less_that_of_their_processes(tmp_path: Path) -> None:
    values = [0.0100, 0.0104, 0.0097, 0.0101, 0.0106, 0.0099]
    nights(tmp_path, values, scatter=0.01)
    spread = session_spread(only(tmp_path).sessions)
    assert spread is not None
    total = statistics.stdev(map(math.log, values))
    assert spread.total_log == pytest.approx(total, rel=1e-3)
    assert spread.between_log == pytest.approx(math.sqrt(total**2 - 0.01**2 / 3), rel=1e-3)
    assert spread.sessions == 6


def test_spread_is_zero_if_processes_explain_the_difference(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.01, 0.01, 0.01, 0.0101], scatter=0.2)
    spread = session_spread(only(tmp_path).sessions)
    assert spread is not None
    assert spread.between_log == 0.0
    assert spread.total_log > 0


def test_without_a_known_spread_a_ratio_across_sessions_has_no_interval() -> None:
    found = ratio_across([0.01] * 5, [0.02] * 5, None)
    assert (found.centre, found.low, found.high) == (pytest.approx(2.0), None, None)


@pytest.mark.parametrize(("base", "new"), [([0.01, 0.01], [0.01] * 3), ([0.01] * 3, [0.02])])
def test_too_few_processes_give_no_interval(base: list[float], new: list[float]) -> None:
    found = ratio_across(base, new, SessionSpread(0.01, 0.01, 10))
    assert found.low is None


@pytest.mark.parametrize(("base", "new"), [([], [0.01]), ([0.01], []), ([], [])])
def test_without_a_value_there_is_no_ratio(base: list[float], new: list[float]) -> None:
    assert across_sessions(base, new, None) is None


def test_processes_without_scatter_leave_the_spread_between_sessions() -> None:
    found = ratio_across([0.01] * 3, [0.01] * 3, SessionSpread(0.02, 0.02, 9))
    assert found.high is not None
    assert math.log(found.high) == pytest.approx(float(stdtrit(8, 0.975)) * 0.02 * math.sqrt(2))


def test_processes_that_scatter_more_than_the_history_widen_the_interval() -> None:
    spread = SessionSpread(0.01, 0.01, 20)
    quiet = ratio_across([0.01] * 3, [0.01] * 3, spread)
    noisy = ratio_across([0.008, 0.01, 0.0125], [0.01] * 3, spread)
    assert (noisy.high or 0) > (quiet.high or 9)


def test_variance_across_sessions_is_that_of_both_means_and_twice_that_between_sessions() -> None:
    base, spread = [0.008, 0.010, 0.0125], SessionSpread(0.02, 0.02, 9)
    found = ratio_across(base, [0.01] * 3, spread)
    own, between = statistics.variance(map(math.log, base)) / 3, 2 * 0.02**2
    degrees = (own + between) ** 2 / (own**2 / 2 + between**2 / 8)
    assert found.high is not None
    half = float(stdtrit(degrees, 0.975)) * math.sqrt(own + between)
    assert math.log(found.high / found.centre) == pytest.approx(half)


def test_p_value_of_a_ratio_across_sessions_is_that_of_its_interval() -> None:
    for base in ([0.008, 0.010, 0.0125], [0.01] * 3):
        found = across_sessions(base, [0.013] * 3, SessionSpread(0.02, 0.02, 9))
        assert found is not None
        assert found.estimate.low is not None
        assert found.p_above(found.estimate.low) == pytest.approx(0.025)
        assert found.p_above(found.estimate.centre) == pytest.approx(0.5)


def test_without_an_interval_or_without_any_scatter_a_p_value_is_none_or_certain() -> None:
    unknown = across_sessions([0.01] * 3, [0.02] * 3, None)
    certain = across_sessions([0.01] * 3, [0.02] * 3, SessionSpread(0.0, 0.0, 9))
    assert unknown is not None
    assert certain is not None
    assert unknown.p_above(1.0) is None
    assert (certain.p_above(1.9), certain.p_above(2.1)) == (0.0, 1.0)


@pytest.mark.parametrize("between", [0.0, 0.02])
def test_interval_across_sessions_has_its_stated_coverage(between: float) -> None:
    noise = random.Random(11)
    trials, covered = 800, 0

    def session() -> list[float]:
        centre = noise.gauss(0, between)
        return [math.exp(centre + noise.gauss(0, 0.02)) for _ in range(3)]

    for _ in range(trials):
        logs = [[math.log(value) for value in session()] for _ in range(8)]
        total = statistics.variance(map(statistics.fmean, logs))
        within = statistics.fmean(statistics.variance(one) / 3 for one in logs)
        spread = SessionSpread(math.sqrt(max(0.0, total - within)), math.sqrt(total), 8)
        found = ratio_across(session(), session(), spread)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1 <= found.high
    assert covered / trials >= 0.94


def test_history_has_the_settings_of_its_cell(tmp_path: Path) -> None:
    store_session(tmp_path, run_name(0), processes(0.01))
    assert only(tmp_path).settings["workload"] == "mnist_mlp"
