"""JAX: compiles every step, dispatches asynchronously, and reports what it traced and compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from importlib import metadata
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from keras_matrix.records.backends import TABLE
from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import MATMUL_PRECISIONS, Settings
from keras_matrix.runner.cell.backends import COMPILED_NOWHERE, BackendAdapter, CompileEvents, version_pair
from keras_matrix.runner.cell.batches import Batch

TRACE_EVENTS = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
# Of gradients: the array that one stands for has its shape. Others, such as that of `jax.vmap`, hide rows.
GRADIENT_TRACERS = ("JVPTracer", "LinearizeTracer")
PROCESS_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_device",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_debug_nans",
    "jax_disable_jit",
)
CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"


class Adapter(BackendAdapter):
    """JAX's adapter. Threads of an operation are not reported: XLA's pool follows the CPUs of the process."""

    def __init__(self) -> None:
        self._durations: dict[str, float] = {}
        self._compilations = 0
        self._cache_hits = 0
        self._cached = False

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        if settings.league == "matched":
            jax.config.update("jax_default_matmul_precision", "highest")
        elif settings.matmul_precision in MATMUL_PRECISIONS[1:]:
            # "bfloat16" is JAX's own name of one pass in bfloat16, where the hardware has it.
            name = "bfloat16" if settings.matmul_precision == "medium" else settings.matmul_precision
            jax.config.update("jax_default_matmul_precision", name)
        if settings.precision == "float64":
            jax.config.update("jax_enable_x64", True)
        if compile_cache_dir is not None:
            self._cached = True
            jax.config.update("jax_compilation_cache_dir", compile_cache_dir)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    def check(self, settings: Settings) -> None:
        if jax.config.jax_disable_jit and not settings.eager:
            raise ValueError(COMPILED_NOWHERE.format("jax_disable_jit"))

    def seed(self, seed: int) -> None:
        pass  # JAX has no random state: Keras passes it keys

    def proof(self) -> DeviceProof:
        # Placing an array is enough: an operation on it would cost a compilation.
        device = next(iter(jax.block_until_ready(jnp.asarray(np.ones((2, 2)))).devices()))
        return DeviceProof(_platform(device), str(device), len(jax.devices()), device.device_kind)

    def barrier(self, model: Any) -> None:
        variables = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
        jax.block_until_ready([variable.value for variable in variables])

    def idle(self) -> None:
        jax.block_until_ready(jax.live_arrays())

    def wait(self, outputs: Any) -> None:
        jax.block_until_ready(outputs)

    def step_end(self, outputs: Any) -> Callable[[], None]:
        logs, _ = outputs  # not the state, whose memory the next step takes
        return lambda: jax.block_until_ready(logs)

    def resident(self, batch: Batch) -> Batch:
        placed_batch: Batch = jax.block_until_ready(jax.device_put(batch))
        return placed_batch

    def one_pass(self, data_adapter: Any) -> Iterable[Any]:
        return cast(Iterable[Any], data_adapter.get_jax_iterator())

    def reads_ahead(self) -> int:
        # Keras places a batch on an accelerator one step ahead (`JAXEpochIterator._one_batch_ahead_iterator`).
        return 0 if jax.default_backend() == "cpu" else 1

    def platforms(self, tensors: Any) -> set[str]:
        values = [getattr(tensor, "value", tensor) for tensor in tensors]
        return {_platform(device) for value in values if isinstance(value, jax.Array) for device in value.devices()}

    def live_arrays(self) -> list[Any]:
        # Keys of random numbers have a type that no weight has, and that NumPy cannot represent.
        return [array for array in jax.live_arrays() if not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended)]

    def output(self, model: Any, inputs: Any) -> Any:
        return None  # the weights are outputs of the compiled step; another call would compile the model once more

    def compile_events(self) -> CompileEvents:
        return CompileEvents(
            trace_time_s=sum(self._durations.get(event, 0.0) for event in TRACE_EVENTS),
            compile_time_s=self._durations.get(COMPILE_EVENT, 0.0),
            cache_hits=self._cache_hits if self._cached else None,
        )

    def compilations(self) -> int | None:
        return self._compilations

    def peak_device_memory_bytes(self) -> int | None:
        return _statistics().get("peak_bytes_in_use")

    def reset_peak_device_memory(self) -> bool | None:
        # Device.memory_stats() has a peak since the process began, and nothing that resets it.
        return None if jax.default_backend() == "cpu" else False

    def device_memory_bytes(self) -> int | None:
        return _statistics().get("bytes_in_use")

    def tf32(self) -> bool | None:
        if jax.default_backend() != "gpu":
            return None
        return jax.config.jax_default_matmul_precision in (None, "default", "tensorfloat32")

    def compute_capability(self) -> tuple[int, int] | None:
        stated = getattr(jax.devices()[0], "compute_capability", None)  # "8.0"; a CPU's device has no such attribute
        return None if stated is None else version_pair(str(stated))

    def process_options(self) -> dict[str, object]:
        return {name: getattr(jax.config, name) for name in PROCESS_OPTIONS if hasattr(jax.config, name)}

    def not_compiled(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = jax.disable_jit()
        return context

    def shape_of(self, array: Any) -> tuple[int, ...] | None:
        """Return the shape; None under other transformations than a gradient's, such as `jax.vmap`, which hide rows."""
        inner = array
        while isinstance(inner, jax.core.Tracer):
            if type(inner).__name__ not in GRADIENT_TRACERS:
                return None
            inner = inner.primal
        return tuple(array.shape)

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        return jax.jit(function)(*arrays)

    def compiled(self, model: Any, function: Callable[..., Any], donated: tuple[int, ...]) -> Callable[..., Any]:
        import keras

        variables = model.variables
        values = [variable.value for variable in variables]

        def stateless(held: Sequence[Any], *arrays: Any) -> Any:
            with keras.StatelessScope(state_mapping=zip(variables, held, strict=True)):
                return function(*arrays)

        program = jax.jit(stateless, donate_argnums=[1 + place for place in donated])
        return lambda *arrays: program(values, *arrays)

    def to_host(self, array: Any) -> Any:
        # Not isinstance(), which is a function in Python here: it would be a tenth of a small call.
        return np.array(array) if issubclass(type(array), jax.Array) else BackendAdapter.to_host(self, array)

    def forward(self, model: Any, arguments: Mapping[str, bool]) -> Callable[[Any], Any]:
        def outputs(trainable: Any, others: Any, inputs: Any) -> Any:
            return model.stateless_call(trainable, others, inputs, **arguments)[0]

        trainable, others = (
            [variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        )
        return partial(jax.jit(outputs), trainable, others)

    def gradients(self, model: Any, arguments: Mapping[str, bool], compiled: bool) -> Callable[..., Any]:
        function = model.compute_loss_and_updates
        named: dict[str, Any] = {"training": arguments.get("training", True)}
        if "optimizer_variables" in inspect.signature(function).parameters and model.optimizer is not None:
            named["optimizer_variables"] = [variable.value for variable in model.optimizer.variables]
        program = jax.value_and_grad(partial(function, **named), has_aux=True)
        program = jax.jit(program) if compiled else program
        trainable, others, metrics = (
            [variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables, model.metrics_variables)
        )

        def step(x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
            (_, (loss, outputs, *_)), gradients = program(trainable, others, metrics, x, y, weights)
            return loss, gradients, outputs

        return step

    def generates_compiled(self, model: Any) -> bool:
        return not model.run_eagerly

    def cannot_generate(self, precision: str) -> str | None:
        return "mixes integers of 32 and 64 bits, which JAX refuses" if precision == "float64" else None

    def free_device_memory_bytes(self) -> int | None:
        statistics = _statistics()
        return statistics["bytes_limit"] - statistics["bytes_in_use"] if "bytes_limit" in statistics else None

    def versions(self) -> dict[str, str]:
        versions = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
        if jax.default_backend() == "gpu":
            for name in TABLE["jax"].plugins:
                with suppress(metadata.PackageNotFoundError):
                    versions[name] = metadata.version(name)
        return versions

    def _on_duration(self, event: str, duration_s: float, **_: Any) -> None:
        self._durations[event] = self._durations.get(event, 0.0) + duration_s
        self._compilations += event == COMPILE_EVENT

    def _on_event(self, event: str, **_: Any) -> None:
        self._cache_hits += event == CACHE_HIT_EVENT


def _platform(device: Any) -> str:
    name = str(device.platform)
    return {"cuda": "gpu", "rocm": "gpu"}.get(name, name)


def _statistics() -> dict[str, int]:
    """Return the statistics of the device's allocator: empty on a CPU."""
    return jax.devices()[0].memory_stats() or {}
