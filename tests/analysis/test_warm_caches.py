"""The first epoch with a cold compile cache against that with a warm one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.starts import WarmCache, warm_caches
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.findings import run_findings
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.schema import Record, Resolved, Times
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.service.stored import Findings
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.messages import check_messages

RESOLVED = Resolved(50, 32, "fork", "float32", parameters=1000)


def cell(cache: str, first_epochs_s: Sequence[float | None], hits: Sequence[int | None] = ()) -> list[Record]:
    """Records of a cell, a process for each first epoch, with the programs that it took from the cache."""
    found = []
    for repeat, first_s in enumerate(first_epochs_s):
        times = Times(step_time_s=0.01, epoch_times_s=[0.01] * 3, first_epoch_time_s=first_s)
        resolved = replace(RESOLVED, compile_cache_hits=hits[repeat] if hits else None)
        settings = make_settings(backend="jax", compile_cache=cache)
        found.append(make_record(0.01, repeat, settings=settings, times=times, resolved=resolved))
    return found


def compared(records: Sequence[Record]) -> WarmCache:
    [found] = warm_caches(table(records))
    return found


def test_cold_and_warm_first_epochs_are_paired_by_repeat() -> None:
    cold, warm = [2.0, 4.0, 3.0, 5.0, 6.0, 8.0], [9.0, 2.0, 1.5, 2.5, 3.0, 4.0]
    found = compared(cell("cold", cold) + cell("warm", warm, [0, 3, 4, 3, 3, 3]))
    assert found.estimate is not None
    assert (found.estimate.centre, found.estimate.count) == (pytest.approx(2.0), 5)


def test_process_that_fills_the_cache_is_left_out_whether_or_not_hits_are_known() -> None:
    unknown = compared(cell("cold", [2.0] * 6) + cell("warm", [9.0, *[1.0] * 5]))
    late = compared(cell("cold", [2.0] * 6) + cell("warm", [1.0, 9.0, *[1.0] * 4], [2, 0, 2, 2, 2, 2]))
    assert unknown.estimate is not None
    assert late.estimate is not None
    assert (unknown.estimate.centre, unknown.hits) == (pytest.approx(2.0), None)
    assert (late.estimate.centre, late.hits) == (pytest.approx(2.0), 2)


def test_a_cell_with_a_cold_cache_has_no_comparison() -> None:
    assert warm_caches(table(cell("cold", [2.0] * 5))) == []


def test_findings_the_terminal_and_the_document_have_the_comparison_at_the_cell_with_the_warm_cache() -> None:
    """Mutation: the findings, the line below the row or the document leave it out."""
    records = [*cell("cold", [2.0] * 6), *cell("warm", [9.0, *[1.0] * 5])]
    rows = table(records)
    comparison = compared(records)
    [finding] = [one for one in run_findings(result_table(rows)) if one.metric == "cold_over_warm_first_epoch"]
    assert (finding.cell_id, finding.estimate, finding.said) == (
        comparison.cell_id,
        pytest.approx(2.0),
        comparison.text,
    )
    lines = [line.text for line in table_lines(result_table(rows))]
    [text] = [line for line in lines if "warm compile cache" in line]
    assert text == f"  warm compile cache: {comparison.text}"
    assert lines.index(text) > lines.index("mnist_mlp compile_cache=warm")
    document = json.loads(as_document({}, Findings(rows, records, NO_CONTEXT, [])))
    ratios = {
        one["settings"]["compile_cache"]: one["cold_over_warm_first_epoch"]
        for row in document["rows"]
        for one in row["cells"].values()
    }
    assert (ratios["cold"], ratios["warm"]["centre"]) == (None, pytest.approx(2.0))


def test_what_is_said_of_a_warm_cache(golden: Golden) -> None:
    cold, warm = [2.0, 4.0, 3.0, 5.0, 6.0, 8.0], [9.0, 2.0, 1.5, 2.5, 3.0, 4.0]
    cells = {
        "programs from the cache": cell("cold", cold) + cell("warm", warm, [0, 3, 4, 3, 3, 3]),
        "an unknown number of programs from the cache": cell("cold", cold) + cell("warm", warm),
        "three repeats": cell("cold", [2.0] * 3) + cell("warm", [1.0] * 3),
        "no gain": cell("cold", [1.0] * 6) + cell("warm", [1.0, 1.1, 0.9, 1.05, 0.95, 1.02]),
        "no cold cache": cell("warm", [1.0] * 5),
        "a cold cache in the repeat that fills the warm one": cell("cold", [2.0]) + cell("warm", [1.0] * 5),
    }
    found = {title: compared(records) for title, records in cells.items()}
    assert [title for title, one in found.items() if one.estimate is None] == [*cells][-2:]
    check_messages(golden, "warm_caches.txt", {title: [one.text] for title, one in found.items()})
