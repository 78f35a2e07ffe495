"""Throughput by input workers: measured cells, with predictions and ceilings of stall analyses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import Advice, SpeedupVerdict, StallReport, VerifiedAdvice
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.dashboards.charts import input_workers
from keras_matrix.dashboards.charts.input_workers import pictures
from keras_matrix.dashboards.charts.picture import TO_MIDDLE, Dot, PanelPicture, Segment, Word
from keras_matrix.records.instruments.stall_arms import COLD
from keras_matrix.records.schema import Record
from tests.analysis.stalls.pretended import BATCH, PARAMS, Pretended, base_settings, records
from tests.conftest import make_record
from tests.dashboards.charts.drawn import drawn


def measured(step_s: float, workers: int, repeats: int = 5, **changes: Any) -> list[Record]:
    """The processes of a cell without a stall analysis, with a noise of 1 %."""
    settings = replace(base_settings(), params={**PARAMS, "input_workers": workers}, **changes)
    return [make_record(step_s * (1 + 0.01 * (one - 2)), one, settings=settings) for one in range(repeats)]


def plain(backend: str = "jax", **changes: Any) -> list[Record]:
    steps = {0: 0.16, 1: 0.08, 2: 0.04}
    return [one for n, step_s in steps.items() for one in measured(step_s, n, backend=backend, **changes)]


def words(panel: PanelPicture) -> list[str]:
    return [word.text for word in drawn(panel.picture, Word)]


def lines(panel: PanelPicture, role: str) -> list[Segment]:
    return drawn(panel.picture, Segment, role)


def dots(panel: PanelPicture) -> list[Dot]:
    return drawn(panel.picture, Dot)


def test_matrix_without_stall_analyses_has_measured_points_with_intervals_only() -> None:
    found = pictures(table(plain("jax") + plain("torch")))
    assert [one.title for one in found.panels] == ["jax", "torch"]
    assert not found.predicted
    panel = found.panels[0]
    assert (len(dots(panel)), len(lines(panel, "whisker")), len(lines(panel, "reach"))) == (3, 3, 2)
    assert (lines(panel, "predicted"), lines(panel, "ceiling")) == ([], [])
    assert dots(panel)[2].tip.startswith(f"jax, 2 workers: {BATCH / 0.04:.0f} samples/s [")
    assert [word for word in words(panel) if word in "012"] == ["0", "0", "1", "2"]
    assert [dot.y for dot in dots(panel)] == sorted((dot.y for dot in dots(panel)), reverse=True)


def test_too_few_processes_have_no_interval() -> None:
    one = [record for n in (1, 2) for record in measured(0.04 / n, n, repeats=2)]
    [panel] = pictures(table(one)).panels
    assert lines(panel, "whisker") == []
    assert dots(panel)[0].tip.endswith("(no interval)")


@pytest.mark.parametrize(
    "alone",
    [
        measured(0.04, 1),
        [*measured(0.04, 1), *measured(0.03, 2, batch_size=64)],
        [*measured(0.04, 1), *measured(0.03, 2, input_timers=True)],
        [*measured(0.04, 1), *measured(0.03, 2, page_cache=COLD)],
        [],
    ],
    ids=["one count", "another batch", "timers", "page cache", "no records"],
)
def test_cells_that_differ_in_more_than_their_workers_are_not_in_one_panel(alone: list[Record]) -> None:
    assert pictures(table(alone)).panels == []


def test_failed_cells_and_other_feeds_are_left_out() -> None:
    resident = [replace(r, settings=replace(r.settings, feed="device_resident")) for r in plain()]
    assert pictures(table(resident)).panels == []


def analysed(**changes: Any) -> tuple[list[Record], StallReport]:
    pipeline = Pretended(workers=1, prepare_s=0.004, prepare_cpu_s=0.001, **changes)
    settings = replace(base_settings(), params={**PARAMS, "input_workers": 1})
    made = records(pipeline, settings=settings, cold=bool(changes))
    (report,) = reports(made)
    return made, report


def test_analysis_adds_the_predicted_line_and_the_ceiling_to_its_cell() -> None:
    made, report = analysed()
    found = pictures(table(made), [report])
    [panel] = found.panels
    assert found.predicted
    assert len(dots(panel)) == 1
    assert words(panel)[-1].startswith("ceiling 80")
    assert lines(panel, "ceiling")[0].tip.endswith("with every batch on the device")
    predicted = lines(panel, "predicted")
    assert (predicted[0].y1, predicted[-1].x2) > (predicted[-1].y2, predicted[0].x1)
    assert "predicted" in panel.picture.summary
    assert "ceiling" in panel.picture.summary
    own = next(one for one in report.by_workers if one.workers == 1)
    assert predicted[0].tip.startswith("predicted from the analysis with 1 thread: ")
    height = input_workers.HEIGHT - input_workers.BOTTOM
    top = report.settings.batch_size / 0.04
    expected = height - own.samples_per_s / top * (height - input_workers.TOP)
    assert dots(panel)[0].y == pytest.approx(expected, abs=3)


def test_straight_stretches_of_the_predicted_line_are_one_stroke() -> None:
    made, report = analysed()
    [panel] = pictures(table(made), [report]).panels
    level = [one for one in lines(panel, "predicted") if one.y1 == one.y2]
    assert len(level) == 1
    assert len(lines(panel, "predicted")) < len(report.by_workers) - 1


def test_prediction_of_a_cold_arm_belongs_to_the_cold_cell() -> None:
    made, report = analysed(cold_fetch_s=0.004, storage_bytes=3_200_000, reads=32)
    [panel] = pictures(table(made), [report]).panels
    assert panel.details == "finetune, cold page cache"
    assert len(dots(panel)) == 1


def test_applied_advice_is_a_hollow_mark_at_its_number_of_workers() -> None:
    made, report = analysed()
    gain = Estimate(1.8, 1.7, 1.9, 5)
    advice = Advice("workers", "2 threads", gain, 0.07, {"input_workers": 2})
    applied = VerifiedAdvice("workers", "2 threads", "0" * 16, gain, gain, SpeedupVerdict.AS_PREDICTED)
    failed = replace(applied, change="decoder", measured=None)
    report = replace(report, advice=[advice], verified=[applied, failed])
    [panel] = pictures(table(made), [report]).panels
    [hollow] = [dot for dot in dots(panel) if dot.hollow]
    expected = 1.8 * report.rates.samples_per_s
    assert f"applied and measured, 2 workers: {expected:.0f} samples/s" in hollow.tip
    assert len(lines(panel, "whisker")) == 2


def test_panels_of_one_work_have_a_common_scale() -> None:
    slow = [one for n in (1, 2) for one in measured(0.4 / n, n, backend="torch")]
    quick = [one for n in (1, 2) for one in measured(0.04 / n, n, backend="jax")]
    jax, torch = pictures(table(slow + quick)).panels
    assert words(jax) == words(torch)
    assert max(dot.y for dot in dots(jax)) < min(dot.y for dot in dots(torch))


def test_large_throughputs_are_in_thousands() -> None:
    quick = [one for n in (1, 2) for one in measured(0.001 / n, n)]
    [panel] = pictures(table(quick)).panels
    *ticks, vertical = words(panel)
    assert vertical == "thousand samples/s by workers"
    assert max(len(word) for word in ticks) <= 3


def test_many_worker_counts_have_few_labels_and_many_panels_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [one for n in (0, 64) for one in measured(0.04, n)]
    [panel] = pictures(table(many)).panels
    assert (
        sum(word.y == input_workers.HEIGHT - 32 + TO_MIDDLE for word in drawn(panel.picture, Word))
        <= input_workers.MOST_COUNTS
    )
    monkeypatch.setattr(input_workers, "MOST_PANELS", 1)
    assert pictures(table(plain("jax") + plain("torch"))).left_out == "1 more panel left out"
