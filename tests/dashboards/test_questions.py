"""Every question has an answer, it is what `analysis` found, and both dialects of its query give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.compare import table
from analysis.primary import STEP_TIME
from dashboards.questions import Choice, answer, checked, questions
from records.settings import BACKENDS
from records.store import Results
from tests.dashboards.boards import NIGHTS, SLOWER_FROM, cell_of, stored, warehouse_of
from tests.sessions import run_name
from uploader.local import LocalWarehouse
from uploader.sql import checked as one_select

EMPTY = {"roofline"}  # needs measured peaks


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return stored(tmp_path_factory.mktemp("boards") / "results")


@pytest.fixture(scope="module")
def warehouse(results: Results) -> LocalWarehouse:
    return warehouse_of(results)


@pytest.mark.parametrize("name", list(questions()))
def test_a_question_has_a_title_asks_something_and_is_one_select(name: str) -> None:
    question = questions()[name]
    assert question.title
    assert question.asks.endswith("?")
    assert one_select(question.sql) == question.sql


@pytest.mark.parametrize("name", [name for name in questions() if name not in EMPTY])
def test_a_question_is_answered(warehouse: LocalWarehouse, name: str) -> None:
    assert answer(warehouse, questions()[name], Choice()).rows


@pytest.mark.parametrize("name", list(questions()))
def test_a_choice_narrows_and_a_hostile_one_finds_nothing(warehouse: LocalWarehouse, name: str) -> None:
    everything = answer(warehouse, questions()[name], Choice()).rows
    hostile = (Choice(workload="x' OR '1'='1"), Choice(backend="'; DROP TABLE cells; --"))
    for choice in (*hostile, Choice(since="2027-01-01")):
        assert answer(warehouse, questions()[name], choice).rows == []
    assert len(answer(warehouse, questions()[name], Choice(backend="jax")).rows) <= len(everything)


def test_the_matrix_shows_what_the_newest_run_found(warehouse: LocalWarehouse, results: Results) -> None:
    rows = table(results.runs()[-1].load()[0])
    found = {
        (cell.cell_id, row.verdict): (cell.step_time.centre, cell.step_time.low, cell.step_time.high)
        for row in rows
        for cell in row.cells.values()
        if cell.step_time and cell.figure is STEP_TIME
    }
    shown = {
        (one["cell_id"], one["verdict"]): (one["step_time_s"], one["low"], one["high"])
        for one in answer(warehouse, questions()["matrix"], Choice()).dicts()
        if one["step_time_s"] is not None
    }
    assert shown == found


def test_the_comparison_shows_the_ratios_that_analysis_found(warehouse: LocalWarehouse, results: Results) -> None:
    rows = table(results.runs()[-1].load()[0])
    found = {
        (row.cells[ratio.backend].cell_id, ratio.estimate.centre, ratio.estimate.low, ratio.p_value)
        for row in rows
        for ratio in row.ratios
    }
    shown = answer(warehouse, questions()["comparison"], Choice()).dicts()
    assert {(one["cell_id"], one["ratio"], one["low"], one["p_value"]) for one in shown} == found


def test_of_an_external_command_its_primary_metric_is_shown_and_how_much_worse_it_is_than_the_best(
    warehouse: LocalWarehouse,
) -> None:
    rows = {row["backend"]: row for row in answer(warehouse, questions()["commands"], Choice()).dicts()}
    assert list(rows) == sorted(BACKENDS)
    assert {(row["work"], row["metric"], row["unit"], row["status"]) for row in rows.values()} == {
        ("task train", "speed", "images/s", "ok")
    }
    assert rows["tensorflow"]["value"] == pytest.approx(100, rel=0.01)
    assert rows["tensorflow"]["ratio"] is None
    assert rows["torch"]["ratio"] == pytest.approx(4, rel=0.01)
    assert rows["torch"]["ratio_low"] < rows["torch"]["ratio"] < rows["torch"]["ratio_high"]


def test_a_slowdown_is_a_regression_with_the_run_it_began_in_and_who_should_look(warehouse: LocalWarehouse) -> None:
    [row] = answer(warehouse, questions()["regressions"], Choice()).dicts()
    assert (row["cell_id"], row["at_run_id"]) == (cell_of("jax"), run_name(SLOWER_FROM))
    assert row["ratio"] == pytest.approx(1.5, rel=0.01)
    assert row["look"] == "Keras: keras 3.15.0 → 3.16.0"
    assert row["sessions_since"] == NIGHTS - SLOWER_FROM


def test_a_trend_has_every_session_and_marks_the_change(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["trend"], Choice(cell=cell_of("jax"))).dicts()
    assert [row["run_id"] for row in rows] == [run_name(night) for night in range(NIGHTS)]
    assert [row["run_id"] for row in rows if row["change_verdict"]] == [run_name(SLOWER_FROM)]
    assert {row["backend_version"] for row in rows} == {"0.12.1"}


def test_the_fc_modes_show_the_efficiency_of_their_workers(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["fc_scaling"], Choice()).dicts()
    found = {(row["backend"], row["workers"]): row["efficiency"] for row in rows}
    assert {key for key, value in found.items() if value is not None} == {(backend, 2) for backend in BACKENDS}
    assert found["jax", 2] == pytest.approx(1 / 0.62 / 2)


def test_failures_are_counted_by_status(warehouse: LocalWarehouse) -> None:
    [row] = answer(warehouse, questions()["failures"], Choice()).dicts()
    assert (row["status"], row["backend"], row["attempts"], row["runs"]) == ("timeout", "torch", NIGHTS, NIGHTS)


def test_a_run_with_a_planted_fault_is_in_no_latest_matrix(tmp_path: Path) -> None:
    from records.store import Run
    from runner.cli.stored import findings_of, keep_findings
    from tests.sessions import processes, store_session

    stored(tmp_path, nights=1)
    arms = {"arms": {"slower": {"fault": "slower:0.5"}}, "arm": "slower", "planned": 3}
    run = Run(store_session(tmp_path, run_name(3), processes(9.0), **arms))
    keep_findings(run, findings_of(run))
    rows = answer(warehouse_of(Results(tmp_path)), questions()["matrix"], Choice()).dicts()
    assert {row["run_id"] for row in rows} == {run_name(0)}


def test_a_day_that_is_none_means_ever() -> None:
    assert checked(Choice(since="2026-02-30")) == Choice()
    assert checked(Choice(since="2026-02-03", backend="jax")) == Choice(since="2026-02-03", backend="jax")
