"""Detects the machine, without user names, addresses or environment variables.

Two variables declare what cannot be detected inside a container: `KERAS_BENCHMARK_HOST` the host, and
`KERAS_BENCHMARK_MACHINE_TYPE` the machine type (`runner.machine.machine_type`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.host.system import HERE, container_engine, total_memory_bytes
from keras_matrix.records.schema import Machine
from keras_matrix.runner.machine import machine_type

# Names the machine if its identity cannot be read, as in a container, which has a new name at every start.
HOST_VARIABLE = "KERAS_BENCHMARK_HOST"
IDENTITY_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid")


def detect() -> Machine:
    """Return this machine; on a cloud from its metadata server as well. Raises `UsageError` for an invalid variable."""
    gpus, driver = _gpus()
    return Machine(
        host_id=_host_id(),
        cpu_model=_cpu_model(),
        logical_cpus=len(os.sched_getaffinity(0)),
        physical_cores=_physical_cores(),
        memory_bytes=total_memory_bytes(),
        kernel=platform.release(),
        os=_os_name(),
        container=container_engine(),
        gpus=gpus,
        gpu_driver=driver,
        machine_type=machine_type.detect(),
    )


def summary() -> str:
    """Return this machine in a few words, for stored checks that do not depend on its speed."""
    found = detect()
    return ", ".join(filter(None, (found.cpu_model, f"{found.logical_cpus} CPUs", found.os)))


def _host_id() -> str:
    if named := os.environ.get(HOST_VARIABLE):
        return hashlib.sha256(os.fsencode(named)).hexdigest()[:16]
    identities = [text for name in IDENTITY_FILES if isinstance(text := HERE.text(name), str)]
    return hashlib.sha256("\n".join([platform.node(), *identities[:1]]).encode()).hexdigest()[:16]


def _cpu_model() -> str:
    info = HERE.text("/proc/cpuinfo")
    lines = [] if isinstance(info, Unread) else [line.partition(":") for line in info.splitlines()]
    values = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    found = (values.get(key) for key in ("model name", "Hardware", "Processor"))
    return next(filter(None, found), platform.processor() or platform.machine())


def _physical_cores() -> int | None:
    cores = set()
    with contextlib.suppress(OSError):
        for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
            package = (folder / "physical_package_id").read_text(encoding="ascii").strip()
            cores.add((package, (folder / "core_id").read_text(encoding="ascii").strip()))
    return len(cores) or None


def _os_name() -> str | None:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    return None


def _gpus() -> tuple[list[str], str | None]:
    """Return the GPUs and driver from nvidia-smi or, if it is missing as in some containers, from NVML."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        from keras_matrix.runner.machine.gpus.present import PresentGpus, present_gpus

        found = present_gpus()
        return (list(found.models), found.driver) if isinstance(found, PresentGpus) else ([], None)
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return [], None
    rows = [line.rsplit(", ", 1) for line in done.stdout.splitlines() if ", " in line]
    return [name for name, _ in rows], rows[0][1] if rows else None
