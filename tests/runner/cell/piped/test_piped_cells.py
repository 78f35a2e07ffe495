"""Cells that train from a source of batches: real processes, on each backend."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell
from tests.workloads.piped import BATCH, BATCHES, PASSES_NAME

pytestmark = pytest.mark.process
ROOT = str(Path(__file__).parents[4])
STEPS, EPOCHS = 4, 3
MEASURED = EPOCHS - 1
BACKENDS = ("tensorflow", "jax", "torch")
DONE = (Status.OK, Status.UNSTABLE)


class Cells:
    """Runs cells of `tests.workloads.piped`; `folder` is the scratch folder of the last one."""

    def __init__(self, executor: ProcessExecutor, folder: Path) -> None:
        self._executor, self._in = executor, folder
        self.folder = folder

    def __call__(self, workload: str, **changes: Any) -> Record:
        changes = {"batch_size": BATCH, "steps_per_epoch": STEPS, "epochs": EPOCHS} | changes
        settings = make_settings(workload=f"tests.workloads.piped:{workload}", **changes)
        self.folder = self._in / uuid.uuid4().hex
        return real_cell(self._executor, self.folder, settings, changes["steps_per_epoch"])


@pytest.fixture
def cell(executor: ProcessExecutor, tmp_path: Path) -> Cells:
    return Cells(executor, tmp_path)


def rules(record: Record) -> set[str]:
    """Return the rules that fired, less what a busy machine and short epochs set off."""
    return {warning.partition(":")[0] for warning in record.warnings} - {"busy", "steal", "still_warming_up"}


@pytest.mark.nightly(beyond=2)
@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workload", ["plain", "threads", "partial", "grain"])
def test_epochs_train_full_batches_of_a_source_that_is_shorter_than_they_are(
    cell: Cells, workload: str, backend: str
) -> None:
    record = cell(workload, backend=backend)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.resolved is not None
    assert record.work is not None
    assert record.input is not None
    assert (record.resolved.feed, record.resolved.batch_size, rules(record)) == ("pipeline", BATCH, set())
    assert (record.work.samples_per_step, record.work.updates_per_step) == (BATCH, 1)
    assert len(record.times.epoch_times_s) == len(record.input.lead_in_times_s) == MEASURED
    assert (record.input.wait_times_s, record.input.timers_cpu_time_s) == ([], None)
    assert (record.input.cpu_time_s or 0) >= 0
    assert len(record.input.settling_times_s) == MEASURED
    assert min(record.input.settling_times_s) >= 0.2


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_a_py_dataset_are_called_at_the_end_of_each_pass(cell: Cells, backend: str) -> None:
    record = cell("plain", backend=backend)
    assert record.status in DONE, record.reason
    trained = 1 + EPOCHS * (3 + STEPS)
    passes = (cell.folder / PASSES_NAME).read_text().count("pass")
    assert passes >= trained // BATCHES


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_timers_count_the_time_that_training_waits_for_the_source(cell: Cells, backend: str) -> None:
    record = cell("sleeping", params={"sleep_ms": 50}, backend=backend, input_timers=True)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.input is not None
    assert len(record.input.wait_times_s) == MEASURED
    assert min(record.input.wait_times_s) >= STEPS * 0.040
    assert record.input.timers_cpu_time_s is not None


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_queue_of_a_threaded_source_is_read_with_timers(cell: Cells, backend: str) -> None:
    record = cell("threads", backend=backend, input_timers=True)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.input is not None
    assert (len(record.input.queue_sizes), record.input.queue_capacity) == (100, 5)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_timers_fit_has_no_hook_between_two_steps(cell: Cells, backend: str) -> None:
    record = cell("unhooked", backend=backend)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)


@pytest.mark.nightly(beyond=2)
@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("workload", "backend"),
    [("loader", "torch"), ("loader", "jax"), ("loader", "tensorflow"), ("tf_data", "tensorflow"), ("tf_data", "jax")],
)
@pytest.mark.parametrize("input_timers", [False, True])
def test_partial_batch_of_a_library_s_own_source_is_left_out(
    cell: Cells, workload: str, backend: str, input_timers: bool
) -> None:
    record = cell(workload, backend=backend, input_timers=input_timers)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.work is not None
    assert record.input is not None
    assert (record.work.samples_per_step, record.input.batch_size) == (BATCH, BATCH)


@pytest.mark.one_backend
@pytest.mark.parametrize("feed", ["device_resident", "host_fed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_a_source_can_be_held_in_memory(cell: Cells, backend: str, feed: str) -> None:
    record = cell("sleeping", params={"sleep_ms": 1}, backend=backend, feed=feed, set_by_matrix="feed")
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.resolved is not None
    assert record.input is not None
    assert (record.resolved.feed, record.input.batch_size, record.input.lead_in_times_s) == (feed, BATCH, [])


def test_batch_size_of_the_source_is_used_with_a_caveat_if_the_matrix_has_another(cell: Cells) -> None:
    record = cell("plain", backend="jax", batch_size=32)
    assert record.status in DONE, record.reason
    assert [one for one in record.warnings if one.startswith("own_options")] == [
        f"own_options: the workload's source has batches of {BATCH}, which were used, instead of batch_size 32; set "
        f"batch_size: {BATCH} in the matrix"
    ]
    assert record.times.samples_per_s == pytest.approx(BATCH * (record.times.steps_per_s or 0))


def test_files_of_a_cold_cell_are_evicted_before_each_epoch(cell: Cells, tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"0" * 100_000)
    record = cell("with_files", params={"path": str(path)}, backend="jax", page_cache="cold")
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.input is not None
    assert (record.input.cold_files, "posix_fadvise" in (record.input.cold_meaning or "")) == (1, True)


def test_cold_epochs_begin_with_a_pass(cell: Cells, tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"0" * 100_000)
    passes = []
    for page_cache in ("warm", "cold"):
        params = {"path": str(path)}
        record = cell("with_files", params=params, backend="torch", page_cache=page_cache, steps_per_epoch=BATCHES)
        assert record.status in DONE, (record.reason, record.evidence.output_tail)
        passes.append((cell.folder / PASSES_NAME).read_text().count("pass"))
    # Two batches with the first step; per epoch three before its clock and six; of the cold cell 1, 3 and 3 more.
    # The end of a pass is noticed with the next batch.
    assert passes == [(2 + 9 * EPOCHS - 1) // BATCHES, (3 + 9 + 12 * (EPOCHS - 1) - 1) // BATCHES]


@pytest.mark.parametrize(
    ("workload", "changes", "reason"),
    [
        ("plain", {"page_cache": "cold"}, "the files that the source reads are not known"),
        ("plain", {"phase": "predict"}, "only fit reads a pipeline"),
        (
            "plain",
            {"steps_per_execution": 2, "set_by_matrix": "steps_per_execution", "input_timers": True},
            "only between",
        ),
        ("arrays", {"feed": "pipeline"}, "has no input pipeline"),
        ("arrays", {"input_timers": True}, "only feed: pipeline reads files"),
        ("arrays", {"page_cache": "cold"}, "only feed: pipeline reads files"),
    ],
)
def test_settings_that_do_not_apply_are_unsupported(
    cell: Cells, workload: str, changes: dict[str, Any], reason: str
) -> None:
    record = cell(workload, backend="jax", **changes)
    assert (record.status, reason in (record.reason or "")) == (Status.UNSUPPORTED, True), record.reason


def test_several_steps_per_execution_read_from_a_source(cell: Cells) -> None:
    for backend in ("tensorflow", "jax"):
        record = cell("plain", backend=backend, steps_per_execution=2, set_by_matrix="steps_per_execution")
        assert record.status in DONE, (record.reason, record.evidence.output_tail)


def test_generator_is_refused_with_advice(cell: Cells) -> None:
    record = cell("generator", backend="jax")
    assert record.status is Status.ERROR
    assert "a generator can be read only once; return a keras.utils.PyDataset" in (record.reason or "")


def test_replaced_samples_are_named_in_the_record_and_in_a_warning(cell: Cells) -> None:
    record = cell("bad_samples", backend="jax")
    assert record.input is not None
    assert (record.input.bad_samples, record.input.bad_names) == (2, ["a/1.jpg", "b/2.jpg"])
    assert [one for one in record.warnings if one.startswith("bad_samples")] == [
        f"bad_samples: 2 of {BATCHES * BATCH} samples could not be decoded and were replaced by others "
        "(a/1.jpg, b/2.jpg); repair or remove them"
    ]
