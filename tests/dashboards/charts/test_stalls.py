"""Bars of where an epoch goes, and the queue over time, from synthetic stall analyses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import StallPart, StallReport
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.dashboards.charts import stalls
from keras_matrix.dashboards.charts.picture import Area, Curves, Word
from keras_matrix.records.instruments.input_use import InputFacts
from tests.analysis.stalls.pretended import Pretended, base_settings, records
from tests.dashboards.charts.drawn import drawn

# Two workers make 32 samples of 4 + 3 ms in 112 ms cold, of 0.1 + 3 ms in 50 ms warm; a step computes for 40 ms.
COLD = Pretended(cold_fetch_s=0.004, prepare_s=0.003, prepare_cpu_s=0.003, storage_bytes=3_200_000, reads=32)


def report_of(pipeline: Pretended = COLD, **settings: object) -> StallReport:
    (found,) = reports(records(pipeline, settings=base_settings(**settings)))
    return found


def share(centre: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(centre, low, high, 5)


def with_parts(*parts: tuple[str, Estimate | None, bool]) -> StallReport:
    made = [StallPart(name, found, found, resolved, f"meaning of {name}") for name, found, resolved in parts]
    return replace(report_of(), parts=made)


def test_bar_has_the_resolved_parts_in_their_order_and_ends_at_one_hundred_per_cent() -> None:
    picture = stalls.splits([report_of()])
    assert picture is not None
    [bar] = picture.strips
    assert [band.role for band in drawn(bar.picture, Area)] == ["stall-compute", "stall-fetch", "stall-preparation"]
    ends = [float(str(band.x).rstrip("%")) for band in drawn(bar.picture, Area)]
    widths = [float(str(band.width).rstrip("%")) for band in drawn(bar.picture, Area)]
    assert [start + width for start, width in zip(ends, widths, strict=True)][:-1] == pytest.approx(ends[1:], abs=0.02)
    assert ends[-1] + widths[-1] == pytest.approx(picture.axis.share(1.0), abs=0.05)
    assert bar.backend.endswith(", grain, 2 threads, folder")
    assert bar.figure == "112 ms a step"
    assert bar.notes[0].startswith("input stall 64.")
    assert [word.text for word in drawn(bar.picture, Word)] == ["35.7 %", "55.8 %"]


def test_tooltip_of_a_part_has_its_share_with_interval_and_its_meaning() -> None:
    [bar] = stalls.splits([with_parts(("compute", share(0.4, 0.38, 0.42), True))]).strips
    assert drawn(bar.picture, Area)[0].tip == "compute: 40.0 % [38.0 42.0]; meaning of compute"


def test_unresolved_part_is_named_and_not_drawn_and_leaves_a_gap() -> None:
    report = with_parts(
        ("compute", share(0.9, 0.85, 0.95), True),
        ("fetch", None, False),
        ("preparation", share(0.06, -0.01, 0.13), False),
        ("batching and copy", share(0.04, -0.02, 0.1), False),
    )
    [bar] = stalls.splits([report]).strips
    assert [band.role for band in drawn(bar.picture, Area)] == ["stall-compute", "stall-not-resolved"]
    assert bar.notes[1:] == ["not resolved: preparation, batching and copy", "not measured: fetch"]
    assert "preparation [-1.0 13.0] %" in drawn(bar.picture, Area)[1].tip
    assert "preparation [-1.0 13.0] %" in bar.picture.title


def test_part_below_zero_is_never_drawn() -> None:
    report = with_parts(("compute", share(1.03, 1.0, 1.06), True), ("preparation", share(-0.03, -0.06, 0.01), False))
    picture = stalls.splits([report])
    assert [band.role for band in drawn(picture.strips[0].picture, Area)] == ["stall-compute"]
    assert picture.axis.high > 1.03
    assert all(float(str(band.width).rstrip("%")) > 0 for band in drawn(picture.strips[0].picture, Area))


def test_interference_is_a_part_of_its_own() -> None:
    [bar] = stalls.splits([report_of(replace(COLD, wait_share=0.2))]).strips
    assert drawn(bar.picture, Area)[-1].role == "stall-interference"


def test_no_bar_without_an_analysis_and_a_count_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of()
    assert stalls.splits([]) is None
    assert stalls.splits([replace(report, parts=[], reason="the cold arm failed")]) is None
    assert stalls.left_out([report]) is None
    monkeypatch.setattr(stalls, "MOST_REPORTS", 1)
    assert len(stalls.splits([report, report, report]).strips) == 1
    assert stalls.left_out([report, report, report]) == "2 more configurations left out; stalls.json has all"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (None, ""),
        (InputFacts("grain", "tfrecord", 0), "grain, training thread, tfrecord"),
        (InputFacts("data_loader", "folder", 1, "process"), "data_loader, 1 process, folder"),
        (InputFacts("tf_data", "array_record", 4, "process"), "tf_data, 4 processes, array record"),
        (InputFacts("Dataset"), "Dataset"),
    ],
)
def test_pipeline_is_named_by_kind_workers_and_format(facts: InputFacts | None, text: str) -> None:
    assert stalls.pipeline_text(facts) == text


def test_labels_name_the_settings_that_differ_and_the_path_only_if_nothing_else_does() -> None:
    one = report_of()
    params = one.settings.params
    wider = replace(one, settings=replace(one.settings, params={**params, "image_size": 299}))
    elsewhere = replace(one, settings=replace(one.settings, params={**params, "dataset_path": "others"}))
    plain = "grain, 2 threads, folder"
    assert stalls.labels([one, wider]) == [f"{plain}, image_size=224", f"{plain}, image_size=299"]
    assert stalls.labels([one, elsewhere]) == [f"{plain}, dataset_path=images", f"{plain}, dataset_path=others"]
    assert stalls.labels([one]) == [plain]
    assert stalls.labels([]) == []


def test_queue_is_drawn_between_zero_and_its_capacity() -> None:
    report = replace(report_of(), queue_sizes=[0.0] * 50 + [4.0] * 50, queue_capacity=4)
    picture = stalls.queues([report])
    assert picture is not None
    [strip] = picture.strips
    assert (strip.figure, strip.notes) == (
        "2.00 of 4",
        ["batches ready on average", "fewer than one in 50.0 % of the time"],
    )
    assert [word.text for word in drawn(strip.picture, Word, "height")] == ["0", "4"]
    [curves] = drawn(strip.picture, Curves)
    points = [tuple(map(float, point.split())) for point in curves.paths[0][0][1:].split("L")]
    assert len(points) == 100
    assert {y for _, y in points} == {0.0, 100.0}
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_queue_without_known_capacity_or_values() -> None:
    report = replace(report_of(), queue_sizes=[0.0, 0.0], queue_capacity=None)
    assert stalls.queues([report]).strips[0].figure == "0"
    assert stalls.queues([replace(report, queue_sizes=[])]) is None
