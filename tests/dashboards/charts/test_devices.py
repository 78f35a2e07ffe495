"""The report on several devices: pictures, rows of the table of figures, caveats and explanations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.analysis.scaling import device_scalings
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts import scaling
from keras_matrix.dashboards.charts.figure_table import FigureRow
from keras_matrix.dashboards.charts.picture import Dot, Segment, Word
from keras_matrix.dashboards.charts.scaling import DevicePictures, scaling_lines
from keras_matrix.dashboards.report import page as report
from keras_matrix.dashboards.report import results
from keras_matrix.records.schema import Record
from keras_matrix.records.text import NOTHING
from tests.conftest import make_record
from tests.dashboards.charts.drawn import drawn
from tests.dashboards.report.test_page import ALLOWED_TAGS, Page
from tests.synthetic_devices import device_records, replicas_of, scaled_run

ROWS = (
    "speed-up over one device",
    "efficiency of devices",
    "in communication",
    "divided by",
    "rows of a device",
    "gradients a step",
)


def pictures(records: Sequence[Record]) -> DevicePictures:
    return scaling.pictures(result_table(table(records)))


def lines(records: Sequence[Record]) -> dict[str, FigureRow]:
    views = [view for view in result_table(table(records)).cells if view.scaling]
    return {line.name: line for line in scaling_lines(views) if line.measured}


def page_of(records: Sequence[Record]) -> str:
    return report.render(records, result_table(table(records)), {})


def test_run_on_one_device_has_no_section_and_no_rows() -> None:
    html = page_of([make_record()])
    assert 'id="devices"' not in html
    assert [name for name in ROWS if f">{name}</a>" in html] == []


def test_gain_without_loss_is_on_the_ideal_line() -> None:
    records = device_records(1, [0.4]) + device_records(2, [0.2])
    records += device_records(1, [0.4], "torch") + device_records(2, [0.4], "torch")
    [panel] = pictures(records).panels
    [ideal] = drawn(panel.picture, Segment, "ideal")
    lossless, useless = (mark for mark in drawn(panel.picture, Dot) if "2 devices" in mark.tip)
    assert (lossless.x, lossless.y) == (ideal.x2, ideal.y2)
    assert (useless.x, useless.y) == (ideal.x2, ideal.y1)
    assert panel.picture.summary == "mnist_mlp: jax 2.00 times with 2 devices; torch 1.00 times with 2 devices"


def test_every_backend_and_interval_is_drawn() -> None:
    [panel] = pictures(scaled_run()).panels
    assert len(drawn(panel.picture, Dot)) == 3 * 3
    assert len([line for line in drawn(panel.picture, Segment, "whisker") if line.x1 == line.x2]) == 3 * 2
    assert [word.text for word in drawn(panel.picture, Word) if word.anchor == "middle"] == ["1", "2", "4"]


def test_divided_weights_have_their_own_picture() -> None:
    records = device_records(1, [0.4]) + device_records(2, [0.2]) + device_records(2, [0.3], distribution="model")
    found = pictures(records).panels
    assert [(panel.title, panel.details.rpartition(", ")[2]) for panel in found] == [
        ("mnist_mlp", "rows divided"),
        ("mnist_mlp", "weights divided"),
    ]


def test_cell_without_one_device_has_a_line_with_the_reason_and_no_picture() -> None:
    found = pictures(device_records(2, [0.2]))
    assert found.panels == []
    text = "jax on 2 devices: one device not measured: set devices: [1, 2]; communication 25.0 % (by the profiler)"
    assert found.lines == [("mnist_mlp", [text])]


def test_pictures_that_are_left_out_are_counted() -> None:
    records = [
        record
        for batch in range(1, 31)
        for count in (1, 2)
        for record in device_records(count, [0.1], batch_size=2 * batch)
    ]
    found = pictures(records)
    assert (len(found.panels), found.left_out) == (24, ["6 more pictures of devices left out; the table has all"])


def test_table_of_figures_has_the_rows_of_devices() -> None:
    found = lines(device_records(1, [0.4] * 5, "torch") + device_records(2, [0.25] * 5, "torch"))
    assert {name: (row.values[0].text, row.values[0].aside, row.unit) for name, row in found.items()} == {
        "speed-up over one device": ("1.60", "[1.60 1.60]", "x"),
        "efficiency of devices": ("80.0", "[80.0 80.0]", "%"),
        "in communication": ("25.0", "", "%"),
        "divided by": ("DistributedDataParallel", "not fit", ""),
        "rows of a device": ("16", "", ""),
        "gradients a step": ("16.0", "", "MiB"),
    }
    assert tuple(found) == ROWS


def test_speed_up_that_is_not_known_is_a_dash_with_the_reason() -> None:
    [row, *_] = scaling_lines(result_table(table(device_records(2, [0.2]))).cells)[6:]
    assert (row.name, row.values[0].text, row.values[0].hint) == (
        "speed-up over one device",
        NOTHING,
        "one device not measured: set devices: [1, 2]",
    )


def test_divided_weights_give_each_device_all_rows_and_sum_no_gradients() -> None:
    divided = replicas_of("jax", 2, divided_weights=3, gradient_bytes=0)
    records = [replace(record, replicas=divided) for record in device_records(2, [0.2], distribution="model")]
    found = lines(records)
    assert found["rows of a device"].values[0].text == "32"
    assert "gradients a step" not in found


def test_page_explains_every_row_and_shows_caveats_next_to_the_speed() -> None:
    html = page_of(scaled_run())
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= ALLOWED_TAGS
    anchors = {attributes.get("id") for _, attributes in page.tags}
    links = set(re.findall(r'<a href="#(t-[^"]+)">', html))
    assert links - anchors == set()
    assert {report.term(name) for name in ROWS} <= links
    assert "Speed-up by devices" in page.text
    assert "not fit: torch: the step is this project's, around DistributedDataParallel" in page.text
    assert html.count(">not fit</a>") == 2  # the verdicts on two and on four devices


def test_hostile_texts_of_a_record_are_escaped(hostile_name: str) -> None:
    odd = replicas_of("torch", 2, method=f"a.{hostile_name}", semantics=[hostile_name])
    records = [replace(record, replicas=odd) for record in device_records(2, [0.1], "torch")]
    assert hostile_name not in page_of(records)


@pytest.mark.parametrize("share", [1.02, 1.5])
def test_communication_that_noise_hides_is_below_zero(share: float) -> None:
    records = [
        replace(
            r,
            replicas=replace(
                r.replicas, communication=replace(r.replicas.communication, compute_times_s=[share], step_times_s=[1.0])
            ),
        )
        for r in device_records(2, [0.1])
        if r.replicas and r.replicas.communication
    ]
    assert lines(records)["in communication"].values[0].text == "below 0"
    assert device_scalings(table(records))[0].text.endswith("communication below 0 % (by the profiler)")


def test_fc_network_of_keras_on_several_devices_has_the_rows_of_both() -> None:
    network = {"workload": "fc", "params": {"mode": "fc_keras", "level": 2, "weight_size": 64}}
    records = device_records(1, [0.4], **network) + device_records(2, [0.3], **network)
    rows = table(records)
    [cell] = [cell for row in rows for cell in row.cells.values() if cell.settings.devices == 2]
    share: dict[str, Any] = dict.fromkeys(PeakShare.__dataclass_fields__)
    context = RunContext(shares={cell.cell_id: PeakShare(**share | {"share_of_own_gemm": 0.5})})
    [block] = [one for one in results.blocks(result_table(rows, context)) if "devices=2" in one.title]
    assert {"share of own product", "speed-up over one device"} <= {line.name for line in block.lines}


def test_parameter_named_devices_stays_in_the_title_of_the_divided_work() -> None:
    """Both works have one device and two; the parameter says something else."""
    records = [
        record
        for value, time_s in ((1, 0.1), (2, 0.3))
        for count in (1, 2)
        for record in device_records(count, [time_s / count], workload="m:build", params={"devices": value})
    ]
    found = pictures(records)
    assert [one.title for one in found.panels] == ["m:build params.devices=1", "m:build params.devices=2"]
    assert [len(texts) for _, texts in found.lines] == [1, 1]
