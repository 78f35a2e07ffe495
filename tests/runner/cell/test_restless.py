"""A plugin's other activity is counted and named: recompiled programs, and a thread that burns CPU."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cli.main import main

pytestmark = [pytest.mark.process, pytest.mark.alone, pytest.mark.nightly]  # its cells have two CPUs

MATRIX = """\
version: 1
backends: [tensorflow, jax, torch]
defaults: {repeats: 1, epochs: 3, discard: 1, steps_per_epoch: 400, cpus: 2}
cells:
  - workload: tests.workloads.restless:build
"""
JAX = "jax:tests.workloads.restless:build"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Record]:
    """The latest record of each backend's process."""
    folder = tmp_path_factory.mktemp("restless")
    (folder / "matrix.yaml").write_text(MATRIX)
    assert main(["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results")]) == 0
    found = latest_attempts(Results(folder / "results").runs()[-1].load()[0])
    return {record.settings.backend: record for record in found}


def rules(record: Record) -> set[str]:
    return {warning.partition(":")[0] for warning in record.warnings}


@pytest.mark.parametrize(
    ("backend", "recompiles", "graph_breaks"), [("tensorflow", 4, None), ("jax", 4, None), ("torch", 8, 4)]
)
def test_programs_made_in_measured_epochs_are_counted_with_a_warning(
    records: Mapping[str, Record], backend: str, recompiles: int, graph_breaks: int | None
) -> None:
    """Two epochs of 400 steps with a new program every 200 steps; torch.compile makes two of one that it cuts."""
    resolved = records[backend].resolved
    assert resolved is not None
    assert (resolved.recompiles_timed, resolved.graph_breaks_timed) == (recompiles, graph_breaks)
    assert {"recompiled", "graph_breaks"} & rules(records[backend]) == {
        "recompiled",
        *["graph_breaks"] * bool(graph_breaks),
    }


def test_thread_that_burns_cpu_in_a_waiting_cell_is_named_on_the_record_it_disturbed(
    records: Mapping[str, Record],
) -> None:
    (entry,) = records["torch"].surroundings.busy_neighbours
    assert entry.partition(" (")[0] == JAX
    assert "busy_neighbour" in rules(records["torch"])


def test_cell_whose_thread_burns_cpu_while_it_waits_is_warned(records: Mapping[str, Record]) -> None:
    shares = {backend: record.surroundings.waiting_cpu_share for backend, record in records.items()}
    assert shares["jax"] is not None
    assert shares["jax"] > 0.03
    assert {backend for backend, record in records.items() if "busy_while_waiting" in rules(record)} == {"jax"}
