"""Findings are stored per run, and an equal set does not change the revision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    with pytest.raises(StoreFailure, match=f"write it again with: runner report --run {run.run_id}"):
        findings.load(run)
    assert findings.keep(run, [ONE]).revision == 1


def test_a_newer_version_is_refused_and_never_replaced(run: Run) -> None:
    path = run.folder / findings.FILE
    findings.keep(run, [ONE])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    for use in (lambda: findings.load(run), lambda: findings.keep(run, [OTHER])):
        with pytest.raises(StoreFailure, match="version 9 is newer than 1"):
            use()


@pytest.mark.parametrize("value", ["../../../x", "0" * 15, "0" * 16 + "\n", "/etc/passwd", ""])
@pytest.mark.parametrize("name", ["cell_id", "at_run_id"])
def test_an_identifier_of_another_form_is_refused_with_file_field_and_value(run: Run, name: str, value: str) -> None:
    data = _stored(run)
    data["found"][1][name] = value
    (run.folder / findings.FILE).write_text(json.dumps(data))
    with pytest.raises(StoreFailure) as refused:
        findings.load(run)
    assert str(refused.value).startswith(
        f"{run.folder / findings.FILE}: cannot be used: findings.found[1].{name}: must"
    )
    assert f"got {value!r}" in str(refused.value)


@pytest.mark.parametrize("value", ["../../x", "20260101T000000Z-aaaaaa"])
def test_findings_of_another_run_are_refused(run: Run, value: str) -> None:
    (run.folder / findings.FILE).write_text(json.dumps(_stored(run) | {"run_id": value}))
    with pytest.raises(StoreFailure, match=f"findings.run_id: must be '{run.run_id}', the run's folder, got '{value}'"):
        findings.load(run)


def _stored(run: Run) -> dict[str, Any]:
    """Store two findings and return the file's content."""
    findings.keep(run, [ONE, OTHER])
    found: dict[str, Any] = json.loads((run.folder / findings.FILE).read_text())
    return found
