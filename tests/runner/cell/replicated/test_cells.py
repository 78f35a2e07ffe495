"""Cells on two devices: real processes, on each backend."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import CPUS, make_settings
from tests.real_cells import real_cell
from tests.workloads.devices import ROWS

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("replicas")]
ROOT = str(Path(__file__).parents[4])
STEPS, EPOCHS = 40, 3  # more steps than XLA's collectives on a CPU may be ahead
DONE = (Status.OK, Status.UNSTABLE)
BACKENDS = ("tensorflow", "jax", "torch")


@pytest.fixture(scope="module", autouse=True)
def all_cpus() -> Iterator[None]:
    """Let the cells use every CPU: each of two devices needs one."""
    if len(CPUS) < 2:
        pytest.skip("two devices need two CPUs")
    held_to = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CPUS)
    yield
    os.sched_setaffinity(0, held_to)


@pytest.fixture(scope="module")
def executor(all_cpus: None) -> Iterator[ProcessExecutor]:
    """Its servers, whose CPUs the cells have, are started with all of them."""
    with contextlib.closing(ProcessExecutor(start="fork", mark=uuid.uuid4().hex)) as made:
        yield made


class Cells:
    """Runs cells of `tests.workloads.devices`."""

    def __init__(self, executor: ProcessExecutor, folder: Path) -> None:
        self._executor, self._in = executor, folder

    def __call__(self, workload: str, **changes: Any) -> Record:
        changes = {
            "batch_size": ROWS,
            "samples": 64,
            "steps_per_epoch": STEPS,
            "epochs": EPOCHS,
            "devices": 2,
        } | changes
        name = workload if workload == "fc" else f"tests.workloads.devices:{workload}"
        settings = make_settings(workload=name, **{"set_by_matrix": "feed,samples"} | changes)
        return real_cell(self._executor, self._in / uuid.uuid4().hex, settings, STEPS)


@pytest.fixture
def cell(executor: ProcessExecutor, tmp_path: Path) -> Cells:
    return Cells(executor, tmp_path)


NAME = "keras_matrix.runner.cell.replicated.torch.ReplicaFailed"
METHODS = {
    "tensorflow": ("tf.distribute.MirroredStrategy", True),
    "jax": ("keras.distribution.DataParallel", True),
    "torch": ("torch.nn.parallel.DistributedDataParallel", False),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("feed", ["device_resident", "host_fed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_devices_divide_the_rows_and_train_as_one_device(cell: Cells, backend: str, feed: str) -> None:
    one = cell("dense", backend=backend, feed=feed, devices=1)
    two = cell("dense", backend=backend, feed=feed)
    assert (two.status in DONE, one.replicas) == (True, None), (two.reason, two.evidence.output_tail)
    assert two.learning.loss == pytest.approx(one.learning.loss, rel=1e-5)
    found = two.replicas
    assert found is not None
    assert (found.method, found.is_fit) == METHODS[backend]
    # The first step, then three epochs, and those of the shorter length.
    assert [(replica.rows, replica.samples) for replica in found.replicas] == [(ROWS // 2, ROWS // 2 * STEPS)] * 2
    assert len({replica.updates for replica in found.replicas}) == 1
    assert (found.divided_weights, found.gradient_bytes, found.semantics) == (0, (8 * 8 + 8 + 8 + 1) * 4, [])
    assert two.work is not None
    assert (two.work.samples_per_step, two.work.updates_per_step) == (ROWS, 1)
    # TensorFlow's profiler does not always record the sums of so small a model.
    assert found.communication is not None or backend == "tensorflow"
    assert found.communication is None or 0 <= found.communication.share < 1


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_that_are_sums_are_those_of_the_global_batch(cell: Cells, backend: str) -> None:
    one, two = (cell("summed", backend=backend, devices=devices) for devices in (1, 2))
    assert two.status in DONE, (two.reason, two.evidence.output_tail)
    assert two.learning.loss == pytest.approx(one.learning.loss, rel=1e-4)


def test_model_parallelism_divides_the_weights_on_jax(cell: Cells) -> None:
    one = cell("dense", backend="jax", devices=1)
    two = cell("dense", backend="jax", distribution="model")
    assert two.status in DONE, (two.reason, two.evidence.output_tail)
    assert two.learning.loss == pytest.approx(one.learning.loss, rel=1e-5)
    assert two.replicas is not None
    # The kernel and the bias of eight units; the last layer has one column, which two devices cannot divide.
    assert (two.replicas.method, two.replicas.divided_weights) == ("keras.distribution.ModelParallel", 2)
    assert [replica.rows for replica in two.replicas.replicas] == [ROWS, ROWS]


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_with_another_meaning_on_several_devices_are_stated(cell: Cells, backend: str) -> None:
    record = cell("normalised", backend=backend)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.replicas is not None
    found = record.replicas.semantics
    if backend == "jax":
        assert found == ["batch normalisation uses the statistics of the global batch, as on one device"]
    else:
        assert ["each replica's rows" in line for line in found] == [True, True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step_of_the_workload_is_divided_only_where_the_program_is(cell: Cells, backend: str) -> None:
    record = cell("own_step", backend=backend)
    if backend == "jax":
        assert record.status in DONE, record.reason
        return
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith(f"devices: the workload overrides train_step, whose computation {backend}")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_updates_are_counted_with_accumulated_gradients(cell: Cells, backend: str) -> None:
    record = cell("accumulated", backend=backend)
    if backend == "tensorflow":
        assert record.status is Status.UNSUPPORTED
        assert (record.reason or "").startswith("devices: Keras's optimizer cannot accumulate gradients under Mirrored")
        return
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.replicas is not None
    assert all(replica.updates for replica in record.replicas.replicas)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_the_workload_runs_eagerly_is_not_divided(cell: Cells, backend: str) -> None:
    record = cell("own_eager", backend=backend)
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith("devices: must be 1 with eager: true, got 2: ")


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_step_that_the_workload_compiles_is_not_divided_where_it_would_not_be_compiled(
    cell: Cells, backend: str
) -> None:
    record = cell("own_jit", backend=backend)
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith("devices: the workload compiles its model with jit_compile=True, but ")


def test_a_weight_without_a_gradient_is_named_on_torch(cell: Cells) -> None:
    record = cell("unused_weight", backend="torch")
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith(
        "devices: unused/kernel gets no gradient, which DistributedDataParallel wai"
    )


def test_metrics_that_are_no_means_are_left_out_on_torch(cell: Cells) -> None:
    one, two = (cell("with_other_metrics", backend="torch", devices=devices) for devices in (1, 2))
    assert two.status in DONE, (two.reason, two.evidence.output_tail)
    assert two.learning.metrics["mae"] == pytest.approx(one.learning.metrics["mae"], rel=1e-5)
    assert [*one.learning.metrics, *two.learning.metrics] == ["mae", "rmse", "mae"]


def test_model_parallelism_without_a_weight_to_divide_is_unsupported(cell: Cells) -> None:
    record = cell("odd", backend="jax", distribution="model")
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith("distribution: no weight of the workload has a last axis that 2 devices di")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_source_of_batches_of_the_workload_is_not_divided(cell: Cells, backend: str) -> None:
    record = cell("own_source", backend=backend, set_by_matrix="")
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith("devices: the workload returns its own source of batches, which is not div")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_devices_than_cpus_are_unsupported_with_their_number(cell: Cells, backend: str) -> None:
    cpus = len(os.sched_getaffinity(0))
    record = cell("dense", backend=backend, devices=cpus + 1, batch_size=cpus + 1)
    assert record.status is Status.UNSUPPORTED
    expected = f"devices: must be at most the number of CPUs that the cell may use ({cpus}), got {cpus + 1}: "
    assert (record.reason or "").startswith(expected)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("fails_while_built", "replica 1 of 2: RuntimeError: not on this replica; the other replicas were ended"),
        ("killed_while_built", "replica 1 of 2: its process was ended by signal 9 (SIGKILL); the other replicas were"),
        ("fails_in_a_step", "replica 1 of 2: RuntimeError: "),
        ("killed_in_a_step", "replica 1 of 2: its process was ended by signal 9 (SIGKILL); the other replicas were"),
    ],
)
def test_a_replica_that_ends_is_named(cell: Cells, workload: str, reason: str) -> None:
    record = cell(workload, backend="torch")
    assert (record.status, record.evidence.exception) == (Status.ERROR, NAME), record.evidence.output_tail
    assert reason in (record.reason or "")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_fc_stack_of_keras_is_divided(cell: Cells, backend: str) -> None:
    record = cell("fc", backend=backend, params={"mode": "fc_keras", "weight_size": 16, "level": 2})
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.replicas is not None
    assert [replica.rows for replica in record.replicas.replicas] == [ROWS // 2] * 2
