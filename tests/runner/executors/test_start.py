"""A forked cell differs from a fresh one only in the time of its start."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import KERAS_HUB, TRAINING_BACKENDS
from keras_matrix.records.host import device_lists
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import CellResult
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.measure.judge import accept
from tests.conftest import make_settings

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("starts")]


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, ProcessExecutor]]:
    """One executor for each way to start."""
    made = {start: ProcessExecutor(start=start, mark=uuid.uuid4().hex) for start in ("fork", "fresh")}
    yield made
    for executor in made.values():
        executor.close()


def result(executor: ProcessExecutor, folder: Path, backend: str, **changes: Any) -> CellResult:
    """Train a small MLP with dropout, whose losses follow from every random number drawn."""
    settings = make_settings(backend=backend, batch_size=8, samples=64, steps_per_epoch=20, **changes)
    job = Job(uuid.uuid4().hex, cell_id(settings), 0, 0, settings, 20, str(folder), [], None, None)
    outcome = executor.start(job, 200).finish()
    assert outcome.exit_code == 0, outcome.output_tail
    return accept(job.result_path.read_bytes(), job)


@pytest.fixture(scope="module", params=TRAINING_BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(
    backend: str, executors: dict[str, ProcessExecutor], tmp_path_factory: pytest.TempPathFactory
) -> tuple[CellResult, CellResult]:
    """The same cell on a backend, forked and fresh."""
    forked, fresh = (result(executors[start], tmp_path_factory.mktemp(start), backend) for start in ("fork", "fresh"))
    return forked, fresh


@pytest.mark.one_backend
def test_forked_cell_has_the_results_of_a_fresh_one(both: tuple[CellResult, CellResult]) -> None:
    forked, fresh = both
    assert forked.learning.loss == pytest.approx(fresh.learning.loss, rel=1e-5)
    assert forked.resolved is not None
    assert fresh.resolved is not None
    assert replace(forked.resolved, start="") == replace(fresh.resolved, start="")
    assert (forked.resolved.start, fresh.resolved.start) == ("fork", "fresh")
    assert (forked.device, forked.versions) == (fresh.device, fresh.versions)
    assert KERAS_HUB not in forked.versions  # installed, but not imported by this workload


@pytest.mark.nightly
@pytest.mark.one_backend("jax")
@pytest.mark.alone  # the memory of malloc depends on the scheduling of threads
def test_memory_of_a_forked_cell_is_reported_like_that_of_a_fresh_one(both: tuple[CellResult, CellResult]) -> None:
    forked, fresh = both
    assert forked.memory.peak_host_memory_bytes == pytest.approx(fresh.memory.peak_host_memory_bytes, rel=0.15)


@pytest.mark.nightly(beyond=1)
@pytest.mark.one_backend("jax", "tensorflow")
@pytest.mark.alone  # bound to one CPU itself, the test could not check the CPUs of its cell
@pytest.mark.parametrize("start", ["fork", "fresh"])
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_pinned_cell_runs_on_its_cpus_with_as_many_threads(
    executors: dict[str, ProcessExecutor], tmp_path: Path, backend: str, start: str
) -> None:
    last = device_lists.cpu_text([max(os.sched_getaffinity(0))])
    listed = result(executors[start], tmp_path, backend, cpus=last)
    assert listed.resolved is not None
    assert (listed.resolved.affinity, listed.resolved.cpus) == (last, 1)
    assert listed.resolved.intra_op_threads in (1, None)


@pytest.mark.alone
@pytest.mark.parametrize("start", ["fork", "fresh"])
def test_every_thread_of_a_pinned_cell_is_bound_to_its_cpus(
    executors: dict[str, ProcessExecutor], tmp_path: Path, start: str
) -> None:
    """Pools that a backend or NumPy makes while it is imported are held too: the server was pinned before."""
    last = max(os.sched_getaffinity(0))
    settings = make_settings(
        workload="tests.workloads.misbehaving:threads_received", cpus=device_lists.cpu_text([last])
    )
    folder = tmp_path / start
    folder.mkdir()
    root = str(Path(__file__).parents[3])
    job = Job(uuid.uuid4().hex, cell_id(settings), 0, 0, settings, 2, str(folder), [root], None, None)
    outcome = executors[start].start(job, 200).finish()
    assert set(re.findall(r"affinity=(\S+)", outcome.output_tail)) == {str(last)}
