"""PyTorch: runs eagerly unless `jit` asks for torch.compile."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from keras_matrix.models.workload import map_arrays
from keras_matrix.records.compiler_options import torch_arguments
from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import COMPILED, MATMUL_PRECISIONS, Settings
from keras_matrix.runner.cell.backends import BackendAdapter, CompileEvents, Unsupported
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.piped.stream import StreamAdapter


class Adapter(BackendAdapter):
    """PyTorch's adapter."""

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        self.check(settings)
        is_compiled = settings.jit is True or settings.league == "matched" or settings.call == COMPILED
        if is_compiled and (lacking := _missing_for_compile(settings.device)):
            raise Unsupported(f"jit: torch.compile needs {lacking}")
        if compile_cache_dir is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = compile_cache_dir
        if settings.threads != "all":
            torch.set_num_threads(int(settings.threads))
            torch.set_num_interop_threads(int(settings.threads))
        if settings.autotune == "off":
            torch.backends.cudnn.benchmark = False
        if settings.league == "matched":
            _turn_tf32_off()
        if settings.matmul_precision != MATMUL_PRECISIONS[0]:
            torch.set_float32_matmul_precision(settings.matmul_precision)
        if settings.torch_compile:  # for Keras's own calls, too; what a program gives itself, wins
            torch.compile = partial(torch.compile, **torch_arguments(settings.torch_compile))

    def check(self, settings: Settings) -> None:
        if settings.steps_per_execution != 1:
            raise Unsupported(
                f"steps_per_execution: Keras on PyTorch runs one step at a time, got {settings.steps_per_execution}"
            )

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def proof(self) -> DeviceProof:
        import keras

        device = (keras.ops.ones((2, 2)) + 1).device
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
            return DeviceProof("gpu", str(device), torch.cuda.device_count(), name)
        return DeviceProof(device.type, str(device), 1)

    def barrier(self, model: Any) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def resident(self, batch: Batch) -> Batch:
        import keras

        return map_arrays(keras.ops.convert_to_tensor, batch)

    def source(self, batches: Iterator[Batch]) -> Any:
        # Keras reads arrays through a DataLoader, too. Its own one for generators turns tuples into lists.
        loader = torch.utils.data.DataLoader(_Tensors(map(self.resident, batches)), batch_size=None, collate_fn=_as_is)
        return StreamAdapter(loader, None)

    def one_pass(self, data_adapter: Any) -> Iterable[Any]:
        return cast(Iterable[Any], data_adapter.get_torch_dataloader())

    def platforms(self, tensors: Any) -> set[str]:
        values = [getattr(tensor, "value", tensor) for tensor in tensors]
        kinds = {value.device.type for value in values if isinstance(value, torch.Tensor)}
        return {{"cuda": "gpu", "xla": "tpu"}.get(kind, kind) for kind in kinds}

    def output(self, model: Any, inputs: Any) -> Any:
        with torch.no_grad():
            return model(inputs, training=False)

    def compile_events(self) -> CompileEvents:
        from torch._dynamo.utils import compilation_time_metrics

        seconds = [sum(spans) for name, spans in compilation_time_metrics.items() if name == "_compile.compile_inner"]
        if not seconds:
            return CompileEvents()
        return CompileEvents(compile_time_s=sum(seconds), graph_breaks=self.graph_breaks())

    def compilations(self) -> int | None:
        # Frames, since one that breaks compiles to several graphs. Eager PyTorch compiles none.
        return int(_counters()["frames"]["total"]) or None

    def graph_breaks(self) -> int | None:
        return int(sum(_counters()["graph_break"].values())) if self.compilations() else None

    def peak_device_memory_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None

    def reset_peak_device_memory(self) -> bool | None:
        if not torch.cuda.is_initialized():
            return None
        torch.cuda.reset_peak_memory_stats()
        return True

    def device_memory_bytes(self) -> int | None:
        return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else None

    def tf32(self) -> bool | None:
        return torch.backends.cuda.matmul.allow_tf32 if torch.cuda.is_available() else None

    def compute_capability(self) -> tuple[int, int] | None:
        return torch.cuda.get_device_capability() if torch.cuda.is_available() else None

    def process_options(self) -> dict[str, object]:
        return {
            "torch.default_dtype": torch.get_default_dtype(),
            "torch.num_threads": torch.get_num_threads(),
            "torch.num_interop_threads": torch.get_num_interop_threads(),
            "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
            "torch.default_device": torch.get_default_device(),
            "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "torch.anomaly_detection": torch.is_anomaly_enabled(),
            "torch.grad_enabled": torch.is_grad_enabled(),
            "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
            "torch.backends.mkldnn.enabled": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        }

    def not_compiled(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return context

    def shape_of(self, array: Any) -> tuple[int, ...] | None:
        """Return the shape; None under `torch.func.vmap`, which hides rows."""
        inner = array
        while isinstance(inner, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(inner):
            if not torch._C._functorch.is_gradtrackingtensor(inner):
                return None
            inner = torch._C._functorch.get_unwrapped(inner)
        return tuple(array.shape)

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        # Not compiled: torch.compile takes seconds, and its products follow the same settings as the eager ones.
        with torch.no_grad():
            return function(*arrays)

    def compiled(self, model: Any, function: Callable[..., Any], donated: tuple[int, ...]) -> Callable[..., Any]:
        return cast(Callable[..., Any], torch.no_grad()(function))  # KerasHub's generate() is not compiled either

    def to_host(self, array: Any) -> Any:
        if not isinstance(array, torch.Tensor) or array.dtype == torch.bfloat16:  # which NumPy has not
            return BackendAdapter.to_host(self, array)
        return array.detach().cpu().numpy().copy()  # np.array() of a tensor takes 60 us more between two calls

    def forward(self, model: Any, arguments: Mapping[str, bool]) -> Callable[[Any], Any]:
        program = torch.compile(lambda inputs: model(inputs, **arguments))

        def outputs(inputs: Any) -> Any:
            with torch.no_grad():
                return program(_tensors(inputs))

        return outputs

    def gradients(self, model: Any, arguments: Mapping[str, bool], compiled: bool) -> Callable[..., Any]:
        weights = [weight.value for weight in model.trainable_weights]
        training = arguments.get("training", True)

        def forward(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
            outputs = model(x, **arguments)
            return model._compute_loss(x, y, outputs, sample_weight, training=training), outputs

        program = torch.compile(forward) if compiled else forward

        def step(*batch: Any) -> tuple[Any, Any, Any]:
            loss, outputs = program(*(_tensors(part) for part in batch))
            scaled = model.optimizer.scale_loss(loss) if training and model.optimizer is not None else loss
            return loss.detach(), torch.autograd.grad(scaled, weights, allow_unused=True), outputs

        model.train(training)
        return step

    def free_device_memory_bytes(self) -> int | None:
        return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None

    def intra_op_threads(self) -> int | None:
        return int(torch.get_num_threads())

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


def _tensors(structure: Any) -> Any:
    """Return a structure with its arrays as tensors; a tensor itself at once, since Keras takes 30 us for one."""
    import keras

    return structure if isinstance(structure, torch.Tensor) else map_arrays(keras.ops.convert_to_tensor, structure)


class _Tensors(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of tensors, as a data set that a DataLoader reads."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self._batches


def _as_is(batch: Batch) -> Batch:
    return batch


def _counters() -> Any:
    """Return torch.compile's counters, without importing it if nothing was compiled."""
    module = sys.modules.get("torch._dynamo.utils")
    return module.counters if module else {"frames": {"total": 0}, "graph_break": {}}


def _turn_tf32_off() -> None:
    """Compute every float32 product in float32. `allow_tf32` leaves cuDNN's operations to the global setting."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for operation in (torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        operation.fp32_precision = "ieee"


def _missing_for_compile(device: str) -> str | None:
    """Return what torch.compile needs and cannot find, and what to do.

    On a CPU it writes C++. On a GPU Triton builds its launcher in C against Python's headers (Triton,
    `runtime/build.py`), which Debian has in a separate package.
    """
    if device != "gpu":
        if any(map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))):
            return None
        return "a C++ compiler on a CPU: install g++ or clang, or set CXX"
    if not any(map(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang"))):
        return "a C compiler on a GPU, for Triton: install gcc and libc6-dev, or set CC"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"Python's headers on a GPU, for Triton: install python3-dev, {header} is missing"
    return None
