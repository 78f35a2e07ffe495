"""Measures an exported model, in a process that imports the runtime of its file and neither Keras nor another backend.

The process that exported the model (`runner.cell.exporting`) replaces itself by this one, which keeps its id: the same
supervision, limits and pipes. It reads the batches and the outputs of `model(x)`, loads the file, and times the same
loop of calls as for any other `call`. A call begins with the same batch and ends with its outputs in NumPy arrays.

Guarantee: in `league: matched` the runtime computes in float32 with the cell's threads, one operation at a time, and
its threads do not spin, where it has such options; what was set is in the record. Limit: TensorFlow and LiteRT have
none for spinning, and TensorFlow by itself imports Keras and JAX where they are installed. Files have no order of
inputs or outputs that holds for every exporter: inputs go by the names that the export gave them, otherwise by their
order; outputs are compared in the order that is nearest to `model(x)`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records import files
from keras_matrix.records.codec import decode, loads
from keras_matrix.records.epoch_figures import with_percentiles
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.schema import Artefact, CellResult, DeviceProof, Resolved, Times
from keras_matrix.records.settings import (
    LITERT,
    ONNX,
    OPENVINO_IR,
    RESIDENT,
    SAVED_MODEL,
    TENSORRT,
    TORCH_EXPORT,
    Settings,
)
from keras_matrix.runner.cell.backends import CompileEvents, Unsupported
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, in_a_line, publish_figures, reason_line, result_of, write_result
from keras_matrix.runner.cell.loop import CallLog, EpochLog, Stretch, call_epochs, deviation_of_arrays, predicted
from keras_matrix.runner.cell.measured_epochs import (
    Allocated,
    Compiling,
    MeasuredEpochs,
    Timeline,
    Turns,
    agreed,
    used_memory,
    with_start,
)

Array = NDArray[Any]
INSTALL = "install it, or all runtimes by keras-matrix[serve]"
MOST_ORDERED = 5  # outputs, of which every order is compared
COMPARING = "the process ended while it compared its outputs with those of model(x)"
_READ_OF_BACKEND = ("compilations", "graph_breaks", "device_memory_bytes", "peak_device_memory_bytes")
_CUDA, _TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
PROVIDERS = (_TENSORRT, _CUDA, "CPUExecutionProvider")
"""The providers of ONNX Runtime; each computes what those before it cannot."""
TF32_FIELDS = ("tf32", "tf32_matmul", "tf32_convolution", "tf32_rnn")  # of `Resolved`: a runtime has one option for all
_NO_BACKEND: Any = SimpleNamespace(
    **dict.fromkeys((*_READ_OF_BACKEND, "reset_peak_device_memory"), lambda: None)
)  # nothing is compiled, and no allocator is read
INPUT_NAME = "x{}"
"""The name of an input in an exported file, by its number."""
_INPUT_NAME = re.compile(r"(?<![a-zA-Z0-9])x(\d+)(?![a-zA-Z0-9])")
_TENSORFLOW_OUTPUT = re.compile(r"Identity(_\d+)?(:0)?")  # the name of an output of a function of TensorFlow


@dataclass(frozen=True, slots=True)
class Exported:
    """What an exported model's process leaves to that of its runtime: its job, a result without figures, and its files.

    `file` is the path of the model, `structure` that of a call's inputs, as JSON with the number of an array for each.
    `has_tf32` is whether the GPU has TF32 at all.
    """

    job: Job
    result: CellResult
    file: str
    structure: str
    input_count: int
    output_count: int
    size_bytes: int
    export_time_s: float
    has_tf32: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """How a runtime is to run: the threads of an operation, None for its own choice, and with what kind of batches."""

    threads: int | None
    is_matched: bool
    is_resident: bool
    structure: Any
    device: str = "cpu"

    @staticmethod
    def of(settings: Settings, structure: Any) -> Options:
        """Return the options of a cell."""
        is_matched = settings.league == "matched"
        threads = None if settings.threads == "all" else int(settings.threads)
        if is_matched and threads is None:
            threads = len(PLATFORM.usable_cpus())
        return Options(threads, is_matched, settings.feed == RESIDENT, structure, settings.device)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in its runtime: how a batch's arrays become the inputs of a call, and the call, which returns arrays.

    `options` are those set and chosen, as NAME=VALUE, where 0 threads are the runtime's choice; `threads` those of an
    operation, None if not reported. `owner` is what must not be deleted before the last call. `tf32` is whether
    products of float32 may lose bits, None on a CPU.
    """

    place: Callable[[Sequence[Array]], Any]
    call: Callable[[Any], Sequence[Array]]
    options: Mapping[str, object]
    threads: int | None = None
    platform: str = "cpu"
    owner: object = None
    tf32: bool | None = None


def _saved_model(file: Path, wanted: Options) -> Loaded:
    import tensorflow as tf

    threading = tf.config.threading
    if wanted.threads is not None:
        threading.set_intra_op_parallelism_threads(wanted.threads)
    if wanted.is_matched:
        threading.set_inter_op_parallelism_threads(1)
    options: dict[str, object] = {
        "intra_op_parallelism_threads": threading.get_intra_op_parallelism_threads(),
        "inter_op_parallelism_threads": threading.get_inter_op_parallelism_threads(),
    }
    model = tf.saved_model.load(str(file))
    serve = model.serve

    def place(arrays: Sequence[Array]) -> Any:
        return structured(wanted.structure, [tf.constant(array) for array in arrays] if wanted.is_resident else arrays)

    platforms = {device.device_type.lower() for device in tf.config.list_logical_devices()}
    platform = "+".join(sorted(platforms))
    return Loaded(place, lambda inputs: leaves(serve(inputs), np.array), options, wanted.threads, platform, model)


def _torch_export(file: Path, wanted: Options) -> Loaded:
    import torch

    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)
    if wanted.is_matched:
        torch.set_num_interop_threads(1)
        torch.set_float32_matmul_precision("highest")
    module = torch.export.load(str(file)).module()
    threads = torch.get_num_threads()
    options: dict[str, object] = {"num_threads": threads, "num_interop_threads": torch.get_num_interop_threads()}
    options["float32_matmul_precision"] = torch.get_float32_matmul_precision()

    def place(arrays: Sequence[Array]) -> Any:
        return structured(wanted.structure, list(map(torch.from_numpy, arrays))) if wanted.is_resident else arrays

    def call(inputs: Any) -> Sequence[Array]:
        if not wanted.is_resident:
            inputs = structured(wanted.structure, list(map(torch.from_numpy, inputs)))
        with torch.no_grad():
            return leaves(module(inputs), lambda array: array.detach().numpy().copy())  # np.array() is slower

    return Loaded(place, call, options, threads)


def _onnx(file: Path, wanted: Options) -> Loaded:
    return _by_onnx_runtime(file, wanted, _CUDA if wanted.device == "gpu" else "CPUExecutionProvider")


def _tensorrt(file: Path, wanted: Options) -> Loaded:
    if wanted.is_matched:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # read when the first library of CUDA is loaded; no option has it
    return _by_onnx_runtime(file, wanted, _TENSORRT)


def _by_onnx_runtime(file: Path, wanted: Options, provider: str) -> Loaded:
    """Load a file in ONNX Runtime, with one of its providers: each is a runtime of its own."""
    import onnxruntime

    session_options, options = onnxruntime.SessionOptions(), dict[str, object]()
    if wanted.threads is not None:
        session_options.intra_op_num_threads = wanted.threads
    if wanted.is_matched:
        session_options.inter_op_num_threads = 1
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        options[name] = getattr(session_options, name)
    if wanted.is_matched:
        for kind in ("intra", "inter"):
            session_options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
            options[f"session.{kind}_op.allow_spinning"] = 0
    has_tf32 = not wanted.is_matched
    with_options = {_CUDA: (_CUDA, {"use_tf32": int(has_tf32)})}
    available = [
        name for name in PROVIDERS[PROVIDERS.index(provider) :] if name in onnxruntime.get_available_providers()
    ]
    providers = [with_options.get(name, name) for name in available]
    session = onnxruntime.InferenceSession(str(file), session_options, providers=providers)
    if (used := session.get_providers())[0] != provider:
        text = f"call: {ONNX if provider == _CUDA else TENSORRT}: onnxruntime uses {' and '.join(used)} here, not "
        text += f"{provider}; install onnxruntime-gpu in place of onnxruntime, and the libraries that its messages name"
        raise Unsupported(text)
    names = [item.name for item in session.get_inputs()]
    order = input_order(names)
    options["providers"] = "+".join(used)

    def place(arrays: Sequence[Array]) -> Any:
        return dict(zip(names, reordered(arrays, order), strict=True))

    loaded = Loaded(place, lambda inputs: session.run(None, inputs), options, wanted.threads, wanted.device)
    if wanted.device == "cpu":
        return loaded
    options["use_tf32"] = int(has_tf32)
    if not wanted.is_resident:  # ONNX Runtime copies both ways, and waits
        return replace(loaded, tf32=has_tf32)
    bound = partial(_call_bound, session)
    return replace(loaded, place=lambda arrays: _bound(session, place(arrays)), call=bound, tf32=has_tf32)


def _bound(session: Any, inputs: Mapping[str, Array]) -> Any:
    """Copy the inputs of a call to the GPU; return their binding, with outputs that stay there."""
    import onnxruntime

    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for item in session.get_outputs():
        binding.bind_output(item.name, "cuda")
    return binding


def _call_bound(session: Any, binding: Any) -> Sequence[Array]:
    """Call with inputs on the GPU, wait until it has computed, and copy the outputs."""
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    outputs: Sequence[Array] = binding.copy_outputs_to_cpu()
    return outputs


def _litert(file: Path, wanted: Options) -> Loaded:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file), num_threads=wanted.threads)
    interpreter.allocate_tensors()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    order = input_order([item["name"] for item in inputs])
    places, results = [item["index"] for item in inputs], [item["index"] for item in outputs]

    def call(arrays: Sequence[Array]) -> Sequence[Array]:
        for index, array in zip(places, arrays, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in results]

    options = {"num_threads": wanted.threads or 0}
    return Loaded(lambda arrays: reordered(arrays, order), call, options, wanted.threads)


def _openvino(file: Path, wanted: Options) -> Loaded:
    import openvino

    options: dict[str, object] = {}
    if wanted.threads is not None:
        options["INFERENCE_NUM_THREADS"] = wanted.threads
    if wanted.is_matched:
        options |= {"NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(str(file), "CPU", options)
    names = [" ".join(sorted(item.get_names())) or item.get_node().get_friendly_name() for item in model.inputs]
    order = input_order(names)
    threads = int(model.get_property("INFERENCE_NUM_THREADS"))
    chosen = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": model.get_property("NUM_STREAMS"),
        "INFERENCE_PRECISION_HINT": model.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
    }
    devices = {str(name).partition(".")[0].lower() for name in model.get_property("EXECUTION_DEVICES")}
    outputs = returned([item.get_names() for item in model.outputs])

    def call(arrays: Sequence[Array]) -> Sequence[Array]:
        found = model(arrays)
        return [found[number] for number in outputs]

    return Loaded(
        lambda arrays: reordered(arrays, order),
        call,
        chosen,
        threads,
        "+".join(sorted(devices)),
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime of a kind of file: its package, its module, and how it loads a model."""

    package: str
    module: str
    load: Callable[[Path, Options], Loaded]


RUNTIMES: Mapping[str, Runtime] = {
    SAVED_MODEL: Runtime("tensorflow", "tensorflow", _saved_model),
    ONNX: Runtime("onnxruntime", "onnxruntime", _onnx),
    TENSORRT: Runtime("onnxruntime", "onnxruntime", _tensorrt),
    LITERT: Runtime("ai-edge-litert", "ai_edge_litert.interpreter", _litert),
    OPENVINO_IR: Runtime("openvino", "openvino", _openvino),
    TORCH_EXPORT: Runtime("torch", "torch", _torch_export),
}
"""The runtimes of exported models, by the values of `call`."""


def input_order(names: Sequence[str]) -> list[int]:
    """Return which of the model's inputs each input of a file is: by the name of its export, otherwise by its place."""
    found = [_INPUT_NAME.search(name) for name in names]
    numbers = [int(match[1]) for match in found if match]
    return numbers if sorted(numbers) == list(range(len(names))) else list(range(len(names)))


def returned(names: Sequence[Set[str]]) -> list[int]:
    """Return which outputs of a file are the model's: OpenVINO makes one of each unused operation of TensorFlow."""
    own = [number for number, group in enumerate(names) if any(map(_TENSORFLOW_OUTPUT.fullmatch, group))]
    return own or list(range(len(names)))


def reordered(arrays: Sequence[Array], order: Sequence[int]) -> list[Array]:
    """Return the arrays in the order of a file's inputs. Raises ValueError if the file has fewer or more."""
    if len(arrays) != len(order):
        raise ValueError(f"the file has {len(order)} inputs, and the model {len(arrays)}")
    return [arrays[number] for number in order]


def structured(structure: Any, arrays: Sequence[Any]) -> Any:
    """Return arrays in a structure of JSON that has their numbers."""
    if isinstance(structure, dict):
        return {name: structured(part, arrays) for name, part in structure.items()}
    if isinstance(structure, list):
        return [structured(part, arrays) for part in structure]
    return arrays[structure]


def leaves(outputs: Any, to_host: Callable[[Any], Array]) -> list[Array]:
    """Return the arrays of nested outputs in NumPy; those of a dict in the order of their names, as Keras has them."""
    if isinstance(outputs, dict):
        return [array for name in sorted(outputs) for array in leaves(outputs[name], to_host)]
    if isinstance(outputs, list | tuple):
        return [array for part in outputs for array in leaves(part, to_host)]
    return [to_host(outputs)]


def nearest(actual: Sequence[Array], expected: Sequence[Array]) -> tuple[float | None, str | None]:
    """Return how far outputs are from those of `model(x)`, in the order that is nearest; or why that is not known."""
    in_order = deviation_of_arrays(actual, expected)
    if not 1 < len(actual) == len(expected) <= MOST_ORDERED:
        return in_order
    found = [deviation_of_arrays(order, expected) for order in itertools.permutations(actual)]
    return min(found, key=lambda pair: (pair[0] is None, pair[0] or 0.0), default=in_order)


def arrays_path(job: Job, kind: str, number: int) -> Path:
    """Return the file of an input of all batches, or of an output of the first one."""
    return Path(job.folder) / f"{kind}{number}.npy"


class Measured:
    """The calls of an exported model in its runtime."""

    def __init__(self, job: Job, exported: Exported, loaded: Loaded) -> None:
        self._job, self._loaded = job, loaded
        self.context = MeasuredEpochs(Turns(job), Compiling(_NO_BACKEND), Allocated(_NO_BACKEND))
        parts = [np.load(arrays_path(job, "inputs", number)) for number in range(exported.input_count)]
        self.expected = [np.load(arrays_path(job, "outputs", number)) for number in range(exported.output_count)]
        # A batch of one input is its tuple, as of any workload without targets.
        self._batches = [(loaded.place(arrays),) for arrays in zip(*parts, strict=True)]
        self.stretches: list[WorkStretch] = []

    def first_call(self) -> float:
        """Return the seconds of the first call."""
        return self._called("first_step", Stretch(1, 1, 1)).epoch_times_s[0]

    def run(self, first_call_s: float) -> tuple[Times, int]:
        """Agree on the calls per epoch and make them; return times and calls."""
        settings = self._job.settings
        calls, calibration_s = agreed(
            self._job,
            self.context.turns,
            lambda count: min(self._called("calibration", Stretch(count, 2)).epoch_times_s),
        )
        log = self._called("epochs", self.context.stretch(settings, calls))
        self.context.end()
        times = Timeline(first_call_s, calibration_s, calls, EpochLog(log.epoch_times_s)).times(settings)
        return with_percentiles(times, log.call_times_s), calls

    def outputs(self) -> tuple[float | None, str | None]:
        """Return how far the outputs of the first batch are from those of `model(x)`, or why that is not known."""
        return nearest(self._loaded.call(self._batches[0][0]), self.expected)

    def work(self, exported: WorkDone) -> WorkDone:
        """Return the work that was done, with what the process that exported the model knows of it."""
        measured = self.stretches[-1]
        samples = sum(count or 0 for count in measured.samples)
        return replace(
            exported,
            stretches=self.stretches,
            samples_per_step=samples / (len(measured.samples) * measured.steps),
            skipped_updates=0,
            output_platforms=[self._loaded.platform],
        )

    def _called(self, name: str, stretch: Stretch) -> CallLog:
        log = call_epochs(self._loaded.call, self._batches, stretch)
        self.stretches.append(predicted(name, stretch.steps, log.rows))
        return log


def missing(call: str) -> str | None:
    """Return why the runtime of a kind of file cannot be used here, None if it can. Imports nothing of it."""
    runtime = RUNTIMES[call]
    if importlib.util.find_spec(runtime.module.partition(".")[0]) is not None:
        return None
    return f"call: {call}: {runtime.package} is not installed for the Python of the cells; {INSTALL}"


def measure_exported(job: Job) -> CellResult:
    """Measure the exported model of a job, in its runtime, and return the result.

    Raises `Unsupported` if the runtime is missing, or cannot load or call the file.
    """
    exported = decode(Exported, loads(job.exported_path.read_bytes()), "exported")
    job = exported.job  # with the settings that a user's workload sets
    call, runtime = job.settings.call, RUNTIMES[job.settings.call]
    write_result(job, replace(result_of(job), unfinished=f"{runtime.package} ran the exported model"))
    if problem := missing(call):
        raise Unsupported(problem)
    begun_s = monotonic()
    importlib.import_module(runtime.module)
    import_time_s = monotonic() - begun_s
    begun_s = monotonic()
    with _refusing(call, runtime):
        loaded = runtime.load(Path(exported.file), Options.of(job.settings, json.loads(exported.structure)))
    load_time_s = monotonic() - begun_s
    measured = Measured(job, exported, loaded)
    with _refusing(call, runtime):
        first_call_s = measured.first_call()
    times, calls = measured.run(first_call_s)
    result, begun = exported.result, exported.result.resolved
    assert begun is not None
    assert result.work is not None
    result = replace(
        result,
        device=_device(loaded, runtime, exported.result.device),
        times=with_start(times, import_time_s, result.times.build_time_s or 0.0, CompileEvents()),
        resolved=_resolved(begun, calls, loaded, has_tf32=exported.has_tf32),
        memory=used_memory(measured.context.allocated),
        versions=result.versions | {runtime.package: metadata.version(distribution(runtime))},
        work=measured.work(result.work),
        artefact=Artefact(
            exported.export_time_s,
            load_time_s,
            exported.size_bytes,
            runtime.package,
            [f"{name}={value}" for name, value in loaded.options.items()],
        ),
    )
    return _with_outputs(job, measured, result)


def _resolved(exporters: Resolved, calls: int, loaded: Loaded, *, has_tf32: bool) -> Resolved:
    """Return the resolved settings of the process that exported the model, with what the runtime decides."""
    answers: dict[str, Any] = {} if loaded.tf32 is None else dict.fromkeys(TF32_FIELDS, loaded.tf32 and has_tf32)
    return replace(exporters, steps_per_epoch=calls, intra_op_threads=loaded.threads, **answers)


def _device(loaded: Loaded, runtime: Runtime, exporters: DeviceProof | None) -> DeviceProof:
    """Return the device of a runtime; the product's name is known of the one that the exporter used, too."""
    model = exporters.model if exporters and exporters.platform == loaded.platform else None
    return DeviceProof(loaded.platform, f"{loaded.platform.upper()} of {runtime.package}", 1, model)


def distribution(runtime: Runtime) -> str:
    """Return the installed distribution of a runtime: TensorFlow and others have several, for one module."""
    module = runtime.module.partition(".")[0]
    names = metadata.packages_distributions().get(module, [runtime.package])
    return min(names, key=lambda name: (not name.startswith(runtime.package), len(name)))


def _with_outputs(job: Job, measured: Measured, result: CellResult) -> CellResult:
    """Publish the figures, compare the outputs, and return the complete result."""
    publish_figures(job, result)
    if job.board:
        files.replace(job.undone_path, f"graph, profile: call: {job.settings.call} runs a file, not a Keras model")
    write_result(job, replace(result, outputs_unseen=COMPARING))
    try:
        deviation, problem = measured.outputs()
    except Exception as error:  # noqa: BLE001 - of a runtime, after everything measured: this fact alone is missing
        traceback.print_exc()
        deviation, problem = None, f"were not compared: {in_a_line(error)[:200]}"
    assert result.resolved is not None
    return replace(result, resolved=replace(result.resolved, outputs_deviation=deviation, outputs_problem=problem))


@contextmanager
def _refusing(call: str, runtime: Runtime) -> Iterator[None]:
    """Raise an error of a runtime as `Unsupported`, except one of memory."""
    try:
        yield
    except (MemoryError, Unsupported):
        raise
    except Exception as error:
        if says_out_of_memory(str(error)):
            raise
        traceback.print_exc()
        text = f"call: {call}: {runtime.package} cannot run the exported model, {reason_line(error)}; set another call"
        raise Unsupported(text) from None
