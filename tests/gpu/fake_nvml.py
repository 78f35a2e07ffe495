"""A fake NVIDIA driver library: tests/gpu/fake_nvml.c, compiled, below the real `nvidia-ml-py`.

    folder = build(tmp_path)                        compiles folder/libnvidia-ml.so.1
    driver = FakeDriver(tmp_path / "nvml.txt")      what it reports; two GPUs by default
    driver.set(power_w=250, gpu1={"name": "NVIDIA A100-SXM4-40GB"})
    driver.environment(folder)                      variables of a process that is to find it

`driver.set` takes effect at the next call of the library. Keys, of all GPUs or of one:

    count driver cuda                               number of GPUs, versions of the driver and of CUDA (13000 is 13.0)
    name uuid compute_capability                    "9.0"
    memory_total memory_used processes              bytes; "PID:BYTES,PID:BYTES"
    power_w power_average_w                         now (energy is this times the monotonic clock), over the last second
    utilisation memory_utilisation                  percent
    sm_clock_mhz memory_clock_mhz temperature_c
    throttle_mask                                   bits of nvmlClocksEventReasons, decimal
    power_throttled_share thermal_throttled_share   share of time that the counters of time held back move by
    persistence ecc mig                             0 or 1
    compute_mode                                    0 default, 2 prohibited, 3 exclusive process
    mig_uuids mig_memory_total mig_memory_used      the GPU's MIG devices: "MIG-...,MIG-..."
    mig_profile                                     the end of their names, "1g.10gb"
    error.FUNCTION error.fieldNUMBER                the code that a call, or a field, returns: 3 not supported (N/A),
                                                    4 insufficient permissions, 15 GPU is lost
    lost_after_calls lost_once_file                 GPU is lost: after so many calls, or as soon as a file exists

A real NVML adds much that is not here. Promise: structures and codes are those of nvml.h; a MIG device gives memory and
identity alone, as the documentation of the MIG functions says.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
VARIABLE = "FAKE_NVML"
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 15, 16


def build(folder: Path) -> Path:
    """Compile the library into this folder and return the folder; skip the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the fake NVML needs a C compiler (cc or gcc), and none was found")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(folder / LIBRARY)]
    subprocess.run([*command, str(SOURCE)], check=True, capture_output=True, text=True)
    return folder


class FakeDriver:
    """What the fake library reports, in the file that it reads at each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, str] = {}
        self._write()

    def set(self, **values: Any) -> None:
        """Change values; a mapping has those of one GPU: `gpu1={"power_w": 200}`. None restores the default."""
        for key, value in values.items():
            found = (
                {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, Mapping) else {key: value}
            )
            for name, one in found.items():
                self._values.pop(name, None)
                if one is not None:
                    self._values[name] = str(one)
        self._write()

    def refuse(self, function: str, code: int, gpu: int | None = None) -> None:
        """Have a function of the library return this code, for one GPU or for all."""
        key = f"error.{function}"
        self.set(**{key if gpu is None else f"gpu{gpu}.{key}": code})

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables of a process that is to load the library from this folder."""
        return {VARIABLE: str(self.path), "LD_LIBRARY_PATH": str(folder)}

    def _write(self) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text("".join(f"{key}={value}\n" for key, value in self._values.items()), encoding="utf-8")
        aside.replace(self.path)


def load_into_this_process(folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `pynvml` with the fake library in place of the driver's, until the test ends."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    monkeypatch.setenv(VARIABLE, str(driver.path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(folder / LIBRARY)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return pynvml
