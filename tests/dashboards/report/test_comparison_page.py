"""The page of a comparison: a line per comparison with interval and blocks; it is self-contained."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from keras_matrix.analysis.comparison.versus import Versus, versus
from keras_matrix.analysis.history.sessions import SessionRatio
from keras_matrix.analysis.regression.gate import GateOutcome, Rule
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.sequential import FIXED
from keras_matrix.analysis.views.comparison_view import ComparisonView, comparison_view
from keras_matrix.dashboards.report import comparison_page
from keras_matrix.records.schema import Record, Status, Times
from keras_matrix.runner.cli.render.versus import as_json, markdown, text
from tests.conftest import MACHINE, make_record, make_settings

RULE = Rule(threshold=0.05, looks=FIXED)


def side(factor: float, seed: int, blocks: int = 12, workload: str = "mnist_mlp", **changes: Any) -> list[Record]:
    random = Random(seed)
    settings = make_settings(workload=workload)
    versions = {"keras": str(changes.pop("keras", "3.15.1"))}
    return [
        make_record(
            0.01 * factor * random.lognormvariate(0, 0.005), block, settings=settings, versions=versions, **changes
        )
        for block in range(blocks)
    ]


def view(found: Versus) -> ComparisonView:
    return comparison_view(found, RULE.threshold, {})


def page(found: Versus) -> str:
    return comparison_page.page(view(found))


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.0, GateOutcome.NO_WORSE), (1.2, GateOutcome.REGRESSED), (1.05, GateOutcome.UNDECIDED)]
)
def test_verdict_is_in_page_text_and_markdown(factor: float, outcome: GateOutcome) -> None:
    found = versus(side(1.0, 0), side(factor, 1), RULE)

    assert found.outcome is outcome
    assert f"New against base: {outcome}" in page(found)
    assert f"\n{outcome} (1 {outcome})" in text(view(found))
    assert markdown(view(found)).startswith(f"### Benchmarks: {outcome}")
    assert f'"outcome": "{outcome}"' in as_json(view(found))


def test_every_block_is_a_dot_and_the_page_loads_nothing() -> None:
    html = page(versus(side(1.0, 0), side(1.1, 1), RULE))

    assert len(re.findall(r"block \d", html)) == 12
    assert "<script" not in html
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)


def test_changes_between_base_and_new_are_listed() -> None:
    found = versus(side(1.0, 0, keras="3.13.2"), side(1.0, 1), RULE)

    assert found.changed == ("keras 3.13.2 -> 3.15.1",)
    assert "3.13.2 -&gt; 3.15.1" in page(found)


def test_cell_of_one_side_only_has_no_listed_changes() -> None:
    other = [replace(record, cell_id="other", versions={"torch": "2.13.0"}) for record in side(1.0, 0)]
    failed = [replace(record, status=Status.UNSUPPORTED, times=Times(), versions={}) for record in other]
    found = versus([*side(1.0, 0), *other], [*side(1.0, 1), *failed], RULE)

    assert found.changed == ()


@pytest.mark.parametrize(
    ("base", "new", "reason"),
    [
        (side(1.0, 0), [], "only in base"),
        (side(1.0, 0), side(1.0, 0, status=Status.CRASH), "not measured in new: crash"),
        (side(1.0, 0, blocks=2), side(1.0, 1, blocks=2), "no interval from 2 blocks in common"),
        (
            [*side(1.0, 0, blocks=3), *side(1.0, 0, keras="3.1")[3:]],
            side(1.0, 1),
            "keras versions differ (3.1, 3.15.1)",
        ),
        (
            [*side(1.0, 0, blocks=3), *side(1.0, 0, machine=replace(MACHINE, host_id="1" * 16))[3:]],
            side(1.0, 1),
            "machines differ (2 hosts) within base",
        ),
    ],
)
def test_incomparable_cell_has_a_reason_and_fails_the_gate(base: list[Record], new: list[Record], reason: str) -> None:
    found = versus(base, new, RULE)

    assert GateOutcome.NOT_MEASURED is found.outcome
    assert reason in str(found.comparisons[0].reason)
    assert reason.split(" (", maxsplit=1)[0] in page(found)


def test_comparison_without_records_is_not_measured() -> None:
    assert GateOutcome.NOT_MEASURED is versus([], [], RULE).outcome


def test_two_sessions_without_a_known_spread_are_undecided_and_have_no_interval() -> None:
    found = versus(side(1.0, 0), side(2.0, 1), RULE, lambda base, new: SessionRatio(Estimate(2.0, None, None, 12)))

    assert (found.outcome, found.paired) == (GateOutcome.UNDECIDED, False)
    assert "two sessions" in text(view(found))
    assert "no interval" in page(found)


def test_result_with_disturbed_blocks_is_shown_in_addition() -> None:
    base, new = side(1.0, 0), side(1.0, 1)
    again = [replace(records[2], attempt=1) for records in (base, new)]
    new[2] = replace(new[2], times=replace(new[2].times, step_time_s=0.5))
    calm, found = versus(base, side(1.0, 1), RULE), versus([*base, again[0]], [*new, again[1]], RULE)
    (one,) = found.comparisons

    assert one.ratio == calm.comparisons[0].ratio
    assert one.all_data is not None
    assert (one.all_data.count, one.all_data.centre > 1.2) == (13, True)
    assert " on jax: with the disturbed blocks, too: +" in text(view(found))
    assert "; with the disturbed blocks, too: +" in page(found)
    assert '"all_data": {' in as_json(view(found))
    assert calm.comparisons[0].all_data is None
    assert "disturbed" not in text(view(calm))


def test_partial_failures_are_shown_with_the_ratio() -> None:
    new = [*side(2.0, 1)[:11], make_record(None, 11, Status.CRASH)]
    found = versus(side(1.0, 0), new, RULE)

    assert found.outcome is GateOutcome.REGRESSED
    assert ": regressed; new: crash in 1 of 12 repeats: a reason" in page(found)


def test_a_pipe_in_a_name_does_not_break_the_markdown_table() -> None:
    found = versus(side(1.0, 0, workload="a | b"), side(1.0, 1, workload="a | b"), RULE)

    assert r"| a \| b |" in markdown(view(found))
