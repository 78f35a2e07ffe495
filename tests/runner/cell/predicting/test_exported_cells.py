"""Cells that call an exported file: real exporters and runtimes, on a tiny model.

The runtimes of the extra `serve` are not in `.venv`: without them a test is skipped.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.views.call_ladder import LIMITS
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.settings import LITERT, ONNX, OPENVINO_IR, PREDICT, SAVED_MODEL, TORCH_EXPORT
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("exported_cells")]
STEPS, BATCH = 12, 8
BUILT_IN: dict[str, Any] = {"workload": "mnist_mlp", "params": {"image_size": 6}, "samples": 2 * BATCH}
CellOf = Callable[..., Record]
# What each exporter and its runtime need beside the backend.
NEEDED = {
    ("tensorflow", SAVED_MODEL): (),
    ("torch", TORCH_EXPORT): (),
    ("jax", SAVED_MODEL): ("tensorflow",),
    ("tensorflow", LITERT): ("ai_edge_litert",),
    ("tensorflow", ONNX): ("tf2onnx", "onnxruntime"),
    ("tensorflow", OPENVINO_IR): ("openvino",),
    ("torch", ONNX): ("onnxscript", "onnxruntime"),
    ("torch", OPENVINO_IR): ("openvino",),
}


@pytest.fixture
def cell(executor: ProcessExecutor, tmp_path: Path) -> CellOf:
    def run(backend: str, call: str, **changes: Any) -> Record:
        if absent := [name for name in NEEDED.get((backend, call), ()) if find_spec(name) is None]:
            pytest.skip(f"no {' and no '.join(absent)}: install the extra serve")
        given = {"phase": PREDICT, "batch_size": BATCH, "samples": 16, "steps_per_epoch": STEPS, "epochs": 3}
        settings = make_settings(**given | {"backend": backend, "call": call, "league": "matched"} | changes)
        return real_cell(executor, tmp_path / uuid.uuid4().hex, settings, STEPS)

    return run


def own(name: str) -> dict[str, Any]:
    return {"workload": f"tests.workloads.called:{name}"}


def measured(record: Record) -> Record:
    assert record.status in MEASURED, (record.reason, record.evidence.output_tail)
    return record


@pytest.mark.parametrize(("backend", "call"), NEEDED)
def test_an_exported_file_is_timed_and_answers_as_the_model(cell: CellOf, backend: str, call: str) -> None:
    record = measured(cell(backend, call, **BUILT_IN, threads=1))
    assert record.resolved is not None
    assert record.work is not None
    assert record.artefact is not None
    assert record.resolved.outputs_problem is None
    assert 0 <= (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]
    assert record.work.samples_per_step == BATCH
    assert record.times.call_time_p50_s is not None
    assert record.artefact.size_bytes > 1000
    assert record.artefact.export_time_s > 0
    assert record.artefact.load_time_s > 0
    assert (record.resolved.intra_op_threads, record.artefact.runtime in record.versions) == (1, True)
    assert record.memory.peak_host_memory_bytes is not None


@pytest.mark.parametrize("feed", ["device_resident", "host_fed"])
@pytest.mark.parametrize(("backend", "call"), [("tensorflow", SAVED_MODEL), ("tensorflow", LITERT), ("torch", ONNX)])
def test_inputs_and_outputs_in_dicts_are_called_alike(cell: CellOf, backend: str, call: str, feed: str) -> None:
    """Mutation: inputs go by the order in which a file lists them."""
    record = measured(cell(backend, call, **own("several"), feed=feed))
    assert record.resolved is not None
    assert record.resolved.outputs_problem is None
    assert (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]


@pytest.mark.backends("tensorflow")
def test_outputs_that_are_not_finite_are_measured_and_marked(cell: CellOf) -> None:
    record = measured(cell("tensorflow", SAVED_MODEL, **own("not_finite")))
    assert record.resolved is not None
    assert (record.resolved.outputs_deviation, record.resolved.outputs_problem) == (None, "are not finite")


@pytest.mark.parametrize(("backend", "call"), [("tensorflow", SAVED_MODEL), ("torch", TORCH_EXPORT)])
def test_a_model_that_changes_in_python_answers_otherwise_from_a_file(cell: CellOf, backend: str, call: str) -> None:
    """Mutation: a file whose outputs are not those of `model(x)` is compared."""
    record = measured(cell(backend, call, **own("counting")))
    assert record.resolved is not None
    assert record.resolved.outputs_problem is None
    assert (record.resolved.outputs_deviation or 0.0) > LIMITS["float32"]


@pytest.mark.parametrize(("backend", "call"), [("tensorflow", LITERT), ("torch", TORCH_EXPORT), ("jax", SAVED_MODEL)])
def test_a_model_of_any_length_is_exported_for_the_shapes_of_a_batch(cell: CellOf, backend: str, call: str) -> None:
    record = measured(cell(backend, call, **own("any_length")))
    assert record.resolved is not None
    assert (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]


@pytest.mark.backends("tensorflow")
def test_texts_are_called_in_a_file_that_has_them(cell: CellOf) -> None:
    record = measured(cell("tensorflow", SAVED_MODEL, **own("texts")))
    assert record.resolved is not None
    assert record.resolved.outputs_deviation == pytest.approx(0.0, abs=1e-6)


@pytest.mark.backends("tensorflow")
def test_texts_that_a_runtime_has_not_are_unsupported(cell: CellOf) -> None:
    record = cell("tensorflow", ONNX, **own("texts"))
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith(
        "call: onnx: onnxruntime cannot run the exported model, InvalidGraph: This is"
    )
    assert "LookupTableFind" in (record.reason or "")


@pytest.mark.backends("tensorflow")
def test_a_file_of_a_later_version_is_unsupported_with_the_runtimes_message(cell: CellOf) -> None:
    record = cell("tensorflow", ONNX, **own("of_tomorrow"))
    assert record.status is Status.UNSUPPORTED
    assert "Unsupported model IR version: 99" in (record.reason or "")


@pytest.mark.backends("torch")
def test_a_model_that_cannot_be_exported_is_unsupported_with_the_exporters_message(cell: CellOf) -> None:
    record = cell("torch", TORCH_EXPORT, **own("deciding"))
    assert record.status is Status.UNSUPPORTED
    assert (record.reason or "").startswith("call: torch_export: torch cannot export the model, RuntimeError: Failed")


@pytest.mark.backends("torch")
def test_a_format_that_the_backend_does_not_export_is_found_by_trying(cell: CellOf) -> None:
    record = cell("torch", SAVED_MODEL, **BUILT_IN)
    assert record.status is Status.UNSUPPORTED
    expected = "call: saved_model: torch cannot export the model, ImportError: This requires the torch_xla module; inst"
    assert (record.reason or "").startswith(expected)


@pytest.mark.backends("torch")
def test_an_error_of_the_model_itself_is_not_one_of_the_exporter(cell: CellOf) -> None:
    record = cell("torch", TORCH_EXPORT, **own("failing"))
    assert record.status is Status.ERROR
    assert "this model fails" in (record.reason or "")


@pytest.mark.backends("torch")
def test_an_exporter_that_ends_the_process_ends_its_cell_alone(cell: CellOf) -> None:
    """Mutation: the process does not say what it is doing before it exports."""
    record = cell("torch", TORCH_EXPORT, **own("aborting"))
    assert (record.status, record.reason) == (
        Status.CRASH,
        "ended by signal 6, while it exported the model, call: torch_export",
    )
    assert measured(cell("torch", TORCH_EXPORT, **BUILT_IN)).artefact is not None


IMPORTS = """
import sys
from keras_matrix.runner.cell.artefacts import RUNTIMES
loaded = {"keras", "tensorflow", "jax", "torch", "openvino", "onnxruntime"} & set(sys.modules)
assert not loaded, loaded
__import__(RUNTIMES["torch_export"].module)
loaded = {"keras", "tensorflow", "jax", "openvino", "onnxruntime"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.backends("torch")
def test_the_process_of_a_runtime_imports_neither_keras_nor_another_backend() -> None:
    """TensorFlow by itself imports Keras and JAX. Mutation: a module of the loop imports Keras."""
    ended = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
