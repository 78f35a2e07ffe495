"""A cell measured again reproduces its stored figure only if the interval lies within the tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from keras_matrix.analysis.history.sessions import SessionSpread
from keras_matrix.analysis.regression.reproduction import (
    BETWEEN_UNKNOWN,
    ReproductionVerdict,
    changes,
    judge,
    verdict_of,
)
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.schema import Container, Learning, Record, Resolved, Status
from tests.conftest import MACHINE, make_record
from tests.sessions import processes

KNOWN = SessionSpread(between_log=0.001, total_log=0.0012, sessions=20)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.96, 1.04, ReproductionVerdict.REPRODUCED),
        (1 / 1.05, 1.05, ReproductionVerdict.REPRODUCED),
        (0.90, 1.04, ReproductionVerdict.UNDECIDED),
        (0.96, 1.06, ReproductionVerdict.UNDECIDED),
        (0.90, 1.10, ReproductionVerdict.UNDECIDED),
        (1.06, 1.20, ReproductionVerdict.DIFFERS),
        (0.80, 0.94, ReproductionVerdict.DIFFERS),
        (None, None, ReproductionVerdict.UNDECIDED),
    ],
)
def test_verdict_follows_the_interval_and_the_tolerance(
    low: float | None, high: float | None, expected: ReproductionVerdict
) -> None:
    assert verdict_of(Estimate(1.0, low, high, 5), 0.05) is expected


@pytest.mark.parametrize(
    ("new_s", "expected"),
    [
        (0.0101, ReproductionVerdict.REPRODUCED),
        (0.0112, ReproductionVerdict.DIFFERS),
        (0.0105, ReproductionVerdict.UNDECIDED),
    ],
)
def test_known_spread_between_sessions_is_in_the_interval(new_s: float, expected: ReproductionVerdict) -> None:
    found = judge(processes(0.01, count=5), processes(new_s, count=5), KNOWN, 0.05)
    assert (found.verdict, found.caveats) == (expected, ())


def test_unknown_spread_leaves_the_interval_of_the_processes_with_a_caveat() -> None:
    found = judge(processes(0.01, count=5), processes(0.0101, count=5), None, 0.05)
    assert (found.verdict, found.caveats) == (ReproductionVerdict.REPRODUCED, (BETWEEN_UNKNOWN,))
    wide = judge(processes(0.01, 0.05, count=3), processes(0.0101, 0.05, count=3), None, 0.05)
    assert wide.verdict is ReproductionVerdict.UNDECIDED


def test_one_process_on_a_side_has_no_interval_and_is_undecided() -> None:
    found = judge(processes(0.01, count=1), processes(0.02, count=5), None, 0.05)
    assert found.ratio is not None
    assert (found.verdict, found.ratio.bounds, found.caveats) == (ReproductionVerdict.UNDECIDED, None, ())


def test_side_without_a_process_that_ended_ok_is_not_measured() -> None:
    crashed = [make_record(None, status=Status.CRASH)]
    assert judge(processes(0.01), crashed, KNOWN, 0.05).verdict is ReproductionVerdict.NOT_MEASURED
    assert judge(processes(0.01), crashed, KNOWN, 0.05).ratio is None


def test_different_work_is_not_compared() -> None:
    other = Resolved(50, 32, "fork", "float32", parameters=1001)
    found = judge(processes(0.01), processes(0.01, resolved=other), KNOWN, 0.05)
    assert found.verdict is ReproductionVerdict.NOT_MEASURED
    assert found.work == "parameters differ: measured again 1,001, stored 1,000"


def test_another_machine_is_stated_and_still_compared() -> None:
    elsewhere = replace(MACHINE, host_id="1" * 16, kernel="6.2")
    found = judge(processes(0.01), processes(0.01, machine=elsewhere), KNOWN, 0.05)
    assert found.verdict is ReproductionVerdict.REPRODUCED
    assert found.changed == ("host id: 0000000000000000 -> 1111111111111111", "kernel: none -> 6.2")


def test_versions_image_and_inherited_variables_that_differ_are_stated() -> None:
    container = Container("an image", "sha256:1", 1, 1)
    then = make_record(versions={"keras": "3.14.0", "jax": "0.9"}, container=container)
    now = make_record(versions={"keras": "3.15.0"}, container=replace(container, image_id="sha256:2"))
    inherited = replace(now, resolved=replace(now.resolved or Resolved(1, 1, "", ""), inherited=["LANG"]))
    assert list(changes([then], [inherited]).values()) == [
        "keras: 3.14.0 -> 3.15.0",
        "jax: 0.9 -> none",
        "image: sha256:1 -> sha256:2",
        "inherited variables: none -> LANG",
    ]
    assert changes([then], []) == {}


def losses(values: Sequence[float], steps: int = 50) -> list[Record]:
    resolved = Resolved(steps, 32, "fork", "float32", parameters=1000)
    return processes(0.01, learning=Learning(loss=list(values)), resolved=resolved)


@pytest.mark.parametrize(
    ("stored", "new", "expected"),
    [
        (losses([2.0, 1.0]), losses([2.0, 1.0]), 0.0),
        (losses([2.0, 1.0]), losses([2.0, 1.5]), 0.25),
        (losses([2.0, 1.0]), losses([2.0, 1.0], steps=51), None),
        (losses([2.0, 1.0]), losses([]), None),
    ],
)
def test_losses_are_compared_after_the_same_number_of_steps(
    stored: list[Record], new: list[Record], expected: float | None
) -> None:
    assert judge(stored, new, KNOWN, 0.05).loss == expected
