"""`km.load`: a run by its folder, the newest of a results folder, or several runs as one table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keras_matrix as km
from keras_matrix.analysis.comparison.table import table
from keras_matrix.records.schema import Status
from keras_matrix.runner.matrix.settings_text import title_defaults
from tests.conftest import make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.runner.api.conftest import measured
from tests.sessions import run_name, store_session


def test_a_run_is_loaded_from_its_folder_from_the_link_and_from_the_results_folder(folder: Path) -> None:
    older, newer = measured(repeats=1), measured(repeats=2)
    assert km.load("results/latest").run_ids == km.load("results").run_ids == km.load().run_ids == newer.run_ids
    assert km.load(older.folders[0]).run_ids == older.run_ids


def test_a_loaded_run_equals_the_measured_one_from_any_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured()
    loaded = km.load("results/latest")
    monkeypatch.chdir("/")
    assert (loaded.cells, loaded.comparisons) == (run.cells, run.comparisons)


def test_a_run_reads_no_record_before_something_is_asked_for(folder: Path) -> None:
    run = measured()
    for path in (run.folders[0] / "records").iterdir():
        path.unlink()
    assert km.load(run.folders[0]).cells == []


def test_cells_have_the_figures_of_the_table(folder: Path) -> None:
    records = [
        make_record(0.01 * (1 + 0.01 * repeat), repeat, settings=make_settings(backend=backend))
        for backend in ("jax", "torch")
        for repeat in range(5)
    ]
    path = store_session(folder / "results", run_name(0), records)
    [row] = table(records, title_defaults())
    summary, cell = row.cells["jax"], km.load(path).cells[0]
    assert summary.step_time is not None
    assert (cell.name, cell.work, cell.workload, cell.backend) == ("mnist_mlp on jax", "mnist_mlp", "mnist_mlp", "jax")
    assert (cell.step_time_s, cell.step_time_low_s, cell.step_time_high_s) == (
        summary.step_time.centre,
        summary.step_time.low,
        summary.step_time.high,
    )
    assert (cell.status, cell.processes, cell.reasons, cell.cell_id) == ("ok", 5, (), summary.cell_id)
    assert (cell.settings["batch_size"], cell.params) == (32, {})
    assert (cell.first_epoch_time_s, cell.peak_host_memory_bytes, cell.metric) == (None, None, None)


def test_status_names_every_other_ending_of_its_processes(folder: Path) -> None:
    statuses = (Status.OK, Status.UNSTABLE, Status.TIMEOUT)
    records = [make_record(0.01 if at < 2 else None, at, status) for at, status in enumerate(statuses)]
    [cell] = km.load(store_session(folder / "results", run_name(0), records)).cells
    assert (cell.status, cell.processes, cell.reasons) == ("unstable, timeout", 2, ("timeout: a reason",))


def test_answer_is_the_sentence_that_begins_the_report(folder: Path, tmp_path: Path) -> None:
    run = measured()
    assert run.answer.fastest["tensorflow"] >= 1
    assert run.answer.rows == len(run.comparisons) == 2
    assert f'<p class="answer">{run.answer.text}.</p>'.replace("'", "&#39;") in run.report(
        tmp_path / "page.html"
    ).read_text().replace("\u00a0", " ")
    assert run.answer.text in repr(run)


def test_comparisons_have_verdict_ratios_and_same_work_of_the_report(folder: Path) -> None:
    first, second = measured().comparisons
    assert (first.name, first.backends) == ("mnist_mlp batch_size=32", ("tensorflow", "jax", "torch"))
    assert (first.fastest, first.lowest) == ("tensorflow", "tensorflow")
    assert first.verdict == "tensorflow is fastest: jax takes 2.00x [2.00 2.00] as long, torch 4.00x [4.00 4.00]"
    assert [(one.backend, one.against, round(one.ratio, 6)) for one in first.ratios] == [
        ("jax", "tensorflow", 2.0),
        ("torch", "tensorflow", 4.0),
    ]
    assert all(one.low is not None and 1 < one.low <= one.ratio for one in first.ratios)
    # The fake processes report versions of their own.
    assert first.same_work == "same work at other versions: 1e-15 (float64 gradient)"
    assert second.name == "mnist_mlp batch_size=64"


def test_open_comparison_has_the_repeats_that_would_decide_it(folder: Path) -> None:
    """Without a command: the arguments of `km.run` are not stored."""
    matrix = "version: 1\nbackends: [jax, torch]\ncells:\n  - workload: mnist_mlp\n    repeats: 5\n"
    equal = FakeExecutor(
        step_time_s=lambda settings, repeat: 0.01 * (1 + 0.01 * ((repeat + (settings.backend == "jax")) % 3))
    )
    [one] = measured(matrix, fake=equal).comparisons
    assert one.fastest is None
    assert one.advice == "to decide: about 5 repeats show a difference of 5.0 %"


def test_comparisons_leave_out_what_ran_on_one_backend(folder: Path) -> None:
    assert measured(backends=["jax"]).comparisons == []


def test_several_runs_make_one_table(folder: Path) -> None:
    one = measured(backends=["jax"], results="one")
    other = measured(backends=["torch"], results="other")
    run = km.load("one/latest", "other/latest")
    assert sorted(run.run_ids) == sorted(one.run_ids + other.run_ids)
    assert [cell.backend for cell in run.cells] == ["jax", "torch"] * 2
    assert [comparison.backends for comparison in run.comparisons] == [("jax", "torch")] * 2
    page = run.report(folder / "merged.html")
    assert page == folder / "merged.html"
    assert "Merge of 2 runs" in page.read_text()


def test_runs_that_do_not_fit_together_are_refused(folder: Path) -> None:
    measured(results="one")
    measured(results="other")
    with pytest.raises(km.UsageError, match="these runs do not make one table"):
        km.load("one", "other")


def test_report_writes_the_page_and_returns_its_path(folder: Path) -> None:
    run = measured()
    assert run.report() == run.folders[0] / "report.html"
    assert run.report("copy.html") == Path("copy.html")
    assert Path("copy.html").read_text() == (run.folders[0] / "report.html").read_text()


def test_a_tilde_in_the_path_of_a_report_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert measured(repeats=1).report("~/page.html") == folder / "page.html"
    assert (folder / "page.html").is_file()


def test_a_path_without_a_run_is_refused(folder: Path) -> None:
    with pytest.raises(km.UsageError, match=r"got 'nowhere', which does not exist"):
        km.load("nowhere")
    (folder / "empty").mkdir()
    with pytest.raises(km.UsageError, match="contains no run; measure one with"):
        km.load("empty")


@pytest.mark.fault("F24", mutation="load() reads a record of any version")
def test_records_of_a_newer_version_raise_a_store_error(folder: Path) -> None:
    record = make_record()
    path = store_session(folder / "results", run_name(0), [record])
    [file] = (path / "records").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 999}))
    with pytest.raises(km.StoreError, match="schema version 999 is newer"):
        len(km.load(path).cells)


def test_a_report_that_cannot_be_written_raises_a_store_error(folder: Path) -> None:
    with pytest.raises(km.StoreError, match="No such file or directory"):
        measured(repeats=1).report("missing/folder/report.html")


@pytest.mark.fault("F10", mutation="escape sequences are removed nowhere")
def test_text_of_a_run_has_its_verdicts_without_control_characters(folder: Path) -> None:
    hostile = replace(make_settings(), workload="evil\x1b[31m")
    records = [make_record(0.01, settings=replace(hostile, backend=name)) for name in ("jax", "torch")]
    text = repr(km.load(store_session(folder / "results", run_name(0), records)))
    head, verdict = text.splitlines()
    assert head == f"<Run {run_name(0)}: 2 cells; processes: 2 ok>"
    assert verdict == "evil: not separable: fewer than 5 repeats give no interval [same work not checked]"


def test_text_of_an_unfinished_run_counts_what_is_pending_once(folder: Path) -> None:
    run = measured(fake=FakeExecutor(absent=frozenset({"torch"})), repeats=1)
    assert repr(run).splitlines()[0].endswith(": 6 cells; processes: 4 ok, 2 pending>")


def test_text_of_many_comparisons_says_how_many_more_there_are(folder: Path) -> None:
    matrix = {
        "version": 1,
        "backends": ["jax", "torch"],
        "cells": [{"workload": "mnist_mlp", "batch_size": list(range(1, 23)), "repeats": 1}],
    }
    assert repr(measured(matrix)).splitlines()[-1] == "and 2 more: .comparisons"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (["a", "b"], "load: must be a path, got ['a', 'b'] (list); give them one by one: load('a', 'b')"),
        (5, "load: must be a path, got 5 (int)"),
        (None, "load: must be a path, got None (NoneType)"),
    ],
)
def test_path_of_another_type_is_refused_with_what_to_write(path: Any, message: str) -> None:
    with pytest.raises(km.UsageError) as raised:
        km.load(path)
    assert str(raised.value) == message
