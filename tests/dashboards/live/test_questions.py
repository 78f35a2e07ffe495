"""Every question has an answer, it equals the findings of `analysis`, and both dialects of its query return it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.stats import cell_statistics
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts.picture import Dot
from keras_matrix.dashboards.charts.pictures import ladder_pictures
from keras_matrix.dashboards.live import page as dashboard
from keras_matrix.dashboards.live import panels
from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.page import RunCounts
from keras_matrix.dashboards.live.questions import DashboardFilter, answer, checked, questions
from keras_matrix.records import findings
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.findings import FindingKind
from keras_matrix.records.run_files import shipped
from keras_matrix.records.schema import Resolved, Status
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import NOTHING
from keras_matrix.uploader.cli.main import main as uploader
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.sql import parsed
from tests.conftest import MACHINE, make_record, make_settings
from tests.dashboards.boards import CALLS, HOSTILE, NIGHTS, SLOWER_FROM, all_nights, cell_of, stored, warehouse_of
from tests.dashboards.charts.drawn import drawn
from tests.sessions import processes, run_name, store_session
from tests.synthetic_devices import PARTS
from tests.uploader.stored import found, store_run

ROOT = Path(__file__).parents[3]
# The source of each column of a question: the kind and metric of a finding, and the figure.
SHOWN: Mapping[str, tuple[FindingKind, Mapping[str, tuple[str, str]]]] = {
    "first_epoch": (
        FindingKind.FIGURE,
        {
            "first_epoch_time_s": ("times.first_epoch_time_s", "estimate"),
            "steady_epoch_time_s": ("times.epoch_time_median_s", "estimate"),
            "first_step_time_s": ("times.first_step_time_s", "estimate"),
        },
    ),
    "memory": (
        FindingKind.FIGURE,
        {
            "host_bytes": ("memory.peak_host_memory_bytes", "estimate"),
            "anonymous_bytes": ("usage.host_anonymous.peak_bytes", "estimate"),
            "device_bytes": ("memory.peak_device_memory_bytes", "estimate"),
            "joules_per_sample": ("usage.joules_per_sample", "estimate"),
            "device_power_w": ("usage.device_average_power_w", "estimate"),
        },
    ),
    "roofline": (
        FindingKind.PEAK,
        {
            "intensity_flop_per_byte": ("intensity_flop_per_byte", "estimate"),
            "achieved_flop_per_s": ("achieved_flop_per_s", "estimate"),
            "roof_flop_per_s": ("roof_flop_per_s", "estimate"),
            "peak_flop_per_s": ("peak_flop_per_s", "estimate"),
            "share_of_peak": ("share_of_peak", "estimate"),
            "low": ("share_of_peak", "low"),
            "high": ("share_of_peak", "high"),
            "mfu": ("mfu", "estimate"),
        },
    ),
    "input_stalls": (
        FindingKind.INPUT,
        {
            "stall_share": ("input.stall_share", "estimate"),
            "low": ("input.stall_share", "low"),
            "high": ("input.stall_share", "high"),
            "compute_share": ("input.compute_share", "estimate"),
            "fetch_share": ("input.fetch_share", "estimate"),
            "preparation_share": ("input.preparation_share", "estimate"),
            "batching_and_copy_share": ("input.batching_and_copy_share", "estimate"),
            "interference_share": ("input.interference_share", "estimate"),
            "input_bound_share": ("input.input_bound_share", "estimate"),
            "ceiling_speed_up": ("input.ceiling_speed_up", "estimate"),
        },
    ),
    "calls": (
        FindingKind.CALL,
        {
            "call_time_s": ("call_time_s", "estimate"),
            "call_time_p50_s": ("call_time_p50_s", "estimate"),
            "p50_low": ("call_time_p50_s", "low"),
            "p50_high": ("call_time_p50_s", "high"),
            "call_time_p99_s": ("call_time_p99_s", "estimate"),
            "p99_low": ("call_time_p99_s", "low"),
            "p99_high": ("call_time_p99_s", "high"),
            "outputs_deviation": ("outputs_deviation", "estimate"),
            "ratio": ("call_over_reference", "estimate"),
            "low": ("call_over_reference", "low"),
            "high": ("call_over_reference", "high"),
        },
    ),
    "device_scaling": (
        FindingKind.DEVICES,
        {
            "speed_up": ("speed_up", "estimate"),
            "speed_up_low": ("speed_up", "low"),
            "speed_up_high": ("speed_up", "high"),
            "efficiency": ("efficiency", "estimate"),
            "low": ("efficiency", "low"),
            "high": ("efficiency", "high"),
            "communication_share": ("communication_share", "estimate"),
        },
    ),
    "fc_scaling": (
        FindingKind.WORKERS,
        {
            "samples_per_s": ("samples_per_s", "estimate"),
            "efficiency": ("efficiency", "estimate"),
            "low": ("efficiency", "low"),
            "high": ("efficiency", "high"),
            "communication_share": ("communication_share", "estimate"),
        },
    ),
}


@pytest.fixture
def results() -> Results:
    return all_nights()[0]


@pytest.fixture(scope="module")
def warehouse() -> LocalWarehouse:
    return all_nights()[1]


@pytest.mark.parametrize("name", list(questions()))
def test_question_has_title_description_and_one_select(name: str) -> None:
    question = questions()[name]
    assert question.title
    assert question.asks.endswith("?")
    parsed(question.sql)  # raises `BadInput` unless it is one SELECT


@pytest.mark.parametrize("name", list(questions()))
def test_a_question_has_its_picture_in_the_documentation(name: str) -> None:
    picture = Path("docs") / "images" / f"dashboard-{name}.png"
    assert f"]({picture.relative_to('docs')})" in (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", list(questions()))
def test_a_question_is_answered(warehouse: LocalWarehouse, name: str) -> None:
    assert answer(warehouse, questions()[name], DashboardFilter()).rows


@pytest.mark.parametrize("name", list(questions()))
def test_choice_filters_rows_and_a_hostile_one_finds_none(warehouse: LocalWarehouse, name: str) -> None:
    everything = answer(warehouse, questions()[name], DashboardFilter()).rows
    hostile = (DashboardFilter(workload="x' OR '1'='1"), DashboardFilter(backend="'; DROP TABLE cells; --"))
    for choice in (*hostile, DashboardFilter(since="2027-01-01")):
        assert answer(warehouse, questions()[name], choice).rows == []
    assert len(answer(warehouse, questions()[name], DashboardFilter(backend="jax")).rows) <= len(everything)


def test_matrix_shows_the_findings_of_the_newest_run(warehouse: LocalWarehouse, results: Results) -> None:
    rows = table(results.runs()[-1].load()[0])
    found = {
        (cell.cell_id, row.verdict): (cell.step_time.centre, cell.step_time.low, cell.step_time.high)
        for row in rows
        for cell in row.cells.values()
        if cell.step_time and cell.figure is STEP_TIME
    }
    shown = {
        (one["cell_id"], one["verdict"]): (one["step_time_s"], one["low"], one["high"])
        for one in answer(warehouse, questions()["matrix"], DashboardFilter()).dicts()
        if one["step_time_s"] is not None
    }
    assert shown == found


def test_table_of_figures_shows_median_and_p95_from_analysis(warehouse: LocalWarehouse, results: Results) -> None:
    rows = table(results.runs()[-1].load()[0])
    expected = {
        (cell.cell_id, metric): value
        for row in rows
        for cell in row.cells.values()
        if cell.figure is STEP_TIME
        for metric, value in cell_statistics.values(cell).items()
    }
    dicts = answer(warehouse, questions()["figures"], DashboardFilter()).dicts()
    shown = {(one["cell_id"], one["metric"]): one["estimate"] for one in dicts}
    assert expected.items() <= shown.items()
    panel = panels.panel(questions()["figures"], dicts)
    [block] = [one for one in panel.blocks if one.title.startswith("mnist_mlp")]
    lines = {line.name: [value.text for value in line.values] for line in block.lines}
    assert lines["median of processes"] == ["10.0", "30.0", "40.1"]
    assert lines["p95 of epochs"] == ["10.2", "30.6", "40.9"]
    html = dashboard.render([panel], dashboard.Frame("", "", lambda cell_id: ""))
    assert all(one.meaning in html for one in cell_statistics.STATISTICS if one.label in lines)


def test_no_backend_is_fastest_if_the_intervals_do_not_separate_them(tmp_path: Path) -> None:
    run = store_run(tmp_path, 0)
    quick = replace(found("0" * 16), work_id="w", facts={"jax": "0.11.0"})
    slow = replace(quick, cell_id="1" * 16, backend="torch", estimate=0.02)
    ratio = replace(slow, kind=FindingKind.RATIO, estimate=1.1, against="jax", verdict="open")
    verdict = replace(quick, kind=FindingKind.VERDICT, cell_id=None, backend=None, verdict="open", said="not separable")
    findings.keep(run, [quick, slow, ratio, verdict])
    rows = answer(warehouse_of(Results(tmp_path)), questions()["matrix"], DashboardFilter()).dicts()
    assert [(row["backend"], row["ratio"], row["fastest"], row["verdict"]) for row in rows] == [
        ("jax", None, None, "not separable"),
        ("torch", 1.1, None, "not separable"),
    ]
    [shown] = panels.panel(questions()["matrix"], rows).heat
    assert [cell.fastest for cell in shown.cells] == [False, False]


def test_each_backend_shows_its_newest_run_and_the_newest_run_decides_the_fastest() -> None:
    row = dict.fromkeys(("low", "high", "ratio", "status", "failures"), None) | {"work": "a work", "work_id": "w"}
    row |= {"workload": "a work", "cell_id": "0" * 16, "step_time_s": 0.01}
    older = {**row, "run_id": "1", "backend": "jax", "fastest": "jax", "verdict": "jax is fastest"}
    newer = [
        {
            **row,
            "run_id": "2",
            "backend": name,
            "step_time_s": step_s,
            "fastest": "torch",
            "verdict": "torch is fastest",
        }
        for name, step_s in (("jax", 0.03), ("torch", 0.02))
    ]
    for rows in ([older, *newer], [*newer, older]):
        [shown] = panels.panel(questions()["matrix"], rows).heat
        assert shown.verdict == "torch is fastest"
        assert [(cell.text, cell.aside, cell.fastest) for cell in shown.cells] == [
            ("30.0 ms", "no interval", False),
            ("20.0 ms", "no interval", True),
        ]


def test_backends_of_separate_runs_are_shown_without_shades_or_fastest() -> None:
    row = dict.fromkeys(("low", "high", "status", "failures"), None) | {"work": "a work", "work_id": "w"}
    row |= {"workload": "a work", "cell_id": "0" * 16, "step_time_s": 0.01}
    older = [
        {**row, "run_id": "1", "backend": name, "ratio": ratio, "against": against, "fastest": "jax", "verdict": "so"}
        for name, ratio, against in (("jax", None, None), ("torch", 2.0, "jax"), ("tensorflow", None, None))
    ]
    newer = {**row, "run_id": "2", "backend": "torch", "ratio": None, "fastest": None, "verdict": "nothing to compare"}
    [shown] = panels.panel(questions()["matrix"], [older[0], newer]).heat
    assert shown.verdict == "separate sessions, not alternating: see runner report --merge"
    assert [(cell.shade, cell.fastest, cell.hint) for cell in shown.cells] == [
        (None, False, "run 1"),
        (None, False, "run 2"),
    ]
    [same_run] = panels.panel(questions()["matrix"], older).heat
    shades = {cell.hint: (cell.shade, cell.fastest) for cell in same_run.cells}
    assert shades == {
        "run 1": (None, False),  # of tensorflow, which has no ratio to the lowest
        "1.00 times the lowest; run 1": (0, True),
        "2.00 times the lowest; run 1": (3, False),
    }


def test_matrix_counts_recompiles_in_measured_epochs_of_the_worst_process(tmp_path: Path) -> None:
    counts = (0, 5, None)
    made = [Resolved(5, 5, "fork", "float32", recompiles_timed=count, graph_breaks_timed=0) for count in counts]
    records = [replace(r, resolved=one) for r, one in zip(processes(0.01, count=3), made, strict=True)]
    run = Run(store_session(tmp_path, run_name(0), records))
    findings.keep(run, [found(records[0].cell_id)])
    rows = answer(warehouse_of(Results(tmp_path)), questions()["matrix"], DashboardFilter()).dicts()
    assert [(row["recompiles"], row["graph_breaks"]) for row in rows] == [(5, 0)]
    [shown] = panels.panel(questions()["matrix"], rows).heat
    assert [cell.hint.partition("; ")[2] for cell in shown.cells] == ["recompiles in the measured epochs: 5"]


def test_comparison_shows_the_ratios_from_analysis(warehouse: LocalWarehouse, results: Results) -> None:
    rows = table(results.runs()[-1].load()[0])
    context = RunContext(shipped()[0], proofs=shipped()[1])
    found = {
        (row.cells[ratio.backend].cell_id, ratio.estimate.centre, ratio.estimate.low, ratio.p_value)
        for row in rows
        for ratio in row.ratios
    }
    shown = answer(warehouse, questions()["comparison"], DashboardFilter()).dicts()
    assert {(one["cell_id"], one["ratio"], one["low"], one["p_value"]) for one in shown} == found
    assert {one["same_work"] for one in shown} == {context.same_work(row).text for row in rows if row.ratios}


def test_external_command_shows_primary_metric_and_ratio_to_the_best(
    warehouse: LocalWarehouse,
) -> None:
    rows = {row["backend"]: row for row in answer(warehouse, questions()["commands"], DashboardFilter()).dicts()}
    assert list(rows) == sorted(TRAINING_BACKENDS)
    assert {(row["work"], row["metric"], row["unit"], row["status"]) for row in rows.values()} == {
        ("task train", "speed", "images/s", "ok")
    }
    assert rows["tensorflow"]["value"] == pytest.approx(100, rel=0.01)
    assert rows["tensorflow"]["ratio"] is None
    assert rows["torch"]["ratio"] == pytest.approx(4, rel=0.01)
    assert rows["torch"]["ratio_low"] < rows["torch"]["ratio"] < rows["torch"]["ratio_high"]


def test_failed_command_shows_its_reason(tmp_path: Path) -> None:
    run = store_run(tmp_path, 0)
    one = replace(found("0" * 16), work_id="w", metric="task.metrics.speed", verdict="crash", said="crash: signal 11")
    findings.keep(run, [one, replace(one, kind=FindingKind.VERDICT, cell_id=None, said="nothing to compare")])
    [row] = answer(warehouse_of(Results(tmp_path)), questions()["commands"], DashboardFilter()).dicts()
    assert (row["metric"], row["status"], row["failures"], row["verdict"]) == (
        "speed",
        "crash",
        "crash: signal 11",
        "nothing to compare",
    )


def test_slowdown_is_a_regression_with_first_run_and_owner(warehouse: LocalWarehouse) -> None:
    [row] = answer(warehouse, questions()["regressions"], DashboardFilter()).dicts()
    assert (row["cell_id"], row["at_run_id"]) == (cell_of("jax"), run_name(SLOWER_FROM))
    assert row["ratio"] == pytest.approx(1.5, rel=0.01)
    assert row["look"] == "Keras: keras 3.15.0 → 3.16.0"
    assert row["sessions_since"] == NIGHTS - SLOWER_FROM


def test_a_trend_has_every_session_and_marks_the_change(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["trend"], DashboardFilter(cell=cell_of("jax"))).dicts()
    assert [row["run_id"] for row in rows] == [run_name(night) for night in range(NIGHTS)]
    assert [row["run_id"] for row in rows if row["change_verdict"]] == [run_name(SLOWER_FROM)]
    assert {row["backend_version"] for row in rows} == {"0.12.1"}
    assert [row["keras_version"] for row in rows] == ["3.15.0"] * SLOWER_FROM + ["3.16.0"] * (NIGHTS - SLOWER_FROM)
    assert [row["change_look"] for row in rows if row["change_look"]] == ["Keras: keras 3.15.0 → 3.16.0"]
    assert rows[SLOWER_FROM]["change_ratio"] == pytest.approx(1.5, rel=0.01)


def test_the_fc_modes_show_the_efficiency_of_their_workers(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["fc_scaling"], DashboardFilter()).dicts()
    found = {(row["backend"], row["workers"]): row["efficiency"] for row in rows}
    assert {key for key, value in found.items() if value is not None} == {(backend, 2) for backend in TRAINING_BACKENDS}
    assert found["jax", 2] == pytest.approx(1 / 0.62 / 2)


def test_several_devices_show_speed_up_efficiency_and_whether_the_step_is_that_of_fit(
    warehouse: LocalWarehouse,
) -> None:
    rows = answer(warehouse, questions()["device_scaling"], DashboardFilter()).dicts()
    found = {row["backend"]: (row["devices"], row["divided_work"], row["fit"]) for row in rows}
    assert found == {
        "tensorflow": (2, "mnist_cnn", "yes"),
        "jax": (2, "mnist_cnn", "yes"),
        "torch": (2, "mnist_cnn", "no"),
    }
    gained = {row["backend"]: row["speed_up"] for row in rows}
    assert gained == {name: pytest.approx(2 / part, rel=0.01) for name, part in PARTS.items()}
    [picture] = panels.panel(questions()["device_scaling"], rows).pictures
    notes = {strip.backend: strip.notes for strip in picture.strips}
    assert notes["torch"] == ["0.77x with 2 devices", "not fit", "25.0 % in communication (timed)"]
    assert {row["backend"]: row["communication_method"] for row in rows} == {
        "tensorflow": "profiled",
        "jax": "profiled",
        "torch": "timed",
    }


def test_calls_are_strips_by_backend_with_the_texts_of_their_ladder(warehouse: LocalWarehouse) -> None:
    """Mutation: a call that is not compared has the figure of its mean times."""
    rows = answer(warehouse, questions()["calls"], DashboardFilter()).dicts()
    [picture] = panels.panel(questions()["calls"], rows).pictures
    assert picture.title == "mnist_lstm"
    assert [strip.backend for strip in picture.strips] == [
        f"{backend}, {call}" for backend in TRAINING_BACKENDS for call in CALLS
    ]
    strips = {strip.backend: strip for strip in picture.strips}
    assert [(name, strips[name].figure, strips[name].notes) for name in ("torch, predict_on_batch", "torch, jit")] == [
        (
            "torch, predict_on_batch",
            "1",
            ["the others are divided by it", "p50 39.2 ms, p99 64.0 ms", "first call 1.00 s", "outputs equal to 3e-7"],
        ),
        (
            "torch, jit",
            "-",
            [
                "not compared: outputs differ by 2e-2, more than 1e-4",
                "p50 19.6 ms, p99 32.0 ms",
                "first call 1.00 s",
                "outputs differ by 2e-2, more than 1e-4",
            ],
        ),
    ]
    assert (strips["jax, model"].figure, strips["jax, model"].notes[0]) == ("4.00x", "[4.00 4.00]")


def test_the_report_has_the_strips_of_the_dashboard(warehouse: LocalWarehouse, results: Results) -> None:
    rows = answer(warehouse, questions()["calls"], DashboardFilter()).dicts()
    shown = result_table(table(results.runs()[-1].load()[0]))
    assert ladder_pictures(shown.works) == panels.panel(questions()["calls"], rows).pictures


def test_a_call_of_an_older_run_is_left_out_of_its_ladder(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["calls"], DashboardFilter(backend="jax")).dicts()
    older = [{**row, "run_id": "20250101T000000Z-0000"} if row["call"] == "model" else row for row in rows]
    [picture] = panels.panel(questions()["calls"], older).pictures
    assert "jax, model" not in [strip.backend for strip in picture.strips]
    assert len(picture.strips) == len(CALLS) - 1


def test_works_of_one_title_have_a_picture_each_with_its_id(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["calls"], DashboardFilter(backend="jax")).dicts()
    two = [*rows, *({**row, "ladder_id": "0" * 16} for row in rows)]
    titles = {picture.title for picture in panels.panel(questions()["calls"], two).pictures}
    assert titles == {f"mnist_lstm (work {row['ladder_id']})" for row in two}


def test_verdict_of_a_step_that_is_not_fit_is_marked(warehouse: LocalWarehouse) -> None:
    shown = panels.panel(
        questions()["matrix"], answer(warehouse, questions()["matrix"], DashboardFilter()).dicts()
    ).heat
    marked = {row.title: list(row.caveats) for row in shown if row.caveats}
    assert marked == {"mnist_cnn devices=2": ["not fit"]}


def test_input_stalls_show_every_night_of_a_cell_and_cheaper_decoding(warehouse: LocalWarehouse) -> None:
    rows = answer(warehouse, questions()["input_stalls"], DashboardFilter(backend="jax")).dicts()
    assert [row["run_id"] for row in rows] == [run_name(night) for night in range(NIGHTS)]
    # Two workers make 32 samples of 4 + 0.1 ms, later of 2 + 0.1 ms; a step computes for 40 ms.
    waits = [row["stall_share"] for row in rows]
    assert waits[:SLOWER_FROM] == pytest.approx([1 - 0.04 / (16 * 0.0041)] * SLOWER_FROM, abs=0.02)
    assert max(map(abs, waits[SLOWER_FROM:])) < 0.02
    assert {row["bottleneck"] for row in rows[:SLOWER_FROM]} == {"preparation CPU"}
    assert {row["fetch_share"] for row in rows} == {None}
    [shown] = panels.panel(questions()["input_stalls"], rows).series
    dots = drawn(shown.values, Dot)
    assert (shown.axis.low, len(dots)) == (0.0, NIGHTS)
    assert "12 sessions, newest" in shown.baseline
    assert "preparation" in dots[0].tip


def test_part_that_its_interval_does_not_separate_from_zero_is_no_figure(tmp_path: Path) -> None:
    run = store_run(tmp_path, 0)
    one = replace(found(run.load()[0][0].cell_id), kind=FindingKind.INPUT, metric="input.stall_share", estimate=0.1)
    part = replace(one, metric="input.fetch_share", estimate=0.01, low=-0.01, high=0.03)
    clear = replace(part, metric="input.preparation_share", low=0.005)
    findings.keep(run, [one, part, clear])
    [row] = answer(warehouse_of(Results(tmp_path)), questions()["input_stalls"], DashboardFilter()).dicts()
    assert (row["fetch_share"], row["preparation_share"], row["bottleneck"]) == (None, 0.01, None)
    [shown] = panels.panel(questions()["input_stalls"], [row]).series
    assert "preparation 1.0" in shown.baseline
    assert "fetch" not in shown.baseline


@pytest.mark.parametrize("name", list(SHOWN))
def test_each_figure_belongs_to_its_metric(tmp_path: Path, name: str) -> None:
    kind, columns = SHOWN[name]
    run = store_run(tmp_path, 0)
    one = found(run.load()[0][0].cell_id, facts={"mode": "fc_data", "workers": "2"})
    places = {metric: float(place) for place, metric in enumerate(dict.fromkeys(m for m, _ in columns.values()), 1)}
    findings.keep(
        run,
        [one, *(replace(one, kind=kind, metric=m, estimate=n, low=n - 0.5, high=n + 0.5) for m, n in places.items())],
    )
    offset = {"estimate": 0.0, "low": -0.5, "high": 0.5}
    [row] = answer(warehouse_of(Results(tmp_path)), questions()[name], DashboardFilter()).dicts()
    assert {column: row[column] for column in columns} == {
        column: places[metric] + offset[which] for column, (metric, which) in columns.items()
    }


def test_last_revision_of_findings_is_shown(tmp_path: Path) -> None:
    run = store_run(tmp_path, 0)
    cell = run.load()[0][0].cell_id
    warehouse_of(Results(tmp_path))
    findings.keep(run, [found(cell, 0.5)])
    [row] = answer(warehouse_of(Results(tmp_path)), questions()["matrix"], DashboardFilter()).dicts()
    assert row["step_time_s"] == 0.5


def test_each_device_has_separate_trends_and_regressions(tmp_path: Path) -> None:
    """A cell that became slower on one device, and whose newest session was on another of the same host."""
    runs = [store_run(tmp_path, night) for night in range(2)]
    for run, device in zip(runs, ("gpu a", "gpu b"), strict=True):
        one = replace(found(run.load()[0][0].cell_id), host_id="host", device=device, at_run_id=run.run_id)
        level = replace(one, kind=FindingKind.LEVEL)
        slower = replace(one, kind=FindingKind.CHANGE, estimate=1.5, verdict="slower", count=3)
        kept = [replace(one, kind=FindingKind.SESSION, at_run_id=None), level]
        findings.keep(run, [*kept, slower] if device == "gpu a" else kept)
    warehouse = warehouse_of(Results(tmp_path))
    [row] = answer(warehouse, questions()["regressions"], DashboardFilter()).dicts()
    assert (row["device"], row["at_run_id"], row["sessions_since"]) == ("gpu a", runs[0].run_id, 3)
    trend = answer(warehouse, questions()["trend"], DashboardFilter()).dicts()
    assert [(one["device"], one["change_verdict"]) for one in trend] == [("gpu a", "slower"), ("gpu b", None)]


def test_regression_ends_with_the_findings_of_the_newest_session(tmp_path: Path) -> None:
    first, second = (store_run(tmp_path, night) for night in range(2))
    one = replace(found(first.load()[0][0].cell_id), kind=FindingKind.SESSION, host_id="host", device="gpu a")
    slower = replace(one, kind=FindingKind.CHANGE, estimate=1.5, verdict="slower", at_run_id=first.run_id)
    findings.keep(first, [one, replace(one, device="gpu b"), slower])
    findings.keep(second, [one])
    assert answer(warehouse_of(Results(tmp_path)), questions()["regressions"], DashboardFilter()).rows == []


def test_regressions_are_the_changes_that_are_not_repaired_with_the_present_step_time(tmp_path: Path) -> None:
    run = store_run(tmp_path, 0)
    one = replace(found(run.load()[0][0].cell_id), host_id="host", at_run_id=run_name(9))
    level = replace(one, kind=FindingKind.LEVEL, estimate=0.02, count=3)
    changes = {
        number: replace(
            one, kind=FindingKind.CHANGE, estimate=1.5, verdict=verdict, at_run_id=run_name(number), count=number
        )
        for number, verdict in enumerate(("slower", "acknowledged", "repaired", "faster", "intended"), 1)
    }
    changes[2] = replace(changes[2], said="wait for jax 0.13", look="jax")
    findings.keep(run, [replace(one, kind=FindingKind.SESSION), level, *changes.values()])
    rows = answer(warehouse_of(Results(tmp_path)), questions()["regressions"], DashboardFilter()).dicts()
    assert [(row["at_run_id"], row["verdict"], row["step_time_now_s"], row["sessions_since"]) for row in rows] == [
        (run_name(1), "slower", 0.02, 1),
        (run_name(2), "acknowledged", 0.02, 2),
    ]
    shown = panels.panel(questions()["regressions"], rows).table
    assert [(row.bad, row.values[-1]) for row in shown] == [
        (True, "-"),
        (False, "nobody: acknowledged: wait for jax 0.13"),
    ]


def test_run_counts_its_ok_and_failed_attempts(tmp_path: Path) -> None:
    ends = (Status.OK, Status.OK, Status.UNSTABLE, Status.UNSUPPORTED, Status.ERROR)
    records = [make_record(0.01 if one is Status.OK else None, place, one) for place, one in enumerate(ends)]
    store_session(tmp_path, run_name(0), records, matrix_path="matrix.yaml", planned=5)
    store_session(tmp_path, run_name(1), records[:1], matrix_path="matrix.yaml", planned=1)
    warehouse = warehouse_of(Results(tmp_path))
    rows = answer(warehouse, questions()["runs"], DashboardFilter()).dicts()
    assert [row["run_id"] for row in rows] == [run_name(1), run_name(0)]
    assert [rows[1][name] for name in ("planned", "attempts", "ok", "failed", "cells")] == [5, 5, 2, 1, 1]
    found = answer(warehouse, questions()["failures"], DashboardFilter()).dicts()
    assert {(row["status"], row["attempts"]) for row in found} == {("unstable", 1), ("unsupported", 1), ("error", 1)}


def test_machine_is_listed_with_its_installed_versions(tmp_path: Path) -> None:
    versions = {"keras": "3.16.0", "jax": "0.11.0", "torch": "2.9.0", "tensorflow": "2.21.0"}
    for night, backend in enumerate(TRAINING_BACKENDS):
        store_run(tmp_path, night, settings=make_settings(backend=backend), versions=versions)
    rows = answer(warehouse_of(Results(tmp_path)), questions()["machines"], DashboardFilter()).dicts()
    assert {(row["backend"], row["backend_version"], row["keras_version"]) for row in rows} == {
        (backend, versions[backend], "3.16.0") for backend in TRAINING_BACKENDS
    }
    assert {(row["runs"], row["cells"], row["attempts"], row["cpu_model"]) for row in rows} == {(1, 1, 3, "a CPU")}


def test_a_machine_is_shown_with_its_type_on_the_machines_panel(tmp_path: Path) -> None:
    store_run(tmp_path, 0, machine=replace(MACHINE, machine_type="n1-standard-8"))
    store_run(tmp_path, 1)
    question = questions()["machines"]
    shown = panels.panel(question, answer(warehouse_of(Results(tmp_path)), question, DashboardFilter()).dicts())
    place = shown.columns.index("machine type")
    assert [row.values[place] for row in shown.table] == [NOTHING, "n1-standard-8"]


def test_imported_rows_are_in_no_answer(tmp_path: Path) -> None:
    store_run(tmp_path / "results", 0)
    warehouse = warehouse_of(Results(tmp_path / "results"))
    before = {name: answer(warehouse, question, DashboardFilter()).rows for name, question in questions().items()}
    path = tmp_path / "old.csv"
    path.write_text("w,b,s,t\ntheirs,jax,1.5,2026-01-01\n")
    maps = [f"--map={one}" for one in ("workload=w", "backend=b", "value=s", "started_at=t")]
    command = ["import", str(path), "--metric", "times.step_time_s", "--source", "lab", *maps]
    assert uploader([*command, "--results", str(tmp_path / "results")]) == 0
    assert warehouse.query("SELECT COUNT(*) AS n FROM cells WHERE source = 'lab'").rows == [(1,)]
    assert {
        name: answer(warehouse, question, DashboardFilter()).rows for name, question in questions().items()
    } == before
    assert dashboard.run_counts(warehouse) == RunCounts(1, 0)
    [page] = Application(Live(warehouse))({"PATH_INFO": "/"}, lambda status, headers: None)
    assert b"theirs" not in page


def test_failures_are_counted_by_status(warehouse: LocalWarehouse) -> None:
    [row] = answer(warehouse, questions()["failures"], DashboardFilter()).dicts()
    assert (row["status"], row["backend"], row["attempts"], row["runs"]) == ("timeout", "torch", NIGHTS, NIGHTS)
    assert (row["last_run_id"], row["example"]) == (
        run_name(NIGHTS - 1),
        f"timeout_s: the time limit of {HOSTILE} passed",
    )


def test_run_with_an_injected_fault_is_not_in_the_latest_matrix(tmp_path: Path) -> None:
    from keras_matrix.records.store import Run
    from keras_matrix.runner.service.stored import update_findings
    from tests.sessions import processes, store_session

    stored(tmp_path, nights=1)
    arms = {"arms": {"slower": {"fault": "slower:0.5"}}, "arm": "slower", "planned": 3}
    run = Run(store_session(tmp_path, run_name(3), processes(9.0), **arms))
    update_findings(run)
    rows = answer(warehouse_of(Results(tmp_path)), questions()["matrix"], DashboardFilter()).dicts()
    assert {row["run_id"] for row in rows} == {run_name(0)}


def test_invalid_day_means_all_days() -> None:
    assert checked(DashboardFilter(since="2026-02-30")) == DashboardFilter()
    assert checked(DashboardFilter(since="2026-02-03", backend="jax")) == DashboardFilter(
        since="2026-02-03", backend="jax"
    )
    assert checked(DashboardFilter(since="20260203", cell="x")) == DashboardFilter(since="2026-02-03", cell="x")
