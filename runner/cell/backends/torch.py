"""PyTorch: runs eagerly unless `jit` asks for torch.compile."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from records.schema import DeviceProof
from records.settings import Settings
from runner.cell.backends import Batch, CompileEvents, Feeder, Unsupported, counting, round_and_round


class Plug:
    """PyTorch as a cell needs it."""

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        self.check(settings)
        compiled = settings.jit is True or settings.league == "matched"
        if compiled and (lacking := _lacking_compiler(settings.device)):
            place = settings.device.upper()
            raise Unsupported(f"jit: torch.compile needs a {lacking} compiler on a {place}, and none was found")
        if compile_cache_dir is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = compile_cache_dir
        if settings.threads != "all":
            torch.set_num_threads(int(settings.threads))
            torch.set_num_interop_threads(int(settings.threads))
        if settings.autotune == "off":
            torch.backends.cudnn.benchmark = False
        if settings.league == "matched":
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False

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

    def wait(self, outputs: Any) -> None:
        self.barrier(None)

    def resident(self, batch: Batch) -> Batch:
        import keras

        return tuple(keras.tree.map_structure(keras.ops.convert_to_tensor, part) for part in batch)

    def endless(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        return round_and_round(batches)

    def feeder(self, batches: Sequence[Batch]) -> Feeder:
        placed = [self.resident(batch) for batch in batches]
        return lambda needed: counting(placed)

    def platforms(self, tensors: Any) -> set[str]:
        values = [getattr(one, "value", one) for one in tensors]
        return {_platform(value.device.type) for value in values if isinstance(value, torch.Tensor)}

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
        # Frames, since one that breaks compiles to several graphs. Eager PyTorch has compiled none, ever.
        return int(_counters()["frames"]["total"]) or None

    def graph_breaks(self) -> int | None:
        return int(sum(_counters()["graph_break"].values())) if self.compilations() else None

    def peak_device_memory_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None

    def device_memory_bytes(self) -> int | None:
        return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else None

    def tf32(self) -> bool | None:
        return torch.backends.cuda.matmul.allow_tf32 if torch.cuda.is_available() else None

    def intra_op_threads(self) -> int | None:
        return int(torch.get_num_threads())

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


def _platform(device_type: str) -> str:
    return {"cuda": "gpu", "xla": "tpu"}.get(device_type, device_type)


def _counters() -> Any:
    """Return what torch.compile counts, without importing it where nothing was compiled."""
    module = sys.modules.get("torch._dynamo.utils")
    return module.counters if module else {"frames": {"total": 0}, "graph_break": {}}


def _lacking_compiler(device: str) -> str | None:
    """Return the language torch.compile lacks a compiler for: on a CPU it writes C++, on a GPU Triton's launcher C."""
    language, variable, names = ("C++", "CXX", ("c++", "g++", "clang++"))
    if device == "gpu":
        language, variable, names = ("C", "CC", ("cc", "gcc", "clang"))
    return None if any(map(shutil.which, (os.environ.get(variable, ""), *names))) else language
