"""The section on input of a run's report: when it is there, and what its analyses say."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import Advice, SpeedupVerdict, StallReport, VerifiedAdvice
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report import page
from keras_matrix.dashboards.report.inputs import inputs
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import NOTHING
from tests.analysis.stalls.pretended import Pretended, base_settings, records
from tests.conftest import make_record
from tests.dashboards.charts.test_input_workers import plain
from tests.dashboards.conftest import HOSTILE

SECTION = '<section id="input"'
BOUND = Pretended(prepare_s=0.004, prepare_cpu_s=0.004)
GAIN = Estimate(1.5, 1.4, 1.6, 6)


def analysed(pipeline: Pretended = BOUND, **changes: object) -> tuple[list[Record], StallReport]:
    made = records(pipeline, cold=False, settings=base_settings(**changes))
    (report,) = reports(made)
    return made, report


def html_of(made: list[Record], *found: StallReport) -> str:
    return page.render(made, result_table(table(made), RunContext(stalls=found)), {})


def test_section_is_there_for_analyses_and_for_several_worker_counts_only() -> None:
    made, report = analysed()
    whole = html_of(made, report)
    assert whole.index('<section id="memory"') < whole.index(SECTION) < whole.index('<section id="failures"')
    assert '<a href="#input">Input</a>' in whole
    measured = plain()
    points = html_of(measured)
    assert "Throughput by workers" in points
    assert "Where an epoch goes" not in points
    assert "Queue over time" not in points
    for without in ([make_record(0.01)], made[:1]):
        assert SECTION not in html_of(without)
        assert 'href="#input"' not in html_of(without)


def test_sheet_names_bottleneck_ceiling_and_caveats() -> None:
    made, report = analysed()
    [sheet] = inputs(table(made), [report]).sheets
    assert (sheet.title, sheet.bottleneck) == ("grain, 2 threads, folder", "preparation CPU")
    assert sheet.where == "6 blocks · warm page cache · pil · prefetch 2"
    assert sheet.why.startswith("Decoding and preparing take 4.00 ms of CPU per sample;")
    facts = {fact.name: fact.values[0] for fact in sheet.facts}
    assert facts["ceiling"].startswith("1.6")
    assert facts["prepared"] == "250 samples per CPU-second"
    assert "input-bound, by timers" in facts
    [bad] = inputs([], [replace(report, caveats=["one sample could not be decoded"])]).sheets
    assert bad.caveats == ("one sample could not be decoded",)


def test_parts_that_are_not_resolved_or_not_measured_have_no_figure() -> None:
    made, report = analysed()
    [sheet] = inputs(table(made), [report]).sheets
    rows = {row.name.partition(":")[0]: row.values for row in sheet.parts.rows}
    assert rows["fetch"] == ["not measured", NOTHING, NOTHING]
    assert (rows["batching and copy"][0], rows["batching and copy"][2]) == ("not resolved", NOTHING)
    assert rows["preparation"][2].endswith("ms")


def test_advice_has_predictions_and_once_applied_measurements_with_verdicts() -> None:
    _, report = analysed()
    first = Advice("cache", "cache the samples", GAIN, 0.04, {"cache": "ram"}, note="from the second pass on")
    second = replace(first, change="scale", text="smaller scale", note=None)
    [sheet] = inputs([], [replace(report, advice=[first])]).sheets
    assert sheet.advice.columns == ["predicted", "step"]
    assert [(row.name, row.values) for row in sheet.advice.rows] == [
        ("cache the samples (from the second pass on)", ["1.50x [1.40 1.60]", "40.0 ms"])
    ]
    less = Estimate(1.1, 1.05, 1.15, 6)
    applied = VerifiedAdvice("cache", "cache the samples", "0" * 16, GAIN, less, SpeedupVerdict.LESS, "a reason")
    [sheet] = inputs([], [replace(report, advice=[first, second], verified=[applied])]).sheets
    assert sheet.advice.columns == ["predicted", "measured", "verdict"]
    assert [(row.name, row.values[1:]) for row in sheet.advice.rows] == [
        ("cache the samples (from the second pass on; a reason)", ["1.10x [1.05 1.15]", "less than predicted"]),
        ("smaller scale", [NOTHING, "not applied"]),
    ]


def test_page_says_that_nothing_helps_only_where_input_costs_something() -> None:
    _, bound = analysed()
    _, free = analysed(Pretended())
    text = "No change of the pipeline is predicted to help."
    assert text in html_of([], replace(bound, advice=[]))
    assert free.bottleneck == "none (compute-bound)"
    assert text not in html_of([], free)
    unknown = html_of([], replace(bound, advice=[], by_workers=[]))
    assert text not in unknown
    assert "No change of the pipeline could be predicted." in unknown


def test_analysis_that_failed_shows_its_reason() -> None:
    made = [
        replace(record, status=Status.CRASH, reason="signal 11") if record.settings.feed == "pipeline" else record
        for record in records(BOUND, cold=False)
    ]
    (report,) = reports(made)
    [sheet] = inputs(table(made), [report]).sheets
    assert "signal 11" in sheet.reason
    assert "signal 11" in html_of(made, report).partition(SECTION)[2]


def test_backends_are_in_their_usual_order() -> None:
    found = [analysed(backend=backend)[1] for backend in ("jax", "tensorflow", "torch")]
    assert [one.backend for one in inputs([], found).sheets] == ["tensorflow", "jax", "torch"]


def test_names_of_files_and_workloads_are_shown_as_text() -> None:
    made, report = analysed()
    report = replace(report, caveats=[HOSTILE], settings=replace(report.settings, workload=f"{HOSTILE}:build"))
    html = html_of(made, report)
    assert HOSTILE not in html
    assert html.count("&lt;img src=x") > 1
