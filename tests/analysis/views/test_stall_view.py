"""Every output shows the same values of a stall analysis: terminal, report, JSON document and findings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.ratios import bracketed, share_text
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.findings import FindingKind, run_findings
from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import SpeedupVerdict, StallReport, VerifiedAdvice
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report.inputs import InputSheet, inputs
from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.text import number, percentage, percentage_interval, seconds
from keras_matrix.runner.cli.inputs.stalls import report_lines
from tests.analysis.stalls.pretended import Pretended, records

PIPELINES = {
    "cpu": (Pretended(prepare_s=0.004, prepare_cpu_s=0.004), False, 6),
    "storage": (
        Pretended(cold_fetch_s=0.004, prepare_s=0.001, prepare_cpu_s=0.001, storage_bytes=3_200_000, reads=32),
        True,
        6,
    ),
    "compute": (Pretended(), False, 6),
    "copy": (Pretended(copy_s=0.02), False, 6),
    "few": (Pretended(prepare_s=0.004, prepare_cpu_s=0.004), False, 2),
}


def analysed(name: str) -> tuple[list[Record], StallReport]:
    """Return the records of a pipeline and their analysis: with a failed arm, and its first advice applied."""
    pipeline, cold, blocks = PIPELINES[name]
    made = records(pipeline, cold=cold, blocks=blocks)
    [report] = reports(made)
    arms = [replace(arm, failures=["timeout: after 300 s"]) if arm.arm == "host" else arm for arm in report.arms]
    less = Estimate(1.1, 1.05, 1.15, 6)
    applied = [
        VerifiedAdvice(one.change, one.text, "0" * 16, one.speed_up, less, SpeedupVerdict.LESS)
        for one in report.advice[:1]
    ]
    return made, replace(report, arms=arms, verified=applied, queue_sizes=[] if name == "copy" else report.queue_sizes)


@pytest.fixture(scope="module")
def shown() -> dict[str, tuple[list[Record], StallReport]]:
    found = {name: analysed(name) for name in PIPELINES}
    every = [report for _, report in found.values()]
    parts = [part for report in every for part in report.parts]
    assert {part.share is None for part in parts} == {part.resolved for part in parts} == {True, False}
    assert {bool(report.advice) for report in every} == {True, False}
    assert {report.mean_queue is None for report in every} == {True, False}
    assert len({report.bottleneck for report in every}) > 3
    return found


def words(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_terminal_has_the_values_of_the_analysis(shown: dict[str, tuple[list[Record], StallReport]]) -> None:
    """Mutation: the step is that of the warm arm."""
    for _, report in shown.values():
        lines = report_lines(report)
        printed = [words(line) for line in lines]
        for part in report.parts:
            [row] = [row for row in printed if row[0] == part.name]
            if part.share and part.time and part.resolved:
                assert row[1:3] == [seconds(part.time.centre), percentage(part.share.centre)]
            else:
                assert row[2] == ("not measured" if part.share is None else "not resolved")
            if part.share and part.share.bounds:
                assert row[-1] == percentage_interval(part.share.low, part.share.high)
        [observed] = [arm.step_time for arm in report.arms if arm.arm is report.observed]
        assert observed is not None
        assert ["step", seconds(observed.centre), "100.0 %"] in printed
        assert report.stall is not None
        assert any(line.startswith(f"input stall {share_text(report.stall)}: ") for line in lines)
        assert f"bottleneck: {report.bottleneck}. {report.explanation}" in lines
        assert [f"caveat: {text}" for text in report.all_caveats] == [
            one for one in lines if one.startswith("caveat: ")
        ]
        for one in report.advice:
            assert [f"{one.change}: {one.text}", bracketed(one.speed_up), seconds(one.step_time_s)] in printed
        assert any(line.startswith(report.without_advice) for line in lines) == (not report.advice)
        assert any(f"queue: {number(report.mean_queue)} batches" in line for line in lines) == bool(report.queue_sizes)


def test_report_has_the_values_of_the_analysis(shown: dict[str, tuple[list[Record], StallReport]]) -> None:
    """Mutation: a caveat of a failed arm is left out."""
    for made, report in shown.values():
        section = inputs(table(made), [report])
        [sheet] = section.sheets
        facts = {fact.name: fact.values[0] for fact in sheet.facts}
        assert report.observed_arm.step_time is not None
        assert facts["time of a step"] == seconds(report.observed_arm.step_time.centre)
        for name, share in {"input stall": report.stall, "input-bound, by timers": report.input_bound}.items():
            assert facts.get(name) == (share_text(share) if share else None)
        assert facts.get("ceiling") == (bracketed(report.ceiling) if report.ceiling else None)
        assert (sheet.bottleneck, sheet.why) == (str(report.bottleneck), report.explanation)
        assert list(sheet.caveats) == report.all_caveats
        check_parts(sheet, report)
        rows = sheet.advice.rows if sheet.advice else []
        for row, one in zip(rows, report.advice, strict=True):
            assert row.values[0] == bracketed(one.speed_up)
            result = report.applied(one)
            if result is not None and result.measured is not None:
                assert row.values[1:] == [bracketed(result.measured), str(result.verdict)]
        queue = section.queue.strips[0] if section.queue else None
        assert (queue is None) == (report.mean_queue is None)
        if queue is not None:
            assert queue.figure.split()[0] == number(report.mean_queue)
            assert queue.notes[1] == f"fewer than one in {percentage(report.short_queue_share)} of the time"


def check_parts(sheet: InputSheet, report: StallReport) -> None:
    assert sheet.parts is not None
    for row, part in zip(sheet.parts.rows, report.parts, strict=True):
        assert row.name.partition(":")[0] == part.name
        if part.share and part.time and part.resolved:
            assert (row.values[0], row.values[2]) == (percentage(part.share.centre), seconds(part.time.centre))
        else:
            assert row.values[0] == ("not measured" if part.share is None else "not resolved")


def test_json_and_findings_have_the_values_of_the_analysis(
    shown: dict[str, tuple[list[Record], StallReport]],
) -> None:
    """What dashboards show are the findings."""
    for made, report in shown.values():
        assert decode(StallReport, to_json(report), "stalls.json") == report
        rows = table(made)
        found = run_findings(result_table(rows, RunContext(stalls=(report,))))
        by_metric = {one.metric: one for one in found if one.kind is FindingKind.INPUT}
        assert {one.cell_id for one in by_metric.values()} == {report.observed_arm.cell_id}
        shares = {"stall": report.stall, **{part.name: part.share for part in report.parts}}
        for name, share in shares.items():
            stored = by_metric.get(f"input.{name.replace(' ', '_')}_share")
            assert (stored and (stored.estimate, stored.low, stored.high)) == (
                share and (share.centre, share.low, share.high)
            )
        named = by_metric["input.ceiling_speed_up"]
        assert (named.verdict, named.said) == (report.bottleneck, report.why)
        for part in report.parts:  # the rule by which the query of the dashboard leaves a part out
            share = part.share
            assert part.resolved == (share is not None and (share.centre if share.low is None else share.low) > 0)
