"""What else differs between two cells: every topic, and the limit below which a scattering value is not listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.explanation import Fact, differing_facts
from keras_matrix.records.schema import Memory, Record
from keras_matrix.records.traces.programs import (
    GRAPH_NAME,
    PROGRAMS_NAME,
    GraphFacts,
    ProgramSummary,
    write,
)
from keras_matrix.records.traces.request import NATIVE_NAME
from tests.conftest import make_record, make_settings

TIMES = ("import_time_s", "build_time_s", "trace_time_s", "compile_time_s", "first_step_time_s", "first_epoch_time_s")
MEMORY = ("peak_host_memory_bytes", "peak_device_memory_bytes")
COUNTS = ("recompiles_timed", "graph_breaks", "forward_flops")
NAMES_OF_TIMES = ("import", "build", "trace", "compile", "first step", "first epoch")
XLA = ProgramSummary("XLA", 2, {"dot": 3, "copy": 1}, {"add": 4}, 1000)


def cell(changed: dict[str, float], value: float = 100) -> list[Record]:
    """Return a process with `value` in every number that is compared, but for the changed ones."""
    given = dict.fromkeys([*TIMES, *MEMORY, *COUNTS], value) | changed
    made = make_record(0.5)
    times = replace(made.times, **{name: given[name] for name in TIMES})
    resolved = replace(made.resolved, **{name: given[name] for name in COUNTS})
    return [replace(made, times=times, resolved=resolved, memory=Memory(**{name: given[name] for name in MEMORY}))]


def folder(path: Path, program: ProgramSummary = XLA, page_faults: float = 100) -> Path:
    """Return the folder of a trace with a program and page faults."""
    (path / NATIVE_NAME).mkdir(parents=True)
    write(path / PROGRAMS_NAME, program)
    write(path / NATIVE_NAME / GRAPH_NAME, GraphFacts(None, page_faults))
    return path


def facts(base: list[Record], new: list[Record]) -> list[Fact]:
    return differing_facts(base, new, None, (0, 0))


@pytest.mark.parametrize(("field", "name"), [*zip(TIMES, NAMES_OF_TIMES, strict=True)])
def test_time_outside_of_the_measured_epochs_is_listed_if_it_differs_by_more_than_a_fifth(
    field: str, name: str
) -> None:
    """Mutation: one of `TIMES` is missing, or its limit is another."""
    assert facts(cell({}), cell({field: 124})) == []
    assert facts(cell({}), cell({field: 126})) == [Fact("start and first epoch", name, 100, 126)]


@pytest.mark.parametrize(("field", "name"), [*zip(MEMORY, ("peak host memory", "peak device memory"), strict=True)])
def test_peak_is_listed_if_it_differs_by_more_than_a_twentieth(field: str, name: str) -> None:
    """Mutation: one of `MEMORY` is missing, or its limit is another."""
    assert facts(cell({}), cell({field: 95})) == []
    assert facts(cell({}), cell({field: 94})) == [Fact("memory", name, 100, 94)]


@pytest.mark.parametrize(
    ("field", "name"),
    [*zip(COUNTS, ("recompilations in the measured epochs", "graph breaks", "FLOPs of a forward pass"), strict=True)],
)
def test_count_is_listed_if_it_differs_at_all(field: str, name: str) -> None:
    """Mutation: one of `COUNTS` is missing, or its limit is above 0."""
    assert facts(cell({}), cell({field: 101})) == [Fact("counts", name, 100, 101)]
    assert facts(cell({}), cell({field: None})) == [Fact("counts", name, 100, None)]


def test_versions_of_one_backend_are_listed_also_if_only_one_side_has_the_package() -> None:
    """Mutation: `_versions` returns nothing."""
    base = [make_record(0.5, versions={"keras": "3.14.0", "numpy": "2.4.6", "jax": "0.10.2"})]
    new = [make_record(0.5, versions={"keras": "3.15.1", "numpy": "2.4.6", "jaxlib": "0.10.2"})]
    assert facts(base, new) == [
        Fact("versions", "jax", "0.10.2", None),
        Fact("versions", "jaxlib", None, "0.10.2"),
        Fact("versions", "keras", "3.14.0", "3.15.1"),
    ]
    other = [make_record(0.5, settings=make_settings(backend="torch"), versions={"torch": "2.13.0"})]
    assert {one.topic for one in facts(base, other)} == {"settings"}


def test_page_faults_operations_and_programs_of_both_traces_are_compared(tmp_path: Path) -> None:
    """Mutation: `differing_facts` leaves out the page faults, the operations or the programs."""
    base = folder(tmp_path / "base")
    program = ProgramSummary("XLA", 1, {"dot": 3, "copy": 2}, {"add": 5}, 1200)
    new = folder(tmp_path / "new", program, page_faults=126)
    assert differing_facts(cell({}), cell({}), (base, new), (100, 102)) == [
        Fact("allocations", "page faults per step", 100, 126),
        Fact("kernels", "operations in a traced step", 100, 102),
        Fact("programs (XLA)", "programs", 2, 1),
        Fact("programs (XLA)", "operations", 4, 5),
        Fact("programs (XLA)", "bytes written", 1000, 1200),
        Fact("programs (XLA)", "copy", 1, 2),
        Fact("programs (XLA)", "add inside fusions", 4, 5),
    ]
    similar = folder(tmp_path / "similar", page_faults=124)
    assert differing_facts(cell({}), cell({}), (base, similar), (100, 101)) == []


def test_programs_of_two_sources_are_not_compared(tmp_path: Path) -> None:
    """Mutation: `_programs` ignores the source."""
    base = folder(tmp_path / "base")
    new = folder(tmp_path / "new", ProgramSummary("graph of the step", 1, {"MatMul": 7}))
    assert differing_facts(cell({}), cell({}), (base, new), (100, 100)) == []


def test_parameter_and_setting_of_one_name_are_separate_facts() -> None:
    base, new = (make_record(settings=make_settings(params={"feed": a}, feed=b)) for a, b in ((1, "x"), ("1", "y")))
    found = [(one.name, one.base, one.new) for one in facts([base], [new]) if one.topic == "settings"]
    assert found == [("feed", "x", "y"), ("params.feed", "1", '"1"')]
