"""Calls of a model on a GPU, which computes while Python goes on: each ends when it has computed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.settings import (
    CALLS,
    DEVICE_CALLS,
    EXPORTED,
    NATIVE,
    ON_DEVICE,
    ON_GPU,
    ON_HOST,
    ONNX,
    PREDICT,
    TENSORRT,
)
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = pytest.mark.gpu
LARGE = 8192  # rows of a product of 1.1 TFLOP
FASTEST_FLOP_PER_S = 5e15  # above any GPU in float32 and TF32, so that no call of the model can take less
OF_ANY_MODEL = [call for call in CALLS if call != NATIVE]  # of which no twin exists
ENDS = [(call, ON_HOST) for call in OF_ANY_MODEL if call not in EXPORTED or call in ON_GPU]
ENDS += [(call, ON_DEVICE) for call in DEVICE_CALLS if call in OF_ANY_MODEL]


# Of ONNX Runtime, for files that a GPU can run.
PROVIDERS_OF = {ONNX: "CUDAExecutionProvider", TENSORRT: "TensorrtExecutionProvider"}


def providers() -> list[str]:
    """Return the providers of the ONNX Runtime that is installed here."""
    if find_spec("onnxruntime") is None:
        return []
    return list(__import__("onnxruntime").get_available_providers())


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("there is no NVIDIA GPU here")
    made = ProcessExecutor()
    yield made
    made.close()


@pytest.mark.parametrize(("call", "outputs"), ENDS)
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_no_call_is_faster_than_the_gpu_can_compute(
    executor: ProcessExecutor, tmp_path: Path, backend: str, call: str, outputs: str
) -> None:
    """Mutation: a call with outputs on the device ends as soon as it is dispatched."""
    if why := executor.missing(backend, "gpu"):
        pytest.skip(why)
    if call in ON_GPU and PROVIDERS_OF[call] not in providers():
        pytest.skip(f"no onnxruntime with its {PROVIDERS_OF[call]}")
    changes = {"backend": backend, "call": call, "outputs": outputs, "device": "gpu", "phase": PREDICT, "epochs": 3}
    settings = make_settings(
        workload="tests.workloads.called:product",
        params={"size": LARGE},
        batch_size=LARGE,
        samples=LARGE,
        steps_per_epoch=8,
        **changes,
    )
    record = real_cell(executor, tmp_path / "cell", settings, 8)
    assert record.status in MEASURED, record.reason
    assert record.device is not None
    assert record.device.platform == "gpu"
    assert record.times.step_time_s is not None
    assert record.times.step_time_s > 2 * LARGE**3 / FASTEST_FLOP_PER_S
