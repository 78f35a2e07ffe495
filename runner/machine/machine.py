"""Detects the machine, without user names, addresses or environment variables, and its type as a cloud names it.

Two variables declare what cannot be detected inside a container: `KERAS_BENCHMARK_HOST` the host, and
`KERAS_BENCHMARK_MACHINE_TYPE` the machine type, such as n1-standard-8, g5.xlarge or Standard_NC6.

`KERAS_BENCHMARK_MACHINE_TYPE` is used if it is set. Otherwise the identity that the firmware reports (DMI) shows,
without any network, whether this machine is on Google Compute Engine, Amazon EC2 or Azure; only on these is the cloud's
metadata server queried.

A machine outside these clouds sends nothing. Requests use no proxy and follow no redirect, all of them together take at
most `LIMIT_S`, and at most `LIMIT_BYTES` of an answer are used. If they fail, the type is None: not measured. Not
recognised: other clouds, and EC2's oldest generations (Xen), which report other identities.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.host.system import HERE, container_engine, total_memory_bytes
from keras_matrix.records.schema import Machine
from keras_matrix.runner.errors import UsageError

# Names the machine if its identity cannot be read, as in a container, which has a new name at every start.
HOST_VARIABLE = "KERAS_BENCHMARK_HOST"
IDENTITY_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid")
VARIABLE = "KERAS_BENCHMARK_MACHINE_TYPE"
DMI = Path("/sys/class/dmi/id")
METADATA_SERVER = ("169.254.169.254", 80)
LIMIT_S = 1.0
LIMIT_BYTES = 1024
TYPE = re.compile(r"[A-Za-z0-9._-]{1,64}")
TOKEN = re.compile(r"[!-~]{1,512}")


def detect() -> Machine:
    """Return this machine; on a cloud from its metadata server as well. Raises `UsageError` for an invalid variable."""
    gpus, driver = _gpus()
    return Machine(
        host_id=_host_id(),
        cpu_model=_cpu_model(),
        logical_cpus=len(PLATFORM.usable_cpus()),
        physical_cores=_physical_cores(),
        memory_bytes=total_memory_bytes(),
        kernel=platform.release(),
        os=_os_name(),
        container=container_engine(),
        gpus=gpus,
        gpu_driver=driver,
        machine_type=detect_type(),
    )


def summary() -> str:
    """Return this machine in a few words, for stored checks that do not depend on its speed."""
    detected = detect()
    return ", ".join(filter(None, (detected.cpu_model, f"{detected.logical_cpus} CPUs", detected.os)))


def _host_id() -> str:
    if named_host := os.environ.get(HOST_VARIABLE):
        return hashlib.sha256(os.fsencode(named_host)).hexdigest()[:16]
    identities = [text for name in IDENTITY_FILES if isinstance(text := HERE.text(name), str)]
    return hashlib.sha256("\n".join([platform.node(), *identities[:1]]).encode()).hexdigest()[:16]


def _cpu_model() -> str:
    info = HERE.text("/proc/cpuinfo")
    lines = [] if isinstance(info, Unread) else [line.partition(":") for line in info.splitlines()]
    values = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    models = (values.get(key) for key in ("model name", "Hardware", "Processor"))
    return next(filter(None, models), platform.processor() or PLATFORM.machine)


def _physical_cores() -> int | None:
    cores = set()
    with contextlib.suppress(OSError):
        for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
            package_id = (folder / "physical_package_id").read_text(encoding="ascii").strip()
            cores.add((package_id, (folder / "core_id").read_text(encoding="ascii").strip()))
    return len(cores) or None


def _os_name() -> str | None:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    return None


def _gpus() -> tuple[list[str], str | None]:
    """Return the GPUs and driver from nvidia-smi or, if it is missing as in some containers, from NVML."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        from keras_matrix.runner.machine.gpus.nvml import PresentGpus, present_gpus

        present = present_gpus()
        return (list(present.models), present.driver) if isinstance(present, PresentGpus) else ([], None)
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        completed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return [], None
    rows = [line.rsplit(", ", 1) for line in completed.stdout.splitlines() if ", " in line]
    return [name for name, _ in rows], rows[0][1] if rows else None


class NoAnswer(Exception):
    """The metadata server returned no usable answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the metadata server, and the time limit of all requests to it."""

    host: str = METADATA_SERVER[0]
    port: int = METADATA_SERVER[1]
    limit_s: float = LIMIT_S


def detect_type(
    environment: Mapping[str, str] | None = None, dmi: Path | None = None, address: Address | None = None
) -> str | None:
    """Return the machine type; None outside the clouds or without an answer. Raises `UsageError` for a bad variable."""
    if stated_type := (os.environ if environment is None else environment).get(VARIABLE):
        if not TYPE.fullmatch(stated_type):
            raise UsageError(
                f"{VARIABLE}: must be 1 to 64 letters, digits, dots, underscores and hyphens, got "
                f"{stated_type[:80]!r}; set a type such as n1-standard-8, or leave it empty"
            )
        return stated_type
    ask_cloud = recognised(DMI if dmi is None else dmi)
    if ask_cloud is None:
        return None
    server = _MetadataServer(address or Address())
    with suppress(OSError, http.client.HTTPException, NoAnswer):
        machine_type = ask_cloud(server.ask)
        return machine_type if TYPE.fullmatch(machine_type) else None
    return None


Ask = Callable[[str, str, Mapping[str, str]], str]
"""Sends a method, a path and headers, and returns the text of the answer."""


def recognised(dmi: Path) -> Callable[[Ask], str] | None:
    """Return the function that queries this machine's cloud; None outside the known clouds."""
    for name, (value, ask_cloud) in CLOUDS.items():
        with suppress(OSError):
            if (dmi / name).read_text(encoding="ascii", errors="replace").strip() == value:
                return ask_cloud
    return None


def _google(ask: Ask) -> str:
    answer = ask("GET", "/computeMetadata/v1/instance/machine-type", {"Metadata-Flavor": "Google"})
    return answer.rpartition("/")[2]  # projects/NUMBER/machineTypes/TYPE


def _amazon(ask: Ask) -> str:
    token = ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    if not TOKEN.fullmatch(token):
        raise NoAnswer("the token is not printable ASCII")
    return ask("GET", "/latest/meta-data/instance-type", {"X-aws-ec2-metadata-token": token})


def _azure(ask: Ask) -> str:
    return ask("GET", "/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text", {"Metadata": "true"})


# By a file of the DMI folder: its content on a cloud, and the function that queries that cloud.
CLOUDS: Mapping[str, tuple[str, Callable[[Ask], str]]] = {
    "product_name": ("Google Compute Engine", _google),
    "sys_vendor": ("Amazon EC2", _amazon),
    "chassis_asset_tag": ("7783-7084-3265-9085-8269-3286-77", _azure),
}


class _MetadataServer:
    """Requests to one address that share one deadline. They raise OSError, `HTTPException` or `NoAnswer`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._deadline_s = time.monotonic() + address.limit_s

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        """Return the body of an answer with status 200."""
        host, port = self._address.host, self._address.port
        fields = {"Host": host, "Connection": "close", "Content-Length": "0", **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        with socket.create_connection((host, port), timeout=_left_s(self._deadline_s)) as connection:
            connection.sendall("\r\n".join(lines).encode("ascii"))
            stream = _Stream(connection, self._deadline_s)
            with closing(http.client.HTTPResponse(stream, method=method)) as response:  # type: ignore[arg-type]
                response.begin()
                body = response.read(LIMIT_BYTES + 1)
        if response.status != http.HTTPStatus.OK or len(body) > LIMIT_BYTES or response.length:
            raise NoAnswer(f"status {response.status}, {len(body)} bytes, {response.length} of them missing")
        return body.decode("ascii", errors="replace").strip()


class _Stream(io.RawIOBase):
    """Reads a socket until a deadline: the socket's own timeout would restart with every byte."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._connection.settimeout(_left_s(self._deadline_s))
        return self._connection.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the stream as `http.client` expects it."""
        return io.BufferedReader(self)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time limit of all requests has passed")
    return left_s
