"""The free memory of the cell's device, and its own peak of host memory, as a fresh interpreter would report it.

A forked child maps its server's heap but not the pages of shared libraries it has not touched, which a fresh process
would have read. The file-backed pages that the server had mapped and the child has not are added.
"""

from __future__ import annotations

from keras_matrix.records.host.procfs import ProcTree, stated_bytes
from keras_matrix.records.host.system import free_memory_bytes
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter

_server_file_bytes = 0


def mapped_file_bytes() -> int:
    """Return the resident bytes of this process that are backed by files."""
    return _status("RssFile") or 0


def set_server_file_bytes(count: int) -> None:
    """Store in a forked child what its server had mapped."""
    global _server_file_bytes  # noqa: PLW0603 - set once, by the fork, before anything else runs
    _server_file_bytes = count


def peak_resident_bytes() -> int | None:
    """Return the peak of this process; None if the kernel does not report it."""
    peak = _status("VmHWM")
    return None if peak is None else peak + max(0, _server_file_bytes - mapped_file_bytes())


def free_bytes(settings: Settings, adapter: BackendAdapter) -> int | None:
    """Return the free memory of a cell's device; None if it is not known."""
    return free_memory_bytes() if settings.device == "cpu" else adapter.free_device_memory_bytes()


def _status(name: str) -> int | None:
    size_bytes = stated_bytes(ProcTree(), "/proc/self/status", name)
    return size_bytes if isinstance(size_bytes, int) else None
