"""Three backends on one GPU: comparison, report, dashboards and uploader show verdicts, MFU, memory and power."""

from __future__ import annotations

from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts import pictures
from keras_matrix.dashboards.charts.figure_table import FigureRow
from keras_matrix.dashboards.live import panels
from keras_matrix.dashboards.live.questions import DashboardFilter, answer, questions
from keras_matrix.dashboards.report import results
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.service.stored import Findings, write_report
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.dashboards.boards import warehouse_of
from tests.gpu_records import A100, MEAN_POWER_W, gpu_records, gpu_run

CAVEAT = (
    "TF32: tensorflow and jax use it in matrix products, torch does not; set league: matched to compare all of them in "
    "float32"
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Findings]:
    return gpu_run(tmp_path_factory.mktemp("gpu") / "results")


@pytest.fixture(scope="module")
def page(stored: tuple[Run, Findings]) -> str:
    run, _ = stored
    write_report(run, run.folder / "report.html")
    return (run.folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def warehouse(stored: tuple[Run, Findings]) -> LocalWarehouse:
    run, _ = stored
    return warehouse_of(Results(run.folder.parent))


def rows_by_title(rows: list[Row]) -> dict[str, Row]:
    return {row.title: row for row in rows}


@pytest.mark.parametrize("league", ["as_shipped", "matched"])
def test_every_measured_row_has_a_verdict(league: str) -> None:
    measured = [row for row in table(gpu_records(league)) if any(cell.step_time for cell in row.cells.values())]
    assert [row.title for row in measured if row.fastest != "jax"] == []
    assert len(measured) == 7


def test_different_default_precision_is_a_caveat_only_of_float32_rows() -> None:
    measured = [row for row in table(gpu_records()) if row.ratios]
    assert {row.caveats for row in measured if "mixed_bfloat16" not in row.title} == {(CAVEAT,)}
    assert [row.caveats for row in measured if "mixed_bfloat16" in row.title] == [()]
    assert {row.caveats for row in table(gpu_records("matched"))} == {()}


def test_two_workers_on_one_gpu_are_unsupported_with_the_reason() -> None:
    (row,) = [row for row in table(gpu_records()) if "workers=2" in row.title]
    assert {cell.failures[0][1] for cell in row.cells.values()} == {
        "Unsupported: workers: 2 workers need 2 GPUs, and 1 is visible"
    }


def test_model_flops_are_compared_with_the_peak_of_the_precision_in_use(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    shares = {(one.title, one.backend): one for one in found.run_context.shares.values() if one.mfu is not None}
    precisions = {
        backend: shares["fc mode=fc_data workers=1 level=2 weight_size=512 device=gpu", backend].place
        for backend in TRAINING_BACKENDS
    }
    assert {name: place.precision for name, place in precisions.items() if place} == {
        "tensorflow": "tf32",
        "jax": "tf32",
        "torch": "float32",
    }
    mixed = shares["resnet50 batch_size=64 device=gpu precision=mixed_bfloat16", "jax"]
    assert mixed.datasheet_flop_per_s == 312e12
    assert mixed.mfu == pytest.approx(mixed.flops_per_step / mixed.step_time_s / 312e12)  # type: ignore[operator]
    assert [share.note for share in shares.values() if share.note] == []


@pytest.mark.parametrize(
    "text",
    [
        CAVEAT,
        "jax is fastest: ",
        "share of stated peak (MFU)",
        "peak device memory",
        "device power",
        "energy per sample",
        "TF32 in matrix products",
        A100,
    ],
)
def test_report_shows_the_results_of_a_gpu_run(page: str, text: str) -> None:
    assert text in page


def test_no_row_of_the_report_is_not_comparable(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    assert [row.title for row in found.rows if row.verdict.startswith("not comparable")] == []


def line_of(found: Findings, title: str, name: str) -> FigureRow:
    (block,) = [one for one in results.blocks(result_table(found.rows, found.run_context)) if one.title == title]
    return next(line for line in block.lines if line.name == name)


def test_the_table_of_figures_has_the_allocators_peak_and_the_mean_power(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    blocks = {block.title: block for block in results.blocks(result_table(found.rows, found.run_context))}
    lines = {line.name: line for line in blocks["lstm device=gpu"].lines}
    assert [value.text for value in lines["peak device memory"].values] == ["5.00", "4.00", "3.00"]
    powers = [float(value.text) for value in lines["device power"].values]
    assert powers == [pytest.approx(MEAN_POWER_W, rel=0.03)] * 3


def test_peak_device_memory_names_its_span_if_backends_differ(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    line = line_of(found, "lstm device=gpu", "peak device memory")
    assert [value.aside for value in line.values] == [
        "",
        "of the process",
        "",
    ]


def test_the_picture_of_memory_has_the_unit_of_the_table(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    assert line_of(found, "lstm device=gpu", "peak device memory").unit == "GiB"
    (picture,) = [one for one in pictures.memory_pictures(found.rows) if one.title == "lstm device=gpu"]
    assert [strip.notes for strip in picture.strips] == [[f"device {size}.00 GiB"] for size in (5, 4, 3)]


def test_share_of_peak_names_its_precision_if_backends_differ(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    fc = line_of(found, "fc mode=fc_data workers=1 level=2 weight_size=512 device=gpu", "share of peak")
    assert [value.aside for value in fc.values] == ["tf32", "tf32", "float32"]
    mixed = line_of(found, "resnet50 batch_size=64 device=gpu precision=mixed_bfloat16", "share of peak")
    assert [value.aside.endswith("FLOP/s") for value in mixed.values] == [True] * 3


def test_products_of_bert_are_compared_with_the_peak_of_their_precision(stored: tuple[Run, Findings]) -> None:
    _, found = stored
    title = next(row.title for row in found.rows if row.title.startswith("bert "))
    assert [value.aside for value in line_of(found, title, "share of stated peak (MFU)").values] == [
        "tf32",
        "tf32",
        "float32",
    ]


def test_report_of_a_run_with_comparison_caveats_counts_them(page: str) -> None:
    assert "No figure has a caveat." not in page
    assert "6 rows of" in page


@pytest.mark.parametrize(
    "term",
    ["TF32", "share of stated peak (MFU)", "peak device memory", "device power", "energy per sample"],
)
def test_the_report_explains_the_figures_of_gpus(page: str, term: str) -> None:
    assert f"<dt>{term}</dt>" in page


def test_results_mark_the_rows_with_a_tf32_caveat(stored: tuple[Run, Findings], page: str) -> None:
    _, found = stored
    marked = [one.title for one in results.findings(result_table(found.rows).works)[0] if one.caveats]
    assert marked == [row.title for row in found.rows if row.caveats]
    assert page.count(f'title="{CAVEAT}">TF32</a>') == len(marked) == 6


def answered(warehouse: LocalWarehouse, question: str) -> list[dict[str, Any]]:
    return answer(warehouse, questions()[question], DashboardFilter()).dicts()


def test_the_dashboards_answer_with_verdicts_caveats_memory_power_and_mfu(warehouse: LocalWarehouse) -> None:
    matrix = answered(warehouse, "matrix")
    assert {row["fastest"] for row in matrix if "workers=2" not in row["work"]} == {"jax"}
    compared = answered(warehouse, "comparison")
    assert {row["caveats"] for row in compared} == {CAVEAT, None}
    memory = answered(warehouse, "memory")
    assert {(row["backend"], row["device_bytes"]) for row in memory} == {
        ("tensorflow", 5.0 * 2**30),
        ("jax", 4.0 * 2**30),
        ("torch", 3.0 * 2**30),
    }
    assert [row["device_power_w"] for row in memory] == [pytest.approx(MEAN_POWER_W, rel=0.03)] * len(memory)
    shares = answered(warehouse, "roofline")
    assert len(shares) == 3 * 6
    assert [row for row in shares if not 0 < row["mfu"] < 1] == []


def test_the_latest_matrix_marks_the_rows_with_a_tf32_caveat(warehouse: LocalWarehouse) -> None:
    shown = panels.panel(questions()["matrix"], answered(warehouse, "matrix")).heat
    marked = {row.title: row.caveats["TF32"] for row in shown if row.caveats}
    assert set(marked.values()) == {CAVEAT}
    assert [title for title in marked if "mixed_bfloat16" in title or "workers=2" in title] == []
    assert len(marked) == 6


def test_the_uploader_sends_precisions_and_gpu_figures(warehouse: LocalWarehouse) -> None:
    sql = (
        "SELECT DISTINCT backend, resolved_tf32_matmul AS products, resolved_tf32_convolution AS convolutions "
        "FROM cells WHERE workload = 'lstm' ORDER BY backend"
    )
    assert [tuple(row) for row in warehouse.query(sql, {}).rows] == [
        ("jax", True, True),
        ("tensorflow", True, True),
        ("torch", False, True),
    ]
    facts = warehouse.query("SELECT facts FROM findings WHERE kind = 'verdict' AND work LIKE 'lstm%'", {}).rows
    assert [row[0]["caveats"] for row in facts] == [CAVEAT]
