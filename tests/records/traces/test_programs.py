"""Summaries of compiled programs: bounded counts of what runs and of what is inside fusions."""

from __future__ import annotations

import json
from pathlib import Path

from keras_matrix.records.traces import programs
from keras_matrix.records.traces.programs import (
    GRAPH_NAME,
    MOST_KINDS,
    OTHERS,
    PROGRAMS_NAME,
    GraphFacts,
    ProgramSummary,
    counted,
    of_xla,
    stored_programs,
)
from keras_matrix.records.traces.request import NATIVE_NAME
from tests.records.traces.synthetic import hlo, hlo_array, hlo_instruction

F32 = 11


def program() -> bytes:
    """A loop that runs a fusion of two operations, and a copy; the sum inside a reduction runs with it."""
    array = hlo_array(F32, 4, 5)
    inner = [hlo_instruction(n, f"{kind}.{n}", kind, array) for n, kind in ((11, "transpose"), (12, "add"))]
    body = [hlo_instruction(21, "fusion.1", "fusion", array, called=(100,))]
    scalar_sum = [hlo_instruction(31, "add.31", "add", hlo_array(F32))]
    entry = [
        hlo_instruction(1, "x", "parameter", array),
        hlo_instruction(2, "while.1", "while", array, operands=(1,), called=(200,)),
        hlo_instruction(3, "copy.1", "copy", array, operands=(2,)),
        hlo_instruction(4, "reduce.1", "reduce", hlo_array(F32, 4), operands=(3,), called=(300,)),
    ]
    computations = {"fused": (100, inner), "body": (200, body), "sum": (300, scalar_sum), "main": (400, entry)}
    return hlo("jit_step", computations, entry=400)


def test_operations_that_run_are_counted_and_those_inside_fusions_apart() -> None:
    """Mutation: `_run` enters every called computation."""
    found = of_xla({"jit_step(1)": program(), "jit_step(2)": program(), "damaged": b"\x0a\xff"})
    each = 4 * (20 + 20 + 4)
    assert found == ProgramSummary(
        "XLA", 2, {"copy": 2, "reduce": 2, "fusion": 2}, {"transpose": 2, "add": 2}, bytes_written=2 * each
    )


def test_file_without_a_program_has_no_summary() -> None:
    assert of_xla({}) is None
    assert of_xla({"damaged": b"\x0a\xff"}) is None


def test_summary_is_bounded() -> None:
    found = counted([f"kind_{n}" for n in range(MOST_KINDS + 40)] + ["kind_0"])
    assert len(found) == MOST_KINDS + 1
    assert (found["kind_0"], found[OTHERS]) == (2, 40)


def test_stored_summaries_are_read_again_and_damaged_ones_are_empty(tmp_path: Path) -> None:
    (tmp_path / NATIVE_NAME).mkdir()
    xla, graph = ProgramSummary("XLA", 1, {"copy": 1}), ProgramSummary("autograd graph", 1, {"MmBackward0": 2})
    facts = GraphFacts(graph, 12.5)
    assert stored_programs(tmp_path) == (None, GraphFacts())
    programs.write(tmp_path / NATIVE_NAME / GRAPH_NAME, facts)
    assert stored_programs(tmp_path) == (graph, facts)
    programs.write(tmp_path / PROGRAMS_NAME, xla)
    assert stored_programs(tmp_path) == (xla, facts)
    (tmp_path / PROGRAMS_NAME).write_text(json.dumps({"source": "XLA", "later": 1}))
    assert stored_programs(tmp_path) == (graph, facts)
