"""Findings match the table and the histories, each with its method; unknown values are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis import findings
from keras_matrix.analysis.comparison.table import Row, table, work_id
from keras_matrix.analysis.history.change_points import Notes, VersionChange, assess
from keras_matrix.analysis.history.sessions import histories
from keras_matrix.analysis.scaling import device_scalings
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.findings import Finding, FindingKind
from keras_matrix.records.history_reader import read
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.task import Goal, Metric, TaskRun
from tests.conftest import make_record, make_settings
from tests.sessions import nights, run_name
from tests.synthetic_devices import DRAWS, device_records, scaled_run

BASE_S = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040}


def records(repeats: int = 5) -> list[Record]:
    return [
        make_record(base * (1 + repeat / 500), repeat, settings=make_settings(backend=backend))
        for backend, base in BASE_S.items()
        for repeat in range(repeats)
    ]


@pytest.fixture
def rows() -> list[Row]:
    return table(records())


def of(found: list[Finding], kind: FindingKind, metric: str = findings.STEP_TIME) -> list[Finding]:
    return [one for one in found if one.kind is kind and one.metric == metric]


def test_figure_is_the_estimate_of_its_cell(rows: list[Row]) -> None:
    figures = {
        (one.cell_id, one.estimate, one.low, one.high, one.count)
        for one in of(findings.run_findings(result_table(rows)), FindingKind.FIGURE)
    }
    cells = [cell for row in rows for cell in row.cells.values()]
    assert figures == {
        (c.cell_id, c.step_time.centre, c.step_time.low, c.step_time.high, c.step_time.count)
        for c in cells
        if c.step_time
    }


def test_ratio_is_that_of_the_row_and_names_the_denominator(rows: list[Row]) -> None:
    found = {one.backend: one for one in of(findings.run_findings(result_table(rows)), FindingKind.RATIO)}
    [row] = rows
    assert {name: (one.estimate, one.low, one.against, one.verdict) for name, one in found.items()} == {
        ratio.backend: (ratio.estimate.centre, ratio.estimate.low, "tensorflow", "slower") for ratio in row.ratios
    }


def test_ratio_is_against_the_lowest_though_another_has_no_repeat_in_common() -> None:
    step_times_s = {"torch": 0.010, "tensorflow": 0.020, "jax": 0.040}
    made = [
        make_record(base, repeat + 5 * (backend == "jax"), settings=make_settings(backend=backend))
        for backend, base in step_times_s.items()
        for repeat in range(5)
    ]
    (found,) = of(findings.run_findings(result_table(table(made))), FindingKind.RATIO)
    assert (found.backend, found.against, found.estimate) == ("tensorflow", "torch", pytest.approx(2.0))


def test_verdict_and_the_suite_are_those_of_the_comparison(rows: list[Row]) -> None:
    found = findings.run_findings(result_table(rows))
    [verdict] = of(found, FindingKind.VERDICT)
    assert (verdict.backend, verdict.verdict, verdict.said) == ("tensorflow", "fastest", rows[0].verdict)
    assert verdict.facts == {"same work": "same work not checked"}
    [overall] = suite(rows)
    assert {one.backend: one.estimate for one in of(found, FindingKind.SUITE)} == {
        backend: ratio.estimate.centre for backend, ratio in overall.ratios.items()
    }


def test_unmeasured_cell_has_no_estimate_and_a_reason() -> None:
    failed = make_record(None, status=Status.TIMEOUT)
    [figure] = of(findings.run_findings(result_table(table([failed]))), FindingKind.FIGURE)
    assert (figure.estimate, figure.low, figure.verdict, figure.said) == (None, None, "timeout", "timeout: a reason")


def test_every_finding_has_a_versioned_method_and_a_unique_id(rows: list[Row]) -> None:
    found = findings.run_findings(result_table(rows))
    assert {(one.method, one.method_version) for one in found} <= set(findings.VERSIONS.items())
    assert len({one.finding_id for one in found}) == len(found)


@settings(max_examples=20)
@given(seed=st.integers())
def test_findings_do_not_depend_on_the_order_of_the_records(seed: int) -> None:
    """Mutation: `CellSummary` counts the record that was read last."""
    made = [*records(), make_record(0.3, 1, attempt=1), make_record(None, 2, Status.INFRA, attempt=1)]
    shuffled = Random(seed).sample(made, len(made))
    expected, found = (findings.run_findings(result_table(table(one))) for one in (made, shuffled))
    assert found == expected


def test_too_few_repeats_give_no_interval() -> None:
    found = of(findings.run_findings(result_table(table(records(3)))), FindingKind.RATIO)
    assert {(one.low, one.high, one.verdict) for one in found} == {(None, None, "open")}


def test_history_gives_its_session_its_level_and_its_changes(tmp_path: Path) -> None:
    versions = {"keras": "3.15.0", "jax": "0.10.0"}
    nights(tmp_path, [0.01] * 6, versions=versions)
    nights(tmp_path, [0.015] * 5, first=6, versions={**versions, "jax": "0.11.0"})
    assessed = [assess(one) for one in histories(read([tmp_path]))]
    found = findings.run_findings(result_table([]), assessed=assessed, run_id=run_name(10))
    [session], [level], [change] = (
        of(found, kind) for kind in (FindingKind.SESSION, FindingKind.LEVEL, FindingKind.CHANGE)
    )
    assert session.estimate == pytest.approx(0.015, rel=1e-4)
    assert (level.at_run_id, level.count) == (run_name(6), 5)
    assert (change.at_run_id, change.verdict, change.look) == (run_name(6), "slower", "jax: jax 0.10.0 → 0.11.0")
    assert change.estimate == pytest.approx(1.5)
    assert change.count == 5
    assert findings.run_findings(result_table([]), assessed=assessed, run_id=run_name(99)) == []


def test_a_repaired_and_an_acknowledged_change_say_so(tmp_path: Path) -> None:
    for first, value in ((0, 0.01), (6, 0.015), (12, 0.01), (18, 0.012)):
        nights(tmp_path, [value] * 6, first=first)
    notes = Notes({}, {run_name(18): "wait for jax 0.13"})
    [one] = [assess(one, notes) for one in histories(read([tmp_path]))]
    changes = of(findings.run_findings(result_table([]), assessed=[one], run_id=run_name(23)), FindingKind.CHANGE)
    assert sorted((change.at_run_id, change.verdict, change.said) for change in changes) == [
        (run_name(6), "repaired", f"no longer worse since {run_name(12)}"),
        (run_name(12), "faster", None),
        (run_name(18), "acknowledged", "wait for jax 0.13"),
    ]


@pytest.mark.parametrize(
    ("changed", "who"),
    [
        ([("keras", 0)], "Keras"),
        ([("jaxlib", 0)], "jax"),
        ([("tensorflow", 0)], "tensorflow"),
        ([("kernel", 1)], "the machine's administrator"),
        ([("machine_type", 0)], "the machine's administrator"),
        ([("keras", 1), ("gpu_driver", 0)], "the machine's administrator"),
        ([("keras", 0), ("torch", 0)], "Keras or torch"),
        ([("numpy", 0)], "the author of the settings or packages"),
    ],
)
def test_likely_owner_is_that_of_the_nearest_change(changed: list[tuple[str, int]], who: str) -> None:
    text = findings.likely_owner([VersionChange(name, "1", "2", off) for name, off in changed])
    assert text.partition(":")[0] == who


def test_no_change_names_no_owner() -> None:
    assert findings.likely_owner([]).startswith("unknown: ")


def test_not_comparable_row_says_so() -> None:
    one, other = records()[0], records()[5]
    resolved = replace(other.resolved, parameters=2000) if other.resolved else None
    [verdict] = of(
        findings.run_findings(result_table(table([one, replace(other, resolved=resolved)]))), FindingKind.VERDICT
    )
    assert (verdict.verdict, verdict.backend) == ("not comparable", None)


def test_external_command_has_its_primary_metric_and_no_history() -> None:
    made = [
        make_record(
            None,
            repeat,
            settings=make_settings(workload="task t", backend=axis),
            task=TaskRun("t", ["true"], "speed", [Metric("speed", speed + repeat / 100, "x/s", goal=Goal.HIGHER)]),
        )
        for axis, speed in (("jax", 4.0), ("torch", 2.0))
        for repeat in range(5)
    ]
    found = findings.run_findings(result_table(table(made)))
    assert {(one.kind, one.metric, one.unit) for one in found if one.kind is not FindingKind.SUITE} == {
        (FindingKind.FIGURE, "task.metrics.speed", "x/s"),
        (FindingKind.RATIO, "task.metrics.speed", "1"),
        (FindingKind.VERDICT, "task.metrics.speed", "1"),
    }
    assert [one.backend for one in found if one.kind is FindingKind.VERDICT] == ["jax"]


def test_several_devices_have_findings_with_speed_up_efficiency_communication_and_meaning() -> None:
    rows = table(scaled_run(counts=(1, 2)))
    found = [one for one in findings.run_findings(result_table(rows)) if one.kind is FindingKind.DEVICES]
    scalings = {one.cell_id: one for one in device_scalings(rows)}
    assert len(found) == 3 * len(scalings) == 9
    for one in of(found, FindingKind.DEVICES, "speed_up"):
        scaling = scalings[one.cell_id or ""]
        assert scaling.speed_up is not None
        assert (one.estimate, one.low, one.high) == (scaling.speed_up.centre, *(scaling.speed_up.bounds or ()))
        assert (one.verdict, one.said) == (scaling.verdict, scaling.text)
    facts = {one.backend: one.facts for one in of(found, FindingKind.DEVICES, "efficiency")}
    assert facts["torch"] == {
        "devices": "2",
        "distribution": "data",
        "divided work": "mnist_mlp",
        "divided work id": work_id(make_settings()),
        "method": "torch.nn.parallel.DistributedDataParallel",
        "fit": "no",
        "gradient bytes": str(16 << 20),
        "meaning 1": DRAWS,
    }
    shares = {one.backend: one.facts for one in of(found, FindingKind.DEVICES, "communication_share")}
    methods = {backend: own["communication method"] for backend, own in shares.items()}
    assert methods == {"tensorflow": "profiled", "jax": "profiled", "torch": "timed"}
    [verdict] = [
        one for one in of(findings.run_findings(result_table(rows)), FindingKind.VERDICT) if "devices=2" in one.work
    ]
    assert "not fit: torch: " in verdict.facts["caveats"]


def test_speed_up_that_is_not_known_has_its_reason_as_a_finding() -> None:
    rows = table(device_records(2, [0.1]))
    [one] = of(findings.run_findings(result_table(rows)), FindingKind.DEVICES, "speed_up")
    assert (one.estimate, one.verdict) == (None, "not known")
    assert (one.said or "").startswith("jax on 2 devices: one device not measured: set devices: [1, 2]")
    assert of(findings.run_findings(result_table(rows)), FindingKind.DEVICES, "efficiency") == []
