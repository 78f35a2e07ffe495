"""Rows that must not be compared with Keras's published ones say so."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.comparison.caveats import PUBLISHED_CAVEATS
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.findings import FindingKind, run_findings
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report import results
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.matrix import catalog
from tests.conftest import make_record, make_settings

CAVEAT = (
    "not comparable with Keras's published row: another model (docs/workloads.md#not-comparable-with-the-published-row)"
)


@pytest.mark.parametrize(("workload", "caveats"), [("stable_diffusion_3", (CAVEAT,)), ("sam", ())])
def test_another_model_than_the_published_one_is_a_caveat_of_its_row_in_every_output(
    workload: str, caveats: tuple[str, ...]
) -> None:
    """Mutation: a row has the caveats of its devices alone."""
    backends = ("jax", "torch")
    settings = [make_settings(backend=name, workload=workload, phase="predict") for name in backends]
    rows = table([make_record(0.5, repeat, settings=one) for one in settings for repeat in range(3)])
    assert [row.caveats for row in rows] == [caveats]
    assert not rows[0].verdict.startswith("not comparable")
    lines = [line.text for line in table_lines(result_table(rows))]
    assert [line for line in lines if "caveat" in line] == [f"  caveat: {text}" for text in caveats]
    [verdict] = [one for one in run_findings(result_table(rows)) if one.kind is FindingKind.VERDICT]
    assert verdict.facts.get("caveats", "") == "".join(caveats)
    assert [block.caveats for block in results.blocks(result_table(rows))] == [caveats]


def test_caveats_are_those_of_workloads_of_the_catalog() -> None:
    assert PUBLISHED_CAVEATS.keys() <= catalog.load().workloads.keys()
