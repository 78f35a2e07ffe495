"""What each way of calling a model costs, computed by hand, and where it is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.findings import run_findings
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.call_ladder import COLUMNS, LIMITS, CallLadder, CallRung, call_ladders
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report.page import call_tables, render
from keras_matrix.records.findings import FindingKind
from keras_matrix.records.schema import Artefact, Record, Resolved, Status
from keras_matrix.records.settings import COMPILED, DIRECT, ON_BATCH, ON_DEVICE, PREDICT, WHOLE
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import call_lines, table_lines
from keras_matrix.runner.service.stored import Findings
from tests.conftest import make_record, make_settings

BLOCKS = (1.0, 2.0, 0.5, 1.0, 4.0)  # how slow the machine was: no ratio depends on it
RESOLVED = Resolved(50, 32, "fork", "float32", parameters=1000, outputs_deviation=0.0)


def cell(call: str, call_s: float, blocks: Sequence[float] = BLOCKS, **changes: Any) -> list[Record]:
    """Records of a cell, a process for each block, whose calls all take as long."""
    resolved = replace(changes.pop("resolved", RESOLVED), **changes.pop("found", {}))
    settings = make_settings(**{"backend": "jax", "phase": PREDICT, "call": call} | changes.pop("settings", {}))
    times = changes.pop("times", {})
    records = [
        make_record(call_s * slow, at, settings=settings, resolved=resolved, **changes)
        for at, slow in enumerate(blocks)
    ]
    return [replace(one, times=replace(one.times, **times)) for one in records]


def ladder(records: Sequence[Record]) -> CallLadder:
    [found] = call_ladders(table(records))
    return found


def rung(records: Sequence[Record], call: str) -> CallRung:
    [found] = [one for one in ladder(records).rungs if one.call == call]
    return found


def test_ratios_are_to_predict_on_batch_and_paired_by_block() -> None:
    """Mutation: the ratio is that of the means over processes, without their blocks."""
    calls = dict(zip((WHOLE, ON_BATCH, DIRECT, COMPILED), (0.110, 0.005, 0.025, 0.004), strict=True))
    found = ladder([record for name, call_s in calls.items() for record in cell(name, call_s)])
    assert [one.call for one in found.rungs] == list(calls)
    assert {one.call: one.estimate and one.estimate.centre for one in found.rungs} == {
        "predict": pytest.approx(22.0),
        ON_BATCH: None,
        "model": pytest.approx(5.0),
        "jit": pytest.approx(0.8),
    }
    assert found.sentence(found.rungs[2]) == (
        "jax: model takes 5.00x [5.00 5.00] of predict_on_batch's time; outputs equal"
    )


def test_without_an_interval_the_row_and_the_sentence_say_why() -> None:
    found = ladder([record for name in (ON_BATCH, "model") for record in cell(name, 0.01, BLOCKS[:3])])
    few = "(fewer than 5 repeats give no interval)"
    assert found.rungs[1].ratio_text == f"1.00x {few}"
    assert found.sentence(found.rungs[1]) == (f"jax: model takes 1.00x of predict_on_batch's time {few}; outputs equal")


def test_compilations_in_the_measured_epochs_are_named_with_the_ratio_that_they_are_part_of() -> None:
    calls = cell(ON_BATCH, 0.01) + cell("model", 0.5, found={"recompiles_timed": 24})
    found = ladder(calls)
    assert found.rungs[1].facts["recompilations"] == "24"
    assert "recompilations" not in found.rungs[0].facts
    assert found.rungs[1].ratio_text == "50.00x [50.00 50.00] (24 recompilations in a process)"
    assert found.sentence(found.rungs[1]) == (
        "jax: model takes 50.00x [50.00 50.00] of predict_on_batch's time (24 recompilations in a process); "
        "outputs equal"
    )


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"outputs_deviation": 3e-7}, ""),
        ({"outputs_deviation": 0.02}, "not compared: outputs differ by 2e-2, more than 1e-4"),
        (
            {"outputs_deviation": None, "outputs_problem": "are not finite"},
            "not compared: outputs are not finite",
        ),
        ({"outputs_deviation": None}, "not compared: outputs were not compared with model(x)"),
        ({"outputs_deviation": 0.02, "precision": "bfloat16"}, "not comparable: precisions differ"),
        ({"parameters": 999}, "not comparable: parameters differ"),
    ],
)
def test_a_call_with_other_outputs_is_shown_without_a_ratio(found: dict[str, Any], reason: str) -> None:
    """Mutation: the limit is that of the largest deviation of any precision."""
    shown = rung(cell(ON_BATCH, 0.01) + cell("jit", 0.005, found=found), "jit")
    assert (shown.ratio is None) == bool(reason)
    assert shown.reason.startswith(reason)


def test_nothing_is_compared_with_a_reference_that_answers_otherwise() -> None:
    shown = rung(cell(ON_BATCH, 0.01, found={"outputs_deviation": 1.0}) + cell("jit", 0.005), "jit")
    assert shown.reason == "not compared: outputs of predict_on_batch differ by 1.0, more than 1e-4"


def test_one_process_with_other_outputs_is_enough() -> None:
    *same, last = cell("jit", 0.005)
    assert last.resolved is not None
    other = replace(last, resolved=replace(last.resolved, outputs_deviation=0.5))
    assert rung([*cell(ON_BATCH, 0.01), *same, other], "jit").deviation == 0.5


def test_calls_compiled_differently_are_compared_in_a_league_that_matches_compile_modes() -> None:
    """Mutation: the facts of the league `matched` include whether the step was compiled."""
    matched = {"league": "matched"}
    records = cell(ON_BATCH, 0.01, settings=matched, found={"jit_compile": True})
    records += cell("model", 0.03, settings=matched, found={"jit_compile": False})
    assert rung(records, "model").reason == ""


def test_without_predict_on_batch_the_first_call_is_the_reference() -> None:
    found = ladder(cell("model", 0.02) + cell("jit", 0.01))
    assert (found.title, found.rungs[0].ratio_text) == ("mnist_mlp on jax, ratios to model", "-")


def test_each_backend_and_work_has_its_own_ladder() -> None:
    records = [
        *(one for name in (ON_BATCH, "jit") for one in cell(name, 0.01)),
        *(one for name in (ON_BATCH, "jit") for one in cell(name, 0.02, settings={"backend": "torch"})),
        *(one for name in (ON_BATCH, "jit") for one in cell(name, 0.03, settings={"batch_size": 8})),
        *cell(ON_BATCH, 0.04, settings={"batch_size": 64}),
    ]
    found = call_ladders(table(records))
    assert {(one.backend, one.work) for one in found} == {
        ("jax", "mnist_mlp batch_size=32"),
        ("torch", "mnist_mlp batch_size=32"),
        ("jax", "mnist_mlp batch_size=8"),
    }
    assert len({one.key for one in found}) == 2


def test_outputs_that_stay_on_the_device_make_a_ladder_of_their_own() -> None:
    """Mutation: the identity of a ladder has no outputs, so that calls with other ends have a ratio."""
    on_device = {"outputs": ON_DEVICE}
    records = [
        *(one for name in (ON_BATCH, "model", "jit") for one in cell(name, 0.01)),
        *cell("model", 0.008, settings=on_device),
        *cell("jit", 0.004, settings=on_device),
    ]
    there, on_host = call_ladders(table(records))
    assert [(one.work, one.reference, len(one.rungs)) for one in (on_host, there)] == [
        ("mnist_mlp outputs=host", ON_BATCH, 3),
        ("mnist_mlp outputs=device", "model", 2),
    ]
    assert there.rungs[1].estimate is not None
    assert there.rungs[1].estimate.centre == pytest.approx(0.5)
    assert ladder(records[-2 * len(BLOCKS) :]).work == "mnist_mlp outputs=device"


def test_other_calls_repeat_the_work_of_a_suite_and_are_left_out_of_its_mean() -> None:
    records = [
        one
        for backend, slow in (("jax", 1.0), ("torch", 3.0))
        for name in (ON_BATCH, "model")
        for one in cell(name, 0.01 * (slow if name == ON_BATCH else 1.0), settings={"backend": backend})
    ]
    [found] = suite(table(records))
    assert [ratio.estimate.centre for ratio in found.ratios.values()] == [pytest.approx(3.0)]
    assert found.left_out == "mnist_mlp call=model (another call than predict_on_batch)"


def test_a_cell_without_figures_takes_no_part() -> None:
    failed = [replace(one, status=Status.UNSUPPORTED) for one in cell("jit", 0.01)]
    assert call_ladders(table(cell(ON_BATCH, 0.02) + failed)) == []


def test_the_interval_of_a_percentile_is_the_wider_one() -> None:
    """Between processes 1 ms [1 1]; within each of five 1 ms [0.5 2], so that half of log 4 is divided by root 5."""
    equal, within = {"call_time_p50_s": 0.001}, {"call_time_p50_interval_s": [0.0005, 0.002]}
    between = rung(cell(ON_BATCH, 0.001, times=equal) + cell("jit", 0.001, times=equal), "jit").p50
    wider = rung(cell(ON_BATCH, 0.001, times=equal) + cell("jit", 0.001, times=equal | within), "jit").p50
    assert between is not None
    assert wider is not None
    assert between.bounds == pytest.approx((0.001, 0.001))
    half = math.log(2) / 5**0.5
    assert wider.bounds == pytest.approx((0.001 * math.exp(-half), 0.001 * math.exp(half)))


def test_a_percentile_that_no_process_has_is_missing() -> None:
    shown = rung(cell(ON_BATCH, 0.01) + cell("jit", 0.005, times={"call_time_p50_s": 0.004}), "jit")
    assert (shown.p99, shown.texts[2]) == (None, "-")


def both() -> list[Record]:
    return [*cell(ON_BATCH, 0.01), *cell("model", 0.02, found={"outputs_deviation": 3e-7})]


def test_the_terminal_has_a_line_at_the_cell_and_the_ladder_below_the_table() -> None:
    shown = result_table(table(both()))
    lines = [line.text for line in table_lines(shown)]
    text = "  call: jax: model takes 2.00x [2.00 2.00] of predict_on_batch's time; outputs equal to 3e-7"
    assert lines.index(text) > lines.index("mnist_mlp call=model")
    assert call_lines(shown.call_ladders)[:2] == ["", "calls of mnist_mlp on jax, ratios to predict_on_batch"]
    assert len(call_lines(shown.call_ladders)) == 3 + len(both()) // len(BLOCKS)


def test_the_report_has_a_table_for_each_ladder_and_no_section_without_one() -> None:
    [shown] = call_tables(result_table(table(both())).call_ladders)
    assert (shown.title, shown.columns[3]) == ("mnist_mlp on jax, ratios to predict_on_batch", "ratio")
    assert [(row.name, row.values[3:]) for row in shown.rows] == [
        (ON_BATCH, ["-", "equal"]),
        ("model", ["2.00x [2.00 2.00]", "equal to 3e-7"]),
    ]
    pages = [render(records, result_table(table(records)), {}) for records in (both(), cell(ON_BATCH, 0.01))]
    assert ["How the model is called" in page for page in pages] == [True, False]


def test_a_ladder_with_an_exported_file_has_its_size_and_times() -> None:
    """Mutation: the columns are there for every ladder, or the times are those of one process."""
    *others, last = cell("litert", 0.005)
    records = [replace(one, artefact=Artefact(2.0, 0.25, 1536 * 1024, "ai-edge-litert")) for one in others]
    records.append(replace(last, artefact=Artefact(9.0, 0.75, 1536 * 1024, "ai-edge-litert")))
    records[0] = replace(records[0], artefact=Artefact(2.0, 0.25, 1536 * 1024, "ai-edge-litert", ["num_threads=0"]))
    found = ladder(cell(ON_BATCH, 0.01) + records)
    assert found.runtimes == ["litert: ai-edge-litert, num_threads=0"]
    assert call_lines([found])[-1] == "  litert: ai-edge-litert, num_threads=0"
    assert call_tables([found])[0].lead == found.runtimes[0]
    assert found.columns[-3:] == ("size", "export", "load")
    assert [row[-3:] for row in found.rows] == [("-", "-", "-"), ("1.50 MiB", "2.00 s", "250 ms")]
    assert found.sentence(found.rungs[1]) == (
        "jax: litert takes 0.50x [0.50 0.50] of predict_on_batch's time; outputs equal"
    )
    assert (ladder(both()).columns[-1], {len(row) for row in ladder(both()).rows}) == ("outputs", {6})


def test_the_document_has_each_call_at_its_cell() -> None:
    records = both()
    document = json.loads(as_document({}, Findings(table(records), records, NO_CONTEXT, [])))
    calls = {one["settings"]["call"]: one["call"] for row in document["rows"] for one in row["cells"].values()}
    assert calls["model"]["over_reference"]["centre"] == pytest.approx(2.0)
    assert (calls["model"]["reference"], calls["model"]["outputs_deviation"]) == (ON_BATCH, 3e-7)
    assert calls[ON_BATCH]["over_reference"] is None


def test_findings_have_each_call_with_the_row_of_its_ladder_and_a_ratio_but_of_the_reference() -> None:
    """Mutation: the identity of a ladder includes the call."""
    records = both()
    calls = [one for one in run_findings(result_table(table(records))) if one.kind is FindingKind.CALL]
    assert {(one.facts["call"], one.metric): one.estimate for one in calls} == {
        (ON_BATCH, "call_time_s"): pytest.approx(0.01 * 4 ** (1 / 5)),
        (ON_BATCH, "outputs_deviation"): 0.0,
        ("model", "call_time_s"): pytest.approx(0.02 * 4 ** (1 / 5)),
        ("model", "outputs_deviation"): 3e-7,
        ("model", "call_over_reference"): pytest.approx(2.0),
    }
    assert len({one.facts["ladder id"] for one in calls}) == 1
    texts = {rung.call: dict(zip(COLUMNS, rung.texts, strict=True)) for rung in ladder(records).rungs}
    assert all(texts[one.facts["call"]].items() <= one.facts.items() for one in calls)


def test_each_precision_has_a_limit() -> None:
    from keras_matrix.records.settings import PRECISIONS

    assert set(LIMITS) == set(PRECISIONS)
