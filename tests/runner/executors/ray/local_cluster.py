"""A Ray cluster of several nodes on this machine, with a token, each node a machine of its own for the runner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

RAY = str(Path(sys.executable).parent / "ray")
START_LIMIT_S = 120
VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a token of the tests of this project",
    "RAY_worker_niceness": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node that is cut off is declared dead after 5 s instead of 25.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}


@dataclass(slots=True)
class LocalCluster:
    """A head without a measuring slot, and nodes by name. `inside` are words before each node's command."""

    port: int
    home: Path
    host: str = "127.0.0.1"
    nodes: dict[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return f"{self.host}:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes and of a runner that uses it."""
        return {**os.environ, **VARIABLES}

    def start_head(self, inside: Sequence[str] = ()) -> None:
        """Start the head."""
        arguments = ["--head", f"--port={self.port}", f"--node-ip-address={self.host}", "--include-dashboard=false"]
        self._ray(
            [*inside],
            [*arguments, "--num-cpus=0", f"--ray-client-server-port={free_port()}", f"--temp-dir={self.home}"],
        )

    def add(self, name: str, inside: Sequence[str] = (), own_address: str | None = None) -> None:
        """Add a node; it is a machine of this name. `inside` may set variables with `env NAME=VALUE`."""
        arguments = [f"--address={self.address}", "--num-cpus=1", f"--labels=machine={name}"]
        arguments += [f"--node-ip-address={own_address or self.host}", "--object-store-memory=100000000"]
        arguments += [f"--resources={json.dumps({'measuring_slot': 1})}"]
        before = set(self._raylets())
        self._ray([*inside], arguments)
        (self.nodes[name],) = set(self._raylets()) - before

    def kill(self, name: str) -> None:
        """Kill all processes of a node at once."""
        root = self.nodes.pop(name)
        for pid in [root, *descendants(root)]:
            _kill(pid)

    def stop(self) -> None:
        """Kill every process of the cluster and remove its files."""
        for _ in range(3):
            for pid in self._processes():
                _kill(pid)
            time.sleep(0.1)
        shutil.rmtree(self.home, ignore_errors=True)

    def _ray(self, inside: Sequence[str], arguments: Sequence[str]) -> None:
        command = [*inside, RAY, "start", "--disable-usage-stats", *arguments]
        done = subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=START_LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _raylets(self) -> list[int]:
        return [pid for pid in self._processes() if b"/raylet/raylet" in _command(pid).split(b"\0", 1)[0]]

    def _processes(self) -> list[int]:
        mark, client = str(self.home).encode(), f":{self.port}\0".encode()
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        roots = [pid for pid in found if pid != os.getpid() and (mark in _command(pid) or client in _command(pid))]
        return [*roots, *(pid for root in roots for pid in descendants(root))]


@contextmanager
def local_cluster(names: Sequence[str]) -> Iterator[LocalCluster]:
    """Start a cluster with these nodes; end it afterwards."""
    found = LocalCluster(free_port(), Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp")))
    try:
        found.start_head()
        for name in names:
            found.add(name)
        yield found
    finally:
        found.stop()


def descendants(root: int) -> list[int]:
    """Return all processes below a process."""
    parents: Mapping[int, int] = {
        int(entry.name): _parent(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()
    }
    found, pending = [], [root]
    while pending:
        parent = pending.pop()
        children = [pid for pid, its in parents.items() if its == parent]
        found += children
        pending += children
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
