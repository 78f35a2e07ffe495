"""A fake of the module `pynvml`: GPUs with the values that a test sets, and NVML's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
DRIVER_NOT_LOADED, LOST, RESET, MISMATCH = 9, 15, 16, 18
MESSAGES = {
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    15: "GPU is lost",
    16: "GPU requires restart",  # nvidia-ml-py's text of NVML_ERROR_RESET_REQUIRED
    18: "RM has detected an NVML/RM version mismatch.",
}


class NVMLError(Exception):
    """An error with NVML's number."""

    def __init__(self, value: int) -> None:
        super().__init__(MESSAGES[value])
        self.value = value


@dataclass
class FakeGpu:
    """A GPU; an `int` among `errors` is the error that the function of that name raises."""

    name: str = "NVIDIA A100-SXM4-80GB"
    uuid: str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    capability: tuple[int, int] = (8, 0)
    persistence: int = 1
    mig: int = 0
    compute_mode: int = 0
    ecc_errors: int = 0
    throttle_mask: int = 1
    temperature_c: int = 31
    users: Sequence[Any] = ()
    slice_of: FakeGpu | None = None
    errors: dict[str, int] = field(default_factory=dict)


def used_by(pid: int, memory_bytes: int | None = 512 << 20) -> SimpleNamespace:
    """A process on a GPU."""
    return SimpleNamespace(pid=pid, usedGpuMemory=memory_bytes)


class FakePynvml:
    """The functions of `pynvml` that the product calls."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0, 1, 0

    def __init__(
        self,
        *gpus: FakeGpu,
        driver: str = "580.65.06",
        cuda: int = 13000,
        init_error: int | None = None,
    ) -> None:
        self.gpus, self.init_error = gpus, init_error
        self.nvmlSystemGetDriverVersion = lambda: driver
        self.nvmlSystemGetCudaDriverVersion_v2 = lambda: cuda

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)

    def nvmlDeviceGetCount(self) -> int:
        return len([gpu for gpu in self.gpus if gpu.slice_of is None])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if index >= self.nvmlDeviceGetCount():
            raise NVMLError(INVALID_ARGUMENT)
        gpu = self.gpus[index]
        if "nvmlDeviceGetHandleByIndex" in gpu.errors:
            raise NVMLError(gpu.errors["nvmlDeviceGetHandleByIndex"])
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError(NOT_FOUND)

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetIndex": self.gpus.index,
            "nvmlDeviceGetName": lambda gpu: gpu.name,
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=80 << 30, used=0),
            "nvmlDeviceGetEccMode": lambda gpu: [1, 1],
            "nvmlDeviceGetClockInfo": lambda gpu, kind: 210,
            "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: 1410,
            "nvmlDeviceGetTemperature": lambda gpu, sensor: gpu.temperature_c,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle_mask,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttle_mask,
            "nvmlDeviceGetPersistenceMode": lambda gpu: gpu.persistence,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: list(gpu.users),
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: list(gpu.capability),
            "nvmlDeviceIsMigDeviceHandle": lambda gpu: int(gpu.slice_of is not None),
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda gpu: gpu.slice_of,
            "nvmlDeviceGetComputeMode": lambda gpu: gpu.compute_mode,
            "nvmlDeviceGetMigMode": lambda gpu: [gpu.mig, gpu.mig],
            "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: gpu.ecc_errors,
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(gpu: FakeGpu, *rest: int) -> Any:
            if name in gpu.errors:
                raise NVMLError(gpu.errors[name])
            return answers[name](gpu, *rest)

        return answer
