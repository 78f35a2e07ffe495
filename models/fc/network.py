"""Lets a worker process join a network namespace that `ci/netns` created.

Only the calling thread and those that it starts later change networks; the pipes to the parent process and the file by
which workers connect do not depend on the network.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000


class NoSuchNetwork(Exception):
    """A network namespace cannot be joined; the message says which one, why, and what to do."""


def enter(name: str, folder: Path = FOLDER) -> None:
    """Join the namespace `name`. Raises `NoSuchNetwork`."""
    try:
        with (folder / name).open("rb") as namespace:
            _set(namespace.fileno())
    except OSError as error:
        advice = "run as root, while ci/netns runs"
        raise NoSuchNetwork(f"network namespace {name}: cannot be joined: {error.strerror}; {advice}") from error


def own_network() -> str:
    """Return the identifier of this process's network on this machine, such as `net:[4026532281]`."""
    return str(Path("/proc/thread-self/ns/net").readlink())


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
