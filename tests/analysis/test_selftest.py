"""False alarms and detection, counted over comparisons of recorded blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.selftest import Labelled, Rate, cut, findings, gate_alarms, pooled
from keras_matrix.records.schema import Status
from tests.conftest import MACHINE, make_record, make_settings


def session(blocks: int, slower: float = 1.0, scatter: float = 0.01, seed: int = 0) -> Labelled:
    """Two cells of two backends, `blocks` blocks each, the second label slower by a factor."""
    random = Random(seed)
    sides: tuple[list[object], list[object]] = ([], [])
    for backend in ("jax", "torch"):
        settings = make_settings(backend=backend)
        for block in range(blocks):
            for side, factor in zip(sides, (1.0, slower), strict=True):
                step_s = 0.01 * factor * random.lognormvariate(0, scatter)
                side.append(make_record(step_s, block, settings=settings))
    return sides  # type: ignore[return-value]


def test_blocks_are_divided_into_disjoint_comparisons_without_the_remainder() -> None:
    assert {backend: len(found) for backend, found in cut(session(14)).items()} == {"jax": 2, "torch": 2}
    assert [len(comparison) for comparison in cut(session(14))["jax"]] == [5, 5]


def test_latest_attempt_counts_and_blocks_are_in_order() -> None:
    again = [
        replace(make_record(0.02, 1), attempt=1),  # given before the attempt that it replaces
        *(make_record(0.01 * (1 + repeat) * (9 if repeat == 1 else 1), repeat) for repeat in (4, 3, 1, 2, 0)),
    ]
    base = [make_record(0.01, repeat) for repeat in range(5)]
    (logs,) = cut((base, again))["jax"]
    assert [round(math.exp(log)) for log in logs] == [1, 2, 3, 4, 5]
    crashed = replace(make_record(None, 1, Status.CRASH), attempt=2)
    assert cut((base, [*again, crashed])) == {"jax": [logs]}  # what was measured remains


def test_false_alarms_of_equal_labels_are_about_one_in_twenty() -> None:
    everything = findings([session(200, seed=seed) for seed in range(10)])[-1]

    assert everything.outside.of == 10 * 2 * 40
    assert 0.02 < (everything.outside.share or 0) < 0.09
    assert 0.99 < (everything.ratio or 0) < 1.01


def test_injected_slowdown_is_found_in_every_precise_comparison() -> None:
    everything = findings([session(50, slower=1.1)])[-1]

    assert (everything.slower.count, everything.slower.of) == (20, 20)


def test_faster_label_is_not_reported_as_slower() -> None:
    everything = findings([session(50, slower=1 / 1.1)])[-1]

    assert (everything.outside.count, everything.slower.count) == (20, 0)


def test_sessions_of_different_machines_or_versions_are_noted() -> None:
    def of(host: str, keras: str) -> Labelled:
        machine, versions = replace(MACHINE, host_id=host * 16), {"keras": keras, "jax": "0.10.0"}
        return [make_record(machine=machine, versions=versions)], [make_record(machine=machine, versions=versions)]

    assert pooled([of("0", "3.14.0"), of("0", "3.14.0")]) == []
    assert pooled([of("0", "3.14.0"), of("1", "3.14.0")]) == [
        "machines differ among these sessions (2): the rates are over all of them"
    ]
    assert pooled([of("0", "3.14.0"), of("0", "3.15.1")]) == [
        "keras versions differ among these sessions (3.14.0, 3.15.1): the rates are over all of them"
    ]


@pytest.mark.parametrize(("slower", "alarms"), [(1.0, 0), (1.2, 4)])
def test_gate_of_a_session_alarms_if_a_cell_is_slower(slower: float, alarms: int) -> None:
    sessions = [session(20, slower=slower, seed=seed) for seed in range(4)]

    assert Rate(alarms, 4) == gate_alarms(sessions, Rule(threshold=0.05))


def test_rate_has_the_exact_interval_of_clopper_and_pearson() -> None:
    low, high = Rate(5, 100).interval() or (0, 0)

    assert (round(low, 4), round(high, 4)) == (0.0164, 0.1128)
    assert Rate(0, 0).interval() is None
    low, high = Rate(0, 10).interval() or (1, 0)
    assert (0.0, round(1 - 0.025**0.1, 9)) == (low, round(high, 9))


def test_rate_far_from_the_expected_one_has_a_small_p_value() -> None:
    assert (Rate(5, 100).p_value(0.05) or 0) > 0.8
    assert (Rate(15, 100).p_value(0.05) or 1) < 0.001
    assert Rate(0, 0).p_value(0.05) is None
