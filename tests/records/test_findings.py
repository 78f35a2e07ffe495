"""Findings are stored per run, and an equal set does not change the revision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.records import findings
from keras_matrix.records.findings import Finding, FindingKind
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure

ONE = Finding(FindingKind.FIGURE, "times.step_time_s", "mlp", "a method", 1, cell_id="0" * 16, estimate=0.01)
OTHER = Finding(FindingKind.FIGURE, "times.step_time_s", "mlp", "a method", 1, cell_id="1" * 16, estimate=0.02)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Results(tmp_path).create("20260101T000000Z-abcdef", {})


def test_stored_findings_are_read_back(run: Run) -> None:
    kept = findings.keep(run, [ONE, OTHER])
    assert findings.load(run) == kept
    assert kept.found == [ONE, OTHER]


def test_run_without_a_findings_file_has_no_findings(run: Run) -> None:
    assert findings.load(run) is None


def test_revision_increases_only_for_changed_findings(run: Run) -> None:
    assert [findings.keep(run, found).revision for found in ([ONE], [ONE], [ONE, OTHER], [ONE])] == [1, 1, 2, 3]


def test_finding_id_depends_on_the_subject_and_not_on_the_figure(run: Run) -> None:
    again = Finding(FindingKind.FIGURE, "times.step_time_s", "mlp", "another", 2, cell_id="0" * 16, estimate=0.5)
    assert again.finding_id == ONE.finding_id != OTHER.finding_id


def test_damaged_findings_are_reported_and_replaced(run: Run) -> None:
    (run.folder / findings.FILE).write_text("{")
    with pytest.raises(StoreFailure):
        findings.load(run)
    assert findings.keep(run, [ONE]).revision == 1


def test_a_newer_version_is_refused_and_never_replaced(run: Run) -> None:
    path = run.folder / findings.FILE
    findings.keep(run, [ONE])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    for use in (lambda: findings.load(run), lambda: findings.keep(run, [OTHER])):
        with pytest.raises(StoreFailure, match="version 9 is newer than 1"):
            use()
