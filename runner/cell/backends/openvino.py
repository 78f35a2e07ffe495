"""OpenVINO: predicts alone, on a CPU, by one compiled program for batches of any size.

Keras compiles a model with the options that OpenVINO chooses: on a CPU with instructions for bfloat16 it then computes
float32 in bfloat16, which a record states. Keras also compiles a program at each conversion of a result that it has
not yet computed, such as that of `model(x)`. Each compilation is counted here, where Keras calls OpenVINO's function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import openvino

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter, CompileEvents, Unsupported
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.clock import monotonic

FLOAT32 = "f32"


class Adapter(BackendAdapter):
    """OpenVINO's adapter: a call returns computed arrays in host memory, so that nothing is left to wait for."""

    def __init__(self) -> None:
        self._options: dict[str, object] = {}
        self._compilations = 0
        self._compile_time_s = 0.0
        self._devices: list[str] = []
        self._threads: int | None = None
        self._computed_in = FLOAT32
        self._compile = openvino.compile_model

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        self.check(settings)
        if settings.threads != "all":
            self._options["INFERENCE_NUM_THREADS"] = int(settings.threads)
        if compile_cache_dir is not None:
            self._options["CACHE_DIR"] = compile_cache_dir
        if settings.league == "matched":
            self._options |= {"INFERENCE_PRECISION_HINT": FLOAT32, "NUM_STREAMS": 1}
            self._options.setdefault("INFERENCE_NUM_THREADS", len(PLATFORM.usable_cpus()))
        from keras.src.backend.openvino import core

        # Keras has the function by two names: of the package, and of its own module.
        openvino.compile_model = core.compile_model = self._counted

    def check(self, settings: Settings) -> None:
        if settings.precision != "float32":
            why = "OpenVINO itself chooses the types that it computes in"
            raise Unsupported(f"precision: must be float32 on openvino: {why}, got {settings.precision}")
        if settings.eager:
            raise Unsupported("eager: must be false on openvino, which runs compiled programs only, got true")

    def seed(self, seed: int) -> None:
        pass  # OpenVINO has no random state: Keras draws its seeds from Python's

    def proof(self) -> DeviceProof:
        import keras

        keras.ops.convert_to_numpy(keras.ops.ones((2, 2)) + 1)
        return DeviceProof(self._platform(), ", ".join(self._devices), len(self._devices))

    def barrier(self, model: Any) -> None:
        pass

    def wait(self, outputs: Any) -> None:
        import keras

        keras.tree.map_structure(self.to_host, outputs)  # what is not converted is not computed

    def resident(self, batch: Batch) -> Batch:
        return batch  # what it computes with is in host memory

    def platforms(self, tensors: Any) -> set[str]:
        return {self._platform()}

    def output(self, model: Any, inputs: Any) -> Any:
        return model.predict_on_batch(inputs)  # the result of `model(inputs)` is not computed

    def compile_events(self) -> CompileEvents:
        return CompileEvents(compile_time_s=self._compile_time_s)

    def compilations(self) -> int | None:
        return self._compilations

    def notes(self) -> list[str]:
        if self._computed_in == FLOAT32:
            return []
        return [
            f"computed_in: OpenVINO chose {self._computed_in} for a model of float32; league: matched forces float32"
        ]

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        return function(*arrays)

    def forward(self, model: Any, arguments: Mapping[str, bool]) -> Callable[[Any], Any]:
        import keras

        program: Any = None

        def call(inputs: Any) -> Any:
            nonlocal program
            if program is None:  # not public: Keras compiles it once, for batches of any size
                program = model._get_compiled_model(inputs)
            return model._unpack_inference_outputs(program(keras.tree.flatten(inputs)).to_tuple())

        return call

    def intra_op_threads(self) -> int | None:
        return self._threads

    def versions(self) -> dict[str, str]:
        return {"openvino": metadata.version("openvino")}

    def _platform(self) -> str:
        """Return the kind of the devices on which the last compiled program runs, such as cpu."""
        return "+".join(sorted({name.partition(".")[0].lower() for name in self._devices}))

    def _counted(self, model: Any, device_name: str = "AUTO", config: Any = None, **named: Any) -> Any:
        """Compile as OpenVINO's `compile_model` does, with the cell's options; count it, and read what was chosen."""
        begun_s = monotonic()
        compiled = self._compile(model, device_name, {**self._options, **(config or {})}, **named)
        self._compile_time_s += monotonic() - begun_s
        self._compilations += 1
        self._devices = [str(name) for name in compiled.get_property("EXECUTION_DEVICES")]
        self._threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        if not config:  # with options of its own Keras converts a single result
            self._computed_in = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return compiled
