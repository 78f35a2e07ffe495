"""Curves of the resources that processes used over time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts import usage
from keras_matrix.dashboards.charts.dot_plots import Strip
from keras_matrix.dashboards.charts.picture import Area, Curves
from keras_matrix.dashboards.report import page as report
from keras_matrix.dashboards.report.results import blocks
from keras_matrix.records.instruments.usage import MemoryUse, PowerUse, ShareUse, Usage, UsageSeries
from keras_matrix.records.schema import Memory, Record
from tests.conftest import make_record, make_settings
from tests.dashboards.charts.drawn import drawn

MEMORY = MemoryUse(400 << 20, 1 << 20, 500 << 20, 10, 600 << 20)
HOST = Usage(2.0, 0.1, "processes", "usage/x.json", MEMORY, MEMORY, [None, 300 << 20])
DEVICE = replace(
    HOST,
    device_memory=MEMORY,
    device_process_memory=MEMORY,
    device_utilisation=ShareUse(0.5, 0.1, 0.9, 10),
    device_power=PowerUse(200.0, 10.0, 300.0, 10),
    samples_per_j=12.5,
)
SERIES = UsageSeries([0.0, 1.0, 2.0], [0, 600 << 20, 300 << 20], epochs_s=[[1.0, 2.0]])
DEVICE_SERIES = replace(
    SERIES,
    device_memory_bytes=[0, 600 << 20, 0],
    device_utilisation_share=[0.0, 0.9, None],
    device_power_w=[50.0, 300.0, 60.0],
)


def rows(used: Usage | None) -> tuple[list[Row], list[Record]]:
    records = [
        make_record(0.01, repeat, settings=make_settings(backend=backend), usage=used)
        for backend in ("jax", "torch")
        for repeat in range(2)
    ]
    return table(records), records


def paths(strip: Strip) -> list[str]:
    [curves] = drawn(strip.picture, Curves)
    return [path for path, _ in curves.paths]


def test_each_process_is_a_curve_from_zero_to_the_largest_of_the_row() -> None:
    found, records = rows(HOST)
    (picture,) = usage.pictures(found, {record.key: SERIES for record in records})
    assert [strip.backend for strip in picture.strips] == ["jax", "torch"]
    strip = picture.strips[0]
    assert (strip.figure, len(paths(strip)), len(drawn(strip.picture, Area, "band"))) == ("600 MiB", 2, 1)
    assert strip.notes == ["mean 400 MiB", "deviation 1.00 MiB", "proportional 300 MiB"]
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", paths(strip)[0])[1:]]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == [100.0, pytest.approx(2.0, abs=0.1), pytest.approx(51.0, abs=0.1)]


def test_a_device_has_pictures_of_its_memory_utilisation_and_power() -> None:
    found, records = rows(DEVICE)
    pictures = usage.pictures(found, {record.key: DEVICE_SERIES for record in records})
    assert [one.details for one in pictures] == [
        "anonymous host memory, MiB",
        "memory reserved on the device, MiB",
        "device utilisation, %",
        "device power, W",
    ]
    assert pictures[1].strips[0].notes[-1] == "of its own 500 MiB"
    assert pictures[2].strips[0].figure == "90.0 %"
    assert pictures[3].strips[0].notes == ["mean of samples 200 W", "12.5 samples/J"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("instant", "mean of samples 200 W (instantaneous)"),
        ("power_usage", "mean of samples 200 W (averages over up to 1 s)"),
    ],
)
def test_notes_of_power_are_energy_over_time_then_samples_with_source(source: str, words: str) -> None:
    used = replace(DEVICE, device_average_power_w=640.0, device_power_source=source, devices=2, devices_memory=MEMORY)
    found, records = rows(used)
    pictures = usage.pictures(found, {record.key: DEVICE_SERIES for record in records})
    assert pictures[3].strips[0].notes == ["energy over time of 2 GPUs 640 W", words, "12.5 samples/J"]
    assert pictures[1].strips[0].notes[-1] == "2 GPUs together 500 MiB"


def test_figures_of_a_device_are_allocator_peak_and_energy_over_time() -> None:
    used = replace(DEVICE, device_average_power_w=640.0)
    records = [make_record(0.01, usage=used, memory=Memory(None, 300 << 20))]
    shown = {line.name: line.values[0].text for line in blocks(result_table(table(records)))[0].lines}
    assert (shown["peak device memory"], shown["device power"]) == ("300", "640")


def test_missing_value_interrupts_the_curve() -> None:
    found, records = rows(HOST)
    series = UsageSeries([0.0, 1.0, 2.0, 3.0], [5, None, 5, 5])
    (picture,) = usage.pictures(found, {records[0].key: series})
    assert re.sub(r"[\d. ]", "", paths(picture.strips[0])[0]) == "MML"


def test_only_the_ends_of_a_level_stretch_are_drawn() -> None:
    found, records = rows(HOST)
    series = UsageSeries([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [5, 5, 5, 5, 9, 9])
    (picture,) = usage.pictures(found, {records[0].key: series})
    points = [point.split() for point in re.split("[ML]", paths(picture.strips[0])[0])[1:]]
    heights = [y for _, y in points]
    assert heights == [heights[0], heights[0], "2.0", "2.0"]
    assert [x for x, _ in points] == sorted({x for x, _ in points}, key=int)


def test_no_picture_and_no_section_without_usage_series() -> None:
    found, records = rows(None)
    assert usage.pictures(found, {}) == []
    assert '<section id="usage"' not in report.render(records, result_table(found), {})


def test_long_series_is_drawn_with_few_points_including_its_peak() -> None:
    found, records = rows(HOST)
    values = [100] * 400
    values[333] = 1000
    series = UsageSeries([number / 10 for number in range(400)], [*values])
    (picture,) = usage.pictures(found, {records[0].key: series})
    heights = [float(part.split()[1]) for part in re.split("[ML]", paths(picture.strips[0])[0])[1:]]
    assert len(heights) <= usage.MOST_PLACES
    assert min(heights) == pytest.approx(2.0, abs=0.1)


def test_first_processes_are_drawn_and_the_others_counted() -> None:
    records = [make_record(0.01, repeat, usage=HOST) for repeat in range(usage.MOST_CURVES + 2)]
    (picture,) = usage.pictures(table(records), {record.key: SERIES for record in records})
    assert len(paths(picture.strips[0])) == usage.MOST_CURVES
    assert picture.strips[0].notes[-1] == "the first 6 of 8 processes"


def test_page_counts_the_pieces_of_work_that_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_WORKS", 1)
    records = [make_record(0.01, settings=make_settings(batch_size=size), usage=HOST) for size in (16, 32, 64)]
    found, usage_series = table(records), {record.key: SERIES for record in records}
    assert len(usage.pictures(found, usage_series)) == 1
    notice = "2 more pieces of work left out; the records have all"
    assert notice in report.render(records, result_table(found, RunContext(usage_series=usage_series)), {})
    assert usage.left_out(found[:1], usage_series) is None


def test_level_stretch_after_an_interruption_is_a_new_curve() -> None:
    found, records = rows(HOST)
    series = UsageSeries([float(at) for at in range(9)], [5, 7, 7, 7, 7, None, 7, 7, 7])
    (picture,) = usage.pictures(found, {records[0].key: series})
    path = paths(picture.strips[0])[0]
    assert (re.sub("[^ML]", "", path), len(path.split("M")[1].split("L"))) == ("MLLML", 3)


def test_page_shows_usage_between_memory_and_failures() -> None:
    found, records = rows(DEVICE)
    usage_series = {record.key: DEVICE_SERIES for record in records}
    page = report.render(records, result_table(found, RunContext(usage_series=usage_series)), {})
    places = [page.index(f'<section id="{name}"') for name in ("memory", "usage", "failures")]
    assert places == sorted(places)
    assert page.count('<path class="curve') == 4 * 4
    assert page.count("<title>a measured epoch, 1.00\u00a0s</title>") == 4 * 2
