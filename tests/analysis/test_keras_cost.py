"""What Keras costs over native code, and the shares of its parts, computed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.findings import run_findings
from keras_matrix.analysis.keras_cost import PARTS, KerasCost, keras_costs
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report.page import keras_cost_tables, render
from keras_matrix.records.schema import Learning, Record, Resolved, Status
from keras_matrix.records.settings import IMPLEMENTATIONS
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.service.stored import Findings
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.messages import check_messages

GENERATES: dict[str, Any] = {"settings": {"workload": "gpt2", "phase": "generate"}}
BLOCKS = (1.0, 2.0, 0.5, 1.0, 4.0)  # how slow the machine was: no ratio and no share depends on it


def cell(implementation: str, step_s: float, blocks: Sequence[float] = BLOCKS, **changes: Any) -> list[Record]:
    """Records of a cell, a process for each block."""
    given = {"backend": "jax", "implementation": implementation} | changes.pop("settings", {})
    settings = make_settings(**given)
    return [make_record(step_s * slow, at, settings=settings, **changes) for at, slow in enumerate(blocks)]


def cost(records: Sequence[Record]) -> KerasCost:
    [found] = keras_costs(table(records))
    return found


def test_ratio_and_shares_are_paired_by_block() -> None:
    steps = dict(zip(IMPLEMENTATIONS, (0.020, 0.018, 0.017, 0.011, 0.010), strict=True))
    found = cost([record for name, step_s in steps.items() for record in cell(name, step_s)])
    assert found.estimate is not None
    assert (found.estimate.centre, *(found.estimate.bounds or ())) == (pytest.approx(2.0),) * 3
    shares = {part.name: part.share.centre for part in found.parts}
    assert shares == pytest.approx(dict(zip(PARTS, (0.10, 0.05, 0.30, 0.05), strict=True)))


def test_the_interval_of_a_share_is_students_over_the_blocks() -> None:
    """Native code takes shares of 90 to 50 %: their geometric mean is 68.53 %, their logarithms scatter by 0.2322, so
    that they do by 15.92 % to first order; t is 2.776 for 4 degrees.
    """
    keras = cell("keras", 1.0, [1.0] * 5)
    found = cost(keras + cell("native", 1.0, [0.9, 0.8, 0.7, 0.6, 0.5]))
    [part] = found.parts
    assert (part.name, part.share.centre) == (" + ".join(PARTS), pytest.approx(0.3147, abs=1e-4))
    half = 2.776 * 0.1592 / 5**0.5
    assert part.share.bounds == pytest.approx((0.3147 - half, 0.3147 + half), abs=2e-4)


def test_shares_agree_with_the_ratio_also_in_blocks_that_scatter() -> None:
    """Mutation: a share is the mean of the blocks' shares, here -43 % with a ratio of 0.85."""
    found = cost(cell("keras", 1.0, [0.174, 0.212, 0.165]) + cell("native", 1.0, [0.235, 0.107, 0.400]))
    assert found.estimate is not None
    assert sum(part.share.centre for part in found.parts) == pytest.approx(1 - 1 / found.estimate.centre)


def test_parts_of_a_rung_that_was_not_measured_are_one() -> None:
    found = cost(cell("keras", 0.02) + cell("no_metrics", 0.015) + cell("native", 0.01))
    assert [part.name for part in found.parts] == ["callbacks and input + metrics", "optimizer + layers and loss"]


def test_shares_are_over_the_blocks_of_all_rungs() -> None:
    found = cost(cell("keras", 0.02) + cell("loop", 0.01, BLOCKS[:3]) + cell("native", 0.005))
    assert found.estimate is not None
    assert (found.estimate.count, [part.share.count for part in found.parts]) == (5, [3, 3])


def test_generation_has_one_part() -> None:
    """Mutation: the part of a generating cell has the names of those of training."""
    records = [one for name, call_s in (("keras", 0.04), ("native", 0.03)) for one in cell(name, call_s, **GENERATES)]
    assert {"keras_over_native", "keras_cost.sampling_and_layers"} <= {
        one.metric for one in run_findings(result_table(table(records)))
    }


def test_cells_that_did_other_work_are_not_compared() -> None:
    other = Resolved(50, 32, "fork", "float32", parameters=999)
    found = cost(cell("keras", 0.02) + cell("native", 0.01, resolved=other))
    assert (found.estimate, found.parts) == (None, ())


def test_losses_that_differ_are_a_caveat() -> None:
    learnt, not_learnt = Learning(loss=[2.0, 1.0]), Learning(loss=[2.0, 1.9])
    found = cost(cell("keras", 0.02, learning=learnt) + cell("native", 0.01, learning=not_learnt))
    assert found.estimate is not None
    assert found.caveat


def test_each_backend_and_work_has_its_own_ladder() -> None:
    records = [
        *(one for name in ("keras", "native") for one in cell(name, 0.01)),
        *(one for name in ("keras", "native") for one in cell(name, 0.02, settings={"backend": "torch"})),
        *(one for name in ("keras", "native") for one in cell(name, 0.03, settings={"batch_size": 8})),
        *cell("keras", 0.04, settings={"batch_size": 64}),
    ]
    assert [(one.backend, one.work) for one in keras_costs(table(records))] == [
        ("jax", "mnist_mlp batch_size=32"),
        ("torch", "mnist_mlp batch_size=32"),
        ("jax", "mnist_mlp batch_size=8"),
    ]


def test_a_cell_without_figures_takes_no_part() -> None:
    failed = [replace(one, status=Status.ERROR) for one in cell("native", 0.01)]
    assert keras_costs(table(cell("keras", 0.02) + failed)) == []


def halves() -> list[Record]:
    """Records of `fit` at 20 ms, of its step in a loop at 15 ms, of native code at 10 ms."""
    return [*cell("keras", 0.02), *cell("loop", 0.015), *cell("native", 0.01)]


def test_findings_have_the_ratio_and_each_share() -> None:
    found = {one.metric: one.estimate for one in run_findings(result_table(table(halves())))}
    assert found["keras_over_native"] == pytest.approx(2.0)
    assert found["keras_cost.callbacks_and_input"] == pytest.approx(0.25)


def test_the_report_has_a_table_for_each_work_and_no_section_without_one() -> None:
    [shown] = keras_cost_tables(result_table(table(halves())).keras_costs)
    assert (shown.title, shown.columns) == (
        "mnist_mlp",
        ["Keras over native", "callbacks and input", "metrics + optimizer + layers and loss"],
    )
    assert [(row.name, row.values) for row in shown.rows] == [
        ("jax", ["2.00x [2.00 2.00]", "25.0 % [25.0 25.0]", "25.0 % [25.0 25.0]"])
    ]
    without = cell("keras", 0.02)
    pages = [render(records, result_table(table(records)), {}) for records in (halves(), without)]
    assert ["What Keras costs" in page for page in pages] == [True, False]


def test_the_terminal_and_the_document_have_the_cost_at_the_cell_of_fit() -> None:
    records = halves()
    lines = [line.text for line in table_lines(result_table(table(records)))]
    [text] = [line for line in lines if "cost of Keras" in line]
    assert text == f"  cost of Keras: {cost(records).text}"
    assert lines.index(text) < lines.index("mnist_mlp implementation=loop")
    document = json.loads(as_document({}, Findings(table(records), records, NO_CONTEXT, [])))
    costs = {
        one["settings"]["implementation"]: one["keras_cost"] for r in document["rows"] for one in r["cells"].values()
    }
    assert (costs["loop"], costs["native"]) == (None, None)
    assert costs["keras"]["keras_over_native"]["centre"] == pytest.approx(2.0)
    assert costs["keras"]["shares"]["callbacks and input"]["centre"] == pytest.approx(0.25)


def test_what_is_said_of_a_ladder(golden: Golden) -> None:
    """Three blocks give no interval; without native code the shares remain."""
    steps = dict(zip(IMPLEMENTATIONS, (0.020, 0.018, 0.017, 0.011, 0.010), strict=True))
    scattering = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02]
    other, learnt, not_learnt = Resolved(50, 32, "fork", "float32", parameters=999), [2.0, 1.0], [2.0, 1.9]
    generation = cell("keras", 0.04, **GENERATES) + cell("native", 0.03, **GENERATES)
    ladders = {
        "all rungs": [record for name, step_s in steps.items() for record in cell(name, step_s)],
        "a rung of three blocks": cell("keras", 0.02) + cell("loop", 0.01, BLOCKS[:3]) + cell("native", 0.005),
        "three blocks": cell("keras", 0.02, [1.0] * 3) + cell("native", 0.01, [1.0] * 3),
        "no difference": cell("keras", 1.0, [1.0] * 6) + cell("native", 1.0, scattering),
        "generation": generation,
        "no native code": cell("keras", 0.02) + cell("loop", 0.01),
        "another model": cell("keras", 0.02) + cell("native", 0.01, resolved=other),
        "losses that differ": cell("keras", 0.02, learning=Learning(loss=learnt))
        + cell("native", 0.01, learning=Learning(loss=not_learnt)),
    }
    check_messages(golden, "keras_cost.txt", {title: [cost(records).text] for title, records in ladders.items()})
