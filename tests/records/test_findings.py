"""A run's findings are kept beside it, and a set that is equal keeps its revision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from records import findings
from records.findings import Finding, Kind
from records.store import Results, Run, StoreFailure

ONE = Finding(Kind.FIGURE, "times.step_time_s", "mlp", "a method", 1, cell_id="0" * 16, estimate=0.01)
OTHER = Finding(Kind.FIGURE, "times.step_time_s", "mlp", "a method", 1, cell_id="1" * 16, estimate=0.02)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Results(tmp_path).create("20260101T000000Z-abcdef", {})


def test_what_was_kept_is_read_back(run: Run) -> None:
    kept = findings.keep(run, [ONE, OTHER])
    assert findings.load(run) == kept
    assert kept.found == [ONE, OTHER]


def test_a_run_without_findings_has_none(run: Run) -> None:
    assert findings.load(run) is None


def test_only_what_differs_is_a_new_revision(run: Run) -> None:
    assert [findings.keep(run, found).revision for found in ([ONE], [ONE], [ONE, OTHER], [ONE])] == [1, 1, 2, 3]


def test_a_finding_is_named_by_what_it_is_about_and_not_by_its_figure(run: Run) -> None:
    again = Finding(Kind.FIGURE, "times.step_time_s", "mlp", "another", 2, cell_id="0" * 16, estimate=0.5)
    assert again.finding_id == ONE.finding_id != OTHER.finding_id


def test_a_damaged_file_is_told_and_made_again(run: Run) -> None:
    (run.folder / findings.FILE).write_text("{")
    with pytest.raises(StoreFailure, match="write it again with: runner report"):
        findings.load(run)
    assert findings.keep(run, [ONE]).revision == 1


def test_a_newer_version_is_refused_and_never_replaced(run: Run) -> None:
    path = run.folder / findings.FILE
    findings.keep(run, [ONE])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    for use in (lambda: findings.load(run), lambda: findings.keep(run, [OTHER])):
        with pytest.raises(StoreFailure, match="version 9 is newer than 1"):
            use()
