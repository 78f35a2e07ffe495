"""One list entry shows a statistic in terminal, report, findings, warehouse and dashboard (CONTRIBUTING.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.stats.cell_statistics import STATISTICS, values
from keras_matrix.dashboards.live import page
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.dashboards.report import page as report_page
from keras_matrix.records import findings
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.service.stored import findings_of, update_findings, write_report
from tests.dashboards.boards import cell_of, stored, warehouse_of


def test_statistic_with_a_value_is_shown_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = stored(tmp_path / "results", nights=1)
    [run] = results.runs()
    cells = [cell for row in findings_of(run).rows for cell in row.cells.values() if cell.cell_id == cell_of("jax")]
    measured = values(cells[0])
    shown = [one for one in STATISTICS if one.metric in measured and one.in_tables]
    assert {"median of processes", "p95 of processes", "median of epochs", "p95 of epochs"} <= {s.label for s in shown}

    assert main(["show", "jax:mnist_mlp", "--results", str(results.root)]) == 0
    terminal = capsys.readouterr().out
    assert main(["report", "--json", "--results", str(results.root)]) == 0
    document = capsys.readouterr().out
    write_report(run, tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    kept = findings.load(run)
    assert kept is not None
    warehouse = warehouse_of(results)
    rows = warehouse.query("SELECT DISTINCT metric FROM findings").rows
    panel = page.panel_of(warehouse, questions()["figures"], DashboardFilter())
    dashboard = page.render([panel], page.Frame("", "", lambda cell_id: ""))

    for one in shown:
        assert one.label in terminal
        assert f'"{one.metric}":' in document
        assert one.label in report
        assert one.meaning in report
        assert one.metric in {found.metric for found in kept.found}
        assert (one.metric,) in rows
        assert one.label in dashboard


def test_findings_are_stored_and_uploaded_without_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = stored(tmp_path / "results", nights=1)
    [run] = results.runs()
    kept = (run.folder / findings.FILE).read_bytes()
    (run.folder / findings.FILE).unlink()
    monkeypatch.setattr(report_page, "render", lambda *arguments: pytest.fail("a page was rendered"))
    update_findings(run)
    assert (run.folder / findings.FILE).read_bytes() == kept
    assert warehouse_of(results).query("SELECT finding_id FROM findings").rows
    assert not (run.folder / "report.html").exists()
