"""Keras's OpenVINO backend: what predicts is measured, in an environment of its own; what trains is unsupported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.analysis.views.call_ladder import LIMITS
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.cli.main import main
from tests.backends import APART
from tests.sessions import counted_records

pytestmark = [pytest.mark.process, pytest.mark.backends("openvino")]
HEAD = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 3, samples: 32, batch_size: 4, phase: predict, threads: 1}
backends: [openvino]
cells:
"""
ENVIRONMENT = f"openvino={APART['openvino']}"
# One model that Keras compiles once, and one whose own step calls the model and converts its result.
WORKLOAD = """
import keras
import numpy as np

class Called(keras.Model):
    def predict_step(self, data):
        return keras.ops.convert_to_numpy(self(data[0], training=False))

def build(called: bool = False):
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(3, activation="softmax")(keras.layers.Dense(16, activation="relu")(inputs))
    model = (Called if called else keras.Model)(inputs, outputs)
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model, np.ones((32, 8), "float32"), np.zeros(32, "int32")
"""


def measured(folder: Path, cells: str, head: str = HEAD) -> list[Record]:
    """Measure these cells in the environment, and return their records."""
    (folder / "matrix.yaml").write_text(head + cells)
    (folder / "work.py").write_text(WORKLOAD)
    matrix, results = str(folder / "matrix.yaml"), str(folder / "results")
    assert main(["--matrix", matrix, "--results", results, "--python", ENVIRONMENT]) == 0
    return counted_records(folder)


def test_built_in_and_own_models_predict(tmp_path: Path) -> None:
    records = measured(tmp_path, "  - workload: mnist_mlp\n  - workload: work:build\n")
    assert {record.settings.workload for record in records} == {"mnist_mlp", "work:build"}
    for record in records:
        assert record.status in MEASURED, record.reason
        assert (record.device.platform, record.device.name) == ("cpu", "CPU")
        assert record.times.step_time_s > 0
        assert (record.times.call_time_p50_s, record.times.call_time_p99_s) == (None, None), "of three calls"
        assert record.times.compile_time_s > 0
        assert (record.resolved.intra_op_threads, record.resolved.recompiles_timed) == (1, 0)
        assert record.work.weight_platforms == record.work.output_platforms == ["cpu"]
        assert record.work.samples_per_step == 4
        assert record.versions["openvino"].count(".") == 2


def test_a_call_of_the_model_compiles_its_result_anew_each_time(tmp_path: Path) -> None:
    [record] = measured(tmp_path, "  - {workload: 'work:build', params: {called: true}, feed: host_fed}\n")
    assert record.resolved.recompiles_timed == 3


def test_each_call_answers_as_the_model_and_model_x_compiles_at_each_call(tmp_path: Path) -> None:
    """Mutation: `jit` compiles at each call, or `outputs: device` ends before OpenVINO has computed."""
    cells = "  - {workload: mnist_mlp, call: [predict, predict_on_batch, model, jit]}\n"
    cells += "  - {workload: mnist_mlp, call: [model, jit], outputs: device}\n"
    records = measured(tmp_path, cells)
    assert [record.reason for record in records if record.status not in MEASURED] == []
    found = {(record.settings.call, record.settings.outputs): record for record in records}
    assert len(found) == 6
    for record in records:
        assert (record.resolved.outputs_problem, record.work.samples_per_step) == (None, 4)
        assert 0 <= record.resolved.outputs_deviation <= LIMITS["float32"]
    recompiles = {key: record.resolved.recompiles_timed for key, record in found.items()}
    steps = 3
    assert recompiles == {
        **{(call, "host"): 0 for call in ("predict", "predict_on_batch", "jit")},
        **{("model", outputs): steps for outputs in ("host", "device")},
        ("jit", "device"): 0,
    }


ENVIRONMENTS = [f"--{side}-env={APART['openvino']}" for side in ("base", "new")]


@pytest.mark.parametrize(
    "command",
    [
        ["trace", "openvino:mnist_mlp", "--python", ENVIRONMENT],
        ["explain", "--cell", "openvino:mnist_mlp", *ENVIRONMENTS],
    ],
)
def test_a_cell_without_a_profiler_is_refused_before_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "matrix.yaml").write_text(f"{HEAD}  - workload: mnist_mlp\n")
    places = ["--matrix", str(tmp_path / "matrix.yaml"), "--results", str(tmp_path / "results")]
    assert main([*command, *places]) == 2
    assert "only backends that train have a profiler (tensorflow, jax, torch), got openvino" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("phase: fit", "phase: must be predict on openvino: Keras does not train on it, got fit"),
        ("precision: float64", "precision: must be float32 on openvino"),
        ("eager: true", "eager: must be false on openvino"),
    ],
)
def test_what_it_cannot_do_is_unsupported(tmp_path: Path, cell: str, reason: str) -> None:
    [record] = measured(tmp_path, f"  - {{workload: mnist_mlp, {cell}}}\n")
    assert record.status == "unsupported"
    assert record.reason.startswith(reason)


def test_matched_cells_have_all_threads_and_compute_in_float32(tmp_path: Path) -> None:
    head = HEAD.replace("threads: 1", "league: matched")
    [record] = measured(tmp_path, "  - workload: mnist_mlp\n", head)
    assert record.status in MEASURED
    assert record.resolved.intra_op_threads == record.resolved.cpus
    assert not [caveat for caveat in record.warnings if caveat.startswith("computed_in")]


@pytest.mark.backends("torch")
def test_its_outputs_are_those_of_a_backend_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pair = ["--backend", "torch", "--backend", "openvino"]
    code = main(["parity", "cifar10_cnn", *pair, "--python", ENVIRONMENT, "--steps", "2", "--json"])
    [compared] = json.loads(capsys.readouterr().out)["workloads"]
    assert (code, compared["failures"]) == (0, {})
    [found] = compared["pairs"]
    assert found["backends"] == ["torch", "openvino"]
    assert 0 <= found["deviations"]["float32"]["outputs"] < 1e-6
    assert list(compared["unsupported"]) == ["openvino float64, predict"]
