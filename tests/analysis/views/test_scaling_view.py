"""Every output shows the same gain of several devices and workers: terminal, report, JSON document and findings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.findings import Finding, FindingKind, run_findings
from keras_matrix.analysis.scaling import StepBreakdown
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.result_table import CellView, ResultTable, result_table
from keras_matrix.dashboards.charts import stored_charts
from keras_matrix.dashboards.charts.figure_table import Value
from keras_matrix.dashboards.charts.scaling import pictures, scaling_lines
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.schema import Record
from keras_matrix.records.text import PERCENT, interval, number, percentage, ratio_text
from keras_matrix.runner.cli.measure.fc import figure_lines
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.service.stored import Findings
from tests.synthetic_devices import device_records, scaled_run
from tests.synthetic_fc import made_up_run


def noise(records: Iterable[Record]) -> list[Record]:
    """Return the records with a communication share that is below zero."""
    slower = Communication(TimingMethod.TIMED, [0.02] * 5, [0.021] * 5)  # computing alone took longer
    return [replace(one, replicas=one.replicas and replace(one.replicas, communication=slower)) for one in records]


def devices() -> list[Record]:
    """Return runs with gains with and without an interval, one without a cell on one device, and noise."""
    return [
        *scaled_run(),
        *scaled_run(repeats=3, batch_size=64),
        *device_records(4, [0.2] * 5, "jax", batch_size=128),
        *noise(scaled_run(counts=(1, 2), batch_size=16)),
    ]


def shown(figure: Estimate, unit: float) -> tuple[str, str]:
    return number(figure.centre, unit), interval(figure.low, figure.high, figure.centre, unit) or "no interval"


def lines_of(view: CellView) -> dict[str, Value]:
    """Return the lines of the report about what a cell gains."""
    return {line.name: line.values[0] for line in scaling_lines([view]) if line.measured}


def communication(line: Value | None, spent: StepBreakdown | None) -> None:
    """Assert that the report shows this share of the communication."""
    if spent is not None:
        assert line is not None
        assert spent.share_text in (f"{line.text} %", percentage(spent.share))
        assert (spent.share < 0) == (line.text == "below 0")


def findings_of(made: ResultTable, kind: FindingKind, view: CellView) -> dict[str, Finding]:
    own = [one for one in run_findings(made) if one.kind is kind and one.cell_id == view.cell.cell_id]
    return {one.metric: one for one in own}


@pytest.fixture(scope="module")
def several() -> ResultTable:
    made = result_table(table(devices()))
    scalings = made.scalings
    assert len(scalings) > 10
    assert {one.speed_up is None for one in scalings} == {True, False}
    assert {bool(one.speed_up and one.speed_up.bounds) for one in scalings} == {True, False}
    assert {bool(one.spent and one.spent.share < 0) for one in scalings} == {True, False}
    return made


def test_every_output_has_the_gain_of_several_devices(several: ResultTable) -> None:
    """Mutation: the efficiency of the report is the speed-up."""
    terminal = [line.text for line in table_lines(several)]
    rows = json.loads(as_document({}, Findings(several.rows, devices(), NO_CONTEXT)))["rows"]
    on_page = [text for _, texts in pictures(several).lines for text in texts]
    for work, row in zip(several.works, rows, strict=True):
        for view in work.cells:
            stored, scaling = row["cells"][view.backend]["scaling"], view.scaling
            if scaling is None:
                assert stored is None
                continue
            assert f"  scaling: {scaling.text}" in terminal
            assert scaling.text in on_page
            for name, figure in {"speed_up": scaling.speed_up, "efficiency": scaling.efficiency}.items():
                centres = (stored[name] or {}).get("centre"), figure and figure.centre
                assert centres[0] == centres[1]
            assert (stored["verdict"], stored["text"]) == (scaling.verdict, scaling.text)
            assert stored["communication_share"] == (scaling.spent.share if scaling.spent else None)
            lines = lines_of(view)
            for name, figure, unit in (
                ("speed-up over one device", scaling.speed_up, 1.0),
                ("efficiency of devices", scaling.efficiency, PERCENT.size),
            ):
                line = lines.get(name)
                assert (line and (line.text, line.aside)) == (shown(figure, unit) if figure else None)
            communication(lines.get("in communication"), scaling.spent)


def test_findings_have_the_gain_of_several_devices(several: ResultTable) -> None:
    """What dashboards show are the findings."""
    for view in several.cells:
        if view.scaling is None:
            continue
        stored = findings_of(several, FindingKind.DEVICES, view)
        for name, figure in {"speed_up": view.scaling.speed_up, "efficiency": view.scaling.efficiency}.items():
            found = stored.get(name)
            assert (found.estimate if found else None) == (figure.centre if figure else None)
            assert (found.low if found else None) == (figure.low if figure else None)
        assert stored["speed_up"].said == view.scaling.text
        assert stored["communication_share"].estimate == (view.scaling.spent and view.scaling.spent.share)


def test_dashboards_show_the_gain_of_several_devices(several: ResultTable) -> None:
    """Mutation: a communication share that is below zero is shown as 0 %."""
    for scaling in several.scalings:
        if scaling.speed_up is None or scaling.efficiency is None or scaling.spent is None:
            continue
        row = {
            "backend": scaling.settings.backend,
            "divided_work": scaling.work,
            "divided_work_id": scaling.work_id,
            "distribution": scaling.settings.distribution,
            "devices": scaling.devices,
            "fit": "yes",
            "speed_up": scaling.speed_up.centre,
            "efficiency": scaling.efficiency.centre,
            "low": scaling.efficiency.low,
            "high": scaling.efficiency.high,
            "communication_share": scaling.spent.share,
            "communication_method": scaling.spent.method,
        }
        [picture] = stored_charts.device_scalings([row])
        [strip] = picture.strips
        assert strip.figure == percentage(scaling.efficiency.centre)
        assert strip.notes == [
            f"{ratio_text(scaling.speed_up.centre)} with {scaling.devices} devices",
            f"{scaling.spent.share_text} in communication ({scaling.spent.method})",
        ]


def test_every_output_has_the_gain_of_several_workers() -> None:
    """Mutation: the terminal shows a communication share that is below zero as a number."""
    made = result_table(table(made_up_run()))
    views = [view for view in made.cells if view.parallel]
    assert {bool(view.parallel and view.parallel.efficiency) for view in views} == {True, False}
    for view in views:
        figure = view.parallel
        assert figure is not None
        terminal, lines = " ".join(figure_lines(figure)), lines_of(view)
        if figure.efficiency:
            line = lines["efficiency of workers"]
            assert (line.text, line.aside) == shown(figure.efficiency, PERCENT.size)
            bounds = (figure.efficiency.centre, figure.efficiency.low, figure.efficiency.high)
            assert f"efficiency {percentage(*bounds)} against one worker" in terminal
        communication(lines.get("in communication"), figure.spent)
        if figure.spent:
            assert f"{figure.spent.share_text} of the time in communication" in terminal
        stored = findings_of(made, FindingKind.WORKERS, view)
        assert stored["samples_per_s"].estimate == figure.samples_per_s
        efficiency = stored.get("efficiency")
        assert (efficiency.estimate if efficiency else None) == (
            figure.efficiency.centre if figure.efficiency else None
        )
        below = replace(figure, spent=figure.spent and replace(figure.spent, share=-0.01), communication_share=-0.01)
        assert ("below 0 % of the time in communication" in " ".join(figure_lines(below))) == (figure.spent is not None)
