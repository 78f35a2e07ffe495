"""The pictures of the FC modes, which contain only measured values."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.fc import data_versus_model, fc_figures
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts import parallel
from keras_matrix.dashboards.charts.dot_plots import Strip
from keras_matrix.dashboards.charts.parallel import ParallelPictures
from keras_matrix.dashboards.charts.picture import Area, Dot, Picture, Segment, Word
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record
from tests.conftest import make_record
from tests.dashboards.charts.drawn import drawn
from tests.dashboards.report.test_page import ALLOWED_TAGS, Page
from tests.synthetic_fc import fc_cells, fc_records, made_up_run


def pictures(records: list[Record]) -> ParallelPictures:
    return parallel.pictures(result_table(table(records)))


def percent(place: str) -> float:
    return float(place.removesuffix("%"))


TWO = FcProblem(mode="fc_data", workers=2)
ONE = TWO.changed(workers=1)


def test_run_without_fc_cells_has_no_parallelism_section(synthetic: Any) -> None:
    assert not pictures([make_record()]).any
    assert 'id="parallel"' not in synthetic.html
    assert "efficiency of workers</th>" not in synthetic.html


def test_page_with_fc_cells_is_well_formed_and_has_only_allowed_elements() -> None:
    records = made_up_run()
    page = Page(report.render(records, result_table(table(records)), {}))
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= ALLOWED_TAGS
    assert [attributes for _, attributes in page.tags if "style" in attributes] == []
    assert "parallel" in [attributes.get("id") for _, attributes in page.tags]
    for words in ("Gain by workers", "Faster parallelism by size", "Computing and communication"):
        assert words in page.text


def test_lossless_gain_is_on_the_ideal_line() -> None:
    records = fc_records(ONE, "jax", [0.4]) + fc_records(TWO, "jax", [0.2])
    records += fc_records(ONE, "torch", [0.4]) + fc_records(TWO, "torch", [0.4])
    (panel,) = pictures(records).scaling
    [ideal] = drawn(panel.picture, Segment, "ideal")
    lossless, useless = (mark for mark in drawn(panel.picture, Dot) if "2 workers" in mark.tip)
    assert (lossless.x, lossless.y) == (ideal.x2, ideal.y2)
    assert (useless.x, useless.y) == (ideal.x2, ideal.y1)
    assert "jax 2.00 times with 2 workers; torch 1.00 times with 2 workers" in panel.picture.summary


def test_gain_needs_a_cell_with_one_worker() -> None:
    assert pictures(fc_records(TWO, "jax", [0.2])).scaling == []


def test_interval_is_drawn_if_known() -> None:
    panels = [pictures(made_up_run(repeats)).scaling[0] for repeats in (5, 4)]
    upright = [[line for line in drawn(panel.picture, Segment, "whisker") if line.x1 == line.x2] for panel in panels]
    assert (len(upright[0]), len(upright[1])) == (6, 0)  # three backends on two and on four workers


def synthetic_grid() -> Picture:
    (grid,) = (grid for grid in pictures(made_up_run()).grids if grid.details.startswith("jax, 2 workers"))
    return grid.picture


def fields(grid: Picture) -> list[Area]:
    return drawn(grid, Area, "field data", "field model")


def test_field_shows_the_faster_mode_and_the_factor() -> None:
    cells = fc_cells(made_up_run())
    found = data_versus_model(fc_figures(cells, {}), {cell.cell_id: cell for cell in cells})
    wanted = {}
    for duel in found:
        task, ratio = duel.data.task, duel.ratio.centre
        if (duel.data.settings.backend, task.workers) == ("jax", 2):
            kind, times = ("data", ratio) if ratio >= 1 else ("model", 1 / ratio)
            wanted[f"weight size {task.weight_size}, batch {task.batch_size}"] = (kind, f"{times:.2f}x")
    grid = synthetic_grid()
    shown = zip(fields(grid), [word.text for word in drawn(grid, Word, "times settled")], strict=True)
    assert {area.tip.partition(":")[0]: (area.role.removeprefix("field "), text) for area, text in shown} == wanted
    assert [area.role.removeprefix("field ") for area in fields(grid)] == [w.text for w in drawn(grid, Word, "times")]
    assert {kind for kind, _ in wanted.values()} == {"data", "model"}


def test_heavy_line_separates_fields_with_different_faster_modes() -> None:
    grid = synthetic_grid()
    kinds = {(area.y, percent(str(area.x))): area.role for area in fields(grid)}
    rows, columns = (sorted({place[axis] for place in kinds}) for axis in (0, 1))
    across = sum(kinds[y, a] != kinds[y, b] for y in rows for a, b in itertools.pairwise(columns))
    up = sum(kinds[a, x] != kinds[b, x] for x in columns for a, b in itertools.pairwise(rows))
    assert (len(kinds), len(drawn(grid, Segment, "crossing"))) == (12, across + up)
    assert across > 0


def test_only_what_was_measured_is_filled() -> None:
    sizes = [(256, 32), (512, 128)]
    tasks = [TWO.changed(mode=m, weight_size=s, batch_size=b) for m in ("fc_data", "fc_model") for s, b in sizes]
    alone = TWO.changed(weight_size=256, batch_size=128)  # no fc_model there
    records = [record for task in [*tasks, alone] for record in fc_records(task, "jax", [0.1])]
    (grid,) = pictures(records).grids
    assert len(fields(grid.picture)) == 2
    assert not drawn(grid.picture, Word, "times settled")  # one process gives no interval


def bar_of(*communication: Communication) -> Strip:
    records = [
        record
        for workers, watched in zip((2, 4), communication, strict=False)
        for record in fc_records(TWO.changed(workers=workers), "torch", [0.5], watched)
    ]
    ((bar,),) = [picture.strips for picture in pictures(records).steps]
    return bar


def test_bar_divides_the_observed_step_into_computing_and_communication() -> None:
    bar = bar_of(Communication(TimingMethod.TIMED, [0.8, 0.8], [0.6, 0.6]))
    [compute], [exchange], [end] = (
        drawn(bar.picture, Area, "compute"),
        drawn(bar.picture, Area, "exchange"),
        drawn(bar.picture, Segment, "median"),
    )
    assert percent(compute.width) == pytest.approx(3 * percent(exchange.width), abs=0.05)
    assert percent(compute.x) + percent(compute.width) == pytest.approx(percent(exchange.x), abs=0.02)
    assert percent(end.x1) < percent(exchange.x) + percent(exchange.width)
    assert (bar.backend, bar.notes) == ("fc_data ×2", ["25.0 % communication"])


def test_negative_communication_is_drawn_as_zero_and_labelled() -> None:
    bar = bar_of(Communication(TimingMethod.PROFILED, [0.5], [0.55]))
    [exchange] = drawn(bar.picture, Area, "exchange")
    assert (percent(exchange.width), bar.notes) == (0.0, ["below 0 % communication"])


def test_bar_needs_observed_collectives() -> None:
    assert pictures(fc_records(TWO, "jax", [0.1])).steps == []


def test_pictures_that_are_left_out_are_counted() -> None:
    records = [
        record
        for size in range(1, 31)
        for workers in (1, 2)
        for record in fc_records(ONE.changed(workers=workers, weight_size=64 * size), "jax", [0.1])
    ]
    found = pictures(records)
    assert (len(found.scaling), found.left_out) == (24, ["6 more pictures of scaling left out; the table has all"])


def test_table_of_figures_has_the_rows_of_fc_cells() -> None:
    records = made_up_run()
    first = records[0]
    records[0] = replace(first, parallel=replace(first.parallel, wire_bytes_per_step=3 << 20))
    text = Page(report.render(records, result_table(table(records)), {})).text
    for line in (
        "payload a step , MiB",
        "on the wire a step , MiB",
        "in communication , %",
        "efficiency of workers , %",
        "memory of a worker",
    ):
        assert line in text


def test_hostile_network_is_escaped(hostile_name: str) -> None:
    task = TWO.changed(network=hostile_name)
    records = [replace(record, cell_id=str(n)) for n in (1, 2) for record in fc_records(task, "torch", [0.1])]
    watched = Communication(TimingMethod.TIMED, [0.1], [0.05])
    records += fc_records(task.changed(workers=4), "torch", [0.1], watched)
    assert hostile_name not in report.render(records, result_table(table(records)), {})


def test_works_of_one_mode_and_size_name_what_else_differs() -> None:
    spent = Communication(TimingMethod.TIMED, [0.1], [0.08])
    problems = [FcProblem("fc_data", workers, overlap=overlap) for overlap in ("on", "off") for workers in (1, 2)]
    shown = pictures([record for one in problems for record in fc_records(one, "jax", [0.1, 0.11], spent)])
    assert {one.details.rpartition(", ")[2] for one in shown.scaling} == {"overlap=on", "overlap=off"}
    [steps] = shown.steps
    names = [strip.backend for strip in steps.strips]
    assert len(set(names)) == len(names)
    assert {name.rpartition(", ")[2] for name in names} == {"overlap=on", "overlap=off"}
