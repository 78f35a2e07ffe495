"""Exported models in their runtimes: with a fake runtime here, in cells of real ones in `test_exported_cells.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.records import files
from keras_matrix.records.codec import decode, dumps, loads
from keras_matrix.records.instruments.work_done import WorkDone
from keras_matrix.records.schema import CellResult, Resolved, Times
from keras_matrix.runner.cell import artefacts
from keras_matrix.runner.cell.artefacts import (
    RUNTIMES,
    Exported,
    Loaded,
    Options,
    Runtime,
    input_order,
    leaves,
    measure_exported,
    nearest,
    reordered,
    returned,
    structured,
)
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.job import Job, reason_line, result_of
from tests.conftest import make_settings

BATCHES, BATCH, STEPS = 3, 4, 25
INPUTS = np.arange(BATCHES * BATCH * 2, dtype="float32").reshape(BATCHES, BATCH, 2)


class NoTurns:
    """The turns of a process that is measured alone."""

    def __init__(self, job: Job) -> None:
        pass

    def first_step_ended(self) -> None:
        pass

    def rest(self) -> None:
        pass


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose model, which doubles its inputs, has been exported."""
    monkeypatch.setattr(artefacts, "Turns", NoTurns)
    settings = make_settings(
        phase="predict", call="litert", league="matched", threads=3, batch_size=BATCH, epochs=3, steps_per_epoch=STEPS
    )
    found = Job("nonce", "0" * 16, 0, 0, settings, STEPS, str(tmp_path), [], None, None)
    begun = replace(
        result_of(found),
        resolved=Resolved(1, 8, "fork", "float32"),
        times=Times(build_time_s=0.5),
        versions={"keras": "3.15.1"},
        work=WorkDone([], trainable_variables=2),
    )
    np.save(artefacts.arrays_path(found, "inputs", 0), INPUTS)
    np.save(artefacts.arrays_path(found, "outputs", 0), INPUTS[0] * 2)
    files.replace(found.exported_path, dumps(Exported(found, begun, "model.tflite", "0", 1, 1, 512, 4.5)))
    return found


def use(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Any], Any], load: Any = None) -> list[Options]:
    """Let a fake runtime call a function for each batch; return the options that it is loaded with."""
    wanted: list[Options] = []

    def loading(file: Path, options: Options) -> Loaded:
        wanted.append(options)
        return Loaded(lambda arrays: arrays, lambda arrays: answer(*arrays), {"num_threads": options.threads}, 3)

    monkeypatch.setitem(RUNTIMES, "litert", Runtime("numpy", "numpy", load or loading))  # type: ignore[index]
    return wanted


def published(job: Job) -> CellResult:
    return decode(CellResult, loads(job.result_path.read_bytes()), "result")


def test_the_loop_of_calls_runs_in_the_runtime_and_completes_the_result(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: the batches are one and the same, or the first call is not counted."""
    seen: list[float] = []
    [wanted] = [use(monkeypatch, lambda batch: [seen.append(float(batch[0, 0])) or batch * 2])]
    result = measure_exported(job)
    assert (wanted[0].threads, wanted[0].is_matched, wanted[0].is_resident) == (3, True, True)
    assert seen[: 1 + BATCHES] == [0.0, 0.0, 8.0, 16.0]
    assert len(seen) == 1 + 3 * STEPS + 1
    assert result.artefact is not None
    assert (result.artefact.export_time_s, result.artefact.size_bytes) == (4.5, 512)
    assert (result.artefact.runtime, result.artefact.options) == ("numpy", ["num_threads=3"])
    assert (result.versions["numpy"], result.versions["keras"]) == (np.__version__, "3.15.1")
    assert result.resolved is not None
    assert (result.resolved.steps_per_epoch, result.resolved.intra_op_threads) == (STEPS, 3)
    assert (result.resolved.outputs_deviation, result.resolved.outputs_problem) == (0.0, None)
    assert len(result.times.epoch_times_s) + len(result.times.discarded_epoch_times_s) == 3
    assert (result.times.build_time_s, result.times.call_time_p50_s is not None) == (0.5, True)
    assert result.work is not None
    assert (result.work.samples_per_step, result.work.trainable_variables) == (BATCH, 2)
    assert [stretch.name for stretch in result.work.stretches] == ["first_step", "epochs"]
    assert result.device is not None
    assert result.device.platform == "cpu"


@pytest.mark.parametrize(
    ("answer", "deviation", "problem"),
    [
        (lambda batch: [batch * 3], 0.5, None),
        (lambda batch: [batch * float("nan")], None, "are not finite"),
        (lambda batch: [batch * 2, batch], None, "are 2, and 1 of model(x)"),
    ],
)
def test_other_outputs_are_measured_and_marked(
    job: Job, monkeypatch: pytest.MonkeyPatch, answer: Any, deviation: float | None, problem: str | None
) -> None:
    use(monkeypatch, answer)
    resolved = measure_exported(job).resolved
    assert resolved is not None
    assert (resolved.outputs_deviation, resolved.outputs_problem) == (
        deviation if deviation is None else pytest.approx(deviation),
        problem,
    )


def test_the_figures_are_published_before_outputs_are_compared(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def answer(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 2 + 3 * STEPS:
            assert published(job).outputs_unseen == artefacts.COMPARING
            raise ValueError("no more calls")
        return [batch * 2]

    use(monkeypatch, answer)
    resolved = measure_exported(job).resolved
    assert resolved is not None
    assert resolved.outputs_problem == "were not compared: ValueError: no more calls"


def raising(error: Exception) -> Callable[..., Any]:
    def raise_it(*arguments: Any) -> Any:
        raise error

    return raise_it


def test_a_runtime_that_cannot_load_or_call_the_file_is_unsupported(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: an error in memory is one of the file, too."""
    expected = r"call: litert: numpy cannot run the exported model, RuntimeError: no such operation; set another call"
    use(monkeypatch, lambda batch: [batch], raising(RuntimeError("no such operation\nmore")))
    with pytest.raises(Unsupported, match=expected):
        measure_exported(job)
    assert published(job).unfinished == "numpy ran the exported model"
    use(monkeypatch, raising(RuntimeError("no such operation")))
    with pytest.raises(Unsupported, match=expected):
        measure_exported(job)
    for error in (MemoryError("no room"), RuntimeError("RESOURCE_EXHAUSTED: 12 GiB")):
        use(monkeypatch, raising(error))
        with pytest.raises(type(error), match=str(error)):
            measure_exported(job)


def test_a_missing_runtime_is_unsupported_with_what_to_install(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNTIMES, "litert", Runtime("ai-edge-litert", "not_installed_here", raising(KeyError())))  # type: ignore[index]
    with pytest.raises(
        Unsupported, match=r"ai-edge-litert is not installed .*; install it, or .* keras-matrix\[serve\]"
    ):
        measure_exported(job)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["x0"], [0]),
        (["serving_default_x1:0", "serving_default_x0:0"], [1, 0]),
        (["b", "a"], [0, 1]),
        (["x0", "x0_1"], [0, 1]),
        (["max0", "x1"], [0, 1]),
        ([f"x{number}" for number in range(11)], list(range(11))),
    ],
)
def test_inputs_go_by_the_names_of_the_export_otherwise_by_their_places(names: list[str], order: list[int]) -> None:
    assert input_order(names) == order


def test_a_file_with_fewer_inputs_than_the_model_is_refused() -> None:
    assert reordered([INPUTS, INPUTS * 2], [1, 0])[1] is INPUTS
    with pytest.raises(ValueError, match="the file has 1 inputs, and the model 2"):
        reordered([INPUTS, INPUTS], [0])


def test_structures_have_their_arrays_in_the_order_that_keras_has() -> None:
    assert structured({"b": [0, 2], "a": 1}, "xyz") == {"b": ["x", "z"], "a": "y"}
    assert leaves({"b": (1, [2]), "a": 3}, lambda part: part) == [3, 1, 2]


def test_outputs_are_compared_in_the_nearest_order() -> None:
    """Mutation: outputs are compared in the order of the file alone."""
    first, second = np.array([1.0, 2.0]), np.array([[3.0]])
    assert nearest([second, first], [first, second]) == (0.0, None)
    assert nearest([first, first + 1], [first, first + 0.9])[0] == pytest.approx(0.1 / 2.9)
    assert nearest([first], [first, second]) == (None, "are 1, and 2 of model(x)")
    many: Sequence[Any] = [np.array([float(number)]) for number in range(7)]
    assert nearest(many[::-1], many)[0] != 0.0, "of many outputs not every order is tried"


@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({"league": "as_shipped", "threads": "all"}, None),
        ({"league": "as_shipped", "threads": 2}, 2),
        ({"league": "matched", "threads": 2}, 2),
        ({"league": "matched", "threads": "all"}, 5),
    ],
)
def test_threads_are_the_runtimes_own_choice_only_as_shipped(
    changes: dict[str, Any], threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(artefacts.PLATFORM), "usable_cpus", lambda self: set(range(5)))
    assert Options.of(make_settings(**changes), 0).threads == threads


class FakeSessionOptions:
    """Keeps what is set."""

    intra_op_num_threads = inter_op_num_threads = 0

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, name: str, value: str) -> None:
        self.entries[name] = value


class FakeBinding:
    """A binding of a device that computes only when it is waited for."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, str] = {}
        self.is_computed = False

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.inputs[name] = value

    def bind_output(self, name: str, device: str) -> None:
        self.outputs[name] = device

    def synchronize_outputs(self) -> None:
        self.is_computed = True

    def copy_outputs_to_cpu(self) -> list[Any]:
        assert self.is_computed, "the outputs are copied before they are computed"
        assert self.outputs == {"difference": "cuda"}
        return [self.inputs["x0"][0] - self.inputs["x1"][0]]


class FakeOnnxRuntime:
    """ONNX Runtime with some providers, of which those in `failing` cannot be loaded; keeps how it was called."""

    def __init__(self, providers: Sequence[str], failing: Sequence[str] = ()) -> None:
        self.sessions: list[tuple[FakeSessionOptions, list[Any]]] = []
        self.copies: list[tuple[str, int]] = []
        module, fake = type(sys)("onnxruntime"), self

        class Session:
            def __init__(self, file: str, options: FakeSessionOptions, providers: list[Any]) -> None:
                names = [name if isinstance(name, str) else name[0] for name in providers]
                self.used = [name for name in names if name not in failing]
                fake.sessions.append((options, providers))

            def get_inputs(self) -> list[Any]:
                return [type("Input", (), {"name": name}) for name in ("x1", "x0")]

            def get_outputs(self) -> list[Any]:
                return [type("Output", (), {"name": "difference"})]

            def get_providers(self) -> list[str]:
                return self.used

            def io_binding(self) -> FakeBinding:
                return FakeBinding()

            def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]:
                return [inputs["x0"] - inputs["x1"]]

            def run_with_iobinding(self, binding: FakeBinding) -> None:
                binding.is_computed = False

        class OrtValue:
            @staticmethod
            def ortvalue_from_numpy(array: Any, device: str, number: int) -> Any:
                fake.copies.append((device, number))
                return array, device

        vars(module).update(
            SessionOptions=FakeSessionOptions,
            InferenceSession=Session,
            OrtValue=OrtValue,
            get_available_providers=lambda: list(providers),
        )
        self.module = module


CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


@pytest.fixture
def onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeOnnxRuntime]:
    def make(*providers: str, failing: Sequence[str] = ()) -> FakeOnnxRuntime:
        fake = FakeOnnxRuntime(providers, failing)
        monkeypatch.setitem(sys.modules, "onnxruntime", fake.module)
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
        return fake

    return make


def test_onnx_runtime_gets_the_cells_threads_and_does_not_spin(onnx_runtime: Callable[..., FakeOnnxRuntime]) -> None:
    """Mutation: spinning is left on, or two operations run at a time."""
    fake = onnx_runtime(CPU)
    matched = RUNTIMES["onnx"].load(Path("model.onnx"), Options(3, True, True, [0, 1]))
    made, _ = fake.sessions[0]
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (3, 1)
    assert set(made.entries.items()) == {
        ("session.intra_op.allow_spinning", "0"),
        ("session.inter_op.allow_spinning", "0"),
    }
    assert (matched.options["intra_op_num_threads"], matched.tf32, matched.platform) == (3, None, "cpu")
    assert matched.call(matched.place([np.array(5), np.array(3)])) == [2]
    shipped = RUNTIMES["onnx"].load(Path("model.onnx"), Options(None, False, True, [0, 1]))
    assert vars(fake.sessions[1][0]) == {"entries": {}}
    assert shipped.options == {"intra_op_num_threads": 0, "inter_op_num_threads": 0, "providers": CPU}


@pytest.mark.parametrize("is_resident", [True, False])
@pytest.mark.parametrize(
    ("call", "is_matched", "asked"),
    [
        ("onnx", True, [(CUDA, {"use_tf32": 0}), CPU]),
        ("onnx", False, [(CUDA, {"use_tf32": 1}), CPU]),
        ("tensorrt", True, [TENSORRT, (CUDA, {"use_tf32": 0}), CPU]),
        ("tensorrt", False, [TENSORRT, (CUDA, {"use_tf32": 1}), CPU]),
    ],
)
def test_a_call_on_a_gpu_ends_when_it_has_computed_and_its_outputs_are_copied(
    onnx_runtime: Callable[..., FakeOnnxRuntime], call: str, is_matched: bool, asked: list[Any], is_resident: bool
) -> None:
    """Mutation: the outputs are not waited for, or a resident batch is copied at each call."""
    fake = onnx_runtime(TENSORRT, CUDA, CPU)
    loaded = RUNTIMES[call].load(Path("model.onnx"), Options(2, is_matched, is_resident, [0, 1], "gpu"))
    assert fake.sessions[0][1] == asked
    placed = loaded.place([np.array(5), np.array(3)])
    assert [loaded.call(placed) for _ in range(3)] == [[2], [2], [2]]
    assert fake.copies == [("cuda", 0)] * 2 * is_resident
    assert (loaded.platform, loaded.tf32, loaded.options["use_tf32"]) == ("gpu", not is_matched, int(not is_matched))
    assert os.environ.get("NVIDIA_TF32_OVERRIDE") == ("0" if call == "tensorrt" and is_matched else None)


@pytest.mark.parametrize(
    ("call", "providers", "failing", "used"),
    [
        ("onnx", [CPU], [], CPU),
        ("onnx", [CUDA, CPU], [CUDA], CPU),
        ("tensorrt", [CUDA, CPU], [], f"{CUDA} and {CPU}"),
        ("tensorrt", [TENSORRT, CUDA, CPU], [TENSORRT], f"{CUDA} and {CPU}"),
    ],
)
def test_a_provider_that_is_missing_or_falls_back_is_unsupported(
    onnx_runtime: Callable[..., FakeOnnxRuntime], call: str, providers: list[str], failing: list[str], used: str
) -> None:
    """Mutation: a session that ONNX Runtime made with its other providers is measured."""
    onnx_runtime(*providers, failing=failing)
    missing = CUDA if call == "onnx" else TENSORRT
    with pytest.raises(Unsupported, match=f"call: {call}: onnxruntime uses {used} here, not {missing}; install onnx"):
        RUNTIMES[call].load(Path("model.onnx"), Options(2, True, True, [0, 1], "gpu"))


@pytest.mark.parametrize("has_tf32", [True, False])
def test_whether_products_lose_bits_is_that_of_the_runtime_on_a_gpu(
    job: Job, monkeypatch: pytest.MonkeyPatch, has_tf32: bool
) -> None:
    """Mutations: the answer of the process that exported the model stays; a GPU that has no TF32 uses it."""
    exported = decode(Exported, loads(job.exported_path.read_bytes()), "exported")
    files.replace(job.exported_path, dumps(replace(exported, has_tf32=has_tf32)))
    loaded = Loaded(lambda arrays: arrays, lambda arrays: [arrays[0] * 2], {}, 3, "gpu", tf32=True)
    use(monkeypatch, lambda batch: [batch], lambda file, options: loaded)
    result = measure_exported(job)
    assert result.device is not None
    assert result.resolved is not None
    assert (result.device.platform, result.device.name) == ("gpu", "GPU of numpy")
    assert {getattr(result.resolved, name) for name in artefacts.TF32_FIELDS} == {has_tf32}


def test_outputs_that_openvino_adds_are_not_the_models() -> None:
    """OpenVINO makes an output of each operation of TensorFlow that nothing uses."""
    assert returned([{"a/strided_slice:0"}, {"Identity:0", "a/MatMul:0"}, {"Identity_1:0"}]) == [1, 2]
    assert returned([{"score"}, {"kind", "a/Identity:0"}]) == [0, 1]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("no such operation.\nmore", "no such operation"),
        (
            "Check 'false' failed at src/report.cpp:151:\nFrontEnd API failed with OpConversionFailure:\n"
            "Model wasn't fully converted.\nSummary:\n-- No conversion rule found for operations: TensorList\nSee",
            "No conversion rule found for operations: TensorList",
        ),
        (
            "[ONNXRuntimeError] : 10 : INVALID_GRAPH : Load model from /c/m.onnx failed:This is an invalid model."
            " Error No Op registered for Erfc",
            "This is an invalid model. Error No Op registered for Erfc",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /c/m.onnx failed:/src/core/graph/model.cc:256 "
            "onnxruntime::Model::Model(onnx::ModelProto&&, const Options&) Unsupported model IR version: 99, max 14",
            "Unsupported model IR version: 99, max 14",
        ),
        ("Exception from src/core.cpp:84:\nException from src/plugin.cpp:54:\nNo such device", "No such device"),
        ("Exception from src/core.cpp:84:", "Exception from src/core.cpp:84:"),
        ("Traceback ...\n\x1b[1mthe model decides in Python\x1b[0m\nmore", "the model decides in Python"),
        ("", ""),
        ("x" * 1000, "x" * (300 - len("RuntimeError: "))),
    ],
)
def test_the_reason_of_an_exporter_is_the_line_that_says_something_of_the_model(message: str, line: str) -> None:
    assert reason_line(RuntimeError(message)) == f"RuntimeError: {line}"
